"""The stream of a live store: each micro-batch holds the records that were appended since the last.

A stream's offset is the CommitLog offset where the next record will begin, so that a query that was stopped goes on
where it was. A batch ends where whole records do: half a record at the end waits until it is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from broker.errors import BrokerError, CorruptStore
from broker.format.commitlog import BLANK_SIZE
from broker.store.disk.files import Missing
from broker.store.read.segments import Listing
from broker.store.recover.watermark import read_watermark
from recovery.pipeline.splits import plan
from recovery.pipeline.store_location import LogManifest
from recovery.scan.scanner import Scan, is_doubtful
from recovery.spark.options import NAME, Settings
from recovery.spark.readers import RecordsReader, fail_at_damage_of_files, partitions_of

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # Spark 4.1 asks a source for no more than its end: availableNow takes one batch there

        class SupportsTriggerAvailableNow:
            """Nothing that 4.1 looks for."""


class FollowingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the log from startOffset (by default its beginning); maxBytes bounds a batch."""

    def __init__(self, settings: Settings, columns: Sequence[str]) -> None:
        self._settings, self._columns = settings, columns
        self._reader = RecordsReader(settings, columns)
        self._is_bounded = False
        self._target: int | None = None
        self._waits_at: tuple[int, LogManifest] | None = None  # the end of the log, and the log that was read up to it

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where the first batch begins."""
        return {"commitlog_offset": max(self._settings.selection.start, self._settings.place.log().begin)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """maxBytes as Spark has it. A trigger may ask for all that there is, all the same."""
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

        most = self._settings.max_bytes
        return ReadMaxBytes(most) if most else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """A run of what is there now: it ends where the log ends when its first batch is planned."""
        self._is_bounded = True

    def latestOffset(self, start: dict[str, int] | None = None, limit: ReadLimit | None = None) -> dict[str, int]:  # noqa: N802
        """Where the records end by now, at most the bytes of `limit` behind `start`."""
        begin = _place_of(self.initialOffset() if start is None else start)
        most = self._settings.max_bytes if limit is None else getattr(limit, "max_bytes", 0)
        # Without records whose place others may take: after a power cut, or after a process was killed.
        log = self._settings.place.log(durable=True)
        if self._settings.on_corrupt == "fail":
            _check_not_behind(log, begin)
        end = self._end(log, begin, most)
        if self._is_bounded:
            if self._target is None:
                self._target = self._end(log, begin, 0)
            end = max(begin, min(self._target, end))
        is_record_end = begin != self._settings.selection.start  # which may be any place
        if self._settings.on_corrupt == "fail" and end > begin and is_record_end:
            _check_between_records(log, begin)
        return {"commitlog_offset": end}

    def _end(self, log: LogManifest, begin: int, most: int) -> int:
        """After the last whole record behind `begin`, or behind the one that passes `most` bytes (0: no bound)."""
        if self._waits_at == (begin, log) and _is_empty(log, begin):
            return begin
        self._waits_at = None
        scan = Scan(log.listing(), begin, resync=True)
        end = begin
        for records in scan:
            ends = records.offsets + records.sizes
            within = ends[ends - begin <= most] if most else ends
            end = int(within[-1]) if len(within) else max(end, int(ends[0]) if end == begin else end)
            if most and len(within) < len(ends):
                return end
        self._waits_at = end, log
        return end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The splits between two offsets."""
        first, last = _place_of(start), _place_of(end)
        if first >= last:
            return []
        log = self._settings.place.log()  # all of the batch was flushed when it was planned
        if self._settings.on_corrupt == "fail":
            _check_all_there(log, first, last)
        return partitions_of(log, plan(log, self._settings.split_bytes, first, last))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The batches of a split."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is held back for a batch, so nothing is released."""


def _place_of(noted: object) -> int:
    """The CommitLog offset in a stream's offset. Raises BrokerError for what another source noted in a checkpoint."""
    place = noted.get("commitlog_offset") if isinstance(noted, dict) else None
    if not isinstance(place, int):
        text = f"the checkpoint says {noted!r:.60}, which is of another source than {NAME}"
        raise BrokerError(f"{text}. Give a checkpointLocation of its own")
    return place


def _is_empty(log: LogManifest, commitlog_offset: int) -> bool:
    """Whether nothing was written at an offset yet. A broker may fill a new segment of 1 GiB with zeros
    (warmMapedFileEnable): to look behind them at each trigger took a second."""
    segment = log.listing().at(commitlog_offset)
    try:
        return segment is None or not any(segment.read(commitlog_offset - segment.base, BLANK_SIZE))
    except Missing:
        return False


def _check_not_behind(log: LogManifest, begin: int) -> None:
    """Raises CorruptStore where a stream stands behind the log, flushed or not: it would wait for what never comes, or
    pass over what comes before its place."""
    place = log.place
    if log.files and begin <= log.files[-1].base + min(log.files[-1].size, log.segment_size):
        return
    mark = read_watermark(place.inside, place.disk())
    end = mark.tail if mark is not None else _last_segment_end(place.log())
    if begin > end:
        raise _other_store(log, begin, f"the log of {place.path} ends at {end}")


def _check_between_records(log: LogManifest, begin: int) -> None:
    """Raises CorruptStore where a record reaches over the place of a stream, which went from record to record."""
    listing = log.listing()
    segment = listing.at(begin)
    if segment is None or begin == segment.base or not is_doubtful(segment, begin, log.segment_size):
        return
    scan = Scan(Listing((segment,), log.segment_size), segment.base, begin)
    for _ in scan:
        pass
    if scan.end_offset > begin:
        raise _other_store(log, begin, f"a record of {segment.path} reaches over it")


def _other_store(log: LogManifest, begin: int, reason: str) -> CorruptStore:
    text = f"the stream stands at CommitLog offset {begin}, and {reason}"
    step = "another store is in its place, or an older copy. Begin at another checkpoint"
    return CorruptStore(f"{text}: {step}", path=log.place.path)


def _last_segment_end(log: LogManifest) -> int:
    return log.files[-1].base + log.segment_size if log.files else 0


def _check_all_there(log: LogManifest, first: int, last: int) -> None:
    """Raises CorruptStore where a part of what a batch is to read is gone: removed before it was read, or damaged."""
    if first < log.begin:
        text = f"the stream stands at CommitLog offset {first}, and the log of {log.place.path} begins at {log.begin}"
        step = "Read on with the option onCorrupt=report, without what was removed, or begin at another checkpoint"
        raise CorruptStore(f"{text}. {step}", path=log.place.path)
    fail_at_damage_of_files(log, first, last)
