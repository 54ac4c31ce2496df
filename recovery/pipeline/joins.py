"""The three joins of a judgement, a partition at a time, by the local engine's own functions.

Ends meet their half (`EndsJudge`), op messages meet theirs (`join_ops`), and what is left meets by unique key
(`KeysJudge`): `recovery.transactions.outcomes` says what each join does.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.store.read.segments import Listing
from broker.transaction.events import EventKind, Generation, TransactionState
from recovery.findings import Findings
from recovery.pipeline.blocks import (
    EVENTS,
    KEYED,
    NAMED,
    OUTCOMES,
    ROWS,
    Block,
    NumberedNames,
    by_key,
    by_place,
    dealt,
    gathered,
    values_of,
)
from recovery.pipeline.inspection import record_at, strings_of
from recovery.pipeline.split_builder import CELLS, TABLE, OutputFile, RebuildPlan, chunks
from recovery.pipeline.split_comparison import Held, PartTable
from recovery.pipeline.store_location import LogManifest, filesystem_of
from recovery.rebuild.entries import slots_of
from recovery.scan.spill import joined, pick
from recovery.scan.units import Ints, UnitFile
from recovery.transactions.digest import Digest
from recovery.transactions.events import Names, Redeliveries, Rows
from recovery.transactions.fingerprint import difference
from recovery.transactions.outcomes import Outcomes, Transactions

_OWN = (EventKind.PREPARED, EventKind.HALF)

TRANSACTIONS = pa.schema(
    [
        ("generation", pa.string()),
        ("unique_key", pa.string()),
        ("producer_group", pa.string()),
        ("topic", pa.string()),
        ("keys", pa.string()),
        ("state", pa.string()),
        ("first_half_offset", pa.int64()),
        ("half_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("delivered_offset", pa.int64()),
        ("deliveries", pa.int32()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("checks", pa.int32()),
        ("decided_by", pa.string()),
        ("born_timestamp_ms", pa.int64()),
        ("store_timestamp_ms", pa.int64()),
        ("age_ms", pa.int64()),
    ]
)
STATE_NAMES = {
    TransactionState.COMMITTED: "committed",
    TransactionState.ROLLED_BACK: "rolled_back",
    TransactionState.PREPARED: "in_doubt",
    TransactionState.PARKED: "parked",
}
_ENDED_BY = {
    TransactionState.COMMITTED: ("producer", "check-back"),
    TransactionState.ROLLED_BACK: ("producer", "check-back"),
    TransactionState.PREPARED: (None, None),
    TransactionState.PARKED: ("limit", "limit"),
}


@dataclass(frozen=True)
class JoinContext:
    """What every partition of a judgement is told."""

    log: LogManifest
    partitions: int
    prepared: Generation
    begin: int
    least_half: dict[int, int]
    with_table: bool = False  # compare the state table
    with_rows: bool = False  # list the transactions
    now_ms: int = 0
    folder: str | None = None  # where files with the rows go; else they travel to Spark
    rebuild_plan: RebuildPlan | None = None  # make the slots of the state table


@dataclass
class PartitionResult:
    """What was judged in one partition."""

    digest: int = 0
    states: Counter[int] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)
    table: tuple[Held, Rows, list[bytes]] | None = None
    file: str | None = None  # with the rows, under the name that it has while the job runs


class _PartTransactions(Transactions):
    """One partition; what goes on to another join is kept."""

    def __init__(self, names: Names, context: JoinContext, findings: Findings, listing: Listing) -> None:
        super().__init__(names, 1, context.begin, findings, context.log.file_at)
        self.named: list[Rows] = []
        self.keyed: list[Rows] = []
        self._least_half_queue_offset = dict(context.least_half)
        self.differ = lambda half, end: difference(record_at(listing, half), record_at(listing, end))

    def _add_named(self, rows: Rows) -> None:
        self.named.append(rows)

    def _add_keyed(self, rows: Rows) -> None:
        self.keyed.append(rows)

    def ends(self, rows: Rows, prepared: Generation) -> Iterator[Outcomes]:
        """The first join."""
        return self._join_ends(rows, prepared)

    def ops(self, rows: Rows) -> None:
        """The second."""
        self._join_ops(rows)

    def keys(self, rows: Rows) -> Iterator[Outcomes]:
        """The third."""
        return self._join_keys(rows)


def join_ends(context: JoinContext) -> Callable[[pa.Table], Iterator[tuple[str, int, Any]]]:
    """The first join of one partition: verdicts, and what the half-op generation passes on."""

    def judge(table: pa.Table) -> Iterator[tuple[str, int, Any]]:
        names, result = NumberedNames(), PartitionResult()
        rows, strings = gathered(values_of(table, EVENTS), names)
        rows = Redeliveries().drop(rows)
        part = _PartTransactions(names, context, result.findings, context.log.listing())
        outcomes = list(part.ends(rows, context.prepared))
        _summarize(context, result, outcomes, names)
        if context.with_rows:
            yield from _emit_rows(context, result, listed(context, outcomes, rows, names, strings))
        if context.rebuild_plan is not None:
            yield from _slots(context.rebuild_plan, outcomes, names)
        yield OUTCOMES, 0, result
        raw, count = names.raw(), context.partitions
        for some in part.named:
            for to, dealt_rows, _ in dealt(some, by_place(some, count)):
                yield NAMED, to, dealt_rows
        for some in part.keyed:
            for to, dealt_rows, _ in dealt(some, by_key(some, count)):
                said = strings_of(strings, dealt_rows["offset"]) if context.with_rows else None
                yield KEYED, to, Block(raw, dealt_rows, said)

    return judge


def _slots(rebuild_plan: RebuildPlan, found: list[Outcomes], names: Names) -> Iterator[tuple[str, int, Any]]:
    """The slots of these transactions, dealt to the files of the state table."""
    for outcomes in found:
        rows = pick(outcomes.rows, outcomes.rows["generation"] == Generation.STATE_TABLE)
        for chunk in chunks(rebuild_plan, OutputFile(TABLE, 0), 0, *slots_of(rows, names)):
            yield CELLS, chunk.target.part, chunk


def join_ops(context: JoinContext) -> Callable[[pa.Table], Iterator[tuple[str, int, Any]]]:
    """The second join of one partition: each half is told how many op messages name it."""

    def judge(table: pa.Table) -> Iterator[tuple[str, int, Any]]:
        result, listing = PartitionResult(), context.log.listing()
        part = _PartTransactions(NumberedNames(), context, result.findings, listing)
        blocks = list(values_of(table, NAMED))
        named = next((block.dtype for block in blocks if "is_half" in (block.dtype.names or ())), None)
        if named is None:
            named = np.dtype([*blocks[0].dtype.descr, ("key_hi", "u8"), ("key_lo", "u8"), ("is_half", "u1")])
        part.ops(joined([_as(block, named) for block in blocks], named))
        yield OUTCOMES, 0, result
        for some in part.keyed:
            for to, dealt_rows, _ in dealt(some, by_key(some, context.partitions)):
                yield KEYED, to, Block([b""], dealt_rows)

    return judge


def _as(rows: Rows, dtype: np.dtype[Any]) -> Rows:
    if rows.dtype == dtype:
        return rows
    wider = np.zeros(len(rows), dtype)
    for name in rows.dtype.names or ():
        wider[name] = rows[name]
    return wider


def join_keys(context: JoinContext) -> Callable[[pa.Table], Iterator[tuple[str, int, Any]]]:
    """The third join of one partition: everything with one unique key is one transaction."""

    def judge(table: pa.Table) -> Iterator[tuple[str, int, Any]]:
        names, result = NumberedNames(), PartitionResult()
        rows, strings = gathered(values_of(table, KEYED), names)
        part = _PartTransactions(names, context, result.findings, context.log.listing())
        outcomes = list(part.keys(rows))
        _summarize(context, result, outcomes, names)
        if context.with_rows:
            yield from _emit_rows(context, result, listed(context, outcomes, rows, names, strings))
        yield OUTCOMES, 0, result

    return judge


def _summarize(context: JoinContext, result: PartitionResult, found: list[Outcomes], names: NumberedNames) -> None:
    """Sum up, and compare the slots."""
    digest = Digest()
    for outcomes in found:
        digest.add_many(outcomes.entries(), outcomes.starts.tolist(), outcomes.delivered)
        numbers, counts = np.unique(outcomes.rows["state"], return_counts=True)
        result.states.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
    result.digest = digest.total
    if context.with_table and context.prepared is Generation.STATE_TABLE:
        from broker.format.statetable import Slot

        units = UnitFile(context.log.place.files().state_table, np.dtype(Slot.DTYPE))
        table = PartTable(units, names, 1, result.findings)
        for outcomes in found:
            table.add(pick(outcomes.rows, outcomes.rows["generation"] == Generation.STATE_TABLE))
        spans, elsewhere = table.leave()
        result.table = spans, elsewhere, names.raw()


def _emit_rows(context: JoinContext, result: PartitionResult, rows: pa.Table) -> Iterator[tuple[str, int, Any]]:
    """Rows for Spark, or a file: Spark would take as long to write them as everything else takes."""
    if context.folder is None:
        yield ROWS, 0, rows
    elif len(rows):
        result.file = f"{uuid.uuid4().hex}.parquet"
        write_rows(f"{context.folder}/{result.file}", rows)


def write_rows(path: str, rows: pa.Table) -> None:
    """One Parquet file, at a path or a URI."""
    filesystem, inside = filesystem_of(path)
    pq.write_table(rows, inside, filesystem=filesystem, compression="zstd", compression_level=1)


def listed(context: JoinContext, found: list[Outcomes], rows: Rows, names: Names, strings: pa.Table) -> pa.Table:
    """A row for each transaction, as people and Parquet files want it."""
    tables = [_listed(context, outcomes, rows, names, strings) for outcomes in found if len(outcomes.rows)]
    return pa.concat_tables(tables) if tables else TRANSACTIONS.empty_table()


def _listed(context: JoinContext, outcomes: Outcomes, events: Rows, names: Names, strings: pa.Table) -> pa.Table:
    rows, counts = outcomes.rows, np.diff(outcomes.starts)
    firsts = np.append(outcomes.delivered, 0)[outcomes.starts[:-1]]
    delivered = np.where(counts > 0, firsts, -1)
    ended = np.where(rows["state"] == TransactionState.COMMITTED, delivered, -1)
    is_rolled_back = rows["state"] == TransactionState.ROLLED_BACK
    rolled = np.flatnonzero(is_rolled_back & (rows["generation"] != Generation.HALF_OP))
    ended[rolled] = _first_rollbacks(events, rows[rolled])
    halves = pick(events, np.isin(events["kind"], _OWN))
    halves = pick(halves, np.argsort(halves["offset"], kind="stable"))
    first = halves["store_ms"][np.searchsorted(halves["offset"], rows["lowest"])]
    columns = {
        "generation": _words({int(one): one.label for one in Generation}, rows["generation"]),
        "unique_key": _strings(strings, rows["half"], "unique_key"),
        "producer_group": _words({int(one): names[one] for one in np.unique(rows["group"])}, rows["group"]),
        "topic": _words({int(one): names[one] for one in np.unique(rows["topic"])}, rows["topic"]),
        "keys": _strings(strings, rows["half"], "keys"),
        "state": _words({int(one): name for one, name in STATE_NAMES.items()}, rows["state"]),
        "first_half_offset": pa.array(rows["lowest"]),
        "half_offset": pa.array(rows["half"]),
        "end_offset": pa.array(ended, mask=ended < 0),
        "delivered_offset": pa.array(delivered, mask=delivered < 0),
        "deliveries": pa.array(counts.astype(np.int32)),
        "queue_id": pa.array(rows["queue_id"]),
        "queue_offset": pa.array(rows["queue_offset"]),
        "checks": pa.array(rows["checks"]),
        "decided_by": _deciders(rows, ended, strings),
        "born_timestamp_ms": pa.array(rows["born_ms"]),
        "store_timestamp_ms": pa.array(first),
        "age_ms": pa.array(np.maximum(context.now_ms - first, 0)),
    }
    return pa.table([columns[field.name] for field in TRANSACTIONS], schema=TRANSACTIONS)


def _first_rollbacks(events: Rows, outcomes: Rows) -> Ints:
    """The CommitLog offset of the first rollback that names each half message and its group."""
    ends = pick(events, events["kind"] == EventKind.ROLLED_BACK)
    ends = pick(ends, np.lexsort((ends["offset"], ends["group"], ends["half"])))
    if not len(ends) or not len(outcomes):
        return np.full(len(outcomes), -1, np.int64)
    keys = np.stack((ends["half"], ends["group"].astype(np.int64)), axis=1)
    change = np.concatenate(([True], (keys[1:] != keys[:-1]).any(axis=1)))
    named = zip(map(tuple, keys[change].tolist()), ends["offset"][change].tolist(), strict=True)
    first = dict(named)
    wanted = zip(outcomes["half"].tolist(), outcomes["group"].tolist(), strict=True)
    return np.array([first.get(one, -1) for one in wanted], np.int64)


def _deciders(rows: Rows, ended: Ints, strings: pa.Table) -> pa.Array:
    """Who decided: as the end says (checkback writes it), else producer, or check-back where RocketMQ had asked."""
    said = _strings(strings, ended, "by")
    asked = (rows["checks"] > 0).astype(int)
    usual = {int(state): names for state, names in _ENDED_BY.items()}
    derived = [usual[state][was] for state, was in zip(rows["state"].tolist(), asked.tolist(), strict=True)]
    return pc.coalesce(said, pa.array(derived, pa.string()))


def _words(words: dict[int, str], numbers: Any) -> pa.Array:
    keys = sorted(words)
    indices = np.searchsorted(keys, numbers)
    return pa.array([words[key] for key in keys], pa.string()).take(pa.array(indices))


def _strings(strings: pa.Table, commitlog_offsets: Ints, name: str) -> pa.Array:
    """A string of each of the records at some offsets; null where there is none."""
    strings = strings.combine_chunks().sort_by("offset")
    held = strings.column("offset").to_numpy()
    at = np.searchsorted(held, commitlog_offsets)
    inside = np.minimum(at, max(len(held) - 1, 0))
    there = held[inside] == commitlog_offsets if len(held) else np.zeros(len(commitlog_offsets), np.bool_)
    column = strings.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.binary())
    if not len(held):
        return pa.nulls(len(commitlog_offsets), pa.string())
    taken = column.take(pa.array(inside, mask=~there))
    return _text(taken)


def _text(values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())
