"""The three joins, a partition at a time, by the local engine's own functions.

Ends meet their half (`join_ends`), op messages meet theirs (`join_ops`), and what is left meets by unique key
(`join_keys`): `recovery.transactions.outcomes` says what each join does.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from broker.transaction.events import Generation
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
from recovery.pipeline.inspection import strings_of
from recovery.pipeline.split_builder import CELLS, TABLE, OutputFile, RebuildPlan, chunks
from recovery.pipeline.store_location import LogManifest, path_within
from recovery.pipeline.transaction_rows import transaction_rows, write_rows
from recovery.rebuild.entries import slots_of
from recovery.scan.record_at import record_at
from recovery.scan.spill import joined
from recovery.transactions.digest import Digest
from recovery.transactions.events import Names, Redeliveries, Rows
from recovery.transactions.fingerprint import difference
from recovery.transactions.outcomes import Joins, Outcomes
from recovery.verify.state_table import StateTableComparison, TableClaims


@dataclass(frozen=True)
class JoinContext:
    """What every partition gets."""

    log: LogManifest
    partitions: int
    prepared: Generation
    begin: int
    least_half: dict[int, int]
    with_table: bool = False  # compare the state table
    with_rows: bool = False  # list the transactions
    now_ms: int = 0
    directory: str | None = None  # where files with the rows go; else they travel to Spark
    rebuild_plan: RebuildPlan | None = None  # make the slots of the state table


@dataclass
class PartitionResult:
    """The sums of one partition, and what it found."""

    digest: int = 0
    states: Counter[int] = field(default_factory=Counter)
    findings: Findings = field(default_factory=Findings)
    table: TableClaims | None = None  # what its slots claim, where the table is compared
    file: str | None = None  # with the rows, under the name that it has while the job runs
    error: OSError | None = None  # why they could not be written


class _PartitionJoins:
    """The joins of one partition; what goes on to another join is kept."""

    def __init__(self, context: JoinContext, findings: Findings) -> None:
        listing = context.log.listing()
        self.named: list[Rows] = []
        self.keyed: list[Rows] = []
        self.joins = Joins(
            context.begin,
            findings,
            context.log.file_at,
            on_named=self.named.append,
            on_keyed=self.keyed.append,
            differ=lambda half, end: difference(record_at(listing, half), record_at(listing, end)),
            least_half=context.least_half,
        )


def join_ends(context: JoinContext) -> Callable[[pa.Table], Iterator[tuple[str, int, Any]]]:
    """The first join of one partition: outcomes, and what the half-op generation passes on."""

    def join(table: pa.Table) -> Iterator[tuple[str, int, Any]]:
        names, result = NumberedNames(), PartitionResult()
        rows, strings = gathered(values_of(table, EVENTS), names)
        rows = Redeliveries().drop(rows)
        part = _PartitionJoins(context, result.findings)
        outcomes = list(part.joins.join_ends(rows, context.prepared))
        yield from _results(context, result, outcomes, rows, names, strings)
        raw, count = names.raw(), context.partitions
        for some in part.named:
            for to, dealt_rows, _ in dealt(some, by_place(some, count)):
                yield NAMED, to, dealt_rows
        for some in part.keyed:
            for to, dealt_rows, _ in dealt(some, by_key(some, count)):
                of_rows = strings_of(strings, dealt_rows["offset"]) if context.with_rows else None
                yield KEYED, to, Block(raw, dealt_rows, of_rows)

    return join


def _slots(rebuild_plan: RebuildPlan, found: list[Outcomes], names: Names) -> Iterator[tuple[str, int, Any]]:
    """The slots of these transactions, dealt to the files of the state table."""
    for outcomes in found:
        rows = outcomes.slots(rebuild_plan.table_generation)
        for chunk in chunks(rebuild_plan, OutputFile(TABLE, 0), 0, *slots_of(rows, names)):
            yield CELLS, chunk.target.part, chunk


def join_ops(context: JoinContext) -> Callable[[pa.Table], Iterator[tuple[str, int, Any]]]:
    """The second join of one partition: each half gets the number of op messages that name it."""

    def join(table: pa.Table) -> Iterator[tuple[str, int, Any]]:
        result = PartitionResult()
        part = _PartitionJoins(context, result.findings)
        blocks = list(values_of(table, NAMED))
        named = next((block.dtype for block in blocks if "is_half" in (block.dtype.names or ())), None)
        if named is None:
            named = np.dtype([*blocks[0].dtype.descr, ("key_hi", "u8"), ("key_lo", "u8"), ("is_half", "u1")])
        part.joins.join_ops(joined([_as(block, named) for block in blocks], named))
        yield OUTCOMES, 0, result
        for some in part.keyed:
            for to, dealt_rows, _ in dealt(some, by_key(some, context.partitions)):
                yield KEYED, to, Block([b""], dealt_rows)

    return join


def _as(rows: Rows, dtype: np.dtype[Any]) -> Rows:
    if rows.dtype == dtype:
        return rows
    wider = np.zeros(len(rows), dtype)
    for name in rows.dtype.names or ():
        wider[name] = rows[name]
    return wider


def join_keys(context: JoinContext) -> Callable[[pa.Table], Iterator[tuple[str, int, Any]]]:
    """The third join of one partition: everything with one unique key is one transaction."""

    def join(table: pa.Table) -> Iterator[tuple[str, int, Any]]:
        names, result = NumberedNames(), PartitionResult()
        rows, strings = gathered(values_of(table, KEYED), names)
        part = _PartitionJoins(context, result.findings)
        outcomes = list(part.joins.join_keys(rows))
        yield from _results(context, result, outcomes, rows, names, strings)

    return join


def _results(
    context: JoinContext, result: PartitionResult, found: list[Outcomes], rows: Rows, names: NumberedNames,
    strings: pa.Table,
) -> Iterator[tuple[str, int, Any]]:  # fmt: skip
    """The sums of some transactions, and their rows and slots, where those are wanted."""
    _summarize(context, result, found, names)
    if context.with_rows:
        yield from _emit_rows(context, result, transaction_rows(found, rows, names, strings, context.now_ms))
    if context.rebuild_plan is not None:
        yield from _slots(context.rebuild_plan, found, names)
    yield OUTCOMES, 0, result


def _summarize(context: JoinContext, result: PartitionResult, found: list[Outcomes], names: NumberedNames) -> None:
    """Sum up, and compare the slots."""
    digest = Digest()
    for outcomes in found:
        digest.add_many(outcomes.entries(), outcomes.starts.tolist(), outcomes.delivered)
        numbers, counts = np.unique(outcomes.rows["state"], return_counts=True)
        result.states.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
    result.digest = digest.total
    files = context.log.store_files() if context.with_table else None
    if files is not None and files.table_generation in (Generation.HALF_OP, context.prepared):
        table = StateTableComparison(
            files.slot_units(), names, 1, result.findings, is_written=files.ignore_from is not None
        )
        for outcomes in found:
            table.add(outcomes.slots(files.table_generation))
        result.table = table.claims(names.raw())


def _emit_rows(context: JoinContext, result: PartitionResult, rows: pa.Table) -> Iterator[tuple[str, int, Any]]:
    """Rows for Spark, or a file: Spark would take as long to write them as everything else takes."""
    if context.directory is None:
        yield ROWS, 0, rows
    elif len(rows):
        result.file = f"{uuid.uuid4().hex}.parquet"
        try:
            write_rows(path_within(context.directory, result.file), rows)
        except OSError as error:  # Spark would run the task again, and then show its own traceback
            result.error = error
