"""What an interrupt (Ctrl-C, a time limit of a worker) at any line leaves of the append lock."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from broker.errors import StoreError
from broker.store.disk.append_lock import AppendLock


@pytest.fixture
def lock(tmp_path: Path) -> AppendLock:
    return AppendLock(str(tmp_path / "append.lock"))


class Interrupted(BaseException):
    """As Ctrl-C, but for a thread that nobody else lives in: one may come late, after the last `except`."""


class Victim:
    """A thread that takes a lock and lets go of it again and again, interrupted at any line."""

    def __init__(self, path: str) -> None:
        self.lock = AppendLock(path)
        self.hits = self.leaked = 0
        self.is_over = False

    def torment(self, times: int) -> None:
        """Interrupt so often. One interrupt during another's `except` ends the thread: go on with the next."""
        interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
        while not self.is_over:
            thread = threading.Thread(target=self._work)
            thread.start()
            while thread.is_alive() and self.hits < times:
                time.sleep(0.0005)
                interrupt(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Interrupted))
            self.is_over = self.hits >= times
            thread.join()
            if not self.is_over:
                self._renew()

    def _work(self) -> None:
        while not self.is_over:
            try:
                while not self.is_over:
                    with self.lock:
                        pass
            except Interrupted:
                self.hits += 1
            except StoreError:  # what an interrupt left is told
                self.leaked += 1
                self._renew()
        self.lock.close()

    def _renew(self) -> None:
        self.lock.close()
        self.lock = AppendLock(self.lock.path)


@pytest.mark.parametrize("is_inside", [True, False])
def test_an_interrupt_at_any_line_of_a_close_leaves_it_to_others(tmp_path: Path, is_inside: bool) -> None:
    """Behind one of them the descriptor was forgotten, and the file locked as long as the process lived.

    So it was, too, where interrupts in the middle of a release had left it locked, and nobody inside.
    """
    path, is_interrupted, number = str(tmp_path / "closed.lock"), True, 0
    while is_interrupted:
        lock, number, is_interrupted = AppendLock(path), number + 1, False
        lock.acquire()
        lock._held = is_inside
        with interrupted_at(AppendLock._drop.__code__, number):
            try:
                lock.close()
            except Interrupted:
                is_interrupted = True
        lock.close()
        other = AppendLock(path)
        assert other.try_acquire(), number
        other.close()
    assert number > 4


@contextmanager
def interrupted_at(code: CodeType, number: int) -> Iterator[None]:
    """An interrupt at so many lines of a function, from 1 on."""
    left = number

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        if frame.f_code is code and event == "line":
            left -= 1
            if left == 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_interrupts_at_any_line_leave_it_free(lock: AppendLock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C again and again: either the lock is free afterwards, or the thread is told; others are never misled."""
    monkeypatch.setattr(threading, "excepthook", lambda about: None)
    # One that comes in a destructor: pytest's own hook would be interrupted, too.
    monkeypatch.setattr(sys, "unraisablehook", lambda about: None)
    victim = Victim(lock.path)
    victim.torment(300)
    assert victim.leaked < victim.hits  # on a busy machine most interrupts come where the lock is waited for
    other = AppendLock(lock.path)
    assert other.try_acquire()
    other.release()


def test_what_an_interrupt_left_is_given_back(lock: AppendLock) -> None:
    """By the thread that has it alone; another one's append goes on."""
    other, inside, done = AppendLock(lock.path), threading.Event(), threading.Event()

    def append() -> None:
        with lock:
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=append)
    thread.start()
    inside.wait(10)
    lock.give_back()
    assert not other.try_acquire()
    done.set()
    thread.join()
    lock.acquire()
    lock.give_back()
    lock.give_back()
    assert other.try_acquire()
    other.release()


@pytest.mark.parametrize("where", ["whether it is alone", "the call that unlocks"])
def test_an_interrupt_in_the_middle_of_a_release_leaves_it_free(lock: AppendLock, where: str) -> None:
    """The thread that was interrupted ended, as one of a time limit does: each other thread waited for ever."""
    other, unlock = AppendLock(lock.path), lock._flock_now

    def interrupt(*_: object) -> bool:
        raise Interrupted

    def append() -> None:
        lock.acquire()
        if where == "whether it is alone":
            lock.hold_across_appends(interrupt)
        else:
            lock._flock_now = interrupt  # type: ignore[assignment]
        with pytest.raises(Interrupted):
            lock.release()

    thread = threading.Thread(target=append)
    thread.start()
    thread.join()
    lock._alone, lock._flock_now = None, unlock
    assert other.try_acquire()
    other.release()
    assert lock.try_acquire()
    lock.release()


def test_what_an_interrupt_in_the_middle_of_a_release_left_is_given_back(lock: AppendLock) -> None:
    """Nobody is inside any more, and file and threads are still locked."""
    other = AppendLock(lock.path)
    lock.acquire()
    lock._held = False
    lock.give_back()
    assert other.try_acquire()
    other.release()
    got: list[bool] = []
    thread = threading.Thread(target=lambda: got.append(lock.try_acquire()))
    thread.start()
    thread.join()
    assert got == [True]
