"""A mark that is gone in a process that was forked after it was set, whether Python saw the fork or not.

Each append asks for it. `os.getpid()` would be a system call for each, a fiftieth of a transaction in all.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from typing import Protocol

_MADV_WIPEONFORK = 18  # Linux 4.14; Python does not name it


class ForkMark(Protocol):
    """One byte, at [0]: 0 until it is set, and in a child again."""

    def __getitem__(self, at: int, /) -> int: ...

    def __setitem__(self, at: int, value: int, /) -> None: ...


def fork_mark() -> ForkMark:
    """A new mark, not set."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            page = mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            page.madvise(_MADV_WIPEONFORK)  # the system empties it in a child
            return page
    return ProcessMark()


class ProcessMark:
    """The same where the system empties no page: it asks which process this is."""

    def __init__(self) -> None:
        self._process = 0

    def __getitem__(self, at: int) -> int:
        return int(self._process == os.getpid())

    def __setitem__(self, at: int, value: int) -> None:
        self._process = os.getpid() if value else 0
