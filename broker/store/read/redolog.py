"""The transaction redo log of 3.0: what happened to transactions, in order.

RocketMQ: TransactionStateService (3.1.4).
"""

from __future__ import annotations

from broker.format.consumequeue import Unit, is_end
from broker.store.read.directory import Folder
from broker.store.read.fixedqueue import FixedQueue


class RedoLog(FixedQueue[Unit]):
    """Units by number. A store of 4.x or 5.x has none: `segments` is empty then."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder, folder.paths.redo_log, Unit, is_end)
