"""The transaction state table of 3.0: the state of each transaction, by slot.

RocketMQ: TransactionStateService (3.1.4).
"""

from __future__ import annotations

from broker.format.statetable import Slot, is_end
from broker.store.read.directory import Folder
from broker.store.read.fixedqueue import FixedQueue


class StateTable(FixedQueue[Slot]):
    """Slots by number. A store of 4.x or 5.x has none: `segments` is empty then."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder, folder.paths.state_table, Slot, is_end)
