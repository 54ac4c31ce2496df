"""The catalog: what check-back remembers between rounds, and what operators did. A cache of no decision.

    STORE/checkback/catalog.db     SQLite, by default; any SQLAlchemy URL for a database of one's own

    checkback_attempt    one row for each transaction in doubt that was checked: how often, when again, what then
    checkback_run        one row for each round that found something to do
    checkback_decision   one row for each decision of a person
    checkback_decision_count   how many were decided, by whom and how: counters that never go back

What was decided stands in the CommitLog, who decided and why too, and what is parked. Without the catalog check-back
only begins to count again.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    create_engine,
    event,
    inspect,
    select,
)
from sqlalchemy.engine import URL  # here in 1.4, too, which Airflow 3.0 brings
from sqlalchemy.exc import DatabaseError, IntegrityError, SQLAlchemyError

from broker.database.tables import make_tables
from broker.errors import BrokerError
from broker.store.disk.files import Disk
from broker.store.disk.opening import check_no_link
from broker.store.disk.paths import Paths
from broker.store.read.layout import read_store_file
from recovery.checkback.ledgers.engines import engine_of
from recovery.sqlite_files import connect_to_read

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Engine

_RUNS_KEPT = 1000
_AT_ONCE = 500  # offsets in one SELECT: any database takes so many parameters
_CHECK_BACK, _PERSON = "check-back", "person"  # who decides
_OF_A_ROUND = {"committed": "committed", "rolled_back": "rolled_back", "parked": "newly_parked"}  # decision: its field
_WHAT = "the catalog"
_DAMAGED = ("not a database", "malformed", "disk image", "unsupported file format")

metadata = MetaData()
_attempts = Table(
    "checkback_attempt",
    metadata,
    Column("store_id", String(32), primary_key=True),
    Column("commitlog_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("message_id", String(64), nullable=False),
    Column("topic", String(255), nullable=False),
    Column("producer_group", String(255), nullable=False),
    Column("stored_ms", BigInteger, nullable=False),
    Column("checks", Integer, nullable=False),
    Column("looked_ms", BigInteger, nullable=False),
    Column("next_ms", BigInteger, nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("why", Text, nullable=False),
)
_runs = Table(
    "checkback_run",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("store_id", String(32), nullable=False),
    Column("started_ms", BigInteger, nullable=False),
    Column("decided_by", String(255), nullable=False),
    Column("report", Text, nullable=False),
)
_decisions = Table(
    "checkback_decision",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("store_id", String(32), nullable=False),
    Column("commitlog_offset", BigInteger, nullable=False),
    Column("message_id", String(64), nullable=False),
    Column("decision", String(32), nullable=False),
    Column("decided_by", String(255), nullable=False),
    Column("why", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
)
_counts = Table(
    "checkback_decision_count",
    metadata,
    Column("store_id", String(32), primary_key=True),
    Column("decided_by", String(16), primary_key=True),
    Column("decision", String(16), primary_key=True),
    Column("count", BigInteger, nullable=False),
)


@dataclass(frozen=True, slots=True)
class Attempt:
    """What is remembered of one transaction in doubt."""

    commitlog_offset: int
    message_id: str
    topic: str
    producer_group: str
    stored_ms: int  # when its half message was stored
    checks: int  # how often somebody was asked and did not know
    looked_ms: int  # when somebody was asked last, or could not be
    next_ms: int
    outcome: str  # of that last time: unknown, running, down
    why: str


_NAMES = tuple(one.name for one in fields(Attempt))


class Known(NamedTuple):
    """What a round needs to know of an attempt: of a million it has one each."""

    topic: str
    producer_group: str
    stored_ms: int
    checks: int
    next_ms: int


class Catalog:
    """The catalog of one store. Raises BrokerError when its database cannot be used."""

    def __init__(self, engine: Engine, store_id: str) -> None:
        self._engine, self._store_id = engine, store_id
        with _sentences(engine):
            make_tables(metadata, engine)

    @classmethod
    def open(cls, store_path: str, store_id: str, url: str | None = None) -> Catalog:
        """The catalog in a database, or by default in the store. A damaged one in the store is set aside."""
        if url is not None:
            return cls(engine_of(url, _WHAT), store_id)
        path = Paths(store_path).catalog
        try:
            return cls(_sqlite(path), store_id)
        except BrokerError as error:
            if not any(word in str(error) for word in _DAMAGED):
                raise
        disk = Disk()
        disk.rename(path, f"{path}.damaged")
        for beside in (f"{path}-wal", f"{path}-shm"):
            if disk.entry(beside) is not None:
                disk.remove(beside)
        return cls(_sqlite(path), store_id)

    def close(self) -> None:
        """Release its connections."""
        self._engine.dispose()

    def known(self) -> dict[int, Known]:
        """What is remembered, by the CommitLog offset of the half message."""
        columns = [_attempts.c[name] for name in ("commitlog_offset", *Known._fields)]
        with _sentences(self._engine), self._engine.connect() as connection:
            rows = connection.execute(select(*columns).where(_attempts.c.store_id == self._store_id))
            return {at: Known(sys.intern(topic), sys.intern(group), *rest) for at, topic, group, *rest in rows}

    def last_looked_ms(self) -> int:
        """When somebody was asked last, about whichever transaction; 0 when nobody was."""
        from sqlalchemy import func

        with _sentences(self._engine), self._engine.connect() as connection:
            found = connection.scalar(
                select(func.max(_attempts.c.looked_ms)).where(_attempts.c.store_id == self._store_id)
            )
        return found or 0

    def remember(self, attempts: Sequence[Attempt], gone: Iterable[int] = ()) -> None:
        """Put attempts in place of older ones; forget the transactions that are no longer in doubt."""
        forget = [{"at": number} for number in {*gone, *(one.commitlog_offset for one in attempts)}]
        if not forget:
            return
        from sqlalchemy import bindparam

        mine = _attempts.c.store_id == self._store_id
        with _sentences(self._engine), self._engine.begin() as connection:
            connection.execute(_attempts.delete().where(mine, _attempts.c.commitlog_offset == bindparam("at")), forget)
            if attempts:
                rows = [{name: getattr(one, name) for name in _NAMES} for one in attempts]
                rows = [{**row, "store_id": self._store_id} for row in rows]
                connection.execute(_attempts.insert(), rows)

    def note_run(self, started_ms: int, by: str, report: Mapping[str, Any]) -> None:
        """Keep the report of a round, and count what it decided; old reports go."""
        row = {"store_id": self._store_id, "started_ms": started_ms, "decided_by": by, "report": json.dumps(report)}
        with _sentences(self._engine), self._engine.begin() as connection:
            connection.execute(_runs.insert(), row)
            for decision, name in _OF_A_ROUND.items():
                self._count(connection, _CHECK_BACK, decision, int(report.get(name, 0)))
            newest = select(_runs.c.id).where(_runs.c.store_id == self._store_id).order_by(_runs.c.id.desc())
            oldest = connection.execute(newest.offset(_RUNS_KEPT).limit(1)).scalar()
            if oldest is not None:
                connection.execute(_runs.delete().where(_runs.c.store_id == self._store_id, _runs.c.id <= oldest))

    def runs(self, limit: int = 20) -> list[dict[str, Any]]:
        """The last rounds, newest first."""
        wanted = select(_runs.c.started_ms, _runs.c.decided_by, _runs.c.report).where(
            _runs.c.store_id == self._store_id
        )
        with _sentences(self._engine), self._engine.connect() as connection:
            found = connection.execute(wanted.order_by(_runs.c.id.desc()).limit(limit)).all()
        return [{"started_ms": started, "by": by, **json.loads(report)} for started, by, report in found]

    def note_decision(
        self, commitlog_offset: int, message_id: str, decision: str, by: str, why: str, at_ms: int
    ) -> None:
        """Keep what a person decided; the end record says it too."""
        row = {"store_id": self._store_id, "commitlog_offset": commitlog_offset, "message_id": message_id}
        row |= {"decision": decision, "decided_by": by, "why": why, "at_ms": at_ms}
        with _sentences(self._engine), self._engine.begin() as connection:
            connection.execute(_decisions.insert(), row)
            self._count(connection, _PERSON, decision.replace(" ", "_"), 1)

    def _count(self, connection: Connection, by: str, decision: str, number: int) -> None:
        """Add to a counter, in a transaction."""
        if not number:
            return
        columns = {"store_id": self._store_id, "decided_by": by, "decision": decision}
        mine = [_counts.c[name] == value for name, value in columns.items()]
        more = _counts.update().where(*mine).values(count=_counts.c.count + number)
        if connection.execute(more).rowcount == 0:
            try:
                with connection.begin_nested():
                    connection.execute(_counts.insert(), {**columns, "count": number})
            except IntegrityError:  # another process was quicker
                connection.execute(more)

    def decisions(self) -> list[dict[str, Any]]:
        """What persons decided, oldest first."""
        mine = _decisions.c.store_id == self._store_id
        with _sentences(self._engine), self._engine.connect() as connection:
            found = connection.execute(select(_decisions).where(mine).order_by(_decisions.c.id)).mappings().all()
        return [{name: value for name, value in row.items() if name not in ("id", "store_id")} for row in found]


def attempts_of(store_path: str, offsets: Collection[int] | None = None) -> dict[int, Attempt]:
    """What the catalog in a store remembers of half messages, by CommitLog offset; empty without a catalog.

    None: of all. No catalog is made, and nothing changed. Raises BrokerError when its database cannot be read.
    """
    columns = [_attempts.c[name] for name in _NAMES]
    if offsets is None:
        return {row[0]: Attempt(*row) for row in _read(store_path, _attempts, columns)}
    wanted, found = sorted(offsets), dict[int, Attempt]()
    for start in range(0, len(wanted), _AT_ONCE):
        some = _attempts.c.commitlog_offset.in_(wanted[start : start + _AT_ONCE])
        found |= {row[0]: Attempt(*row) for row in _read(store_path, _attempts, columns, some)}
    return found


def checks_of(store_path: str) -> dict[int, int]:
    """How often each half message was queried, by CommitLog offset; else as `attempts_of`."""
    return dict(_read(store_path, _attempts, [_attempts.c.commitlog_offset, _attempts.c.checks]))


def decision_counts(store_path: str) -> dict[tuple[str, str], int]:
    """How many transactions were decided, by (check-back or person, decision), since the catalog in a store was made.

    Empty without a catalog. Raises BrokerError when its database cannot be read.
    """
    columns = [_counts.c.decided_by, _counts.c.decision, _counts.c.count]
    return {(by, decision): count for by, decision, count in sorted(_read(store_path, _counts, columns))}


def _read(
    store_path: str, table: Table, columns: Sequence[Column[Any]], *wanted: ColumnElement[bool]
) -> list[tuple[Any, ...]]:
    """The rows of a store's catalog; none without one, and of an older version's that lacks the table."""
    disk, paths = Disk(), Paths(store_path)
    file = read_store_file(disk, paths)
    if file is None or disk.entry(paths.catalog) is None:
        return []
    engine = create_engine(_url(paths.catalog), creator=lambda: connect_to_read(paths.catalog))
    try:
        with _sentences(engine), engine.connect() as connection:
            if not inspect(connection).has_table(table.name):
                return []
            found = connection.execute(select(*columns).where(table.c.store_id == file.store_id, *wanted))
            return [tuple(row) for row in found]
    finally:
        engine.dispose()


def _sqlite(path: str) -> Engine:
    """Many processes read and write it; a power cut may take the last attempts, which are asked again then."""
    disk = Disk()
    for suffix in ("", "-wal", "-shm", "-journal"):
        check_no_link(f"{path}{suffix}")
    if disk.entry(path) is None:
        os.close(disk.open_lock(path))  # an empty file that belongs to the store's owner: SQLite's would be root's
    engine = create_engine(_url(path))

    @event.listens_for(engine, "connect")
    def _prepare(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA busy_timeout = 5000")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")

    return engine


def _url(path: str) -> URL:
    """Not made of text, in which `?` and `%` of a path have meanings of their own."""
    return URL.create("sqlite", database=os.path.abspath(path))


class _sentences:  # noqa: N801 - reads as a word of the language: with _sentences(engine)
    """Turns what a database raises into a sentence that says which one it was."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SQLAlchemyError):
            cause = error.orig if isinstance(error, DatabaseError) and error.orig else error
            cause_text = " ".join(str(cause).split())[:200]
            raise BrokerError(f"the catalog {self._engine.url!r} cannot be used: {cause_text}") from error
