"""The stream of a live store: each micro-batch holds the records that were appended since the last.

A stream's offset is the CommitLog offset where the next record will begin, so that a query that was stopped goes on
where it was. A batch ends where whole records do: half a record at the end waits until it is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from recovery.pipeline.splits import plan
from recovery.pipeline.store_location import LogManifest
from recovery.scan.scanner import Scan
from recovery.spark.options import Settings
from recovery.spark.readers import RecordsReader, SplitPartition


class FollowingReader(DataSourceStreamReader):
    """Follows the log from startOffset (by default its beginning); maxBytes bounds a batch."""

    def __init__(self, settings: Settings, columns: Sequence[str]) -> None:
        self._settings, self._columns = settings, columns
        self._reader = RecordsReader(settings, columns)

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        """Where the first batch begins."""
        return {"commitlog_offset": max(self._settings.selection.start, self._settings.place.log().begin)}

    def latestOffset(self, start: dict[str, int] | None = None, limit: Any = None) -> dict[str, int]:  # noqa: N802, ARG002
        """Where the records end by now, at most maxBytes behind `start`."""
        begin = (start or self.initialOffset())["commitlog_offset"]
        return {"commitlog_offset": self._end(self._settings.place.log(), begin)}

    def _end(self, log: LogManifest, begin: int) -> int:
        """After the last whole record behind `begin`, or behind the one that passes maxBytes."""
        scan = Scan(log.listing(), begin, resync=True)
        end, most = begin, self._settings.max_bytes
        for records in scan:
            ends = records.offsets + records.sizes
            within = ends[ends - begin <= most] if most else ends
            end = int(within[-1]) if len(within) else max(end, int(ends[0]) if end == begin else end)
            if most and len(within) < len(ends):
                break
        return end

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The splits between two offsets."""
        first, last = start["commitlog_offset"], end["commitlog_offset"]
        if first >= last:
            return []
        log = self._settings.place.log()
        return [SplitPartition(log, split) for split in plan(log, self._settings.split_bytes, first, last)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The batches of a split."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is held back for a batch, so nothing is released."""
