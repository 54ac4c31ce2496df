"""What is refused on plain connections, before anything is saved: each with one sentence that says what to do."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy.orm import Session

from broker.enlisting.connection_ledger import ConnectionLedger
from broker.errors import BrokerError, TransactionError, UnknownOutcome
from tests.backends.backend import Backend
from tests.backends.kinds import NAMES, backend_of
from tests.producer.desk import database
from tests.producer.plain_desk import PlainDesk, connect, ends_with, plain_desk_at

pytestmark = pytest.mark.each_backend


@pytest.fixture(scope="module", params=NAMES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """Both desks announce there, each for a group of its own."""
    with backend_of(request.param, tmp_path_factory.mktemp("both") / "place") as made:
        yield made


@pytest.fixture(scope="module")
def lite(
    place: Backend, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlainDesk]:
    with database("sqlite", request, tmp_path_factory.mktemp("lite")) as url, plain_desk_at(place, url, "lite") as made:
        yield made


@pytest.fixture(scope="module")
def post(
    place: Backend, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PlainDesk]:
    with (
        database("postgres", request, tmp_path_factory.mktemp("post")) as url,
        plain_desk_at(place, url, "post") as made,
    ):
        made.first = 1_000_000
        yield made


@pytest.fixture(autouse=True)
def nothing_is_saved(lite: PlainDesk, post: PlainDesk) -> Iterator[None]:
    yield
    for desk in (lite, post):
        desk.close_connections()
        assert desk.there() == (set(), set())
        assert desk.shop.in_doubt() == 0
        desk.next_case()


DYING = (
    "CREATE TABLE dying (id INTEGER)",
    """CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS
       $$BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NULL; END$$""",
    """CREATE CONSTRAINT TRIGGER dies AFTER INSERT ON dying DEFERRABLE INITIALLY DEFERRED
       FOR EACH ROW EXECUTE FUNCTION die()""",
)


def refused(desk: PlainDesk, connection: object, match: str) -> None:
    with pytest.raises(TransactionError, match=match):
        desk.producer.begin_transaction(connection)  # type: ignore[call-overload]


def test_a_connection_outside_any_block(lite: PlainDesk, post: PlainDesk) -> None:
    for desk in (lite, post):
        connection = desk.connection()
        with pytest.raises(TransactionError, match="send inside `with producer"):
            desk.announce(connection, 1)


def test_a_connection_that_is_closed(lite: PlainDesk, post: PlainDesk) -> None:
    for desk in (lite, post):
        connection = desk.connection()
        connection.close()
        refused(desk, connection, "the connection is closed")


def test_a_block_that_is_awaited(lite: PlainDesk, post: PlainDesk) -> None:
    async def wrong(desk: PlainDesk) -> None:
        transaction: Any = desk.producer.begin_transaction(desk.connection())
        try:
            async with transaction:
                pytest.fail("it was entered")
        finally:
            transaction.rollback()

    for desk in (lite, post):
        with pytest.raises(TransactionError, match=r"write `with producer\.begin_transaction\(connection\)`"):
            asyncio.run(wrong(desk))


def test_another_database(lite: PlainDesk, post: PlainDesk, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        refused(lite, other, r"leads to .*other\.db.*and the ledger is in .*shop\.db")
        refused(post, other, "one of sqlite, and the ledger is in postgresql")
    with contextlib.closing(sqlite3.connect(":memory:")) as other:
        refused(lite, other, "leads to .*:memory:")
    with contextlib.closing(connect(post.url.set(database="postgres"))) as elsewhere:
        refused(post, elsewhere, "another oid|a database that was made again|another database")


def test_an_attached_database_in_wal_mode(lite: PlainDesk, tmp_path: Path) -> None:
    """SQLite commits the files together in the other journal modes only."""
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE gifts (id INTEGER)")
    connection = lite.connection()
    connection.execute("ATTACH ? AS other", (str(tmp_path / "other.db"),))
    with lite.producer.begin_transaction(connection):
        pass
    for name in ("main", "other"):
        connection.execute(f"PRAGMA {name}.journal_mode = wal")
        refused(lite, connection, "in WAL mode SQLite commits each file by itself")
        connection.execute(f"PRAGMA {name}.journal_mode = delete")
    connection.execute("ATTACH ':memory:' AS scratch")
    with lite.producer.begin_transaction(connection):
        pass


def test_read_only(lite: PlainDesk, post: PlainDesk) -> None:
    connection = sqlite3.connect(f"file:{lite.url.database}?mode=ro", uri=True)
    lite.opened.append(connection)
    with ends_with(TransactionError, match="read-only"), lite.producer.begin_transaction(connection):
        lite.announce(connection, 1)
    connection = lite.connection()
    connection.execute("PRAGMA query_only = on")
    with ends_with(TransactionError, match="read-only"), lite.producer.begin_transaction(connection):
        lite.announce(connection, 1)
    connection = post.connection()
    connection.read_only = True
    refused(post, connection, "read-only")


def test_an_aborted_transaction(post: PlainDesk) -> None:
    connection = post.connection()
    with pytest.raises(psycopg.Error):
        connection.execute("SELECT nothing")
    refused(post, connection, "in an aborted transaction.*roll it back first")


def test_an_error_that_was_swallowed_in_the_block(post: PlainDesk) -> None:
    """PostgreSQL would answer COMMIT with a silent ROLLBACK."""
    connection = post.connection()
    with (
        ends_with(TransactionError, match="nothing was saved: a statement"),
        post.producer.begin_transaction(connection),
    ):
        post.buy(connection, 1)
        with contextlib.suppress(psycopg.Error):
            connection.execute("SELECT nothing")


def test_blocks_and_modes_of_psycopg(post: PlainDesk) -> None:
    connection = post.connection()
    with connection.transaction():
        refused(post, connection, r"transaction\(\).*outer block")
    with connection.pipeline():
        refused(post, connection, "pipeline mode")
    connection.tpc_begin("shop")
    refused(post, connection, "two-phase")
    connection.tpc_rollback()


@contextlib.contextmanager
def _copy(connection: Any) -> Iterator[None]:
    with connection.cursor().copy("COPY (SELECT 1) TO STDOUT") as rows:
        yield
        assert list(rows.rows())


@pytest.mark.parametrize("begin", [_copy, lambda connection: connection.pipeline()], ids=["copy", "pipeline"])
def test_a_send_in_the_middle_of_a_statement(post: PlainDesk, begin: Callable[..., Any]) -> None:
    """Nothing can abort the transaction then. The end of the block rolls it back, where the error was swallowed."""
    connection = post.connection()
    with (
        ends_with(TransactionError, match="its error was swallowed"),
        post.producer.begin_transaction(connection) as transaction,
    ):
        post.save(connection, 1)
        with begin(connection), pytest.raises(TransactionError, match="send when that is done"):
            post.announce(transaction, 1)
        connection.execute("SELECT 1")


@pytest.mark.parametrize("begin", [_copy, lambda connection: connection.pipeline()], ids=["copy", "pipeline"])
def test_the_application_commits_after_a_send_in_the_middle_of_a_statement(
    post: PlainDesk, begin: Callable[..., Any]
) -> None:
    """Its commit() saved the order alone. After a rollback it commits again."""
    connection = post.connection()
    with (
        contextlib.suppress(TransactionError),  # the block has a failed send, whatever its connection does
        post.producer.begin_transaction(connection) as transaction,
    ):
        post.save(connection, 1)
        with begin(connection), pytest.raises(TransactionError, match="send when that is done"):
            post.announce(transaction, 1)
        with pytest.raises(TransactionError, match="it is rolled back"):
            connection.commit()
        with begin(connection), pytest.raises(TransactionError):
            post.announce(transaction, 1)
        connection.rollback()
        connection.execute("SELECT 1")
        connection.commit()


@pytest.mark.parametrize("begin", [_copy, lambda connection: connection.pipeline()], ids=["copy", "pipeline"])
def test_the_application_commits_after_a_send_without_a_block_in_the_middle_of_a_statement(
    post: PlainDesk, begin: Callable[..., Any]
) -> None:
    """Its commit() saved the order alone. With autocommit it is saved by then, and commit() has nothing to end."""
    connection = post.connection()
    connection.rollback()
    for connection.autocommit in (False, True):
        connection.execute("SELECT 1")
        with begin(connection), pytest.raises(TransactionError, match="begin_transaction"):
            post.producer.send(post.message(1), connection)
        with (
            contextlib.nullcontext()
            if connection.autocommit
            else pytest.raises(TransactionError, match="it is rolled back")
        ):
            connection.commit()


def test_a_savepoint_block_of_psycopg(post: PlainDesk) -> None:
    """Inside ours it is a savepoint, and a send that fails in it is undone with it."""
    connection = post.connection()
    with post.producer.begin_transaction(connection):
        with contextlib.suppress(TransactionError), connection.transaction():
            post.producer.send(post.message(1, topic="elsewhere"), connection)
        connection.execute("SELECT 1")


def test_an_async_connection(post: PlainDesk) -> None:
    found = object.__new__(psycopg.AsyncConnection)
    found.pgconn = None  # type: ignore[assignment]
    found._closed = True
    refused(post, found, "not an AsyncConnection: use AsyncSession")
    del found.pgconn


def test_two_blocks_on_one_connection(lite: PlainDesk) -> None:
    connection = lite.connection()
    with lite.producer.begin_transaction(connection):
        refused(lite, connection, "a transaction of messages is open on this connection")


def test_another_thread(lite: PlainDesk) -> None:
    """sqlite3 refuses it by itself."""
    connection, errors = lite.connection(), []

    def begin() -> None:
        try:
            lite.producer.begin_transaction(connection)
        except sqlite3.ProgrammingError as error:
            errors.append(error)

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join()
    assert "same thread" in str(errors[0])


def test_another_ledger_and_another_kind_of_ledger(lite: PlainDesk) -> None:
    connection = lite.connection()
    own = ConnectionLedger(lambda: connect(lite.url))
    other = lite.producer_of("stock", ledger=own)
    with (
        ends_with(TransactionError, match="the same ConnectionLedger"),
        lite.producer.begin_transaction(connection),
    ):
        other.send(lite.message(1), connection)
    with Session(lite.engine) as session:
        with pytest.raises(TransactionError, match=r"give it broker\.Ledger\(engine\)"):
            lite.announce(session, 1)
        with pytest.raises(TransactionError, match=r"broker\.Ledger\(engine\)"):
            session.commit()
    of_sessions = lite.producer_of("sessions", ledger=lite.shop.ledger)
    with pytest.raises(TransactionError, match=r"ledger=broker\.ConnectionLedger"):
        of_sessions.begin_transaction(connection)


def test_what_connect_returns(tmp_path: Path, lite: PlainDesk) -> None:
    with pytest.raises(BrokerError, match="returns a connection of sqlite3 or psycopg"):
        ConnectionLedger(lambda: "shop.db").create_all()
    with pytest.raises(BrokerError, match="lives longer than a process"):
        ConnectionLedger(lambda: sqlite3.connect(":memory:")).create_all()
    with pytest.raises(BrokerError, match="has no schema"):
        ConnectionLedger(lambda: connect(lite.url), schema="shop").create_all()
    shared = lite.connection()
    shared.execute("BEGIN")
    with pytest.raises(BrokerError, match="a new one each time"):
        ConnectionLedger(lambda: shared).create_all()


def test_tables_that_are_missing(lite: PlainDesk) -> None:
    ledger = ConnectionLedger(lambda: connect(lite.url), table="elsewhere")
    producer = lite.producer_of("missing", ledger=ledger)
    connection = lite.connection()
    with pytest.raises(TransactionError, match=r"ledger\.create_all\(\)"), producer.begin_transaction(connection):
        producer.send(lite.message(1), connection)


def test_a_search_path_of_a_tenant(post: PlainDesk) -> None:
    connection = post.connection()
    connection.execute("CREATE SCHEMA IF NOT EXISTS tenant")
    connection.execute("CREATE TABLE IF NOT EXISTS tenant.checkback_ledger (LIKE checkback_ledger)")
    connection.commit()
    post.producer.begin_transaction(connection).rollback()
    connection.execute("SET search_path TO tenant, public")
    connection.commit()
    refused(post, post.connection(options="-c search_path=tenant,public"), "another schema")
    with (
        ends_with(TransactionError, match="search_path"),
        post.producer.begin_transaction(connection),
    ):
        post.announce(connection, 1)


def test_a_commit_that_the_database_refuses(lite: PlainDesk, post: PlainDesk) -> None:
    """It is rolled back at once, and its own error comes through: nothing is left in doubt."""
    reader, connection = lite.connection(), lite.connection(timeout=0.05)
    with ends_with(sqlite3.OperationalError, match="locked"), lite.producer.begin_transaction(connection):
        lite.buy(connection, 1)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM orders").fetchall()
    assert lite.shop.in_doubt() == 0
    reader.rollback()
    connection = post.connection()
    connection.execute("CREATE TABLE part (of_order INTEGER REFERENCES orders INITIALLY DEFERRED)")
    connection.commit()
    with ends_with(psycopg.errors.ForeignKeyViolation), post.producer.begin_transaction(connection):
        post.buy(connection, 1)
        connection.execute("INSERT INTO part VALUES (-1)")


def test_a_commit_without_an_answer(post: PlainDesk) -> None:
    """The server ends the connection in the middle of COMMIT: check-back finds out."""
    connection = post.connection()
    for statement in DYING:
        connection.execute(statement)
    connection.commit()
    with ends_with(UnknownOutcome, match="check-back will find out"), post.producer.begin_transaction(connection):
        post.announce(connection, 1)
        connection.execute("INSERT INTO dying VALUES (1)")
    assert post.shop.in_doubt() == 1
    post.check_back()


def test_a_connection_that_is_lost_before_commit(post: PlainDesk) -> None:
    connection, admin = post.connection(), post.connection()
    with ends_with(psycopg.OperationalError), post.producer.begin_transaction(connection):
        post.buy(connection, 1)
        admin.execute("SELECT pg_terminate_backend(%s, 10000)", (connection.info.backend_pid,))
    admin.rollback()
    post.check_back()
