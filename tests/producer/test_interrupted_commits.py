"""A COMMIT that is stopped on its way to the driver, a transaction that ends without one, a send that is too late."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import Mock

import pytest
from sqlalchemy import Connection, create_engine, event, exc, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from broker.enlisting.enlistment import Enlistment
from broker.enlisting.sqlalchemy_events import _on_commit
from broker.enlisting.targets import _to_the_end
from broker.errors import StoreError, TransactionError, UnknownOutcome
from broker.ledger import Ledger
from tests.producer.desk import Base, Desk, Kind, desk_of


@pytest.fixture(params=["sqlite", "postgres"])
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with desk_of(Kind(request.param, "embedded"), request, tmp_path) as made:
        yield made


only_sqlite = pytest.mark.parametrize("desk", ["sqlite"], indirect=True)


class Full(Exception):
    """What stops a COMMIT."""


@contextlib.contextmanager
def a_listener_that_raises(desk: Desk, *, first: bool) -> Iterator[None]:
    """A listener of "commit" that the application registered, before the producer was made or after it."""

    def audit(_connection: Connection) -> None:
        raise Full

    if first:
        event.remove(desk.engine, "commit", _on_commit)
    event.listen(desk.engine, "commit", audit)
    if first:
        event.listen(desk.engine, "commit", _on_commit)
    with pytest.raises(Full):
        yield
    event.remove(desk.engine, "commit", audit)


@contextlib.contextmanager
def a_signal_in_our_listener() -> Iterator[None]:
    """A time limit that comes as checkback's listener begins."""

    def limit(*_: object) -> None:
        raise Full

    def profile(frame: FrameType, what: str, _: object) -> None:
        if what == "call" and frame.f_code.co_name == "_on_commit":
            sys.setprofile(None)
            signal.raise_signal(signal.SIGALRM)

    before = signal.signal(signal.SIGALRM, limit)
    sys.setprofile(profile)
    try:
        with pytest.raises(Full):
            yield
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGALRM, before)


STOPS = {
    "a listener before ours": lambda desk: a_listener_that_raises(desk, first=True),
    "a listener behind ours": lambda desk: a_listener_that_raises(desk, first=False),
    "a signal": lambda _: a_signal_in_our_listener(),
}


@pytest.mark.parametrize("stop", STOPS)
def test_the_next_session_of_the_pool_does_not_commit_what_was_stopped(desk: Desk, stop: str) -> None:
    """SQLAlchemy gives the connection back without a ROLLBACK."""
    with STOPS[stop](desk), Session(desk.engine) as session:
        desk.buy(session, 1)
        session.commit()
    with Session(desk.engine) as session:
        desk.buy(session, 2)
        session.commit()
    assert desk.judge() == ({2}, {2})


@pytest.mark.parametrize("rolls_back", [True, False])
@pytest.mark.parametrize("stop", ["a listener before ours", "a signal"])
def test_a_connection_that_goes_on_does_not_commit_what_was_stopped(desk: Desk, stop: str, *, rolls_back: bool) -> None:
    with desk.engine.connect() as connection:
        with STOPS[stop](desk):
            desk.buy(connection, 1)
            connection.commit()
        if rolls_back:
            connection.rollback()
            desk.buy(connection, 2)
            connection.commit()
    assert desk.judge() == (({2}, {2}) if rolls_back else (set(), set()))


@pytest.mark.parametrize("stop", [KeyboardInterrupt, TimeoutError])
def test_a_connection_does_not_commit_what_was_stopped_in_the_driver(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, stop: type[BaseException]
) -> None:
    """The driver has its transaction still open."""
    with desk.engine.connect() as connection:
        desk.buy(connection, 1)
        with monkeypatch.context() as patch:
            patch.setattr(desk.engine.dialect, "do_commit", Mock(side_effect=stop))
            with pytest.raises((KeyboardInterrupt, UnknownOutcome)):
                connection.commit()
        connection.rollback()
        desk.buy(connection, 2)
        connection.commit()
    assert desk.judge() == ({2}, {2})


def test_a_listener_behind_ours_that_raises_once_a_connection_has_committed_takes_nothing_back(desk: Desk) -> None:
    with a_listener_that_raises(desk, first=False), desk.engine.connect() as connection:
        desk.buy(connection, 1)
        connection.commit()
    assert desk.judge() == ({1}, {1})


@only_sqlite
@pytest.mark.parametrize("how", ["UNIQUE ON CONFLICT ROLLBACK", "INSERT OR ROLLBACK"])
def test_a_transaction_that_sqlite_rolled_back_behind_a_first_send_delivers_nothing(desk: Desk, how: str) -> None:
    conflict, verb = (how.removeprefix("UNIQUE"), "INSERT") if how.startswith("UNIQUE") else ("", how)
    with desk.engine.begin() as connection:
        connection.execute(text(f"CREATE TABLE coupons (code TEXT UNIQUE {conflict})"))
        connection.execute(text("INSERT INTO coupons VALUES ('X')"))
    with Session(desk.engine) as session:
        desk.announce(session, 1)
        desk.save(session, 1)
        with contextlib.suppress(exc.IntegrityError):
            session.execute(text(f"{verb} INTO coupons VALUES ('X')"))
        with pytest.raises(TransactionError, match="ended by a COMMIT or ROLLBACK"):
            session.commit()
    assert desk.judge() == (set(), set())


@only_sqlite
def test_a_session_on_the_same_driver_connection_rolls_back(desk: Desk) -> None:
    """StaticPool gives one connection of the driver to all."""
    engine = create_engine(desk.url, poolclass=StaticPool)
    producer = desk.producer_of("static", ledger=Ledger(engine))
    with Session(engine) as session, Session(engine) as other:
        producer.send(desk.message(1), session)
        desk.save(session, 1)
        other.execute(text("SELECT 1"))
        other.rollback()
        with pytest.raises(TransactionError, match="ended by a COMMIT or ROLLBACK"):
            session.commit()
    engine.dispose()
    assert desk.judge() == (set(), set())


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("target", ["session", "connection"])
def test_a_send_in_a_listener_behind_ours_is_refused(desk: Desk, target: str, *, again: bool) -> None:
    """The ledger's row is in place then, or never will be. With `again` a message was sent before."""

    def announce(connection: Connection) -> None:
        desk.announce(connection, 2)

    event.listen(desk.engine, "commit", announce)
    opened: Any = Session(desk.engine) if target == "session" else desk.engine.connect()
    with opened as joined:
        desk.save(joined, 1)
        if again:
            desk.announce(joined, 1)
        with pytest.raises(TransactionError, match="commits at this moment"):
            joined.commit()
    event.remove(desk.engine, "commit", announce)
    committed_before = again and target == "connection"  # ours sends COMMIT itself where no session does
    assert desk.judge() == (({1}, {1}) if committed_before else (set(), set()))


@pytest.mark.parametrize("change", ["new", "dirty"])
def test_the_connection_of_a_session_does_not_commit_past_rows_that_are_not_flushed(desk: Desk, change: str) -> None:
    with Session(desk.engine) as session:
        order = desk.order(1)
        session.add(order)
        if change == "dirty":
            session.flush()
            order.id = desk.first + 2
        desk.announce(session, 1)
        with pytest.raises(TransactionError, match="committed past the session"):
            session.connection().commit()
    assert desk.judge() == (set(), set())


def test_a_session_does_not_commit_past_rows_of_another_on_its_connection(desk: Desk) -> None:
    with Session(desk.engine) as session:
        session.add(desk.order(1))
        desk.announce(session, 1)
        with Session(session.connection(), join_transaction_mode="control_fully") as inner:
            desk.buy(inner, 2)
            with pytest.raises(TransactionError, match="committed past the session"):
                inner.commit()
    assert desk.judge() == (set(), set())


@only_sqlite
@pytest.mark.parametrize("by", ["a cancellation", "a time limit"])
def test_what_comes_while_a_session_delivers_comes_behind_its_commit(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Whoever catches it rolls back, which a session refuses that has committed and has not come back."""
    engine = create_async_engine(desk.url.set(drivername="sqlite+aiosqlite"))
    desk.producer = desk.producer_of("async", ledger=Ledger(engine))
    begun, goes_on, committed = threading.Event(), threading.Event(), Enlistment.committed

    def slow(enlistment: Enlistment) -> None:
        begun.set()
        assert goes_on.wait(10)
        committed(enlistment)

    async def request(limit: asyncio.Timeout) -> None:
        async with AsyncSession(engine) as session:
            try:
                async with limit:
                    await desk.buy_async(session, 1)
                    await session.commit()
                    await asyncio.sleep(10)
            except (asyncio.CancelledError, TimeoutError):
                await session.rollback()
                raise

    async def work() -> None:
        limit = asyncio.timeout(None)
        task = asyncio.create_task(request(limit))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel() if by == "a cancellation" else limit.reschedule(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        goes_on.set()
        with pytest.raises(asyncio.CancelledError if by == "a cancellation" else TimeoutError):
            await task
        await engine.dispose()

    monkeypatch.setattr(Enlistment, "committed", slow)
    asyncio.run(work())
    assert desk.judge() == ({1}, {1})


@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_time_limit_that_a_delivery_outlives_cancels_nothing_behind_it(is_cancelled: bool) -> None:
    """The block of the limit was left: who goes on would be cancelled by nobody. A cancellation of its own comes."""
    begun, goes_on = threading.Event(), threading.Event()

    def deliver() -> None:
        begun.set()
        assert goes_on.wait(10)

    async def request(limit: asyncio.Timeout) -> str:
        async with limit:
            await _to_the_end(deliver)
        await asyncio.sleep(0.001)
        return "went on"

    async def work() -> str:
        limit = asyncio.timeout(None)
        task = asyncio.create_task(request(limit))
        await asyncio.to_thread(begun.wait, 10)
        limit.reschedule(0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        if is_cancelled:
            task.cancel()
            await asyncio.sleep(0)
        goes_on.set()
        return await task

    if is_cancelled:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(work())
    else:
        assert asyncio.run(work()) == "went on"


def test_a_store_that_was_closed_before_the_delivery_leaves_it_to_check_back(tmp_path: Path) -> None:
    import broker

    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    Base.metadata.create_all(engine)
    ledger = Ledger(engine)
    ledger.create_all()
    store = broker.open(tmp_path / "store", sync="os")
    producer = store.producer("shop", topics=["orders"], ledger=ledger)

    def buy(number: int, *, closes: bool = False) -> None:
        with Session(engine) as session:
            session.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": number})
            producer.send(broker.Message("orders", b"%d" % number), session)
            if closes:
                store.close()
            session.commit()

    buy(1)
    buy(2, closes=True)  # COMMIT returns: the order is saved, and nothing is raised
    with pytest.raises(StoreError, match="belongs to a store that was closed"):
        buy(3)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar() == 2
    engine.dispose()
    with broker.open(tmp_path / "store") as again:
        assert len(again.transactions.in_doubt_slots()) == 1


def test_a_rollback_behind_a_connection_that_was_given_up_is_logged_in_our_words(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """As each await that is cancelled ends. The line quoted SQLAlchemy, which asks for the rollback that this was."""
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        session.connection().invalidate()
        session.rollback()
    assert "its connection was given up before" in caplog.text
    assert "Please rollback" not in caplog.text
    assert desk.judge() == (set(), set())
