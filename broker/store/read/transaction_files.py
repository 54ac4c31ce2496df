"""The two transaction files of 3.0: the redo log, what happened in order, and the state table, the states by slot.

A store that 4.x or 5.x wrote has neither: `segments` is empty. Once checkback took it over it has a table of its own.
RocketMQ: TransactionStateService (3.1.4).
"""

from __future__ import annotations

from broker.format import consumequeue, statetable
from broker.format.consumequeue import Unit
from broker.format.statetable import Slot
from broker.store.read.directory import StoreDirectory
from broker.store.read.fixedqueue import FixedQueue
from broker.store.read.layout import read_engine


class RedoLog(FixedQueue[Unit]):
    """Units by number."""

    def __init__(self, directory: StoreDirectory) -> None:
        super().__init__(directory, directory.paths.redo_log, Unit, consumequeue.is_end)


class StateTable(FixedQueue[Slot]):
    """Slots by number."""

    def __init__(self, directory: StoreDirectory) -> None:
        table = directory.paths.table_of(read_engine(directory.disk, directory.paths))
        super().__init__(directory, table, Slot, statetable.is_end)
