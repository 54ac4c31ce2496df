"""The transaction state table of 3.0: slot n is the state of the prepared record whose QUEUEOFFSET is n.

    STORE/transaction/statetable/00000000000000000000    slot n lies at byte 24 * n of the files taken together

Only `state` ever changes after a slot was appended. Unused slots are zero. RocketMQ: TransactionStateService (3.1.4).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.format.java import string_hash
from broker.format.layout import Layout, i32, i64
from broker.format.sysflag import TransactionType

SLOT_SIZE = 24
FILE_SIZE = 2_000_000 * SLOT_SIZE  # by default


@dataclass(frozen=True)
class Slot(Layout, size=SLOT_SIZE):
    """The state of one transaction."""

    commitlog_offset: i64  # of the prepared record
    size: i32  # of the prepared record, in bytes
    store_time_s: i32  # its store timestamp, in whole seconds
    group_hash: i32  # Java's hash of its producer group
    state: i32  # 4 prepared, 8 committed, 12 rolled back; of the engine half-op 20, stored again

    @property
    def is_end(self) -> bool:
        return is_end(self)


RENEWED = 20  # ours, of the engine half-op: a broker stored the half message again, and the later one counts
STATES = frozenset((*(int(kind) for kind in TransactionType if kind is not TransactionType.NONE), RENEWED))
STATE_AT = Slot.OFFSET["state"]


def is_end(slot: Slot) -> bool:
    """Whether the table ends before this slot. RocketMQ: TransactionStateService.recoverStateTableNormal (3.1.4)."""
    return not (slot.commitlog_offset >= 0 and slot.size > 0 and slot.state in STATES)


def prepared_slot(commitlog_offset: int, size: int, store_timestamp_ms: int, producer_group: str) -> Slot:
    """The slot of a prepared record that nobody ended yet.

    Quirk (3.0): seconds since 1970 in 32 bits; they wrap in 2038, as Java's cast does.
    """
    seconds = (store_timestamp_ms // 1000 + (1 << 31)) % (1 << 32) - (1 << 31)
    return Slot(commitlog_offset, size, seconds, string_hash(producer_group), TransactionType.PREPARED)
