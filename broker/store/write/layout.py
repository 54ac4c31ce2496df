"""The sizes of a store's files: fixed when it is made, and known by whoever opens it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from broker.errors import BrokerError
from broker.format import consumequeue, index, redolog, statetable
from broker.format.commitlog import BLANK_SIZE, SEGMENT_SIZE
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths

_SEGMENT_BYTES_MIN = 4096


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """RocketMQ's defaults, in bytes; small ones serve as well. Raises BrokerError for sizes that no store can have."""

    segment_bytes: int = SEGMENT_SIZE
    consume_queue_bytes: int = consumequeue.FILE_SIZE
    state_table_bytes: int = statetable.FILE_SIZE
    redo_log_bytes: int = redolog.FILE_SIZE
    index_slots: int = index.SLOT_COUNT
    index_items: int = index.ITEM_COUNT

    def __post_init__(self) -> None:
        if self.segment_bytes < _SEGMENT_BYTES_MIN or self.segment_bytes % 8:
            raise BrokerError(f"a segment has at least {_SEGMENT_BYTES_MIN} bytes, a multiple of 8")
        units = (
            ("consume_queue_bytes", self.consume_queue_bytes, consumequeue.UNIT_SIZE),
            ("state_table_bytes", self.state_table_bytes, statetable.SLOT_SIZE),
            ("redo_log_bytes", self.redo_log_bytes, consumequeue.UNIT_SIZE),
        )
        for name, size, unit in units:
            if size <= 0 or size % unit:
                raise BrokerError(f"{name} is {size}, and no multiple of {unit}: a unit would lie in two files")
        if self.index_slots < 1 or self.index_items < 2:
            raise BrokerError("an index file has at least 1 slot and 2 items, of which the first is never used")

    @property
    def record_bytes_max(self) -> int:
        """The largest record that a segment holds: a blank must always fit behind it."""
        return self.segment_bytes - BLANK_SIZE


def read_layout(disk: Disk, paths: Paths) -> StoreLayout | None:
    """The sizes that checkback made the store with; None when it did not make it."""
    try:
        return StoreLayout(**json.loads(disk.read(paths.store_json))["layout"])
    except (Missing, KeyError, TypeError, ValueError):
        return None
