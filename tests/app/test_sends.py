"""What an application sends: it joins a transaction, comes at its time, and once for a business key."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, text
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import broker
from broker.app.cloud_events import CONTENT_TYPE, ID, SCHEMA_VERSION, SOURCE, SPEC_VERSION, TIME, TYPE
from broker.errors import BrokerError, MessageRejected, TransactionError
from broker.testing.fixtures import SMALL, FakeClock
from tests.app.shop import (
    Base,
    Order,
    Placed,
    async_engine_of,
    count,
    place,
    place_and_fail,
    place_and_swallow,
    received,
    shop_app,
    until,
)


def test_a_message_joins_the_block_and_states_its_event(app: broker.App, each_engine: str) -> None:
    place(app, "lamp")
    with pytest.raises(ZeroDivisionError):
        place_and_fail(app)
    (message,) = received(app)
    assert message.body == b'{"order_id":1,"item":"lamp"}'
    assert message.keys == ("1",)
    said = message.properties
    assert (said[SPEC_VERSION], said[CONTENT_TYPE], said[TYPE]) == ("1.0", "application/json", "Placed")
    assert said[SOURCE] == "/shop"
    assert len(said[ID]) == 32
    sent = datetime.fromisoformat(said[TIME])
    assert abs(sent - datetime.now(UTC)) < timedelta(minutes=1)
    assert SCHEMA_VERSION not in said
    assert count(app.engine, Order) == 1


def test_a_session_of_the_application(app: broker.App) -> None:
    app.start()
    with Session(app.engine) as session, session.begin():
        app.send("orders", Placed(1), session)
    with Session(app.engine) as session:
        with app.transaction(session):
            app.send("orders", Placed(2))
        with app.transaction(session) as inner:
            assert inner is session
            app.send("orders", Placed(3))
            session.rollback()
    app.send_now("orders", Placed(4))
    assert [message.body[12:13] for message in received(app)] == [b"1", b"2", b"4"]


def test_scoped_sessions_and_connections(tmp_path: Path, sqlite_url: URL) -> None:
    """As Flask-SQLAlchemy's `db.session`."""
    async_engine = async_engine_of(sqlite_url)

    async def sell() -> None:
        session = async_scoped_session(async_sessionmaker(async_engine), scopefunc=asyncio.current_task)
        await app.send_async("orders", Placed(4), session)
        await session.commit()
        async with app.transaction_async(session):
            await app.send_async("orders", Placed(5))
        await session.remove()
        async with async_engine.begin() as connection:
            await app.send_async("orders", Placed(6), connection)
        await async_engine.dispose()

    with shop_app(tmp_path, sqlite_url, async_engine=async_engine) as app:
        assert app.engine is not None
        session = scoped_session(sessionmaker(app.engine))
        app.send("orders", Placed(1), session)
        session.commit()
        with app.transaction(session):
            app.send("orders", Placed(2))
        session.remove()
        with app.engine.begin() as connection:
            app.send("orders", Placed(3), connection)
            app.sent_keys.forget(connection, 0)
        asyncio.run(sell())
        assert [message.body[12:13] for message in received(app)] == [b"1", b"2", b"3", b"4", b"5", b"6"]
        app.engine.dispose()


REFUSED: list[tuple[Callable[[broker.App], object], type[Exception], str]] = [
    (lambda app: app.send("orders", Placed(1)), TransactionError, "outside a transaction"),
    (
        lambda app: app.send("ordres", Placed(1)),
        MessageRejected,
        "does not send to the topic 'ordres': it declares orders",
    ),
    (lambda app: app.send("orders", {"order_id": 1}), MessageRejected, "takes Placed, and this is dict"),
    (lambda app: app.send_now("orders", Placed(1), dedup_key="a"), TransactionError, "no transaction"),
    (lambda app: app.send("orders", Placed(1), dedup_key=""), MessageRejected, "dedup_key is text"),
    (
        lambda app: app.send("orders", Placed(1), dedup_key="a", dedup_window=0),
        MessageRejected,
        "dedup_window is a time",
    ),
    (lambda app: app.topic("orders", Placed), BrokerError, "was declared before"),
]


@pytest.mark.parametrize(("act", "error", "sentence"), REFUSED)
def test_what_is_refused(app: broker.App, act: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        act(app)
    assert not received(app)


@pytest.mark.parametrize(("topic", "value"), [("orders", "text"), ("ordres", Placed(1)), ("orders", None)])
def test_who_swallows_that_a_value_is_none_cannot_commit(app: broker.App, topic: str, value: Any) -> None:
    with pytest.raises(TransactionError, match="cannot commit"), app.transaction() as session:  # noqa: PT012
        session.add(Order(item="silent"))
        with pytest.raises(MessageRejected):
            app.send(topic, value)
    with Session(app.engine) as session:
        session.add(Order(item="silent"))
        with pytest.raises(MessageRejected):
            app.send(topic, value, session)
        with pytest.raises(TransactionError, match="cannot commit"):
            session.commit()
    assert (count(app.engine, Order), received(app)) == (0, [])


@pytest.mark.parametrize(
    "session", [lambda _: "key-7", lambda app: app.engine, lambda app: sessionmaker(app.engine)],
    ids=["text", "engine", "maker"],
)  # fmt: skip
def test_who_swallows_that_a_session_is_none_cannot_commit(app: broker.App, session: Callable[..., Any]) -> None:
    """The block's own transaction is the one that was meant."""
    with pytest.raises(TransactionError, match="cannot commit"), app.transaction() as own:  # noqa: PT012
        own.add(Order(item="silent"))
        with pytest.raises(TransactionError, match="takes an open"):
            app.send("orders", Placed(1), session(app))
    assert (count(app.engine, Order), received(app)) == (0, [])


def test_who_swallows_that_a_value_is_none_cannot_commit_async(tmp_path: Path, url: URL) -> None:
    async_engine = async_engine_of(url)

    async def sell() -> None:
        async with app.transaction_async() as session:
            session.add(Order(item="silent"))
            with pytest.raises(MessageRejected):
                await app.send_async("orders", "text")

    async def run() -> None:
        with pytest.raises(TransactionError, match="cannot commit"):
            await sell()
        await async_engine.dispose()

    with shop_app(tmp_path, url, async_engine=async_engine) as app:
        asyncio.run(run())
        assert (count(app.engine, Order), received(app)) == (0, [])
    assert app.engine is not None
    app.engine.dispose()


def test_a_task_that_outlives_its_block_cannot_send(app: broker.App) -> None:
    """Its message would join a transaction that is never committed, and be lost without a word."""

    async def work() -> None:
        async def later() -> None:
            await asyncio.sleep(0)
            app.send("orders", Placed(1))

        with app.transaction():
            task = asyncio.create_task(later())
        with pytest.raises(TransactionError, match="is over"):
            await task

    asyncio.run(work())


def test_a_business_key_is_sent_once_within_its_window(tmp_path: Path, url: URL) -> None:
    """A rollback takes the key back, and when the window is over it is free."""
    app = shop_app(tmp_path, url)
    with app, FakeClock() as clock:
        with pytest.raises(ZeroDivisionError):
            place_and_fail(app, dedup_key="o-1")
        for order_id in (1, 2):
            with app.transaction():
                result = app.send("orders", Placed(order_id), dedup_key="o-1", dedup_window=timedelta(hours=1))
                assert (result is None) == (order_id == 2)
        clock.advance(3601)
        with app.transaction() as session:
            assert app.send("orders", Placed(3), dedup_key="o-1", dedup_window=3600) is not None
            assert app.send("orders", Placed(4), dedup_key="o-1") is None
            assert app.send("orders", Placed(5), dedup_key="o-2") is not None
            assert app.sent_keys.forget(session, 1) == 0
        found = received(app)
        assert [message.body[12:13] for message in found] == [b"1", b"3", b"5"]
        assert [message.properties[ID] for message in found] == ["o-1", "o-1", "o-2"]
    assert app.engine is not None
    app.engine.dispose()


def test_two_transactions_with_one_key_send_one_message(tmp_path: Path, postgres_url: URL) -> None:
    """The second waits for the first, and knows then."""
    app = shop_app(tmp_path, postgres_url)
    results: list[bool] = []

    def second() -> None:
        with app.transaction():
            results.append(app.send("orders", Placed(2), dedup_key="same") is not None)

    with app:
        thread = threading.Thread(target=second)
        with app.transaction() as session:
            assert app.send("orders", Placed(1), dedup_key="same") is not None
            thread.start()
            with Session(app.engine) as other:
                waits = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
                until(lambda: (other.rollback(), other.scalar(waits))[1])
            assert session.is_active
        thread.join()
        assert results == [False]
        assert len(received(app)) == 1
    assert app.engine is not None
    app.engine.dispose()


def test_what_is_sent_for_later_comes_then(app: broker.App, each_engine: str) -> None:
    """Never before its time, in a transaction and without; a delay is counted from the send."""
    arrived: list[int] = []

    @app.on("orders", group="billing")
    def arrive(placed: Placed) -> None:
        arrived.append(placed.order_id)

    with app, FakeClock() as clock:
        at = datetime.fromtimestamp(clock.now_ms / 1000, UTC) + timedelta(days=40)
        with app.transaction():
            app.send("orders", Placed(1), deliver_at=at)
            app.send("orders", Placed(2), delay=timedelta(hours=5))
            app.send("orders", Placed(3), delay=0)
            app.send("orders", Placed(4), deliver_at=1)
        app.send_now("orders", Placed(5), delay=7200)
        with app.workers():
            until(lambda: len(arrived) == 2)
            for hours, wanted in (
                (1.9, {3, 4}),
                (0.2, {3, 4, 5}),
                (2.5, {3, 4, 5}),
                (0.5, {2, 3, 4, 5}),
                (30 * 24, {2, 3, 4, 5}),
            ):
                _pass(clock, hours)
                until(lambda wanted=wanted: set(arrived) >= wanted)
                assert set(arrived) == wanted, hours
            _pass(clock, 10 * 24)
            until(lambda: len(arrived) == 5)
    assert sorted(arrived) == [1, 2, 3, 4, 5]


def _pass(clock: FakeClock, hours: float) -> None:
    """Let time pass, and the schedule with it: a message that waits for long is copied on its way."""
    clock.advance(hours * 3600)
    threading.Event().wait(0.4)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"deliver_at": datetime(2026, 1, 1)}, "has no time zone"),  # noqa: DTZ001
        ({"deliver_at": "tomorrow"}, "deliver_at is a datetime"),
        ({"deliver_at": 1_798_000_000}, "in milliseconds since 1970, and 1798000000 is a time in seconds"),
        ({"delay": -1}, "delay is a timedelta"),
        ({"delay": float("nan")}, "delay is a timedelta"),
        ({"delay": timedelta(days=400)}, "more than 366 days from now"),
        ({"delay": 1, "deliver_at": 5}, "has one delay"),
    ],
)
def test_a_time_that_is_none_is_refused(app: broker.App, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(MessageRejected, match=sentence):
        app.send_now("orders", Placed(1), **arguments)
    with pytest.raises(TransactionError, match="could not be sent"):
        place_and_swallow(app, **arguments)
    assert count(app.engine, Order) == 0
    assert not received(app)


def test_tables_of_a_migration(tmp_path: Path, sqlite_url: URL) -> None:
    """`create_tables=False` leaves them alone; the metadata has them all."""
    app = broker.App(
        tmp_path / "s", engine=create_engine(sqlite_url), topics=["orders"], create_tables=False, layout=SMALL
    )
    names = {table for metadata in app.metadata for table in metadata.tables}
    assert {"checkback_ledger", "checkback_ledger_mark", "checkback_ledger_binding"} <= names
    assert {"checkback_processed", "checkback_sent"} <= names
    with app, pytest.raises(TransactionError, match="Are its tables there"), app.transaction():
        app.send("orders", 1)
    assert app.engine is not None
    for metadata in app.metadata:
        metadata.create_all(app.engine)
    Base.metadata.create_all(app.engine)
    with app:
        place_plain(app)
        assert len(received(app)) == 1
    app.engine.dispose()


def place_plain(app: broker.App) -> None:
    with app.transaction():
        app.send("orders", 1)
