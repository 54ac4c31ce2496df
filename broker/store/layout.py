"""The sizes of a store's files: fixed when it is made, and known by whoever opens it."""

from __future__ import annotations

from dataclasses import dataclass

from broker.format import consumequeue, index, redolog, statetable
from broker.format.commitlog import BLANK_SIZE, SEGMENT_SIZE


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """RocketMQ's defaults, in bytes; small ones serve as well."""

    segment_bytes: int = SEGMENT_SIZE
    consume_queue_bytes: int = consumequeue.FILE_SIZE
    state_table_bytes: int = statetable.FILE_SIZE
    redo_log_bytes: int = redolog.FILE_SIZE
    index_slots: int = index.SLOT_COUNT
    index_items: int = index.ITEM_COUNT

    @property
    def record_bytes_max(self) -> int:
        """The largest record that a segment holds: a blank must always fit behind it."""
        return self.segment_bytes - BLANK_SIZE
