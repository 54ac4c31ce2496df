"""STORE/lock: shared, exclusive, and against a real broker's POSIX lock; by fork and spawn, whoever is killed."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from broker.errors import StoreLocked
from broker.store.disk.files import Disk
from broker.store.disk.lock_calls import reopened
from broker.store.disk.store_lock import StoreLock, is_held

# From 3.12 on Python warns of a fork while other threads run, which is just what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
linux = pytest.mark.skipif(sys.platform != "linux", reason="flock stands in elsewhere")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "lock")


def _hold(path: str, how: str, ready: Any) -> None:
    """Hold the lock until killed."""
    if how == "java":  # FileChannel.tryLock(0, 1, false)
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    else:
        lock = StoreLock(path)
        assert lock.try_exclusive() if how == "exclusive" else lock.try_share()
    ready.set()
    time.sleep(600)


@pytest.fixture
def holding(path: str, request: pytest.FixtureRequest) -> Callable[[str, str], BaseProcess]:
    """`holding(how, start)`: another process that holds the lock."""

    def start(how: str, method: str) -> BaseProcess:
        context: Any = multiprocessing.get_context(method)
        ready = context.Event()
        child = context.Process(target=_hold, args=(path, how, ready), daemon=True)
        child.start()
        request.addfinalizer(child.join)
        request.addfinalizer(child.kill)
        assert ready.wait(60)
        return child  # type: ignore[no-any-return]

    return start


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("how", ["shared", "exclusive", "java"])
def test_another_process_has_it_until_it_is_killed(
    path: str, holding: Callable[[str, str], BaseProcess], how: str, method: str
) -> None:
    child = holding(how, method)
    lock = StoreLock(path)
    assert is_held(path)
    assert not lock.try_exclusive()
    assert lock.try_share() == (how == "shared")
    assert lock.held == ("shared" if how == "shared" else "")
    if sys.platform == "linux":
        lock.release()
        assert lock.holder() == child.pid
        assert f"process {child.pid}" in str(lock.locked())
    child.kill()
    child.join()
    assert lock.try_exclusive()
    lock.release()
    assert not is_held(path)


@pytest.mark.parametrize("shared", [True, False])
def test_a_real_broker_does_not_get_in(path: str, shared: bool) -> None:
    """It asks for a POSIX write lock on byte 0, without waiting."""
    lock = StoreLock(path)
    assert lock.try_share() if shared else lock.try_exclusive()
    broker = f"""
import fcntl, os
fcntl.lockf(os.open({path!r}, os.O_RDWR), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
"""
    done = subprocess.run([sys.executable, "-c", broker], capture_output=True, text=True, check=False)
    assert "BlockingIOError" in done.stderr
    lock.release()
    subprocess.run([sys.executable, "-c", broker], check=True)


def test_two_of_one_process_are_kept_apart(path: str) -> None:
    a, b = StoreLock(path), StoreLock(path)
    assert a.try_exclusive()
    assert not b.try_share()
    a.downgrade()
    assert (a.held, b.try_share(), b.held) == ("shared", True, "shared")
    assert not a.try_exclusive()
    assert a.held == "shared"
    b.release()
    b.release()
    assert a.try_exclusive()
    os.close(os.open(path, os.O_RDONLY))  # a POSIX lock would be lost by this
    assert not b.try_share()


def test_no_moment_between_exclusive_and_shared(path: str) -> None:
    lock, other, stop, stolen = StoreLock(path), StoreLock(path), threading.Event(), []

    def steal() -> None:
        while not stop.is_set():
            if other.try_exclusive():
                stolen.append(1)

    assert lock.try_exclusive()
    thread = threading.Thread(target=steal)
    thread.start()
    for _ in range(2000):
        lock.downgrade()
        assert lock.try_exclusive()
    stop.set()
    thread.join()
    assert not stolen


def test_share_waits_for_a_recovery(path: str) -> None:
    first, second = StoreLock(path), StoreLock(path)
    assert first.try_exclusive()
    with pytest.raises(StoreLocked, match="is locked by process") as caught:
        second.share(0.02)
    assert caught.value.path == path
    timer = threading.Timer(0.05, first.downgrade)
    timer.start()
    second.share(30)
    timer.join()
    assert second.held == "shared"


def test_the_probe_changes_nothing(tmp_path: Path, path: str) -> None:
    assert not is_held(path)
    assert not list(tmp_path.iterdir())
    Path(path).touch()
    Path(path).chmod(0o400)
    before = os.stat(path)
    assert not is_held(path)
    assert os.stat(path) == before
    lock = StoreLock(path)
    Path(path).chmod(0o600)
    assert lock.try_share()
    assert is_held(path)


def test_a_lock_file_that_is_replaced(path: str) -> None:
    """A lock on a file that has no name any more keeps nobody out."""
    lock = StoreLock(path)
    assert lock.try_share()
    os.unlink(path)
    other = StoreLock(path)
    assert other.try_exclusive()
    lock.release()
    assert not lock.try_share()
    other.release()
    assert lock.try_share()


class _Replacing(Disk):
    """Someone puts another lock file in place just after the first was opened."""

    def open_lock(self, path: str, *, write: bool = True) -> int:
        descriptor = super().open_lock(path, write=write)
        if not os.path.exists(path + ".old"):
            os.rename(path, path + ".old")
            Path(path).touch()
        return descriptor


def test_a_lock_file_that_is_replaced_meanwhile(path: str) -> None:
    lock, other = StoreLock(path, _Replacing()), StoreLock(path)
    assert lock.try_exclusive()
    assert os.path.exists(path + ".old")
    assert not other.try_share()


@linux
def test_a_forked_child_holds_its_own(path: str) -> None:
    lock, other = StoreLock(path), StoreLock(path)
    assert lock.try_share()
    go, gone = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        good = lock.held == "shared"
        os.write(gone[1], b"1" if good else b"0")
        os.read(go[0], 1)
        lock.release()
        os.write(gone[1], b"2")
        signal.pause()
    assert os.read(gone[0], 1) == b"1"
    lock.release()
    assert not other.try_exclusive(), "the child holds it still"
    assert lock.try_share()
    os.write(go[1], b"x")
    assert os.read(gone[0], 1) == b"2"
    assert not other.try_exclusive(), "the child let go of its own, not of ours"
    lock.release()
    assert other.try_exclusive()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@linux
def test_a_child_of_who_is_alone_holds_nothing(path: str) -> None:
    lock, other = StoreLock(path), StoreLock(path)
    assert lock.try_exclusive()
    out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(out[1], f"{lock.held}|{lock.try_share()}".encode())
        signal.pause()
    assert os.read(out[0], 100) == b"|False"
    lock.release()
    assert other.try_exclusive()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_fork_while_another_thread_closes_the_store(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that the thread closed may be that of another file at once: the fork closed it again."""
    lock = StoreLock(path)
    assert lock.try_share()
    number, closed = lock._descriptor, threading.Thread(target=lock.release)

    def reopened_late(descriptor: int, path: str, disk: Disk) -> int:
        closed.start()
        closed.join(0.2)  # it waits until the fork is done
        others.append(os.open("/dev/null", os.O_RDONLY))
        return reopened(descriptor, path, disk)

    others: list[int] = []
    monkeypatch.setattr("broker.store.disk.store_lock.reopened", reopened_late)
    lock.after_fork_in_parent()
    closed.join()
    assert number not in others
    os.fstat(others[0])
    assert lock._descriptor < 0
    assert not is_held(path)
    os.close(others[0])


def test_without_open_file_description_locks(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS: flock, which there conflicts with a POSIX lock too."""
    monkeypatch.setattr("broker.store.disk.lock_calls._HAS_OFD", False)
    test_two_of_one_process_are_kept_apart(path)
    lock = StoreLock(path)
    assert lock.try_share()
    assert is_held(path)
    lock.release()
    assert not is_held(path)
