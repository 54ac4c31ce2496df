"""Which clients the servers of a store have connected, for a person who looks: nothing is locked, joined or changed."""

from __future__ import annotations

import os

from broker.consuming.group.consumer_table import MEMBER_BYTES, MEMBERS, member_at
from broker.consuming.group.members import MemberEntry
from broker.consuming.group.membership import SILENT_MS, is_locked, monotonic_ms
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.shared.published_clients import PublishedClients

_NO_PLACE = -1


def served_clients(path: str) -> dict[str, list[str]]:
    """The ids of connected consumers by group, of all servers that live; empty where none runs. Raises StoreError."""
    disk, paths = Disk(), Paths(path)
    if disk.entry(paths.servers) is None or disk.entry(paths.consumers) is None:
        return {}
    table, members = disk.open_read(paths.consumers), os.path.join(os.path.dirname(paths.consumers), "members")

    def lives(number: int, place: int) -> bool:
        raw = table.pread(MEMBER_BYTES, member_at(place) * 8) if place < MEMBERS else b""
        if len(raw) < MEMBER_BYTES:
            return False
        found = MemberEntry(*memoryview(raw).cast("Q")[: len(MemberEntry._fields)])
        return (
            found.number == number
            and monotonic_ms() - found.beat_ms < SILENT_MS
            and is_locked(disk, members, place)
        )  # fmt: skip

    published = PublishedClients(disk, paths.servers, _NO_PLACE, lives)
    published.refresh()
    return published.groups()
