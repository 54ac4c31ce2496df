"""The table of cases for AsyncSession, async_scoped_session and AsyncConnection: both are there, or neither is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, make_url, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import (
    AsyncEngine,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
    create_async_engine,
)

import broker
from broker.errors import TransactionError
from broker.ledger import Ledger
from tests.backends.embedded import Embedded
from tests.backends.shop import TOPICS
from tests.producer.desk import INSERT, Case, Cases, Desk, desk_at, desk_of, kinds

cases = Cases()
DRIVERS = {
    "sqlite+aiosqlite": "sqlite",
    "postgresql+psycopg": "postgres",
    "postgresql+asyncpg": "postgres",
    "mariadb+aiomysql": "mariadb",
}
KINDS = kinds(DRIVERS, ["sqlite+aiosqlite", "postgresql+asyncpg"])


class AsyncDesk(Desk):
    """A desk whose sessions are async ones; check-back asks as before."""

    driver = ""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[AsyncEngine]:
        engine = create_async_engine(async_url(self.url, self.driver))
        self.producer = await asyncio.to_thread(self.producer_of, "shop", TOPICS, Ledger(engine))
        try:
            yield engine
        finally:
            await engine.dispose()


def async_url(url: URL, driver: str) -> URL:
    return url.set(drivername=driver)


@pytest.fixture(scope="module", params=KINDS, ids=str)
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncDesk]:
    driver = request.param.base
    with desk_of(replace(request.param, base=DRIVERS[driver]), request, tmp_path_factory.mktemp("desk")) as made:
        desk = AsyncDesk(made.shop, made.url)
        desk.driver = driver
        yield desk


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", cases, ids=repr)


def test_both_are_there_or_neither_is(desk: AsyncDesk, case: Case) -> None:
    desk.next_case()
    asyncio.run(case.run(desk))
    orders, announced = desk.judge()
    assert (orders, announced) == (case.there, case.there)
    assert desk.shop.in_doubt() == 0


@cases.there(1, 2)
async def the_sessions_own_commit(desk: AsyncDesk) -> None:
    async with desk.open() as engine, AsyncSession(engine) as session:
        await desk.buy_async(session, 1)
        await session.commit()
        await desk.buy_async(session, 2)
        await session.commit()
        await desk.buy_async(session, 3)


@cases.there(1)
async def the_block_of_a_sessionmaker(desk: AsyncDesk) -> None:
    async with desk.open() as engine:
        async with async_sessionmaker(engine).begin() as session:
            await desk.buy_async(session, 1)
        with pytest.raises(ZeroDivisionError):
            await _fail(desk, engine)


async def _fail(desk: AsyncDesk, engine: AsyncEngine) -> None:
    async with async_sessionmaker(engine).begin() as session:
        await desk.buy_async(session, 2)
        raise ZeroDivisionError


@cases.there(1, 2)
async def begin_transaction(desk: AsyncDesk) -> None:
    async with desk.open() as engine, AsyncSession(engine) as session:
        async with desk.producer.begin_transaction(session) as transaction:
            await desk.buy_async(session, 1, through=transaction)
            await session.commit()
            await desk.buy_async(session, 2, through=transaction)
        with pytest.raises(ZeroDivisionError):
            await _fail_in_a_block(desk, session)


async def _fail_in_a_block(desk: AsyncDesk, session: AsyncSession) -> None:
    async with desk.producer.begin_transaction(session) as transaction:
        await desk.buy_async(session, 3, through=transaction)
        raise ZeroDivisionError


@cases.there(1)
async def a_forgotten_with(desk: AsyncDesk) -> None:
    async with desk.open() as engine, AsyncSession(engine) as session:
        transaction = desk.producer.begin_transaction(session)
        await desk.buy_async(session, 1, through=transaction)
        await session.commit()


@cases.there(1)
async def a_scoped_session(desk: AsyncDesk) -> None:
    async with desk.open() as engine:
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        await desk.buy_async(scoped, 1)
        await scoped.commit()
        await desk.buy_async(scoped, 2)
        await scoped.remove()


@cases.there(1, 2)
async def a_connection(desk: AsyncDesk) -> None:
    async with desk.open() as engine:
        async with engine.begin() as connection:
            await desk.buy_async(connection, 1)
        async with engine.connect() as connection:
            async with desk.producer.begin_transaction(connection) as transaction:
                await desk.buy_async(connection, 2, through=transaction)
            await desk.buy_async(connection, 3)
            await connection.rollback()


@cases.there(1, 3)
async def savepoints(desk: AsyncDesk) -> None:
    async with desk.open() as engine, AsyncSession(engine) as session:
        async with session.begin_nested():
            await desk.buy_async(session, 1)
        async with session.begin_nested() as savepoint:
            await desk.buy_async(session, 2)
            await savepoint.rollback()
        await desk.buy_async(session, 3)
        await session.commit()
        async with session.begin_nested():
            await desk.buy_async(session, 4)
        await session.rollback()


@cases.there()
async def an_error_that_nobody_handles(desk: AsyncDesk) -> None:
    async with desk.open() as engine, AsyncSession(engine) as session:
        await session.execute(text("SELECT 1"))
        with pytest.raises(TransactionError, match="not one that"):
            await desk.producer.send_async(desk.message(1, topic="ordres"), session)
        with pytest.raises(TransactionError, match="cannot commit"):
            await session.commit()


@cases.there()
async def the_wrong_way_to_send(desk: AsyncDesk) -> None:
    async with desk.open() as engine, AsyncSession(engine) as session:
        with pytest.raises(TransactionError, match=r"await producer\.send_async"):
            desk.producer.send(desk.message(1), session)
        session.add(desk.order(1))
        with pytest.raises(TransactionError, match="cannot commit"):
            await session.commit()
    async with desk.open() as engine, engine.connect() as connection:
        with pytest.raises(TransactionError, match=r"await producer\.send_async"):
            desk.producer.send(desk.message(1), connection)
        await connection.execute(INSERT, {"id": desk.first + 1})
        with pytest.raises(TransactionError, match="cannot commit"):
            await connection.commit()


@cases.there()
async def a_connection_that_is_not_open(desk: AsyncDesk) -> None:
    async with desk.open() as engine:
        connection = engine.connect()
        with pytest.raises(TransactionError, match=r"not open: async with engine\.connect\(\) as connection"):
            await desk.producer.send_async(desk.message(1), connection)
        with pytest.raises(TransactionError, match="the connection is not open"):
            desk.producer.begin_transaction(connection)


@cases.there()
async def the_wrong_with(desk: AsyncDesk) -> None:
    async with desk.open() as engine, AsyncSession(engine) as session:
        wrong: Any = desk.producer.begin_transaction(session)
        with pytest.raises(TransactionError, match=r"write `async with producer\.begin_transaction\(session"), wrong:
            pytest.fail("it was entered")
        async with desk.producer.begin_transaction(session):  # nothing was begun by the first
            pass


@cases.there()
async def autocommit(desk: AsyncDesk) -> None:
    async with desk.open() as engine:
        loose = engine.execution_options(isolation_level="AUTOCOMMIT")
        async with AsyncSession(loose) as session:
            with pytest.raises(TransactionError, match="AUTOCOMMIT"):
                await desk.producer.send_async(desk.message(1), session)


@cases.there()
async def commit_in_sql(desk: AsyncDesk) -> None:
    async with desk.open() as engine, AsyncSession(engine) as session:
        await desk.buy_async(session, 1)
        with pytest.raises(TransactionError, match="in SQL"):
            await session.execute(text("COMMIT"))


@cases.there(1)
async def a_row_that_the_database_refuses(desk: AsyncDesk) -> None:
    async with desk.open() as engine, AsyncSession(engine) as session:
        await desk.buy_async(session, 1)
        await session.commit()
        session.add(desk.order(1))
        await desk.producer.send_async(desk.message(2), session)
        with pytest.raises(IntegrityError):
            await session.commit()


@cases.there(1, 2)
async def a_sync_session_in_a_coroutine(desk: AsyncDesk) -> None:
    """It blocks the loop, as all that the session does there; the message joins it all the same."""
    producer = desk.shop.producer()
    with desk.shop.session() as session:
        desk.save(session, 1)
        await producer.send_async(desk.message(1), session)
        session.commit()
    with desk.engine.begin() as connection:
        desk.save(connection, 2)
        await producer.send_async(desk.message(2), connection)


@cases.there(1, 2)
async def sessions_of_two_drivers(desk: AsyncDesk) -> None:
    """One producer with one ledger: a worker's Session by psycopg, and a route's AsyncSession by asyncpg."""
    producer = desk.shop.producer()
    with desk.shop.session() as session:
        desk.save(session, 1)
        producer.send(desk.message(1), session)
        session.commit()
    async with desk.open() as engine, AsyncSession(engine) as asynchronous:
        await asynchronous.execute(INSERT, {"id": desk.first + 2})
        await producer.send_async(desk.message(2), asynchronous)
        await asynchronous.commit()


@cases.there(1)
async def the_sync_session_inside(desk: AsyncDesk) -> None:
    """It is for run_sync(): elsewhere SQLAlchemy raised MissingGreenlet."""
    async with desk.open() as engine, AsyncSession(engine) as session:
        await session.run_sync(lambda inner: desk.buy(inner, 1))
        await session.commit()
        await session.execute(INSERT, {"id": desk.first + 2})
        with pytest.raises(TransactionError, match="the inner, sync part of an AsyncSession"):
            desk.announce(session.sync_session, 2)
        with pytest.raises(TransactionError, match="cannot commit"):
            await session.commit()
        async with engine.connect() as connection:
            assert connection.sync_connection is not None
            with pytest.raises(TransactionError, match="the inner, sync part of an AsyncSession or AsyncConnection"):
                desk.announce(connection.sync_connection, 3)


def test_cancellation_at_any_await(desk: AsyncDesk) -> None:
    """A task is cancelled wherever it waits: both are there, or neither is, after check-back."""
    desk.next_case()

    async def work() -> None:
        async with desk.open() as engine:
            for number in range(40):
                connected = asyncio.Event()  # a driver may leak a connection that is cancelled while it is made
                task = asyncio.create_task(_purchase(desk, engine, number, connected))
                await connected.wait()
                for _ in range(number):  # so many turns of the loop
                    await asyncio.sleep(0)
                task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or task.exception() is None

    asyncio.run(work())
    orders, announced = desk.judge()
    assert orders == announced
    assert desk.shop.in_doubt() == 0


async def _purchase(desk: AsyncDesk, engine: AsyncEngine, number: int, connected: asyncio.Event) -> None:
    async with AsyncSession(engine) as session:
        await session.connection()
        connected.set()
        await desk.buy_async(session, number)
        await session.commit()


def test_the_event_loop_does_not_wait_for_the_disk(desk: AsyncDesk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The half messages are fsynced by another thread, and are on disk before COMMIT."""
    store = desk.shop.backend.client
    if not isinstance(store, broker.LiveStore):
        pytest.skip("a cluster writes to the disks of its brokers")
    desk.next_case()
    service = store.transactions
    wait_durable, threads = service.wait_durable, []

    def watched(half: broker.Half) -> None:
        threads.append(threading.current_thread())
        wait_durable(half)

    monkeypatch.setattr(service, "wait_durable", watched)

    async def work() -> None:
        async with desk.open() as engine, AsyncSession(engine) as session:
            await desk.buy_async(session, 1)
            await desk.buy_async(session, 2)
            await session.commit()

    asyncio.run(work())
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    assert desk.judge() == ({1, 2}, {1, 2})


def test_in_the_mode_each_the_event_loop_does_not_wait_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a half message is on disk when the send returns."""
    threads: list[threading.Thread] = []
    with (
        broker.open(tmp_path / "each", sync="each") as store,
        desk_at(Embedded(tmp_path / "each", store), make_url(f"sqlite:///{tmp_path / 'shop.db'}")) as made,
    ):
        desk = AsyncDesk(made.shop, made.url)
        desk.driver = "sqlite+aiosqlite"
        settle = store.writer.settle

        def watched(end: int) -> None:
            threads.append(threading.current_thread())
            settle(end)

        async def work() -> None:
            async with desk.open() as engine, AsyncSession(engine) as session:
                producer = store.producer("each", topics=["orders"], ledger=Ledger(engine))
                monkeypatch.setattr(store.writer, "settle", watched)
                half = await producer.send_async(desk.message(1), session)
                assert store.visible_end > half.commitlog_offset
                await session.commit()

        asyncio.run(work())
        assert threads
        assert threading.main_thread() not in threads
