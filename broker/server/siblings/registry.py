"""Which clients of each group are connected to the other servers of a store.

    STORE/checkback/servers/3.json     the consumers that the server at place 3 has, see Membership

Each server writes its own file, and reads those of servers that live: a killed one is gone at once, since the system
releases its lock. A client that asks who is in its group gets the same list from every server.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from broker.errors import StoreError
from broker.store.disk.files import Entry, Missing

if TYPE_CHECKING:
    from broker.consuming.membership import Membership
    from broker.live import LiveStore

Groups = Mapping[str, Sequence[str]]  # client ids by group
_SUFFIX = ".json"


class SiblingRegistry:
    """What one server tells the others, and what they tell it. Threads share it."""

    def __init__(self, store: LiveStore, member: Membership) -> None:
        """`member` is this server's own place."""
        self._disk, self._directory, self._member = store.writer.disk, store.writer.paths.servers, member
        self._lock = threading.Lock()
        self._own: bytes | None = None
        self._read: dict[str, tuple[tuple[int, int, int], tuple[int, Groups]]] = {}  # path: file, number and groups
        self._others: dict[str, tuple[str, ...]] = {}
        self._disk.create_directory(self._directory)

    @property
    def _path(self) -> str:
        return os.path.join(self._directory, f"{self._member.place}{_SUFFIX}")

    def client_ids(self, group: str) -> list[str]:
        """The clients of a group that are connected to other servers."""
        with self._lock:
            return list(self._others.get(group, ()))

    def publish(self, groups: Groups) -> None:
        """Publish which clients are connected here. Raises StoreError."""
        groups_here = {group: sorted(ids) for group, ids in sorted(groups.items())}
        raw = json.dumps({"number": self._member.number, "groups": groups_here}).encode()
        if raw != self._own:
            self._disk.write_file(self._path, raw, durable=False)
            self._own = raw

    def refresh(self) -> set[str]:
        """Read what the others published; the groups whose clients elsewhere changed."""
        found: dict[str, set[str]] = {}
        entries = [entry for entry in self._disk.entries(self._directory) if entry.name.endswith(_SUFFIX)]
        for entry in entries:
            place = entry.name.removesuffix(_SUFFIX)
            if entry.path == self._path or not place.isdecimal():
                continue
            number, groups = self._published(entry)
            if self._member.lives(number, int(place)):
                for group, ids in groups.items():
                    found.setdefault(group, set()).update(ids)
        others = {group: tuple(sorted(ids)) for group, ids in found.items()}
        with self._lock:
            before, self._others = self._others, others
        return {group for group in before.keys() | others.keys() if before.get(group) != others.get(group)}

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

    def leave(self) -> None:
        """Take this server's file away."""
        with contextlib.suppress(StoreError):
            self._disk.remove(self._path, durable=False)
