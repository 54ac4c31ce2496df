"""What the table of consumers says of the members of a group."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class MemberKind(IntEnum):
    """What a member of a group is."""

    LOCAL = 0
    """A consumer in a process that has the store open: it has leases of queues."""
    SERVER = 1
    """A server with clients of the group, who have queues without a lease."""
    REGISTERED = 2
    """A server whose clients also have queues of brokers elsewhere, which are not known here."""


class MemberEntry(NamedTuple):
    """What the table says of a member."""

    number: int  # 0: the place is free
    beat_ms: int  # of its last heartbeat, by the clock of this boot
    group_cell: int
    topics: int  # hash of their names
    kind: int  # MemberKind
