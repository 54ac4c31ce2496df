"""Sessions in which a message and its rows could part: refused at the send, and nothing is saved, even when nobody
handles the error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, MetaData, create_engine, event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import Session

import broker
from broker.errors import TransactionError
from broker.ledger import Ledger
from tests.producer.desk import Base, Desk, Order, desk_of, kinds

Open = Callable[[Desk, ExitStack], Session | Connection]
REFUSED: list[tuple[Open, str, tuple[str, ...]]] = []
EVERYWHERE = ("sqlite", "postgresql", "mariadb")


def refused(because: str, on: tuple[str, ...] = EVERYWHERE) -> Callable[[Open], Open]:
    """A way to open a session, what the error says, and on which databases."""

    def keep(opens: Open) -> Open:
        REFUSED.append((opens, because, on))
        return opens

    return keep


@pytest.fixture(scope="module", params=kinds(["sqlite", "postgres", "mariadb"], ["sqlite", "postgres"]), ids=str)
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_of(request.param, request, tmp_path_factory.mktemp("desk")) as desk:
        yield desk


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "opens" in metafunc.fixturenames:
        metafunc.parametrize(("opens", "because", "on"), REFUSED, ids=[opens.__name__ for opens, _, _ in REFUSED])


def test_it_is_refused_and_nothing_is_saved(desk: Desk, opens: Open, because: str, on: tuple[str, ...]) -> None:
    """At the send; and the session cannot commit afterwards."""
    if desk.engine.dialect.name not in on:
        pytest.skip(f"not on {desk.engine.dialect.name}")
    desk.next_case()
    with ExitStack() as stack:
        target = stack.enter_context(opens(desk, stack))
        with pytest.raises(TransactionError, match=because):
            desk.announce(target, 1)
        with pytest.raises(TransactionError, match=because):
            desk.announce(target, 1)
        if because == "no bind":
            target.add(desk.order(1))  # type: ignore[union-attr]
        elif because != "AUTOCOMMIT":  # there each statement would be saved by itself
            desk.save(target, 1)
        with pytest.raises(TransactionError, match="cannot commit"):
            target.commit()
    assert desk.judge() == (set(), set())
    assert desk.shop.in_doubt() == 0


def test_async_with_is_not_for_a_session(desk: Desk) -> None:
    async def enter(session: Session) -> None:
        wrong: Any = desk.producer.begin_transaction(session)
        async with wrong:
            pytest.fail("it was entered")

    said = r"write `with producer\.begin_transaction\(session\)`"
    with Session(desk.engine) as session, pytest.raises(TransactionError, match=said):
        asyncio.run(enter(session))


def test_begin_transaction_refuses_it_at_once(desk: Desk) -> None:
    loose = desk.another_engine(isolation_level="AUTOCOMMIT")
    with Session(loose) as session, pytest.raises(TransactionError, match="AUTOCOMMIT"):
        desk.producer.begin_transaction(session)


@refused("AUTOCOMMIT")
def autocommit_of_an_engine(desk: Desk, _stack: ExitStack) -> Session:
    return Session(desk.another_engine(isolation_level="AUTOCOMMIT"))


@refused("AUTOCOMMIT")
def autocommit_as_an_option(desk: Desk, _stack: ExitStack) -> Session:
    return Session(desk.engine.execution_options(isolation_level="AUTOCOMMIT"))


@refused("AUTOCOMMIT")
def autocommit_of_a_connection(desk: Desk, _stack: ExitStack) -> Connection:
    return desk.engine.connect().execution_options(isolation_level="AUTOCOMMIT")


@refused("AUTOCOMMIT", ("sqlite",))
def autocommit_of_the_driver(desk: Desk, _stack: ExitStack) -> Session:
    return Session(desk.another_engine(connect_args={"isolation_level": None}))


def _elsewhere(stack: ExitStack) -> Engine:
    engine = create_engine(f"sqlite:///{stack.enter_context(TemporaryDirectory())}/elsewhere.db")
    Base.metadata.create_all(engine)
    Ledger(engine).create_all()
    stack.callback(engine.dispose)
    return engine


@refused("the ledger is in")
def another_database(desk: Desk, stack: ExitStack) -> Session:
    return Session(_elsewhere(stack))


@refused("the ledger is in")
def a_connection_to_another_database(desk: Desk, stack: ExitStack) -> Connection:
    return _elsewhere(stack).connect()


@refused("the ledger is in")
def another_database_for_one_class(desk: Desk, stack: ExitStack) -> Session:
    return Session(desk.engine, binds={Order: _elsewhere(stack)})


@refused("the ledger is in")
def another_database_for_one_table(desk: Desk, stack: ExitStack) -> Session:
    return Session(desk.engine, binds={Order.__table__: _elsewhere(stack)})


@refused("no bind")
def binds_without_the_ledgers(desk: Desk, _stack: ExitStack) -> Session:
    return Session(binds={Order: desk.engine})


@refused("get_bind.. of ShardedSession does not say")
def shards(desk: Desk, _stack: ExitStack) -> Session:
    """It looks for a mapper, and raised an AssertionError without a word."""
    return ShardedSession(
        shards={"one": desk.engine},
        shard_chooser=lambda *_: "one",
        identity_chooser=lambda *_, **__: ["one"],
        execute_chooser=lambda _: ["one"],
    )


@refused("the ledger is in")
def a_creator_of_connections(desk: Desk, _stack: ExitStack) -> Session:
    """Its URL does not say where it leads."""
    engine = create_engine(f"{desk.url.drivername}://", creator=lambda: desk.engine.raw_connection().driver_connection)
    return Session(engine)


def _attached(desk: Desk, stack: ExitStack, mode: str) -> Session:
    path = f"{stack.enter_context(TemporaryDirectory())}/other.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute(f"PRAGMA journal_mode = {mode}")
        other.execute("CREATE TABLE gifts (id INTEGER)")
    session = stack.enter_context(Session(desk.another_engine()))
    session.execute(text("ATTACH :path AS other"), {"path": path})
    return session


@refused("the connection leads to the file .*, and the ledger is in", ("sqlite",))
def a_relative_path_after_the_directory_changed(desk: Desk, stack: ExitStack) -> Session:
    """The file has the name of the ledger's, in another directory: it was taken for that."""
    directory = stack.enter_context(TemporaryDirectory())
    stack.enter_context(contextlib.chdir(directory))
    engine = create_engine("sqlite:///shop.db")
    Base.metadata.create_all(engine)
    Ledger(engine).create_all()
    stack.callback(engine.dispose)
    os.chdir(os.path.dirname(desk.url.database or ""))
    return Session(engine)


@refused("in WAL mode SQLite commits each file by itself", ("sqlite",))
def an_attached_file_in_wal_mode(desk: Desk, stack: ExitStack) -> Session:
    """The ledger's own file is in another mode."""
    return _attached(desk, stack, "wal")


@refused("twophase", ("postgresql", "mariadb"))
def two_phases(desk: Desk, _stack: ExitStack) -> Session:
    return Session(desk.engine, twophase=True)


@refused("two-phase", ("mariadb",))
def two_phases_of_a_connection(desk: Desk, _stack: ExitStack) -> Connection:
    connection = desk.engine.connect()
    connection.begin_twophase()
    return connection


@refused("outer transaction")
def an_outer_transaction(desk: Desk, stack: ExitStack) -> Session:
    connection = stack.enter_context(desk.engine.connect())
    connection.begin()
    return Session(connection)


@refused("outer transaction")
def a_savepoint_of_an_outer_transaction(desk: Desk, stack: ExitStack) -> Session:
    """As test suites have it."""
    connection = stack.enter_context(desk.engine.connect())
    connection.begin()
    return Session(connection, join_transaction_mode="create_savepoint")


@refused("search_path", ("postgresql",))
def a_search_path(desk: Desk, stack: ExitStack) -> Session:
    _tenant(desk)
    session = stack.enter_context(Session(desk.engine))
    session.execute(text("SET search_path TO tenant_a, public"))
    return session


@refused("another schema", ("postgresql",))
def a_search_path_of_an_engine(desk: Desk, stack: ExitStack) -> Session:
    """Its default is its own: nothing on its connections tells that it is not check-back's."""
    _tenant(desk)
    engine = desk.another_engine(connect_args={"options": "-c search_path=tenant_a,public"})
    return stack.enter_context(Session(engine))


@refused("another database", ("postgresql",))
def a_database_of_the_driver(desk: Desk, stack: ExitStack) -> Session:
    """`connect_args` go before the URL."""
    engine = desk.another_engine(connect_args={"dbname": "postgres"})
    Ledger(engine).create_all()
    Base.metadata.create_all(engine)
    return stack.enter_context(Session(engine))


def _tenant(desk: Desk) -> None:
    """A schema with tables of its own."""
    with desk.engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA IF NOT EXISTS tenant_a"))
    Ledger(desk.engine, schema="tenant_a").create_all()
    with desk.engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS tenant_a.orders (id INTEGER PRIMARY KEY)"))


def test_attached_files_that_sqlite_commits_together_are_fine(desk: Desk) -> None:
    if desk.engine.dialect.name != "sqlite":
        pytest.skip("PostgreSQL and MariaDB have one log")
    desk.next_case()
    with ExitStack() as stack:
        session = _attached(desk, stack, "delete")
        session.execute(text("ATTACH ':memory:' AS scratch"))
        desk.buy(session, 1)
        session.execute(text("INSERT INTO other.gifts VALUES (1)"))
        session.commit()
    assert desk.judge() == ({1}, {1})


def test_a_session_that_chooses_its_engines_is_looked_at_before_commit(desk: Desk) -> None:
    """As Flask-SQLAlchemy's does by bind keys: nobody knows before the flush where its objects go."""
    desk.next_case()
    with ExitStack() as stack:
        elsewhere = _elsewhere(stack)

        class Routing(Session):
            def get_bind(self, mapper: Any = None, **_: Any) -> Engine:
                return elsewhere if mapper is not None else desk.engine

        session = stack.enter_context(Routing())
        desk.buy(session, 1)
        session.add(desk.order(2))
        with pytest.raises(TransactionError, match="also has a connection to"):
            session.commit()
        session.rollback()
        with elsewhere.connect() as connection:
            assert connection.execute(Order.__table__.select()).all() == []
    assert desk.judge() == (set(), set())


# What is not refused


def test_a_search_path_to_the_same_table_is_fine(desk: Desk) -> None:
    if desk.engine.dialect.name != "postgresql":
        pytest.skip("PostgreSQL's")
    desk.next_case()
    with Session(desk.engine) as session:
        session.execute(text("SET LOCAL search_path TO pg_catalog, public"))
        desk.buy(session, 1)
        assert session.execute(text("SHOW search_path")).scalar() == "pg_catalog, public"
        session.commit()
    assert desk.judge() == ({1}, {1})


def test_another_current_database_leads_to_the_same_ledger_on_mysql(desk: Desk) -> None:
    """`USE` moves the application's tables, and not the ledger's: its name says where it is."""
    if desk.engine.dialect.name != "mariadb":
        pytest.skip("MySQL's")
    desk.next_case()
    with desk.engine.connect() as connection:
        connection.execute(text("CREATE DATABASE tenant"))
    with Session(desk.another_engine()) as session:
        session.execute(text("USE tenant"))
        session.execute(
            Order.__table__.to_metadata(MetaData(), schema=desk.url.database).insert(), {"id": desk.first + 1}
        )
        desk.announce(session, 1)
        session.commit()
    with desk.engine.connect() as connection:
        connection.execute(text("DROP DATABASE tenant"))
    assert desk.judge() == ({1}, {1})


def test_a_schema_for_each_tenant(desk: Desk) -> None:
    """The ledger names the schema; check-back of that tenant reads it there."""
    if desk.engine.dialect.name != "postgresql":
        pytest.skip("PostgreSQL's")
    _tenant(desk)
    ledger = Ledger(desk.engine, schema="tenant_a")
    producer = desk.producer_of("tenant", ["stock"], ledger)
    with Session(desk.engine.execution_options(schema_translate_map={None: "tenant_a"})) as session:
        session.execute(Order.__table__.insert(), {"id": 7})
        producer.send(broker.Message("stock", b"7"), session)
        session.commit()
    with desk.engine.connect() as connection:
        rows = connection.execute(ledger.rows.select()).all()
        assert [row.producer_group for row in rows] == ["tenant"]
        assert connection.execute(text("SELECT id FROM tenant_a.orders")).scalars().all() == [7]
    assert desk.shop.announced("stock") == [7]


def test_begin_by_hand_on_sqlite_is_a_transaction(desk: Desk) -> None:
    """SQLAlchemy's own recipe: the driver begins nothing, BEGIN is emitted by a listener."""
    if desk.engine.dialect.name != "sqlite":
        pytest.skip("SQLite's")
    desk.next_case()
    engine = desk.another_engine(connect_args={"isolation_level": None})
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    desk.producer_of("by-hand", ledger=Ledger(engine))
    with Session(engine) as session:
        with session.begin_nested():
            desk.buy(session, 1)
        session.rollback()
        with session.begin_nested():
            desk.buy(session, 2)
        session.commit()
    assert desk.judge() == ({2}, {2})


def test_a_savepoint_of_an_engine_that_was_never_seen_is_refused_on_sqlite(desk: Desk) -> None:
    """Its driver may have begun nothing before the savepoint, and its release would commit."""
    if desk.engine.dialect.name != "sqlite":
        pytest.skip("SQLite's")
    desk.next_case()
    with Session(desk.another_engine()) as session:
        with pytest.raises(TransactionError, match="savepoint"), session.begin_nested():
            desk.buy(session, 1)
        with pytest.raises(SQLAlchemyError):
            session.commit()
    with Session(desk.another_engine()) as session:  # one who swallows the error: the release fails, too
        with pytest.raises(SQLAlchemyError), session.begin_nested():  # noqa: PT012 - inside the block
            desk.save(session, 2)
            with pytest.raises(TransactionError, match="savepoint"):
                desk.announce(session, 2)
        session.rollback()
        desk.buy(session, 3)
        session.commit()
    assert desk.judge() == ({3}, {3})


@pytest.mark.parametrize(
    "thing", [sqlite3.connect(":memory:"), object(), "sqlite:///x", b"x", 1, create_engine("sqlite://")]
)
def test_what_is_no_session_is_named(desk: Desk, thing: Any) -> None:
    for call in (desk.producer.begin_transaction, lambda one: desk.producer.send(desk.message(1), one)):
        with pytest.raises(TransactionError, match=r"takes an open SQLAlchemy Session|needs a ledger of its kind"):
            call(thing)
    if isinstance(thing, sqlite3.Connection):
        thing.close()
