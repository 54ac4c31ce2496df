"""A fork that Python was not told of, as uWSGI makes one by default: the child shares its parent's locks."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import broker
from broker.errors import StoreError
from broker.live import LiveStore
from broker.store.disk.append_lock import AppendLock
from broker.store.disk.fork_mark import ForkMark, ProcessMark, fork_mark
from broker.store.disk.store_lock import StoreLock
from broker.store.write.uniquekey import new_unique_key
from broker.testing.fixtures import SMALL
from recovery.verify import verify

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="C's fork is called")


def forked(work: Callable[[], object]) -> None:
    """Run the work in a child that no handler of os.register_at_fork prepared. Raises AssertionError when it raises.

    A child that does not end is made once more: on a busy machine it may wait for a thread that asked for the lock of
    Python as it was made.
    """
    status = _forked_once(work)
    assert (_forked_once(work) if status == signal.SIGKILL else status) == 0


def _forked_once(work: Callable[[], object]) -> int:
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(3600)
    try:
        time.sleep(0.02)  # until no thread asks by the old interval
        child = ctypes.PyDLL(None).fork()
        if child == 0:
            failed = 1
            with contextlib.suppress(BaseException):
                work()
                failed = 0
            os._exit(failed)
    finally:
        sys.setswitchinterval(interval_s)
    return _ended(child)


def _ended(child: int) -> int:
    """The status of a child; one that waits for a lock of its parent is killed."""
    deadline_s = time.monotonic() + 30
    while not (found := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline_s:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    return found[1]


def refused() -> contextlib.AbstractContextManager[object]:
    text = "was opened in process .* without Python's knowledge: nothing was stored.* lazy-apps"
    return pytest.raises(StoreError, match=text)


def send(store: LiveStore) -> None:
    store.producer("web").send(broker.Message("visits", b"1"))


@pytest.mark.parametrize("make", [fork_mark, ProcessMark])
def test_a_mark_is_gone_in_the_child(make: Callable[[], ForkMark]) -> None:
    mark = make()
    assert not mark[0]
    mark[0] = 1

    def child() -> None:
        assert not mark[0]
        mark[0] = 1
        assert mark[0]
        mark[0] = 0

    forked(child)
    assert mark[0]


def test_the_system_takes_the_mark() -> None:
    assert not isinstance(fork_mark(), ProcessMark)


@pytest.mark.parametrize("has_sent", [False, True])
def test_nothing_is_stored_in_the_child(tmp_path: Path, has_sent: bool) -> None:
    """It was stored at the offset of the parent's next message: one of the two was lost, and the store damaged."""
    with broker.open(tmp_path / "store", layout=SMALL) as store:
        unknown = broker.LocalTransactionState.UNKNOW
        producer = store.producer("shop", topics=["orders"], resolver=lambda _: unknown)
        half = store.transactions.prepare(broker.Message("orders", b"2"), "shop")
        if has_sent:
            send(store)

        def child() -> None:
            with refused():
                send(store)
            with refused(), producer.begin_transaction() as transaction:
                producer.send(broker.Message("orders", b"3"), transaction)
            with refused():
                store.transactions.commit(half)

        forked(child)
        send(store)
        store.transactions.commit(half)
    report = verify(tmp_path / "store")
    assert not list(report.findings)
    assert report.records == 3 + has_sent  # the half message, its end, and what the parent sent


def test_the_child_closes_no_store_of_its_parent(tmp_path: Path) -> None:
    with broker.open(tmp_path / "store", layout=SMALL) as store:
        send(store)
        forked(store.close)
        assert (tmp_path / "store/abort").exists()
        assert not StoreLock(str(tmp_path / "store/lock")).try_exclusive()
        send(store)


def test_the_child_unlocks_nothing_of_its_parent(tmp_path: Path) -> None:
    lock = AppendLock(str(tmp_path / "lock"))

    def child() -> None:
        with refused():
            lock.acquire()
        with refused():
            lock.try_acquire()
        lock.close()

    with lock:
        forked(child)
        assert not AppendLock(lock.path).try_acquire()
    assert AppendLock(lock.path).try_acquire()


def test_its_unique_keys_are_its_own() -> None:
    """Two workers that open the store after the fork counted on from one number of their parent."""
    read, write = os.pipe()
    new_unique_key(1)
    forked(lambda: os.write(write, new_unique_key(2).encode()))
    assert os.read(read, 64).decode()[:-12] != new_unique_key(2)[:-12]
    os.close(read), os.close(write)
