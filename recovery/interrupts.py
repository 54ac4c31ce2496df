"""Signals that end this process (SIGINT, SIGTERM): noted, or held back where half of a step would be left behind."""

from __future__ import annotations

import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def stopped_by_signal() -> threading.Event:
    """What these signals set from now on, for a program that stays: it finishes what it does, and ends."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


@contextmanager
def interrupts_later() -> Iterator[None]:
    """Signals that end this process count when the block is left. Only the main thread gets any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)
    if came:
        signal.raise_signal(signal.Signals(came[0]))


def temporary_directory(prefix: str) -> tempfile.TemporaryDirectory[str]:
    """A directory that is removed with what is returned, also when a signal arrives while it is made.

    The first call of a process also writes and removes a file in each candidate for the system's temporary directory.
    """
    with interrupts_later():
        return tempfile.TemporaryDirectory(prefix=prefix)
