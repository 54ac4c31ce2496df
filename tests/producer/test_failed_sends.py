"""What a send that failed stops: its own transaction or savepoint, in whatever way these are begun and ended."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, registry

import broker
from broker.errors import TransactionError
from tests.app.shop import ASYNC
from tests.backends.kinds import backend_of
from tests.producer.desk import Desk, Kind, database, desk_of
from tests.producer.plain_desk import PlainDesk, plain_desk_at

BOTH = ("sqlite", "postgres")


@pytest.fixture(params=BOTH)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with desk_of(Kind(request.param, "embedded"), request, tmp_path) as made:
        yield made


@pytest.fixture(params=BOTH)
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PlainDesk]:
    with (
        database(request.param, request, tmp_path) as url,
        backend_of("embedded", tmp_path / "place") as backend,
        plain_desk_at(backend, url) as made,
    ):
        yield made


only_sqlite = pytest.mark.parametrize("desk", ["sqlite"], indirect=True)


def send_to_nowhere(desk: Desk, target: object, number: int = 9) -> None:
    """A send with a typo in its topic, whose error is swallowed."""
    with pytest.raises(TransactionError):
        desk.producer.send(desk.message(number, topic="ordres"), target)  # type: ignore[arg-type]


def judged(desk: Desk) -> tuple[set[int], set[int]]:
    gc.collect()
    return desk.judge()


@pytest.mark.parametrize("mode", ["conditional_savepoint", "rollback_only"])
def test_who_swallows_the_refusal_of_a_joined_session_cannot_commit_the_outer_transaction(
    desk: Desk, mode: Any
) -> None:
    with contextlib.suppress(TransactionError), desk.engine.begin() as connection:
        desk.save(connection, 1)
        with Session(connection, join_transaction_mode=mode) as session:
            desk.save(session, 2)
            with pytest.raises(TransactionError, match="outer transaction"):
                desk.announce(session, 2)
    assert judged(desk) == (set(), set())


@only_sqlite
@pytest.mark.parametrize("begin", [Session, lambda engine: engine.connect()], ids=["session", "connection"])
def test_a_failed_send_in_a_savepoint_of_an_engine_that_was_never_seen(desk: Desk, begin: Callable[..., Any]) -> None:
    with begin(desk.another_engine()) as target:
        with contextlib.suppress(Exception), target.begin_nested():
            desk.save(target, 1)
            send_to_nowhere(desk, target)
        with contextlib.suppress(Exception):
            target.commit()
    assert judged(desk) == (set(), set())


@pytest.mark.parametrize("plain", ["postgres"], indirect=True)
def test_a_second_send_that_fails_after_one_that_was_rolled_back(plain: PlainDesk) -> None:
    connection = plain.connection()
    with contextlib.suppress(TransactionError), plain.producer.begin_transaction(connection) as transaction:
        plain.buy(connection, 1, through=transaction)
        with pytest.raises(TransactionError), connection.transaction():
            plain.producer.send(plain.message(2, topic="ordres"), transaction)
        plain.save(connection, 3)
        send_to_nowhere(plain, transaction)
    assert judged(plain) == (set(), set())


def test_an_outer_savepoint_is_rolled_back_while_the_inner_one_is_open(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        outer = session.begin_nested()
        session.begin_nested()
        desk.save(session, 2)
        send_to_nowhere(desk, session)
        outer.rollback()
        session.commit()
    assert judged(desk) == ({1}, {1})


def test_an_inner_savepoint_of_a_connection_is_left_open_when_the_outer_one_is_rolled_back(desk: Desk) -> None:
    with desk.engine.connect() as connection:
        desk.buy(connection, 1)
        outer = connection.begin_nested()
        desk.save(connection, 2)
        send_to_nowhere(desk, connection)
        connection.begin_nested()
        outer.close()
        connection.commit()
    assert judged(desk) == ({1}, {1})


@only_sqlite
@pytest.mark.filterwarnings("ignore:nested transaction already deassociated")
def test_an_inner_savepoint_ends_when_the_outer_one_is_released(desk: Desk) -> None:
    """To roll it back then is an error of the database, and takes no failed send back."""
    with desk.engine.connect() as connection:
        outer, inner = connection.begin_nested(), connection.begin_nested()
        outer.commit()
        desk.save(connection, 1)
        send_to_nowhere(desk, connection)
        with pytest.raises(OperationalError, match="no such savepoint"):
            inner.rollback()
        with pytest.raises(TransactionError, match="could not be sent"):
            connection.commit()
    assert judged(desk) == (set(), set())


def test_a_savepoint_that_is_closed(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        savepoint = session.begin_nested()
        desk.save(session, 2)
        send_to_nowhere(desk, session)
        savepoint.close()
        session.commit()
    assert judged(desk) == ({1}, {1})


@pytest.mark.parametrize("begin", [Session, lambda engine: engine.connect()], ids=["session", "connection"])
def test_a_released_savepoint_in_one_that_is_rolled_back(desk: Desk, begin: Callable[..., Any]) -> None:
    with begin(desk.engine) as target:
        desk.buy(target, 1)
        outer = target.begin_nested()
        with target.begin_nested():
            desk.save(target, 2)
            send_to_nowhere(desk, target)
        outer.rollback()
        target.commit()
    assert judged(desk) == ({1}, {1})


@pytest.mark.parametrize("begin", [Session, lambda engine: engine.connect()], ids=["session", "connection"])
def test_a_released_savepoint_beside_one_that_is_rolled_back(desk: Desk, begin: Callable[..., Any]) -> None:
    """Not around the failed send: it takes nothing back."""
    with begin(desk.engine) as target:
        with target.begin_nested():
            desk.save(target, 1)
            send_to_nowhere(desk, target)
        beside = target.begin_nested()
        desk.save(target, 2)
        beside.rollback()
        with pytest.raises(TransactionError, match="could not be sent"):
            target.commit()
    assert judged(desk) == (set(), set())


def test_a_session_savepoint_in_which_nothing_was_executed_is_rolled_back(desk: Desk) -> None:
    """The connection has no savepoint then, and its COMMIT is not refused either."""
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        savepoint = session.begin_nested()
        send_to_nowhere(desk, session)
        savepoint.rollback()
        session.commit()
    assert judged(desk) == ({1}, {1})


def test_the_connection_of_a_session_whose_send_failed_cannot_commit(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.save(session, 1)
        send_to_nowhere(desk, session)
        with pytest.raises(TransactionError, match="could not be sent"):
            session.connection().commit()
    assert judged(desk) == (set(), set())


def test_a_failed_send_of_a_session_without_autobegin_stops_nothing_later(desk: Desk) -> None:
    session = Session(desk.engine, autobegin=False)
    send_to_nowhere(desk, session)
    with session.begin():
        desk.buy(session, 1)
    assert judged(desk) == ({1}, {1})


def test_a_failed_send_of_an_async_connection_before_anything_was_done(desk: Desk) -> None:
    async def run() -> None:
        engine = create_async_engine(desk.url.set(drivername=ASYNC.get(desk.url.drivername, desk.url.drivername)))
        async with engine.connect() as connection:
            with pytest.raises(TransactionError):
                await desk.producer.send_async(desk.message(9, topic="ordres"), connection)
            await desk.buy_async(connection, 2)
            with pytest.raises(TransactionError, match="could not be sent"):
                await connection.commit()
            await connection.rollback()
            await desk.buy_async(connection, 1)
            await connection.commit()
        await engine.dispose()

    asyncio.run(run())
    assert judged(desk) == ({1}, {1})


def test_a_send_on_a_plain_connection_outside_a_block(plain: PlainDesk) -> None:
    """Until its rollback the connection commits nothing; then it does as before."""
    connection = plain.connection()
    plain.save(connection, 1)
    with pytest.raises(TransactionError, match="send inside"):
        plain.announce(connection, 1)
    with contextlib.suppress(Exception):
        connection.commit()
    connection.rollback()
    plain.save(connection, 2)
    connection.commit()
    assert judged(plain) == ({2}, set())


def test_a_send_of_another_ledgers_producer_on_a_plain_connection(plain: PlainDesk) -> None:
    connection = plain.connection()
    other = broker.ConnectionLedger(plain.connection)
    other.create_all()
    producer = plain.producer_of("other", ledger=other)
    with contextlib.suppress(TransactionError), plain.producer.begin_transaction(connection):
        plain.save(connection, 1)
        with pytest.raises(TransactionError, match="another ledger"):
            producer.send(plain.message(1), connection)
    assert judged(plain) == (set(), set())


@pytest.mark.parametrize("plain", ["sqlite"], indirect=True)
def test_a_connection_whose_transaction_was_dropped_after_a_failed_send(plain: PlainDesk) -> None:
    connection = plain.connection()
    transaction = plain.producer.begin_transaction(connection)
    send_to_nowhere(plain, transaction)
    connection.rollback()
    del transaction
    gc.collect()
    with plain.producer.begin_transaction(connection) as another:
        plain.buy(connection, 1, through=another)
    assert judged(plain) == ({1}, {1})


def test_a_session_that_is_closed_for_good(desk: Desk) -> None:
    session = Session(desk.engine, close_resets_only=False)
    session.close()
    with pytest.raises(TransactionError, match="cannot take part"):
        desk.announce(session, 1)


def test_a_session_with_two_engines_of_one_database(desk: Desk) -> None:
    """Two connections have two COMMITs, of which the second may fail: with a deferred constraint, for one."""
    with desk.engine.begin() as connection:
        connection.execute(text("CREATE TABLE gifts (id integer PRIMARY KEY)"))
    mapped = registry()
    gift: Any = type("Gift", (), {})
    mapped.map_imperatively(gift, Table("gifts", MetaData(), Column("id", Integer, primary_key=True)))
    with Session(desk.engine, binds={gift: desk.another_engine()}) as session:
        desk.buy(session, 1)
        session.commit()
        desk.announce(session, 2)
        session.add(gift(id=2))
        with pytest.raises(TransactionError, match="several connections"):
            session.commit()
    with desk.engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM gifts")).scalar() == 0
    assert judged(desk) == ({1}, {1})
