"""What travels between the stages of a job: few rows, each with a block of many events as bytes.

Spark moves a row in a microsecond and NumPy one in a nanosecond; so Spark sees a tag, the number of a partition, and
some megabytes. A block carries the names that its numbers stand for, since every task numbers them by itself.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recovery.scan.spill import joined, pick
from recovery.transactions.events import EVENT, Names, Rows

Ints = npt.NDArray[np.int64]

SCHEMA = pa.schema([("tag", pa.string()), ("part", pa.int32()), ("payload", pa.binary())])
SCHEMA_DDL = "tag string, part int, payload binary"

EVENTS, NAMED, KEYED, SUMMARY, OUTCOMES, ROWS = "events", "named", "keyed", "summary", "outcomes", "rows"
FAILED = "failed"  # a BrokerError: as an exception, Spark would run the task again, and then show its own traceback

PARTITION_BYTES = 128 << 20  # of log: at most 1.5 million of the smallest records, 130 MB of events

# The strings of half messages, and of ends that say who decided: a list of transactions shows them.
STRINGS = pa.schema([("offset", pa.int64()), *((name, pa.binary()) for name in ("unique_key", "keys", "by"))])


@dataclass
class Block:
    """Events with the names of their groups and topics, and, for a list of transactions, the strings of halves."""

    names: list[bytes]
    rows: Rows
    strings: pa.Table | None = None


def rows_of(blocks: Iterable[tuple[str, int, Any]]) -> Iterator[pa.RecordBatch]:
    """A batch for each block: tag, number of the partition, and what travels."""
    for tag, part, value in blocks:
        payload = pickle.dumps(value, protocol=5)
        columns = [pa.array([tag]), pa.array([part], pa.int32()), pa.array([payload], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def values_of(table: pa.Table, tag: str) -> Iterator[Any]:
    """What travelled under a tag. Only this project's own tasks write it: it is not a file from elsewhere."""
    for found, payload in zip(table.column("tag").to_pylist(), table.column("payload"), strict=True):
        if found == tag:
            yield pickle.loads(payload.as_py())  # noqa: S301


def each_of(batch: pa.RecordBatch) -> Iterator[tuple[str, int, Any]]:
    """The tag, the partition and the value of each row: what `rows_of` was given."""
    tags, parts = batch.column("tag").to_pylist(), batch.column("part").to_pylist()
    for tag, part, payload in zip(tags, parts, batch.column("payload"), strict=True):
        yield tag, part, pickle.loads(payload.as_py())  # noqa: S301 - as above


def gathered(blocks: Iterable[Block], names: Names) -> tuple[Rows, pa.Table]:
    """The events of many blocks in log order, with one numbering of their names, and their strings."""
    parts: list[Rows] = []
    strings: list[pa.Table] = []
    for block in blocks:
        numbers = np.array([names.number(name) for name in block.names], np.int32)
        rows = block.rows.copy()
        for column in ("group", "topic"):
            rows[column] = numbers[rows[column]]
        parts.append(rows)
        if block.strings is not None:
            strings.append(block.strings)
    rows = joined(parts, EVENT)
    if len(rows) and (np.diff(rows["offset"]) < 0).any():
        rows = pick(rows, np.argsort(rows["offset"], kind="stable"))
    return rows, pa.concat_tables(strings) if strings else STRINGS.empty_table()


class NumberedNames(Names):
    """Names whose bytes travel with the numbers."""

    def raw(self) -> list[bytes]:
        """The names behind the numbers, in their order."""
        return list(self._names)


# What rows are dealt by: as the local engine deals them, so that neighbours stay together.


def by_half(rows: Rows, count: int) -> Ints:
    """An end and the half that it names meet."""
    return np.asarray(np.maximum(rows["half"], 0) // PARTITION_BYTES % count)


def by_place(rows: Rows, count: int) -> Ints:
    """An op message and the half that it names by its place in the half queue meet."""
    return np.asarray((np.maximum(rows["queue_offset"], 0) >> 12) % count)


def by_key(rows: Rows, count: int) -> Ints:
    """Everything with one unique key meets."""
    return np.asarray((rows["key_lo"] >> np.uint64(1)).astype(np.int64) % count)


def dealt(rows: Rows, partition: Ints) -> Iterator[tuple[int, Rows, Ints]]:
    """The rows of each partition that has any, in their order, and which of the rows they are."""
    if not len(rows):
        return
    order = np.argsort(partition, kind="stable")
    ranked = partition[order]
    for run in np.split(order, np.flatnonzero(np.diff(ranked)) + 1):
        yield int(partition[run[0]]), pick(rows, run), run
