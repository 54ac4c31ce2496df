"""The ends that were written behind the part of a log that is verified: what explains a slot that was settled
meanwhile.

A slot is settled after its end was published. So a slot is read first, then the tail, and then the log up to there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.format.statetable import Slot
from broker.store.recover.watermark import Watermark, published
from broker.transaction.events import STATE_OF_END, EventKind, TransactionState
from recovery.scan.kinds import Kinds
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles, compared_part
from recovery.scan.units import Rows, UnitFile
from recovery.transactions.events import extract_ops

# A half message by its CommitLog offset, and the state that was put into its slot; `slot` where that is known.
SETTLED = np.dtype([("half", "i8"), ("state", "i8"), ("slot", "i8")])
LaterEnds = Callable[[], Rows]


def no_later_ends() -> Rows:
    """None: nobody writes."""
    return np.zeros(0, SETTLED)


def later_ends(files: StoreFiles) -> Rows:
    """The first end of each half message that follows the watermark, up to the log's tail by now."""
    mark = files.watermark
    if mark is None:
        return no_later_ends()
    listing = files.commitlog_now()
    # The slots of a copy may be newer than its page, and its log is newer than they are.
    tail = listing.end if mark.is_copy else published(files.path, files.disk)[0]
    upto: Watermark = replace(mark, dispatched=max(tail, mark.dispatched), is_at_rest=False)
    parts: list[Rows] = [no_later_ends()]
    for records in Scan(compared_part(listing, upto, files.path), mark.dispatched):
        events = Kinds(records).events
        for kind in (EventKind.COMMITTED, EventKind.ROLLED_BACK):
            ends = records.take(np.flatnonzero(events == kind))
            rows = np.zeros(len(ends), SETTLED)
            rows["half"], rows["state"] = ends.field("prepared_transaction_offset"), STATE_OF_END[kind]
            parts.append(rows)
        parts.append(_named_by_ops(files, extract_ops(records, Kinds(records))))
    return np.concatenate(parts)


def _named_by_ops(files: StoreFiles, ops: Rows) -> Rows:
    """What op messages settle, which name half messages by their slots: a rollback, or nothing behind a commit."""
    rows = np.zeros(len(ops), SETTLED)
    if len(ops):
        rows["half"] = UnitFile(files.slots_now(), Slot.DTYPE).take(ops["queue_offset"])["commitlog_offset"]
        rows["state"] = TransactionState.ROLLED_BACK
    return rows


def is_settled_by(slots: Rows, ends: Rows) -> npt.NDArray[np.bool_]:
    """Which of these slots hold the state that one of these ends gives to their half message."""

    def keys(rows: Any) -> Any:
        return rows["half"] * 32 + rows["state"]

    return np.isin(keys(slots), keys(ends))
