"""The ledger row and the tombstone: only one of the two is let in, whoever comes first and however they meet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from sqlalchemy import URL, Engine, create_engine, event, insert, select, text
from sqlalchemy.orm import Session

from broker.enlisting.ledger_key import key_time_ms, new_key
from broker.enlisting.sqlalchemy_join import SqlalchemyTransaction, enlist
from broker.errors import AlreadyEnded, TransactionError
from broker.ledger import COMMITTED, ROLLED_BACK, Ledger
from broker.transaction.events import TransactionState
from broker.transaction.service import Half, TransactionalMessageService
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.protocol import Answer, Outcome
from tests.ledger.proven import resolver_of

STORE = "5" * 32


@pytest.fixture
def resolver(ledger: Ledger, other_engine: Engine) -> LedgerResolver:
    """Check-back in another process: its own connections."""
    return resolver_of(Ledger(other_engine), STORE, lock_timeout_ms=50)


@pytest.fixture
def orders(engine: Engine) -> Callable[[], list[int]]:
    """What the application saved."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))

    def saved() -> list[int]:
        with engine.connect() as connection:
            return [number for (number,) in connection.execute(text("SELECT id FROM orders ORDER BY id"))]

    return saved


def ask(resolver: LedgerResolver, key: str) -> Answer:
    return resolver.answers({key: "shop"})[key]


def save(session: Session, number: int) -> None:
    session.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": number})


class Entry:
    """The ledger row of a session's transaction with one message, whose store is of no interest here."""

    def __init__(self, ledger: Ledger, session: Session) -> None:
        self._session = session
        (self._enlistment, self._connection) = enlist(session, ledger)
        service = Mock(spec=TransactionalMessageService)
        branch = SqlalchemyTransaction(session, ledger).branch("shop", service, store_id=STORE)
        branch.halves.append(Half(1, 0, "shop", "orders", 0, "1", (), 0, 0, 100, {}))
        self.key = branch.key

    def seal(self) -> None:
        """The last step before COMMIT, which the session's own commit() then skips."""
        self._session.flush()
        self._enlistment.seal(self._connection)


def begin(ledger: Ledger, session: Session) -> Entry:
    return Entry(ledger, session)


def test_a_committed_transaction_is_answered_committed(
    ledger: Ledger, engine: Engine, resolver: LedgerResolver
) -> None:
    with Session(engine) as session:
        entry = begin(ledger, session)
        entry.seal()
        session.commit()
    assert ask(resolver, entry.key) == Answer(Outcome.COMMITTED, "its ledger row is there")


def test_a_rolled_back_transaction_is_answered_rolled_back(
    ledger: Ledger, engine: Engine, resolver: LedgerResolver
) -> None:
    with Session(engine) as session:
        entry = begin(ledger, session)
        entry.seal()
        session.rollback()
    assert ask(resolver, entry.key).outcome is Outcome.ROLLED_BACK


def test_the_tombstone_stays(ledger: Ledger, resolver: LedgerResolver) -> None:
    """A second question, by whomever, gets the same answer from the row."""
    key = new_key(1)
    assert ask(resolver, key).outcome is Outcome.ROLLED_BACK
    again = ask(resolver_of(ledger, STORE, by="an operator"), key)
    assert again == Answer(Outcome.ROLLED_BACK, "its ledger row says rolled back, by check-back")


def test_a_running_transaction_is_no_verdict(
    ledger: Ledger, engine: Engine, resolver: LedgerResolver, orders: Callable[[], list[int]]
) -> None:
    """Before COMMIT the row, or SQLite's write lock, is held: still running. And then it commits as if nobody asked."""
    with Session(engine) as session:
        entry = begin(ledger, session)
        save(session, 1)
        session.flush()
        assert ask(resolver, entry.key).outcome is Outcome.RUNNING
        entry.seal()
        assert ask(resolver, entry.key).outcome is Outcome.RUNNING
        session.commit()
    assert ask(resolver, entry.key).outcome is Outcome.COMMITTED
    assert orders() == [1]


def test_postgresql_protects_a_transaction_that_has_not_written_yet(
    postgres_url: URL,
) -> None:
    """The row is there from the beginning, so a slow transaction is never taken for a dead one."""
    engine, other = create_engine(postgres_url), create_engine(postgres_url)
    ledger = Ledger(engine)
    ledger.create_all()
    resolver = resolver_of(Ledger(other), STORE, lock_timeout_ms=50)
    with Session(engine) as session:
        entry = begin(ledger, session)
        assert ask(resolver, entry.key).outcome is Outcome.RUNNING
        entry.seal()
        session.commit()
    assert ask(resolver, entry.key).outcome is Outcome.COMMITTED
    engine.dispose()
    other.dispose()


def test_a_late_commit_after_the_tombstone_saves_nothing_on_sqlite(sqlite_url: URL) -> None:
    """Only age protects a transaction there that has not written yet; if it was too old, it is told so."""
    engine, other = create_engine(sqlite_url), create_engine(sqlite_url)
    ledger = Ledger(engine)
    ledger.create_all()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    with Session(engine) as session:
        entry = begin(ledger, session)
        assert ask(resolver_of(Ledger(other), STORE), entry.key).outcome is Outcome.ROLLED_BACK
        save(session, 1)
        with pytest.raises(AlreadyEnded, match="nothing was saved") as caught:
            entry.seal()
        assert caught.value.state == ROLLED_BACK
        session.rollback()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar() == 0
    engine.dispose()
    other.dispose()


def test_a_dead_process_leaves_no_lock(postgres_url: URL) -> None:
    """Its connection breaks, the server rolls back, and then the tombstone goes in."""
    engine, other = create_engine(postgres_url), create_engine(postgres_url)
    ledger = Ledger(engine)
    ledger.create_all()
    resolver = resolver_of(Ledger(other), STORE, lock_timeout_ms=50)
    session = Session(engine)
    entry = begin(ledger, session)
    pid = session.execute(text("SELECT pg_backend_pid()")).scalar()
    assert ask(resolver, entry.key).outcome is Outcome.RUNNING
    with other.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(:pid, 5000)"), {"pid": pid})
    assert ask(resolver, entry.key).outcome is Outcome.ROLLED_BACK
    session.invalidate()
    engine.dispose()
    other.dispose()


@pytest.mark.parametrize("level", ["READ UNCOMMITTED", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_every_isolation_level_of_the_application_is_safe(postgres_url: URL, level: str) -> None:
    """Running: no verdict. Rolled back: the tombstone. Committed: committed. The check-back's own level is fixed."""
    engine, other = (
        create_engine(postgres_url, isolation_level=level),
        create_engine(postgres_url, isolation_level=level),
    )
    ledger = Ledger(engine)
    ledger.create_all()
    resolver = resolver_of(Ledger(other), STORE, lock_timeout_ms=50)
    for ending, outcome in ((Session.commit, Outcome.COMMITTED), (Session.rollback, Outcome.ROLLED_BACK)):
        with Session(engine) as session:
            entry = begin(ledger, session)
            session.execute(text("SELECT 1"))
            assert ask(resolver, entry.key).outcome is Outcome.RUNNING
            entry.seal()
            ending(session)
        assert ask(resolver, entry.key).outcome is outcome
    engine.dispose()
    other.dispose()


@pytest.mark.parametrize("level", ["READ UNCOMMITTED", "SERIALIZABLE"])
def test_every_isolation_level_of_sqlite_is_safe(sqlite_url: URL, level: str) -> None:
    engine, other = create_engine(sqlite_url, isolation_level=level), create_engine(sqlite_url, isolation_level=level)
    ledger = Ledger(engine)
    ledger.create_all()
    resolver = resolver_of(Ledger(other), STORE, lock_timeout_ms=50)
    for ending, outcome in ((Session.commit, Outcome.COMMITTED), (Session.rollback, Outcome.ROLLED_BACK)):
        with Session(engine) as session:
            entry = begin(ledger, session)
            entry.seal()
            assert ask(resolver, entry.key).outcome is Outcome.RUNNING
            ending(session)
        assert ask(resolver, entry.key).outcome is outcome
    engine.dispose()
    other.dispose()


def test_an_old_snapshot_never_answers(postgres_url: URL) -> None:
    """A resolver whose engine reads at REPEATABLE READ still sees what was committed a moment ago."""
    engine, other = create_engine(postgres_url), create_engine(postgres_url, isolation_level="REPEATABLE READ")
    ledger = Ledger(engine)
    ledger.create_all()
    resolver = resolver_of(Ledger(other), STORE)
    key = new_key(1)
    with resolver._connection() as connection:
        resolver._prove(connection)
        assert resolver._committed(connection, [key]) == {}
        with engine.begin() as theirs:
            ledger.insert(theirs, key, "shop", STORE)
        assert resolver.decide(key, "shop", ROLLED_BACK, "check-back", connection).outcome is Outcome.COMMITTED
    engine.dispose()
    other.dispose()


def test_of_many_who_put_a_tombstone_all_say_the_same(ledger: Ledger, url: URL) -> None:
    """Two check-backs at once, and an application that commits at the same time: one row, one answer."""
    for _ in range(20):
        key = new_key(1)
        found: list[Outcome] = []
        gate = threading.Barrier(3)

        def check_back(key: str = key, found: list[Outcome] = found, gate: threading.Barrier = gate) -> None:
            engine = create_engine(url)
            resolver = resolver_of(Ledger(engine), STORE, lock_timeout_ms=2000)
            gate.wait()
            found.append(ask(resolver, key).outcome)
            engine.dispose()

        threads = [threading.Thread(target=check_back) for _ in range(2)]
        for thread in threads:
            thread.start()
        gate.wait()
        committed = True
        try:
            with ledger.engine.begin() as connection:
                ledger.insert(connection, key, "shop", STORE)
        except Exception:  # noqa: BLE001 - whichever error the driver has for a row that is there
            committed = False
        for thread in threads:
            thread.join()
        assert set(found) == {Outcome.COMMITTED if committed else Outcome.ROLLED_BACK}


def test_a_database_that_is_not_there_is_down(tmp_path: object, postgres_socket: object) -> None:
    """No verdict, and no attempt either."""
    engine = create_engine(f"postgresql+psycopg://shop@/shop?host={tmp_path}")
    answer = ask(resolver_of(Ledger(engine), STORE), new_key(1))
    assert answer.outcome is Outcome.DOWN
    engine.dispose()


def test_a_table_that_is_not_there_is_refused(url: URL) -> None:
    """Nobody called create_all(): that is a mistake of the installation, and no verdict about any transaction."""
    engine = create_engine(url)
    assert ask(resolver_of(Ledger(engine), STORE), new_key(1)).outcome is Outcome.REFUSED
    engine.dispose()


# Many keys at once


def test_each_of_many_keys_gets_its_own_answer(
    ledger: Ledger, resolver: LedgerResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed, tombstoned before, missing, too old, and no key at all: more than one SELECT takes."""
    monkeypatch.setattr("recovery.checkback.ledger_resolver._DECIDING_S", float("inf"))  # a busy machine took longer
    resolver.expire(2_000)
    committed = [new_key(3_000) for _ in range(600)]
    with ledger.engine.begin() as connection:
        for key in committed:
            ledger.insert(connection, key, "shop", STORE)
    buried, missing, old = new_key(3_000), [new_key(3_000) for _ in range(600)], new_key(1_000)
    assert ask(resolver, buried).outcome is Outcome.ROLLED_BACK
    odd = [buried, old, "no key"]
    answers = resolver.answers(dict.fromkeys([*committed, *odd, *missing], "shop"))
    assert {answers[key].outcome for key in committed} == {Outcome.COMMITTED}
    assert {answers[key].outcome for key in missing} == {Outcome.ROLLED_BACK}
    assert [answers[key].outcome for key in odd] == [Outcome.ROLLED_BACK, Outcome.UNKNOWN, Outcome.UNKNOWN]
    assert {ask(resolver, key).outcome for key in missing[::100]} == {Outcome.ROLLED_BACK}


def test_sqlite_decides_many_keys_in_one_transaction(sqlite_url: URL) -> None:
    """One forced write for all; a running transaction holds all of them up, and none gets half an answer."""
    engine, other = create_engine(sqlite_url), create_engine(sqlite_url)
    ledger = Ledger(engine)
    ledger.create_all()
    resolver = resolver_of(Ledger(other), STORE, lock_timeout_ms=50)
    keys = [new_key(1) for _ in range(100)]
    commits: list[None] = []
    event.listen(other, "commit", lambda _connection: commits.append(None))
    with Session(engine) as session:
        begin(ledger, session).seal()
        busy = resolver.answers(dict.fromkeys(keys, "shop"))
        assert {answer.outcome for answer in busy.values()} == {Outcome.RUNNING}
        commits.clear()
        session.commit()
    answers = resolver.answers(dict.fromkeys(keys, "shop"))
    assert {answer.outcome for answer in answers.values()} == {Outcome.ROLLED_BACK}
    assert len(commits) == 3 + 3  # of the proof; of the SELECT, the look at the key, and of all tombstones
    engine.dispose()
    other.dispose()


# Retention


def test_what_is_below_the_mark_is_unknown_and_never_tombstoned(ledger: Ledger, resolver: LedgerResolver) -> None:
    old, young = new_key(1_000), new_key(3_000)
    with ledger.engine.begin() as connection:
        ledger.insert(connection, old, "shop", STORE)
        ledger.insert(connection, young, "shop", STORE)
    assert resolver.expire(2_000) == 1
    assert ask(resolver, old).outcome is Outcome.UNKNOWN
    assert ask(resolver, old).outcome is Outcome.UNKNOWN
    assert ask(resolver, young).outcome is Outcome.COMMITTED
    assert ask(resolver, new_key(2_000)).outcome is Outcome.ROLLED_BACK


def test_the_mark_never_goes_back(ledger: Ledger, resolver: LedgerResolver) -> None:
    resolver.expire(2_000)
    resolver.expire(1_000)
    assert ask(resolver, new_key(1_500)).outcome is Outcome.UNKNOWN


def test_the_rows_of_another_store_stay(ledger: Ledger, other_engine: Engine, resolver: LedgerResolver) -> None:
    key = new_key(1_000)
    with ledger.engine.begin() as connection:
        ledger.insert(connection, key, "shop", "6" * 32)
    assert resolver.expire(9_000) == 0
    assert ask(resolver_of(Ledger(other_engine), "6" * 32), key).outcome is Outcome.COMMITTED


# Mistakes that would take the guarantee away


def test_a_row_that_was_rolled_back_past_the_session_is_missed(postgres_url: URL) -> None:
    engine = create_engine(postgres_url)
    ledger = Ledger(engine)
    ledger.create_all()
    with Session(engine) as session:
        entry = begin(ledger, session)
        raw = session.connection().connection.dbapi_connection
        assert raw is not None
        raw.rollback()
        with pytest.raises(TransactionError, match="gone"):
            entry.seal()
    engine.dispose()


# The table


def test_the_metadata_has_its_tables_and_nothing_else(ledger: Ledger) -> None:
    tables = ["checkback_ledger", "checkback_ledger_binding", "checkback_ledger_mark"]
    assert sorted(ledger.metadata.tables) == tables
    ledger.create_all()  # again: what is there stays
    with ledger.engine.connect() as connection:
        assert connection.execute(select(ledger.rows)).all() == []


def test_a_key_says_when_it_was_made() -> None:
    assert key_time_ms(new_key(1_795_227_717_292)) == 1_795_227_717_292
    assert new_key(999) < new_key(1000)
    assert [key_time_ms(text) for text in ("", "x" * 32, "12")] == [None, None, None]


def test_the_states_are_rocketmqs(ledger: Ledger) -> None:
    assert (COMMITTED, ROLLED_BACK) == (TransactionState.COMMITTED, TransactionState.ROLLED_BACK) == (8, 12)
    assert insert(ledger.rows).compile().params.keys() == {
        "ledger_key", "state", "producer_group", "store_id", "decided_by",
    }  # fmt: skip
