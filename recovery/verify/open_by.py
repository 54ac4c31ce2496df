"""Which processes have a store open at this moment, as far as Linux says it; nothing is touched, no lock is taken.

A 5.x broker holds a POSIX lock on STORE/lock once it has loaded; 3.x locks nothing. Every broker maps the CommitLog.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from broker.store.disk.paths import Paths

_PROCESSES = "/proc"


@dataclass(frozen=True, slots=True)
class Writer:
    """A process that has the store open; `pid` is None when the system does not tell (a lock of another container)."""

    pid: int | None
    how: str  # "holds the lock" or "maps the CommitLog"


def writers(store: str) -> list[Writer] | None:
    """The processes that hold STORE/lock or map the CommitLog; None where the system does not say.

    Without root only processes of this user show what they map; a lock shows for all.
    """
    if not os.path.isdir(os.path.join(_PROCESSES, "self")):
        return None
    found = [Writer(pid, "holds the lock") for pid in _lock_holders(os.path.join(store, "lock"))]
    known = {writer.pid for writer in found}
    commitlog = os.path.realpath(Paths(store).commitlog) + os.sep
    found += [Writer(pid, "maps the CommitLog") for pid in _mapping(commitlog) if pid not in known]
    return found


def _lock_holders(path: str) -> Iterator[int | None]:
    """The processes with a lock on a file. A line: `1: POSIX ADVISORY WRITE 4711 fd:01:131074 0 0`."""
    try:
        file = os.stat(path)
    except OSError:
        return
    wanted = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    for line in _lines(os.path.join(_PROCESSES, "locks")):
        words = line.split()
        if len(words) >= 8 and words[1] != "->" and words[5] == wanted:
            pid = int(words[4]) if words[4].isdecimal() else 0
            yield pid or None


def _mapping(directory: str) -> Iterator[int]:
    """The processes that map a file below a directory."""
    for name in os.listdir(_PROCESSES):
        if name.isdecimal() and any(directory in line for line in _lines(os.path.join(_PROCESSES, name, "maps"))):
            yield int(name)


def _lines(path: str) -> Iterator[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            yield from file
    except OSError:  # it ended meanwhile, or belongs to somebody else
        return
