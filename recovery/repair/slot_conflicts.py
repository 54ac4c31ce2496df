"""Halves in doubt that share a slot with another one get a slot of their own.

RocketMQ 3.x numbers slots again when it rebuilds its table, so that of two prepared records which state the same slot
at most one can be settled. A slot is named by the record, and records do not change: so the half message is prepared
once more, at the end of the table, and the old record is rolled back, which no consumer sees. 4.x and 5.x renew a half
message likewise. Nobody else can end the old one meanwhile: an end must find its half in its slot.

Killed in between, the next run finds the copy, which names its original, and writes what is missing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from broker.format.sysflag import TransactionType
from broker.store.disk.files import Disk
from broker.store.disk.paths import given_path
from broker.store.write.pending_record import check_size
from broker.store.writer import StoreWriter, open_writer
from broker.transaction.ends import moved
from broker.transaction.events import MOVED_FROM
from recovery.humanize import who
from recovery.rebuild.quiescence import STILL_S
from recovery.rebuild.rebuilder import rebuild
from recovery.repair import crash
from recovery.scan.kinds import Kinds
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.transactions.events import numbers_in

_PREPARED = int(TransactionType.PREPARED)
_WHY = "another half message claims its slot, so it was prepared again with a slot of its own"


@dataclass(frozen=True, slots=True)
class Moved:
    """A half message that is in doubt elsewhere now."""

    old_offset: int
    old_slot: int
    commitlog_offset: int
    slot: int


def move(
    path: str | os.PathLike[str],
    *,
    broker_is_stopped: bool = False,
    disk: Disk | None = None,
    still_s: float = STILL_S,
    wait: Callable[[float], None] = time.sleep,
    by: str = "",
) -> list[Moved]:
    """Move every half in doubt whose slot is claimed twice; a store of RocketMQ's is taken over first.

    Raises what `recovery.repair.crash.apply` raises, and TransactionError for a half that only its own broker can end.
    """
    text, disk = given_path(path), disk or Disk()
    made = crash.plan(crash.survey(text, disk=disk))
    if made.is_needed:
        crash.apply(made, broker_is_stopped=broker_is_stopped, disk=disk, still_s=still_s, wait=wait, move=True)
    store = open_writer(text, disk, sync="group")
    try:
        with store.upkeep_lock:  # of two that move at once the second finds nothing left to do
            store.sync_now()
            copies = _copies(text)
            halves = dict.fromkeys(_in_doubt(text, disk))  # of three in one slot the middle one is in two claims
            found = [_move(store, offset, slot, copies, by or who()) for offset, slot in halves]
            store.sync_now()
        return [one for one in found if one is not None]
    finally:
        store.close()


def _in_doubt(path: str, disk: Disk) -> Iterator[tuple[int, int]]:
    """The halves in question, by offset and slot."""
    for claim in rebuild(path, disk=disk).claims:
        if claim.lost_in_doubt:
            yield claim.lost_offset, claim.slot
        if claim.owner_in_doubt:
            yield claim.owner_offset, claim.slot


def _copies(path: str) -> dict[int, tuple[int, int]]:
    """Of each half that was prepared again before: the copy's offset and slot."""
    found: dict[int, tuple[int, int]] = {}
    for records in Scan(StoreFiles.open(path).commitlog):
        moved_from = numbers_in(records.values(MOVED_FROM), missing=-1)
        for at in np.flatnonzero((moved_from >= 0) & (Kinds(records).types << 2 == _PREPARED)).tolist():
            found[int(moved_from[at])] = int(records.offsets[at]), int(records.field("queue_offset")[at])
    return found


def _move(store: StoreWriter, half_offset: int, slot: int, copies: dict[int, tuple[int, int]], by: str) -> Moved | None:
    """Move one; None when it was ended since we looked."""
    again, end = moved(store.appender.read(half_offset), _WHY, by)
    check_size(again.size, store.layout.record_bytes_max)
    with store.append_lock:
        store.appender.heal()
        held = store.dispatcher.slot(slot)
        if held.commitlog_offset == half_offset and held.state != _PREPARED:
            return None
        if half_offset not in copies:
            (copy,) = store.appender.append_locked([again])
            copies[half_offset] = copy.commitlog_offset, copy.queue_offset
        store.appender.append_locked([end])
    return Moved(half_offset, slot, *copies[half_offset])
