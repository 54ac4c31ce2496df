"""Which transactions are in doubt: half messages that nobody ended, from the CommitLog alone.

    for half in Pending("shop.store", now_ms):
        half.commitlog_offset, half.producer_group, half.age_s

Two steps in bounded memory: a scan computes the outcome of every transaction and keeps the place of each that is in
doubt; then their records are read, in log order. Nothing on disk is changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.errors import CorruptRecord
from broker.format import properties as names
from broker.format.commitlog import Record, decode
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import given_path
from broker.store.recover.watermark import read_watermark
from broker.transaction.events import Generation, TransactionState, target_topic
from recovery.findings import CRC_MISMATCH
from recovery.scan.native.columns import Wants
from recovery.scan.record_at import record_at
from recovery.scan.records import Records
from recovery.scan.scanner import Damage, Scan
from recovery.scan.spill import PARTITION_BYTES, Spill
from recovery.scan.store_files import StoreFiles
from recovery.transactions.outcomes import Outcomes
from recovery.transactions.tracker import TransactionTracker

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_WANTED = (TransactionState.PREPARED, TransactionState.PARKED)
_HEAD_BYTES = 256  # more than the fixed part of any record
_PLACE = np.dtype(
    [
        ("generation", "u1"),
        ("state", "u1"),
        ("lowest", "i8"),  # CommitLog offset of the first half
        ("half", "i8"),  # of the last half: the one that an end must name
        ("queue_offset", "i8"),
        ("size", "i4"),
        ("store_ms", "i8"),
        ("checks", "i4"),
    ]
)


@dataclass(frozen=True, slots=True)
class PendingHalf:
    """One transaction in doubt, as its last half message says."""

    commitlog_offset: int  # of the half message that an end must name
    slot: int | None  # in the state table; None for the other generations
    queue_offset: int | None  # in the half topic; None for the other generations
    producer_group: str
    topic: str  # where consumers would see it
    keys: list[str]
    unique_key: str | None
    age_s: float  # since the first half message was stored
    checks: int  # how often RocketMQ asked, as the half message says
    state: str  # in_doubt or parked

    def as_json(self, *, with_state: bool = False) -> dict[str, Any]:
        place = {"slot": self.slot} if self.queue_offset is None else {"queue_offset": self.queue_offset}
        values = {
            "commitlog_offset": self.commitlog_offset,
            **place,
            "producer_group": self.producer_group,
            "topic": self.topic,
            "keys": self.keys,
            "unique_key": self.unique_key,
            "age_s": self.age_s,
            "checks": self.checks,
        }
        return {**values, "state": self.state} if with_state else values


class Pending:
    """The transactions in doubt of a store at `now_ms`; iterate once. `parked` takes those that were given up, too.

    `damages` is complete when the iteration begins to yield: where the log is damaged, an end may be lost, and what is
    listed may have been settled. So it may where records fail their CRC: the first is among the damages, and
    `wrong_crcs` counts them. `end_offset` is the CommitLog offset where the log ended, then.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        now_ms: int,
        *,
        parked: bool = False,
        progress: Progress | None = None,
    ) -> None:
        self.files = StoreFiles.open(path, read_watermark(given_path(path), Disk()))
        self.end_offset = 0
        self._now_ms = now_ms
        self._states = _WANTED if parked else _WANTED[:1]
        self._progress = progress
        self.damages: list[Damage] = []
        self.wrong_crcs = 0
        self.generation = Generation.NONE

    def __iter__(self) -> Iterator[PendingHalf]:
        """The halves in log order."""
        tracker = TransactionTracker(self.files)
        scan = Scan(self.files.compared, progress=self._advance, wants=Wants(crc=True))
        unsound: list[Damage] = []
        places = Spill(_PLACE, tracker.partitions)
        try:
            for records in scan:
                tracker.add(records)
                unsound = [*unsound, *self._unsound(records)][:1]
            # A file that was cut behind its blank lacks zeros, and no end.
            cut = [one for one in scan.damages if not (one.kind == "segment-size" and one.file in scan.ended)]
            self.damages = [*cut, *unsound]
            self.generation, self.end_offset = tracker.generation, scan.end_offset
            for outcomes in tracker.outcomes():
                self._keep(outcomes, places)
            for partition in range(places.count):
                rows = places.take(partition)
                for row in rows[np.argsort(rows["half"], kind="stable")]:
                    half = self._half(row)
                    if half is not None:
                        yield half
        finally:
            tracker.close()
            places.close()

    def _unsound(self, records: Records) -> Iterator[Damage]:
        """The records that fail their CRC: each may have been an end. The last of a live log may be whole by now."""
        listing = self.files.commitlog
        for number in records.bad_crcs().tolist():
            place = int(records.offsets[number])
            again = record_at(listing, place)
            if again is None or len(again.bad_crcs()):
                self.wrong_crcs += 1
                size, file = int(records.sizes[number]), self.files.commitlog_file(place)
                yield Damage("crc-mismatch", place, size, CRC_MISMATCH, file)

    def _advance(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self.files.commitlog_bytes)

    def _keep(self, outcomes: Outcomes, places: Spill) -> None:
        """Keep the places of what is in doubt, by log order of their partitions."""
        found = outcomes.rows[np.isin(outcomes.rows["state"], self._states)]
        rows = np.zeros(len(found), _PLACE)
        for name in _PLACE.names or ():
            rows[name] = found[name]
        partition = (rows["half"] - self.files.commitlog.begin) // PARTITION_BYTES
        places.add(rows, np.clip(partition, 0, places.count - 1).astype(np.int64))

    def _half(self, place: Any) -> PendingHalf | None:
        """What the half message at a place says; None when it expired meanwhile."""
        record = self._record(int(place["half"]), int(place["size"]))
        if record is None:
            return None
        properties = record.property_map
        unique_key = properties.get(names.UNIQ_KEY)
        number = int(place["queue_offset"])
        age_ms = max(0, self._now_ms - self._first_stored_ms(place))
        generation, state = int(place["generation"]), int(place["state"])
        return PendingHalf(
            commitlog_offset=record.commitlog_offset,
            slot=number if generation == Generation.STATE_TABLE else None,
            queue_offset=number if generation == Generation.HALF_OP else None,
            producer_group=properties.get(names.PGROUP, ""),
            topic=target_topic(record.topic, properties),
            keys=names.keys(properties),
            unique_key=unique_key,
            age_s=age_ms / 1000,
            checks=int(place["checks"]),
            state="parked" if state == TransactionState.PARKED else "in_doubt",
        )

    def _record(self, commitlog_offset: int, size: int) -> Record | None:
        window = self._read(commitlog_offset, size)
        try:
            return decode(window, commitlog_offset=commitlog_offset, check_crc=False)
        except CorruptRecord:  # it was whole a moment ago: the segment expired, or was taken away
            return None

    def _first_stored_ms(self, place: Any) -> int:
        """When the first half was stored; RocketMQ stores a half that it checked again, with a new time."""
        lowest, stored_ms = int(place["lowest"]), int(place["store_ms"])
        window = self._read(lowest, _HEAD_BYTES) if lowest != place["half"] else np.zeros(0, np.uint8)
        if len(window) < _HEAD_BYTES // 2:
            return stored_ms
        first = Records(window, lowest, np.zeros(1, np.int64))
        return int(first.field("store_timestamp_ms")[0])

    def _read(self, commitlog_offset: int, size: int) -> npt.NDArray[np.uint8]:
        segment = self.files.commitlog.at(commitlog_offset)
        try:
            if segment is not None:
                return self.files.read(segment, commitlog_offset - segment.base, size)
        except Missing:
            pass
        return np.zeros(0, np.uint8)
