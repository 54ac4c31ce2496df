"""The book of a followed copy, as it is read: its tables, and how the copy stands by them."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np

from broker.transaction.events import (
    EventKind,
    Generation,
    GenerationEvidence,
    TransactionState,
    generation,
    prepared_generation,
)
from recovery.findings import Finding, Findings
from recovery.transactions.digest import Digest
from recovery.transactions.events import EVENT, OP, Names, Rows
from recovery.transactions.outcomes import OUTCOME, STATE_NAMES, Joins, Outcomes

_DIGEST_ROWS = 50_000

SCHEMA = f"""
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value);
CREATE TABLE IF NOT EXISTS names (number INTEGER PRIMARY KEY, name BLOB);
CREATE TABLE IF NOT EXISTS halves (
    half INTEGER PRIMARY KEY, key BLOB, kind INTEGER, queue_id INTEGER, queue_offset INTEGER);
CREATE INDEX IF NOT EXISTS halves_by_place ON halves (queue_id, queue_offset) WHERE kind = {int(EventKind.HALF)};
CREATE TABLE IF NOT EXISTS events (key BLOB, "offset" INTEGER, row BLOB, PRIMARY KEY (key, "offset")) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS events_by_offset ON events ("offset");
CREATE TABLE IF NOT EXISTS ops (key BLOB, queue_id INTEGER, queue_offset INTEGER, "offset" INTEGER);
CREATE INDEX IF NOT EXISTS ops_by_key ON ops (key);
CREATE INDEX IF NOT EXISTS ops_by_offset ON ops ("offset");
CREATE TABLE IF NOT EXISTS outcomes (
    key BLOB PRIMARY KEY, state INTEGER, half INTEGER, lowest INTEGER, row BLOB, delivered BLOB) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS outcomes_in_doubt ON outcomes (lowest) WHERE state = {int(TransactionState.PREPARED)};
CREATE TABLE IF NOT EXISTS states (state INTEGER PRIMARY KEY, count INTEGER);
CREATE TABLE IF NOT EXISTS findings (key BLOB, kind TEXT, "offset" INTEGER, finding TEXT);
CREATE INDEX IF NOT EXISTS findings_by_key ON findings (key);
CREATE TABLE IF NOT EXISTS batches (
    begin INTEGER PRIMARY KEY, "end" INTEGER, records INTEGER, bytes INTEGER, last_ms INTEGER,
    state_table INTEGER, gap INTEGER, lone INTEGER, half_op INTEGER);
CREATE TABLE IF NOT EXISTS lost (begin INTEGER, "end" INTEGER, report TEXT);
CREATE TEMP TABLE touched (key BLOB PRIMARY KEY) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class Batch:
    """A stretch of the log that was verified; it lies in one segment."""

    begin: int
    end: int
    records: int
    bytes: int
    last_ms: int  # the greatest store time of its records; 0 without any
    evidence: GenerationEvidence


@dataclass(frozen=True, slots=True)
class Totals:
    """What all batches add up to."""

    records: int
    bytes: int
    last_ms: int
    evidence: GenerationEvidence


@dataclass(frozen=True, slots=True)
class UnendedTransaction:
    """A transaction without an end."""

    half_offset: int  # of the half message that an end must name
    since_ms: int  # when the first one was stored
    group: str
    topic: str
    checks: int

    def as_json(self) -> dict[str, Any]:
        return {
            "commitlog_offset": self.half_offset, "since_ms": self.since_ms, "producer_group": self.group,
            "topic": self.topic, "checks": self.checks,
        }  # fmt: skip


class BookReader:
    """Answers from the book. `FollowedBook` writes it."""

    _db: sqlite3.Connection
    names: Names

    def __init__(self, place: Callable[[int], str]) -> None:
        """`place` names the file of an offset."""
        self._place = place

    @property
    def position(self) -> int | None:
        """The log is verified up to here; None before the first stretch."""
        return self._number('SELECT max("end") FROM batches')

    @property
    def begin(self) -> int | None:
        """Where the first stretch begins."""
        return self._number("SELECT min(begin) FROM batches")

    def boundaries(self) -> list[int]:
        """Offsets at which records begin, ascending, at most one in 16 MiB."""
        return [at for (at,) in self._db.execute("SELECT begin FROM batches ORDER BY begin")]

    def totals(self) -> Totals:
        """Of all batches."""
        sums = ", ".join(f"ifnull(sum({name}), 0)" for name in ("records", "bytes", *GenerationEvidence._fields))
        row = self._db.execute(f"SELECT ifnull(max(last_ms), 0), {sums} FROM batches").fetchone()  # noqa: S608
        return Totals(row[1], row[2], row[0], GenerationEvidence(*row[3:]))

    def states(self) -> dict[str, int]:
        """How many transactions are in each state."""
        counts = dict(self._db.execute("SELECT state, count FROM states"))
        return {"total": sum(counts.values()), **{name: counts.get(state, 0) for state, name in STATE_NAMES.items()}}

    def in_doubt(self, limit: int) -> list[UnendedTransaction]:
        """The transactions without an end, oldest first."""
        query = f"SELECT row FROM outcomes WHERE state = {int(TransactionState.PREPARED)} ORDER BY lowest LIMIT ?"  # noqa: S608
        return [self._in_doubt(np.frombuffer(row, OUTCOME)[0]) for (row,) in self._db.execute(query, (limit,))]

    def _in_doubt(self, row: Any) -> UnendedTransaction:
        first = self._one('SELECT row FROM events WHERE "offset" = ? LIMIT 1', int(row["lowest"]))
        since_ms = int(row["store_ms"] if first is None else np.frombuffer(first, EVENT)[0]["store_ms"])
        group, topic = self.names[int(row["group"])], self.names[int(row["topic"])]
        return UnendedTransaction(int(row["half"]), since_ms, group, topic, int(row["checks"]))

    def lowest_in_doubt(self) -> int | None:
        """The CommitLog offset of the first half message without an end, or parked."""
        states = f"({int(TransactionState.PREPARED)}, {int(TransactionState.PARKED)})"
        return self._number(f"SELECT min(lowest) FROM outcomes WHERE state IN {states}")  # noqa: S608

    def findings(self, limit: int) -> Iterator[Finding]:
        """What contradicts itself, in log order."""
        query = 'SELECT kind, "offset", finding FROM findings ORDER BY "offset", kind LIMIT ?'
        for kind, at, text in self._db.execute(query, (limit,)):
            yield Finding(kind, at, *json.loads(text))
        yield from self._loose_ops()

    def findings_of(self, kind: str, limit: int) -> Iterator[Finding]:
        """The newest findings of a kind."""
        query = 'SELECT "offset", finding FROM findings WHERE kind = ? ORDER BY "offset" DESC LIMIT ?'
        for at, text in self._db.execute(query, (kind, limit)):
            yield Finding(kind, at, *json.loads(text))

    def finding_counts(self) -> dict[str, int]:
        """How many findings of each kind there are."""
        counts = Counter(dict(self._db.execute("SELECT kind, count(*) FROM findings GROUP BY kind")))
        counts["end-without-half"] += len(list(self._loose_ops()))
        return dict(sorted((+counts).items()))

    def _loose_ops(self) -> Iterator[Finding]:
        """Op messages that name a half message which should be there, and is not."""
        named = self._db.execute("SELECT queue_id, queue_offset, \"offset\" FROM ops WHERE key = x''").fetchall()
        if not named:
            return
        least = dict(self._db.execute(
            f"SELECT queue_id, min(queue_offset) FROM halves WHERE kind = {int(EventKind.HALF)} GROUP BY queue_id"  # noqa: S608
        ))  # fmt: skip
        found = Findings()
        joins = Joins(0, found, self._place, on_named=_nothing, on_keyed=_nothing, differ=lambda _half, _end: "",
                      least_half=least)  # fmt: skip
        joins.report_loose_ops(np.array(named, OP))
        yield from found

    def generation(self) -> Generation:
        """How this log says what became of its transactions."""
        return generation(self.totals().evidence)

    def digest(self) -> str:
        """The digest of all transactions, as a verification makes it; reads all of them."""
        total, prepared = Digest(), prepared_generation(self.totals().evidence)
        with closing(self._db.execute("SELECT row, delivered FROM outcomes")) as cursor:
            while found := cursor.fetchmany(_DIGEST_ROWS):
                rows = np.frombuffer(b"".join(row for row, _ in found), OUTCOME).copy()
                rows["generation"][rows["generation"] != Generation.HALF_OP] = prepared
                counts = [len(delivered) // 8 for _, delivered in found]
                starts = np.concatenate(([0], np.cumsum(counts)))
                delivered = np.frombuffer(b"".join(part for _, part in found), "<i8").astype(np.int64)
                outcomes = Outcomes(rows, starts, delivered)
                total.add_many(outcomes.entries(), starts.tolist(), delivered)
        return total.hex()

    def lost(self) -> list[dict[str, Any]]:
        """What was lost, in the order in which it was noticed."""
        return [json.loads(text) for (text,) in self._db.execute("SELECT report FROM lost ORDER BY rowid")]

    def batches_below(self, commitlog_offset: int) -> list[tuple[int, int, int]]:
        """(begin, end, newest store time in ms) of the batches that end at or below an offset."""
        query = 'SELECT begin, "end", last_ms FROM batches WHERE "end" <= ? ORDER BY begin'
        return self._db.execute(query, (commitlog_offset,)).fetchall()

    def event_counts_from(self, commitlog_offset: int) -> Counter[int]:
        """How many events of each kind records at or above an offset are."""
        rows = self._db.execute('SELECT row FROM events WHERE "offset" >= ?', (commitlog_offset,))
        return Counter(int(np.frombuffer(row, EVENT)[0]["kind"]) for (row,) in rows)

    def _one(self, query: str, *values: Any) -> Any:
        row = self._db.execute(query, values).fetchone()
        return None if row is None else row[0]

    def _number(self, query: str, *values: int) -> int | None:
        found = self._one(query, *values)
        return None if found is None else int(found)


def _nothing(_rows: Rows) -> None:
    return
