"""Which clients of each group are connected to the servers of a store.

    STORE/checkback/servers/3.json     the consumers that the server at place 3 has, see Membership

Each server writes its own file, other servers and consumers read it. The files of servers that were killed do not
count: the system releases their locks.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.store.disk.files import Disk, Entry, Missing

Groups = Mapping[str, Sequence[str]]  # client ids by group
SUFFIX = ".json"


class PublishedClients:
    """The clients of all servers but the own one. Threads share it."""

    def __init__(self, disk: Disk, directory: str, place: int, lives: Callable[[int, int], bool]) -> None:
        """`place` is the own one: of a server it names the own file. `lives(number, place)` is asked for others."""
        self._disk, self._directory, self._place, self._lives = disk, directory, place, lives
        self._lock = threading.Lock()
        self._read: dict[str, tuple[tuple[int, int, int], tuple[int, Groups]]] = {}  # path: file, number and groups
        self._others: dict[str, tuple[str, ...]] = {}

    @property
    def path(self) -> str:
        """The file of the server at the own place."""
        return os.path.join(self._directory, f"{self._place}{SUFFIX}")

    def client_ids(self, group: str) -> list[str]:
        """The clients of a group that were connected to other servers at the last refresh."""
        with self._lock:
            return list(self._others.get(group, ()))

    def groups(self) -> dict[str, list[str]]:
        """All of these, by group."""
        with self._lock:
            return {group: list(ids) for group, ids in self._others.items()}

    def refresh(self) -> set[str]:
        """Read what other servers published; the groups whose clients there changed. Raises StoreError."""
        found: dict[str, set[str]] = {}
        for entry, place in self._files():
            number, groups = self._published(entry)
            if self._lives(number, place):
                for group, ids in groups.items():
                    found.setdefault(group, set()).update(ids)
        others = {group: tuple(sorted(ids)) for group, ids in found.items()}
        with self._lock:
            before, self._others = self._others, others
        return {group for group in before.keys() | others.keys() if before.get(group) != others.get(group)}

    def published(self) -> list[dict[str, Any]]:
        """What each other server that lives has in its file. Raises StoreError."""
        found = []
        for entry, place in self._files():
            with contextlib.suppress(Missing, ValueError, KeyError, TypeError):
                content = json.loads(self._disk.read(entry.path))
                if self._lives(int(content["number"]), place):
                    found.append(content)
        return found

    def _files(self) -> list[tuple[Entry, int]]:
        """The files of the other servers, with their places."""
        named = [(entry, entry.name.removesuffix(SUFFIX)) for entry in self._disk.entries(self._directory)]
        files = [(entry, place) for entry, place in named if entry.name.endswith(SUFFIX) and place.isdecimal()]
        return [(entry, int(place)) for entry, place in files if entry.path != self.path]

    def _published(self, entry: Entry) -> tuple[int, Groups]:
        """The number of a server and its groups; (0, nothing) for a file that goes or is damaged."""
        mark = (entry.inode, entry.size, entry.changed_ns)
        known = self._read.get(entry.path)
        if known is not None and known[0] == mark:
            return known[1]
        published: tuple[int, Groups] = (0, {})
        with contextlib.suppress(Missing, ValueError, KeyError, TypeError, AttributeError):
            content = json.loads(self._disk.read(entry.path))
            groups = {str(group): tuple(map(str, ids)) for group, ids in content["groups"].items()}
            published = int(content["number"]), groups
        self._read[entry.path] = (mark, published)
        return published
