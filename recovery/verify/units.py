"""The derived files of a store as numbered units, with the layout that each kind has."""

from __future__ import annotations

import numpy as np

from broker.format.consumequeue import Unit
from broker.format.statetable import Slot
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import UnitFile

UNIT = np.dtype(Unit.DTYPE)
SLOT = np.dtype(Slot.DTYPE)


def queue_units(files: StoreFiles, topic: str, queue_id: int) -> UnitFile:
    """A ConsumeQueue."""
    return UnitFile(files.queue(topic, queue_id), UNIT)


def expected_queue_units(files: StoreFiles, topic: str, queue_id: int) -> UnitFile | None:
    """A ConsumeQueue that should be there; None where there need not be one."""
    return queue_units(files, topic, queue_id) if files.expects_queue(topic, queue_id) else None


def redo_units(files: StoreFiles) -> UnitFile:
    """The redo log."""
    return UnitFile(files.redo_log, UNIT)


def slot_units(files: StoreFiles) -> UnitFile:
    """The state table."""
    return UnitFile(files.state_table, SLOT)
