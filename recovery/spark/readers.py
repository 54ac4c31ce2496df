"""What the tasks of the data source run: the records of a split, or what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from broker.errors import BrokerError, CorruptStore
from recovery.findings import CRC_MISMATCH
from recovery.pipeline.splits import Reading, Split, plan
from recovery.pipeline.store_location import LogManifest, PackedLog
from recovery.scan.arrow import record_batch, wants_of
from recovery.scan.native.columns import Wants
from recovery.scan.records import Records
from recovery.scan.scanner import Damage
from recovery.spark.mapping import set_imports_aside
from recovery.spark.options import FINDINGS, Settings


@dataclass
class SplitPartition(InputPartition):
    """One split, and the log as the driver saw it."""

    log: PackedLog
    split: Split


def partitions_of(log: LogManifest, splits: Sequence[Split]) -> Sequence[InputPartition]:
    """What Spark deals out."""
    packed = PackedLog.of(log)
    return [SplitPartition(packed, split) for split in splits]


class RecordsReader(DataSourceReader):
    """Records of the wanted kind, a few thousand in a batch.

    It takes no filters of a query (`pushFilters`): Spark (4.3.0) keeps a reader for all queries of a DataFrame, so the
    filter of one would stay with the next.
    """

    def __init__(self, settings: Settings, columns: Sequence[str]) -> None:
        self.settings, self.columns = settings, list(columns)
        self.selection = settings.selection

    def partitions(self) -> Sequence[InputPartition]:
        """The splits in which a wanted record may begin."""
        log = self.settings.place.log()
        if self.settings.on_corrupt == "fail":
            fail_at_damage_of_files(log, self.selection.start, self.selection.end)
        return partitions_of(log, plan(log, self.settings.split_bytes, self.selection.start, self.selection.end))

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The batches of a split."""
        if not isinstance(partition, SplitPartition):  # where there is none to read, Spark makes up a partition
            return
        set_imports_aside()
        log, settings = partition.log.unpacked(), self.settings
        log.check_seen()
        wants = wants_of(self.columns)
        reading = Reading(log, partition.split, replace(wants, crc=wants.crc or settings.crc))
        for records in reading:
            if settings.on_corrupt == "fail":
                self._fail_at_damage(reading, records)
            wanted = self.selection.choose(records)
            if settings.crc and settings.on_corrupt == "skip":
                wanted = wanted.take(np.setdiff1d(np.arange(len(wanted)), wanted.bad_crcs()))
            yield from batches_of(wanted, self.columns, settings.rows)
        if settings.on_corrupt == "fail":
            if partition.split.number == 0:  # of a later one it belongs to the split before
                _fail_at(reading.damages_in_front())
            _fail_at(reading.damages)
            _fail_where_it_expired(reading)

    def _fail_at_damage(self, reading: Reading, records: Records) -> None:
        _fail_at(reading.damages)
        if self.settings.crc:
            for damage in bad_records(records, reading.log):
                raise _corrupt(damage)


class FindingsReader(DataSourceReader):
    """What is wrong with the log: damage, and with the option crc the records that fail theirs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        """The splits, and one for the files as such."""
        log = self.settings.place.log()
        splits = plan(log, self.settings.split_bytes)
        return partitions_of(log, [Split(-1, 0, 0, 0), *splits])

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The findings of a split."""
        set_imports_aside()
        log = partition.log.unpacked()
        log.check_seen()
        if partition.split.number < 0:
            found = [Damage(one.kind, one.start, one.end - one.start, one.reason, one.path) for one in log.damages]
        else:
            reading, found = Reading(log, partition.split, Wants(crc=self.settings.crc)), []
            for records in reading:
                found.extend(bad_records(records, log) if self.settings.crc else ())
            found.extend(reading.damages)
        rows = [(one.kind, one.commitlog_offset, one.size, one.file, one.reason) for one in found]
        if rows:
            pairs = zip(zip(*rows, strict=True), FINDINGS, strict=True)
            columns = [pa.array(column, field.type) for column, field in pairs]
            yield pa.RecordBatch.from_arrays(columns, schema=FINDINGS)


def batches_of(records: Records, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
    """Records as batches of at most `rows`; without columns (a count) a batch has its length alone."""
    for first in range(0, len(records), rows):
        part = records.take(slice(first, first + rows))
        yield record_batch(part, columns)


def bad_records(records: Records, log: LogManifest) -> Iterator[Damage]:
    """The records that fail their CRC."""
    for number in records.bad_crcs().tolist():
        place = int(records.offsets[number])
        yield Damage("crc-mismatch", place, int(records.sizes[number]), CRC_MISMATCH, log.file_at(place))


def fail_at_damage_of_files(log: LogManifest, start: int = 0, end: int | None = None) -> None:
    """Raises CorruptStore where a segment between two offsets (None: up to the end) is missing or not whole."""
    for one in log.damages:
        if one.end > start and (end is None or one.start < end):
            raise _corrupt(Damage(one.kind, one.start, one.end - one.start, one.reason, one.path))


def _fail_at(damages: Sequence[Damage]) -> None:
    """Raises CorruptStore where there is more than the torn tail of the log."""
    for damage in damages:
        if damage.kind != "torn-tail":
            raise _corrupt(damage)


def _fail_where_it_expired(reading: Reading) -> None:
    if reading.is_expired:
        split, file = reading.split, reading.log.file_at(reading.split.start)
        reason = "the segment was removed before it was read"
        raise _corrupt(Damage("segment-missing", split.start, split.end - split.start, reason, file))


def _corrupt(damage: Damage) -> BrokerError:
    place = f"{damage.file} at CommitLog offset {damage.commitlog_offset}"
    text = f"{place}: {damage.reason}. Read on with the option onCorrupt=report, and run: checkback verify"
    return CorruptStore(text, path=damage.file)
