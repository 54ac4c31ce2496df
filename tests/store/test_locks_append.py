"""The append lock: one thread of one process at a time, whoever is killed or forked."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from broker.errors import StoreError
from broker.store.disk import append_lock
from broker.store.disk.append_lock import AppendLock
from broker.store.disk.files import Disk, Map
from broker.store.disk.lock_calls import flock_keeping_gil

# From 3.12 on Python warns of a fork while other threads run, which is just what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture
def lock(tmp_path: Path) -> AppendLock:
    return AppendLock(str(tmp_path / "append.lock"))


@pytest.fixture
def counter(tmp_path: Path) -> Map:
    """A number in a file that all processes map."""
    Disk().allocate(str(tmp_path / "counter"), 4096)
    return Disk().open_map(str(tmp_path / "counter"), 4096)


def _count(lock: AppendLock, counter: Map, times: int) -> None:
    for _ in range(times):
        with lock:
            seen = counter.words[0]
            for _ in range(20):  # room for another to come between
                pass
            counter.words[0] = seen + 1


def _count_spawned(lock: str, counter: str, times: int) -> None:
    _count(AppendLock(lock), Disk().open_map(counter, 4096), times)


@pytest.mark.parametrize("method", ["thread", "fork", "spawn"])
def test_nothing_is_counted_twice(lock: AppendLock, counter: Map, method: str) -> None:
    """Forked children use the very object that their parent made."""
    times, many = 3000, 3
    workers: list[Any]
    if method == "thread":
        workers = [threading.Thread(target=_count, args=(lock, counter, times)) for _ in range(many)]
    elif method == "fork":
        fork = multiprocessing.get_context("fork")
        workers = [fork.Process(target=_count, args=(lock, counter, times)) for _ in range(many)]
    else:
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=_count_spawned, args=(lock.path, counter.path, times)) for _ in range(many)]
    for worker in workers:
        worker.start()
    _count(lock, counter, times)
    for worker in workers:
        worker.join()
    assert counter.words[0] == times * (many + 1)


def test_without_the_c_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own flock does it all then."""
    monkeypatch.setitem(sys.modules, "ctypes", None)
    monkeypatch.setattr(append_lock, "flock_keeping_gil", flock_keeping_gil.__wrapped__)
    lock, other = AppendLock(str(tmp_path / "lock")), AppendLock(str(tmp_path / "lock"))
    for _ in range(2):
        with lock:
            assert not other.try_acquire()
    assert other.try_acquire()
    other.release()


@pytest.mark.parametrize("round_", range(5))
def test_a_killed_holder_lets_go(lock: AppendLock, counter: Map, round_: int) -> None:
    pid = os.fork()
    if pid == 0:
        with lock:
            counter.words[0] = 1
            signal.pause()
    while counter.words[0] == 0:
        time.sleep(0.001)
    assert not lock.try_acquire()
    os.kill(pid, signal.SIGKILL)
    with lock:
        assert counter.words[0] == 1
    os.waitpid(pid, 0)


def test_killed_at_any_instant(lock: AppendLock, counter: Map) -> None:
    """One after another is killed in the middle of counting; the lock goes on and on."""
    for number in range(20):
        pid = os.fork()
        if pid == 0:
            while True:
                _count(lock, counter, 1000)
        before = counter.words[0]
        time.sleep(0.002 + 0.001 * number)
        os.kill(pid, signal.SIGKILL)
        with lock:
            counter.words[0] += 1
        os.waitpid(pid, 0)
        assert counter.words[0] > before


def test_a_child_that_lives_on_does_not_hold_what_its_parent_held(lock: AppendLock) -> None:
    """Forked while the lock is held: the child has neither the lock nor the parent's descriptor."""
    out, other = os.pipe(), AppendLock(lock.path)
    with lock:
        pid = os.fork()
        if pid == 0:
            os.write(out[1], str(lock.try_acquire()).encode())
            signal.pause()
        assert os.read(out[0], 10) == b"False"
        assert not other.try_acquire()
    assert other.try_acquire()
    other.release()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_child_leaves_the_block_it_was_forked_in(lock: AppendLock) -> None:
    """It comes to the end of the parent's `with`: nothing of the parent's is let go."""
    other, out = AppendLock(lock.path), os.pipe()
    with lock:
        pid = os.fork()
    if pid == 0:
        os.write(out[1], b"left")
        signal.pause()
    lock.acquire()
    assert os.read(out[0], 10) == b"left"
    assert not other.try_acquire()
    lock.release()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_forking_while_a_thread_holds_it(lock: AppendLock) -> None:
    """The child has no such thread, so nothing may wait for it."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    out = os.pipe()
    pid = os.fork()
    if pid == 0:
        with lock:  # waits for the parent's thread, by the file
            os.write(out[1], b"got")
        os._exit(0)
    assert not lock.try_acquire()
    done.set()
    assert os.read(out[0], 10) == b"got"
    thread.join()
    os.waitpid(pid, 0)


def test_taken_twice_by_a_thread(lock: AppendLock) -> None:
    """A signal handler that sends in the middle of an append: an error, no dead end and no broken record."""
    other = AppendLock(lock.path)
    with lock:
        with pytest.raises(StoreError, match="already inside an append"), lock:
            pass
        assert not lock.try_acquire()
        assert not other.try_acquire()
    assert other.try_acquire()
    other.release()
    with lock:
        pass


def test_closed(lock: AppendLock) -> None:
    other = AppendLock(lock.path)
    lock.close()
    lock.close()
    with pytest.raises(StoreError, match="was closed"), lock:
        pass
    with pytest.raises(StoreError, match="was closed"):
        lock.try_acquire()
    with pytest.raises(StoreError, match="was closed"):
        lock.acquire()
    with other:
        pass


def test_closing_waits_for_an_append(lock: AppendLock) -> None:
    other, held, order = AppendLock(lock.path), threading.Event(), []

    def append() -> None:
        with lock:
            held.set()
            time.sleep(0.05)
            order.append(("append", other.try_acquire()))

    thread = threading.Thread(target=append)
    thread.start()
    held.wait()
    lock.close()
    order.append(("closed", other.try_acquire()))
    thread.join()
    assert order == [("append", False), ("closed", True)]


def test_closed_inside(lock: AppendLock) -> None:
    other = AppendLock(lock.path)
    with lock:
        lock.close()
    assert other.try_acquire()
    other.release()


def test_a_lock_file_that_was_moved_is_still_the_one_of_a_child(lock: AppendLock) -> None:
    """The child's own description is of the same file, whatever its name is by now."""
    os.rename(lock.path, lock.path + ".moved")
    other = AppendLock(lock.path + ".moved")
    with other:
        pid = os.fork()
        if pid == 0:
            os._exit(int(lock.try_acquire()))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_lone_process_keeps_it_until_another_wants_it(lock: AppendLock) -> None:
    other, alone = AppendLock(lock.path), [True]
    lock.hold_across_appends(lambda: alone[0])
    for _ in range(3):
        with lock:
            pass
        assert not other.try_acquire()
    assert lock.try_acquire()
    lock.release()
    assert not other.try_acquire()
    alone[0] = False
    with lock:
        pass
    assert other.try_acquire()
    other.release()


def test_what_was_kept_is_let_go(lock: AppendLock) -> None:
    """At once when nobody is inside; else when they leave."""
    other = AppendLock(lock.path)
    lock.hold_across_appends(lambda: True)
    with lock:
        pass
    lock.release_kept()
    assert other.try_acquire()
    other.release()
    lock.hold_across_appends(lambda: True)
    with lock:
        letting = threading.Thread(target=lock.release_kept)
        letting.start()
        letting.join()
        assert not other.try_acquire()
    assert other.try_acquire()
    other.release()
    lock.hold_across_appends(lambda: True)
    with lock:
        pass
    lock.close()
    assert other.try_acquire()
    other.release()


def test_a_child_does_not_have_what_its_parent_kept(lock: AppendLock) -> None:
    lock.hold_across_appends(lambda: True)
    with lock:
        pass
    pid = os.fork()
    if pid == 0:
        os._exit(int(lock.try_acquire()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    lock.release_kept()
    pid = os.fork()
    if pid == 0:
        os._exit(int(lock.try_acquire()))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
