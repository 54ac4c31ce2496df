"""The data source `rocketmq-commitlog`: a CommitLog as a table of records, or of what is wrong with it.

    spark.read.format("rocketmq-commitlog").option("kind", "half").load("shop.store")
    spark.read.format("rocketmq-commitlog").option("table", "findings").load("shop.store")
    spark.readStream.format("rocketmq-commitlog").load("shop.store")

Spark tells a Python source nothing about the columns that a query needs: give the schema with the columns that you
want (`recovery.spark.scan(columns=...)` does), and no other is decoded. Options: docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from broker.errors import BrokerError, CorruptStore
from recovery.pipeline.splits import SPLIT_BYTES, SPLIT_BYTES_MIN, Reading, Split, plan
from recovery.pipeline.store_location import LogManifest, StoreLocation
from recovery.scan.arrow import COLUMNS, record_batch
from recovery.scan.records import Records
from recovery.scan.scanner import Damage
from recovery.spark.mapping import set_imports_aside
from recovery.spark.selection import BadOption, RecordFilter, filter_of, truth, whole_number

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

NAME = "rocketmq-commitlog"
ROWS = 8192
ON_CORRUPT = ("report", "skip", "fail")
TABLES = ("records", "findings")
OPTIONS = (
    "path table splitBytes rows startOffset endOffset startTime endTime kind topic crc onCorrupt pushdown maxBytes"
).split()

_TYPES: dict[pa.DataType, DataType] = {
    pa.int8(): ByteType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.string(): StringType(),
    pa.binary(): BinaryType(),
    pa.bool_(): BooleanType(),
    pa.map_(pa.string(), pa.string()): MapType(StringType(), StringType()),
}

FINDINGS = pa.schema(
    [
        ("kind", pa.string()),
        ("commitlog_offset", pa.int64()),
        ("size", pa.int64()),
        ("file", pa.string()),
        ("text", pa.string()),
    ]
)


def spark_schema(columns: Sequence[str] | None = None) -> StructType:
    """The schema of some columns (of all by default), in that order. Raises BadOption for a column there is not."""
    names = list(COLUMNS) if columns is None else list(columns)
    unknown = [name for name in names if name not in COLUMNS]
    if unknown:
        raise BadOption(f"a CommitLog has no column {', '.join(unknown)}; it has {', '.join(COLUMNS)}")
    return StructType(
        [StructField(name, _TYPES[COLUMNS[name][0]], True, {"comment": COLUMNS[name][1]}) for name in names]
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of one read, checked."""

    place: StoreLocation
    table: str
    split_bytes: int
    rows: int
    selection: RecordFilter
    crc: bool
    on_corrupt: str
    pushdown: bool
    max_bytes: int


def settings_of(options: Mapping[str, str]) -> Settings:
    """Raises BadOption for what cannot be; Spark's options do not care about upper and lower case."""
    known = {name.lower(): name for name in OPTIONS}
    unknown = [name for name in options if name.lower() not in known]
    if unknown:
        raise BadOption(f"{NAME} has no option {', '.join(unknown)}; it has {', '.join(OPTIONS)}")
    given = {known[name.lower()]: value for name, value in options.items()}
    if not given.get("path"):
        raise BadOption(f'{NAME} needs the path of a store: .load("shop.store")')
    table, on_corrupt = given.get("table", "records").lower(), given.get("onCorrupt", "report").lower()
    if table not in TABLES:
        raise BadOption(f"the option table is {' or '.join(TABLES)}, not {table!r}")
    if on_corrupt not in ON_CORRUPT:
        raise BadOption(f"the option onCorrupt is {', '.join(ON_CORRUPT)}, not {on_corrupt!r}")
    split_bytes = whole_number(given, "splitBytes", SPLIT_BYTES)
    if split_bytes < SPLIT_BYTES_MIN:
        raise BadOption(f"the option splitBytes is at least {SPLIT_BYTES_MIN}, not {split_bytes}")
    return Settings(
        StoreLocation(given["path"]),
        table,
        split_bytes,
        max(whole_number(given, "rows", ROWS), 1),
        filter_of(given),
        truth(given, "crc"),
        on_corrupt,
        truth(given, "pushdown"),
        whole_number(given, "maxBytes", 0),
    )


class CommitLogSource(DataSource):
    """`spark.read.format("rocketmq-commitlog")`; register it with `recovery.spark.register(spark)`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        """All columns, or the findings'."""
        settings = settings_of(self.options)
        settings.place.files()  # a wrong path is said here, once, not by a task
        if settings.table == "findings":
            return StructType([StructField(field.name, _TYPES[field.type]) for field in FINDINGS])
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """With push-down when the option says that Spark's setting for it is on: else Spark refuses such a reader."""
        settings = settings_of(self.options)
        if settings.table == "findings":
            return FindingsReader(settings)
        columns = _columns(schema)
        return FilteredReader(settings, columns) if settings.pushdown else RecordsReader(settings, columns)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from recovery.spark.following import FollowingReader

        return FollowingReader(settings_of(self.options), _columns(schema))


def _columns(schema: StructType) -> list[str]:
    """The columns of a schema. Raises BadOption where one has another type than the column."""
    wanted = spark_schema(schema.fieldNames())
    for asked, known in zip(schema.fields, wanted.fields, strict=True):
        if asked.dataType != known.dataType:
            kinds = f"{known.dataType.simpleString()}, not {asked.dataType.simpleString()}"
            raise BadOption(f"the column {asked.name} is a {kinds}")
    return list(schema.fieldNames())


@dataclass
class SplitPartition(InputPartition):
    """One split, and the log as the driver saw it."""

    log: LogManifest
    split: Split


class RecordsReader(DataSourceReader):
    """Records of the wanted kind, a few thousand in a batch."""

    def __init__(self, settings: Settings, columns: Sequence[str]) -> None:
        self.settings, self.columns = settings, list(columns)
        self.selection = settings.selection

    def partitions(self) -> Sequence[InputPartition]:
        """The splits in which a wanted record may begin."""
        log = self.settings.place.log()
        if self.settings.on_corrupt == "fail" and log.damages:
            first = log.damages[0]
            raise _corrupt(Damage(first.kind, first.start, first.end - first.start, first.reason, first.path))
        splits = plan(log, self.settings.split_bytes, self.selection.start, self.selection.end)
        return [SplitPartition(log, split) for split in splits]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The batches of a split."""
        set_imports_aside()
        settings, reading = self.settings, Reading(partition.log, partition.split)
        for records in reading:
            if settings.on_corrupt == "fail":
                self._fail_at_damage(reading, records)
            wanted = self.selection.choose(records)
            if settings.crc and settings.on_corrupt == "skip":
                wanted = wanted.take(np.setdiff1d(np.arange(len(wanted)), wanted.bad_crcs()))
            yield from batches_of(wanted, self.columns, settings.rows)
        if settings.on_corrupt == "fail":
            self._fail_at_damage(reading, None)

    def _fail_at_damage(self, reading: Reading, records: Records | None) -> None:
        damages = [damage for damage in reading.damages if damage.kind != "torn-tail"]
        if damages:
            raise _corrupt(damages[0])
        if self.settings.crc and records is not None:
            for damage in bad_records(records, reading.log):
                raise _corrupt(damage)


class FilteredReader(RecordsReader):
    """The same, which takes over filters on offsets, times, topics and kinds.

    Spark asks it only while spark.sql.python.filterPushdown.enabled is true, and refuses it else.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802 - Spark's name
        """Takes what it can and hands back the rest."""
        self.selection, rest = self.selection.narrowed(filters)
        yield from rest


class FindingsReader(DataSourceReader):
    """What is wrong with the log: damage, and with the option crc the records that fail theirs."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    def partitions(self) -> Sequence[InputPartition]:
        """The splits, and one for the files as such."""
        log = self.settings.place.log()
        splits = plan(log, self.settings.split_bytes)
        return [SplitPartition(log, Split(-1, 0, 0, 0)), *(SplitPartition(log, split) for split in splits)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The findings of a split."""
        set_imports_aside()
        log = partition.log
        if partition.split.number < 0:
            found = [Damage(one.kind, one.start, one.end - one.start, one.reason, one.path) for one in log.damages]
        else:
            reading, found = Reading(log, partition.split), []
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
        text = "the body does not have the CRC that the record states"
        yield Damage("crc-mismatch", place, int(records.sizes[number]), text, log.file_at(place))


def _corrupt(damage: Damage) -> BrokerError:
    place = f"{damage.file} at CommitLog offset {damage.commitlog_offset}"
    text = f"{place}: {damage.reason}. Read on with the option onCorrupt=report, and run: checkback verify"
    return CorruptStore(text, path=damage.file)
