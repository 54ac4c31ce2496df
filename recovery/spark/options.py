"""The options and the schema of the data source, checked before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
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

from recovery.pipeline.splits import SPLIT_BYTES, SPLIT_BYTES_MIN
from recovery.pipeline.store_location import StoreLocation
from recovery.scan.arrow import COLUMNS
from recovery.spark.selection import BadOption, RecordFilter, filter_of, truth, whole_number

NAME = "rocketmq-commitlog"
ROWS = 8192
ON_CORRUPT = ("report", "skip", "fail")
TABLES = ("records", "findings")
OPTIONS = (
    "path table splitBytes rows startOffset endOffset startTime endTime kind topic crc onCorrupt maxBytes"
).split()

_OF_RECORDS = ("startOffset", "endOffset", "startTime", "endTime", "kind", "topic", "maxBytes")

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
    """The schema of some columns (of all by default), in that order.

    Raises BadOption for a column there is not, for one that is named twice, and for none at all.
    """
    if isinstance(columns, str):
        raise BadOption(f'columns is a list of names, as ["{columns}"], not the text {columns!r}')
    names = list(COLUMNS) if columns is None else list(columns)
    if not names or len(set(names)) < len(names):
        raise BadOption("columns names at least one column, and each once; None stands for all of them")
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
    max_bytes: int


def settings_of(options: Mapping[str, str]) -> Settings:
    """Raises BadOption for what cannot be; Spark's options do not care about upper and lower case."""
    known = {name.lower(): name for name in OPTIONS}
    unknown = [name for name in options if name.lower() not in known]
    if "provider" in unknown:  # as CREATE TABLE adds, and renames what OPTIONS says
        view = f"CREATE TEMPORARY VIEW name USING `{NAME}` OPTIONS (path 'shop.store')"
        raise BadOption(f"a catalog of Spark cannot hold a store as a table. Give a view instead: {view}")
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
    if table == "findings" and (useless := [name for name in _OF_RECORDS if given.get(name)]):
        raise BadOption(f"the option {useless[0]} chooses records; the table of findings is always of the whole log")
    split_bytes, rows = whole_number(given, "splitBytes", SPLIT_BYTES), whole_number(given, "rows", ROWS)
    if rows < 1:
        raise BadOption("the option rows is at least 1, not 0")
    if split_bytes < SPLIT_BYTES_MIN:
        raise BadOption(f"the option splitBytes is at least {SPLIT_BYTES_MIN}, not {split_bytes}")
    return Settings(
        StoreLocation(given["path"]),
        table,
        split_bytes,
        rows,
        filter_of(given),
        truth(given, "crc"),
        on_corrupt,
        whole_number(given, "maxBytes", 0),
    )


def findings_schema() -> StructType:
    """The schema of the table of findings."""
    return StructType([StructField(field.name, _TYPES[field.type]) for field in FINDINGS])
