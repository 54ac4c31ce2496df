"""The transaction state table of 3.0: the state of each transaction, by slot.

RocketMQ: TransactionStateService (3.1.4).
"""

from __future__ import annotations

from broker.format.statetable import Slot, is_end
from broker.store.read.directory import Folder
from broker.store.read.fixedqueue import FixedQueue
from broker.store.read.layout import read_engine


class StateTable(FixedQueue[Slot]):
    """Slots by number. A store that 4.x or 5.x wrote has none until checkback takes it over: `segments` is empty."""

    def __init__(self, folder: Folder) -> None:
        table = folder.paths.table_of(read_engine(folder.disk, folder.paths))
        super().__init__(folder, table, Slot, is_end)
