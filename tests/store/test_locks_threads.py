"""Locks of threads: what another thread held at a fork is free in the child, which has no such thread."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import broker
from broker.store.disk import thread_lock
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.disk.thread_lock import ThreadLock
from broker.store.read.kinds.rocksdb_queues import queue_database
from broker.testing.fixtures import SMALL

WAIT_S = 20


@contextmanager
def held(lock: ThreadLock) -> Iterator[None]:
    """Another thread has it."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            taken.set()
            done.wait(WAIT_S)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(WAIT_S)
    try:
        yield
    finally:
        done.set()
        thread.join()


def in_child(work: Callable[[], object]) -> int:
    """The status of a forked child that does some work; it ends by SIGALRM where it hangs."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(WAIT_S)
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1]


def test_a_lock_that_another_thread_held_at_the_fork() -> None:
    lock = ThreadLock()
    with held(lock):
        assert in_child(lambda: lock.acquire(blocking=False) or os._exit(2)) == 0
        assert not lock.acquire(blocking=False)


def test_a_lock_that_was_held_by_the_thread_that_forked() -> None:
    lock = ThreadLock()

    def leave() -> None:
        lock.release()
        assert lock.acquire(blocking=False)

    with lock:
        assert in_child(leave) == 0


def test_an_interrupt_at_any_line_leaves_it_free() -> None:
    """The thread that was interrupted may end: all others waited for ever."""
    lock = ThreadLock()

    def take(interrupt_at: int) -> None:
        steps = itertools.count(1)

        def step(frame: FrameType, _event: str, _argument: object) -> Any:
            if frame.f_code.co_filename == thread_lock.__file__ and next(steps) == interrupt_at:
                raise KeyboardInterrupt
            return step

        sys.settrace(step)
        with contextlib.suppress(KeyboardInterrupt), lock:
            pass

    for interrupt_at in range(1, 10):
        thread = threading.Thread(target=take, args=(interrupt_at,))
        thread.start()
        thread.join()
        assert lock.acquire(blocking=False), f"interrupted at step {interrupt_at}"
        lock.release()


@pytest.mark.parametrize("which", ["topics", "in doubt", "application"])
def test_a_child_sends_whatever_other_threads_did_at_the_fork(tmp_path: Path, which: str) -> None:
    """It hung in its first send."""
    with broker.open(tmp_path / "store", layout=SMALL, sync="os", in_doubt_max=9) as store:
        producer = store.producer("shop", topics=["orders"], resolver=lambda _: None)
        application = broker.App(tmp_path / "store", topics=["visits"])
        admission = store._admission
        assert admission.limit is not None
        locks = {"topics": admission.topics._looking, "in doubt": admission.limit._lock}

        def send() -> None:
            admission.topics.look(0)
            with producer.begin_transaction() as transaction:
                producer.send(broker.Message("orders", b"1"), transaction)
            application.send("visits", 1)

        with held(locks.get(which, application._lock)):
            assert in_child(send) == 0


def test_a_child_opens_a_store_while_another_thread_of_its_parent_opens_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """functools.cached_property has one lock for all objects before Python 3.12."""
    opening, done = threading.Event(), threading.Event()

    def slowly(paths: Paths, disk: Disk) -> str | None:
        if threading.current_thread() is thread:
            opening.set()
            done.wait(WAIT_S)
        return queue_database(paths, disk)

    def opened() -> None:
        broker.open(tmp_path / "store", sync="os").close()

    with broker.open(tmp_path / "store", layout=SMALL, sync="os") as store:
        store.append(broker.Message("orders", b"1"))
    monkeypatch.setattr("broker.store.read.kinds.every_queue.queue_database", slowly)
    thread = threading.Thread(target=opened)
    thread.start()
    assert opening.wait(WAIT_S)
    status = in_child(opened)
    done.set()
    thread.join()
    assert status == 0
