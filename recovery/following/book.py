"""What a follower knows of the transactions in its copy, on disk, as of the offset up to which it verified the log.

    events   what records say, a row for each, with the key of the transaction that it is about
    ops      the same for op messages
    halves   which transaction a half message belongs to
    outcomes how each transaction stands
    findings what contradicts itself
    batches  stretches of the log that were verified: records, bytes, newest time

A record changes the outcome of the transactions that it is about, and of no other. So all events of those are joined
again, by the joins of a verification (`recovery.transactions.outcomes`), and what they give replaces what stood there.
Everything that a stretch of the log changes is one transaction of SQLite, and so is its position. Memory holds one
stretch and the transactions that it touches.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from broker.transaction.events import (
    EventKind,
    Generation,
    GenerationEvidence,
)
from recovery.findings import Finding, Findings
from recovery.following.book_reading import SCHEMA, Batch, BookReader
from recovery.scan.spill import pick
from recovery.sqlite_files import explained_sqlite
from recovery.transactions.events import EVENT, OP, Names, Redeliveries, Rows, named_numbers
from recovery.transactions.outcomes import Outcomes, Transactions

_BATCH_BYTES = 16 << 20  # of log in one row of `batches`, at most: what is verified again after a cut
_OWN = (EventKind.PREPARED, EventKind.HALF)

_OF_TOUCHED = "WHERE key IN (SELECT key FROM touched)"


class FollowedBook(BookReader):
    """The book of one copy. One thread writes; another may read through a connection of its own (`FollowedBook`)."""

    def __init__(
        self, path: str, segment_bytes: int, place: Callable[[int], str], differ: Callable[[int, int], str]
    ) -> None:
        """`place` names the file of an offset; `differ` compares the records of a half and its end.

        Raises CorruptStore when the file is not a database, StoreFull, StoreError.
        """
        super().__init__(place)
        self._segment_bytes, self._differ = segment_bytes, differ
        self._path = path
        with self.sentences():
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            for line in ("journal_mode = WAL", "synchronous = NORMAL", "temp_store = MEMORY"):
                self._db.execute(f"PRAGMA {line}")
            self._db.executescript(SCHEMA)
            self.names = Names()
            for (name,) in self._db.execute("SELECT name FROM names ORDER BY number"):
                self.names.number(name)

    def sentences(self) -> AbstractContextManager[None]:
        """What SQLite raises within becomes a sentence. Raises CorruptStore, StoreFull, StoreError."""
        return explained_sqlite(self._path, "Remove it: the copy is verified again from its first record")

    def close(self) -> None:
        self._db.close()

    # What was verified

    def mark(self, begin: int, durable_end: int, last_record: int) -> None:
        """Remember what of the copy is on disk: whole records from `begin` to `durable_end`."""
        text = json.dumps([begin, durable_end, last_record])
        self._db.execute("INSERT OR REPLACE INTO facts VALUES ('durable', ?)", (text,))

    def marked(self) -> tuple[int, int, int] | None:
        """(begin, durable end, where the last record begins); None for a copy that is new."""
        found = self._one("SELECT value FROM facts WHERE name = 'durable'")
        return None if found is None else tuple(json.loads(found))

    def last_prepared(self) -> int | None:
        """The slot of the last prepared record."""
        query = "SELECT queue_offset FROM halves WHERE kind = ? ORDER BY half DESC LIMIT 1"
        return self._number(query, int(EventKind.PREPARED))

    def redeliveries(self) -> Redeliveries:
        """Knows the half message at offset 0, if there is one."""
        found = self._one('SELECT row FROM events JOIN halves USING (key) WHERE half = 0 AND "offset" = 0')
        return Redeliveries(None if found is None else np.frombuffer(found, EVENT))

    def add(self, batch: Batch, rows: Rows, ops: Rows, findings: list[Finding]) -> None:
        """Take what a stretch behind the last one says."""
        with self._transaction():
            known = self._one("SELECT count(*) FROM names") or 0
            new = [(number, self.names.encoded(number)) for number in range(known, len(self.names))]
            self._db.executemany("INSERT INTO names VALUES (?, ?)", new)
            begin = self.begin
            self._touch(self._keep(rows, ops))
            self._join(batch.begin if begin is None else begin)
            self._note(b"", findings)
            self._extend(batch)

    def _extend(self, batch: Batch) -> None:
        evidence = tuple(batch.evidence)
        last = self._db.execute('SELECT begin, "end" FROM batches ORDER BY begin DESC LIMIT 1').fetchone()
        size = self._segment_bytes
        is_one = last and last[1] == batch.begin and last[0] // size == (batch.end - 1) // size
        if is_one and batch.end - last[0] <= _BATCH_BYTES:
            more = ", ".join(f"{name} = {name} + ?" for name in ("records", "bytes", *GenerationEvidence._fields))
            self._db.execute(
                f'UPDATE batches SET "end" = ?, last_ms = max(last_ms, ?), {more} WHERE begin = ?',  # noqa: S608
                (batch.end, batch.last_ms, batch.records, batch.bytes, *evidence, last[0]),
            )
            return
        row = (batch.begin, batch.end, batch.records, batch.bytes, batch.last_ms, *evidence)
        self._db.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)

    # Events and their transactions

    def _keep(self, rows: Rows, ops: Rows) -> set[bytes]:
        """Store events under the keys of their transactions; these keys."""
        own = np.isin(rows["kind"], _OWN)
        halves = {int(row["offset"]): _key_of_half(row) for row in rows[own]}
        named = pick(rows, rows["kind"] == EventKind.HALF)
        places = {
            (int(row["queue_id"]), number): halves[int(row["offset"])]
            for row, number in zip(named, named_numbers(named).tolist(), strict=True)
        }
        self._db.executemany(
            "INSERT OR REPLACE INTO halves VALUES (?, ?, ?, ?, ?)",
            [(int(row["offset"]), halves[int(row["offset"])], int(row["kind"]), int(row["queue_id"]),
              number) for row, number in zip(rows[own], named_numbers(rows[own]).tolist(), strict=True)],
        )  # fmt: skip
        keys = [self._key(row, halves) for row in rows]
        events = [(key, int(row["offset"]), row.tobytes()) for key, row in zip(keys, rows, strict=True)]
        self._db.executemany("INSERT OR REPLACE INTO events VALUES (?, ?, ?)", events)
        ended = [(self._key_of_place(int(op["queue_id"]), int(op["queue_offset"]), places), *op.tolist()) for op in ops]
        self._db.executemany("INSERT INTO ops VALUES (?, ?, ?, ?)", ended)
        return {*keys, *(row[0] for row in ended if row[0])}

    def _key(self, row: Any, halves: dict[int, bytes]) -> bytes:
        half, kind = int(row["half"]), int(row["kind"])
        if kind in _OWN:
            return halves[int(row["offset"])]
        if kind == EventKind.PARKED and half < 0:
            return _key(row)
        key = halves.get(half) or self._one("SELECT key FROM halves WHERE half = ?", half)
        return key or b"?%d" % half

    def _key_of_place(self, queue_id: int, queue_offset: int, places: dict[tuple[int, int], bytes]) -> bytes:
        """The transaction of the half message at a place of the half topic; empty when it is not there."""
        found = places.get((queue_id, queue_offset)) or self._one(
            "SELECT key FROM halves WHERE queue_id = ? AND queue_offset = ? AND kind = ? ORDER BY half DESC LIMIT 1",
            queue_id, queue_offset, int(EventKind.HALF),
        )  # fmt: skip
        return found or b""

    def _touch(self, keys: set[bytes]) -> None:
        self._db.execute("DELETE FROM touched")
        self._db.executemany("INSERT OR IGNORE INTO touched VALUES (?)", [(key,) for key in keys])

    def _join(self, begin: int) -> None:
        """Replace what is known of the touched transactions by what their events say now.

        An end whose half message is below `begin`, where the log begins, is not a finding.
        """
        execute = self._db.execute
        query = f'SELECT key, "offset", row FROM events {_OF_TOUCHED} ORDER BY "offset"'  # noqa: S608
        found = execute(query).fetchall()
        rows = np.frombuffer(b"".join(row for _, _, row in found), EVENT)
        query = f'SELECT key, queue_id, queue_offset, "offset" FROM ops {_OF_TOUCHED}'  # noqa: S608
        named = execute(query).fetchall()
        ops = np.array([row[1:] for row in named], OP) if named else np.zeros(0, OP)
        key_of = {row[3]: row[0] for row in named} | {at: key for key, at, _ in found}
        findings = Findings()
        transactions = Transactions(1, begin, findings, self._place, self._differ)
        transactions.add(rows, ops)
        gone = f"SELECT count(*) FROM outcomes {_OF_TOUCHED} AND outcomes.state = states.state"  # noqa: S608
        execute(f"UPDATE states SET count = count - ({gone})")  # noqa: S608
        execute(f"DELETE FROM outcomes {_OF_TOUCHED}")  # noqa: S608
        execute(f"DELETE FROM findings {_OF_TOUCHED}")  # noqa: S608
        counts: Counter[int] = Counter()
        for outcomes in transactions.outcomes(Generation.STATE_TABLE):
            self._db.executemany("INSERT INTO outcomes VALUES (?, ?, ?, ?, ?, ?)", list(_stored(outcomes)))
            counts.update(outcomes.rows["state"].tolist())
        for state, count in counts.items():
            execute("INSERT INTO states VALUES (?, ?) ON CONFLICT DO UPDATE SET count = count + excluded.count",
                    (state, count))  # fmt: skip
        for finding in findings:
            self._note(key_of.get(finding.commitlog_offset, b""), [finding])

    def _note(self, key: bytes, findings: list[Finding]) -> None:
        rows = [(key, one.kind, one.commitlog_offset, json.dumps([one.text, one.file, one.facts])) for one in findings]
        self._db.executemany("INSERT INTO findings VALUES (?, ?, ?, ?)", rows)

    # What goes

    def forget_from(self, commitlog_offset: int) -> int:
        """Forget what records at or above an offset say; from where on the log is to be verified again."""
        begin = self._one("SELECT max(begin) FROM batches WHERE begin <= ?", commitlog_offset)
        begin = commitlog_offset if begin is None else begin
        self._forget(">=", begin)
        return int(begin)

    def forget_below(self, commitlog_offset: int) -> None:
        """Forget what records below the beginning of a batch say: they expired."""
        self._forget("<", commitlog_offset)

    def _forget(self, side: str, at: int) -> None:
        """`side` is a comparison of this module's own."""
        with self._transaction():
            keys = self._db.execute(
                f'SELECT key FROM events WHERE "offset" {side} ? UNION SELECT key FROM ops WHERE "offset" {side} ?',  # noqa: S608
                (at, at),
            )
            self._touch({key for (key,) in keys if key})
            for table in ("events", "ops", "findings"):
                self._db.execute(f'DELETE FROM {table} WHERE "offset" {side} ?', (at,))  # noqa: S608
            self._db.execute(f"DELETE FROM halves WHERE half {side} ?", (at,))  # noqa: S608
            self._db.execute(f"DELETE FROM batches WHERE begin {side} ?", (at,))  # noqa: S608
            self._join(self.begin or at)

    # What the master lost

    def note_lost(self, log_begin: int, last_record: int, report: dict[str, Any]) -> None:
        """Remember what a master lost at a recovery, and that the copy ends before it, whether it is cut already."""
        begin, end = report["begin_offset"], report["end_offset"]
        with self._transaction():
            self._db.execute("INSERT INTO lost VALUES (?, ?, ?)", (begin, end, json.dumps(report)))
            self.mark(log_begin, begin, last_record)

    def _transaction(self) -> _Immediate:
        return _Immediate(self._db)


class _Immediate:
    """BEGIN IMMEDIATE … COMMIT; ROLLBACK when it raises."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def __enter__(self) -> None:
        self._db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._db.execute("COMMIT")
        elif self._db.in_transaction:  # on a full disk SQLite has rolled back itself
            self._db.execute("ROLLBACK")


def _key(row: Any) -> bytes:
    return b"h" + int(row["key_hi"]).to_bytes(8, "big") + int(row["key_lo"]).to_bytes(8, "big")


def _key_of_half(row: Any) -> bytes:
    return _key(row) if row["kind"] == EventKind.HALF else b"o%d" % int(row["offset"])


def _stored(outcomes: Outcomes) -> Iterator[tuple[bytes, int, int, int, bytes, bytes]]:
    for number, row in enumerate(outcomes.rows):
        key = _key(row) if row["generation"] == Generation.HALF_OP else b"o%d" % int(row["half"])
        delivered = outcomes.delivered[outcomes.starts[number] : outcomes.starts[number + 1]].astype("<i8").tobytes()
        yield key, int(row["state"]), int(row["half"]), int(row["lowest"]), row.tobytes(), delivered
