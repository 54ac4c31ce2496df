"""`send_async` without `await` sends nothing: then the transaction does not commit either."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, text
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

import broker
from broker.errors import TransactionError
from tests.app.shop import ASYNC
from tests.producer.desk import INSERT, Desk, Kind, desk_of

pytestmark = pytest.mark.filterwarnings("ignore:coroutine")
BOTH = ("sqlite", "postgres")
WHICH = ["session", "connection"]


@pytest.fixture(params=BOTH)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with desk_of(Kind(request.param, "embedded"), request, tmp_path) as made:
        yield made


def run(desk: Desk, which: str, work: Callable[[Any], Awaitable[None]]) -> tuple[set[int], set[int]]:
    """Do the work in a session or a connection of an engine that checkback has not seen; what was saved, and sent."""

    async def begun() -> None:
        engine = create_async_engine(desk.url.set(drivername=ASYNC.get(desk.url.drivername, desk.url.drivername)))
        async with _target(engine, which) as target:
            await work(target)
        await engine.dispose()

    asyncio.run(begun())
    gc.collect()
    return desk.judge()


def _target(engine: AsyncEngine, which: str) -> Any:
    return AsyncSession(engine) if which == "session" else engine.connect()


async def save(desk: Desk, target: Any, number: int) -> None:
    await target.execute(INSERT, {"id": desk.first + number})


@pytest.mark.parametrize("is_saved_first", [True, False])
@pytest.mark.parametrize("which", WHICH)
def test_a_forgotten_await(desk: Desk, which: str, is_saved_first: bool) -> None:
    async def work(target: Any) -> None:
        if is_saved_first:
            await save(desk, target, 1)
        _ = desk.producer.send_async(desk.message(1), target)
        if not is_saved_first:
            await save(desk, target, 1)
        with pytest.raises(TransactionError, match="nothing awaited it: write `await`"):
            await target.commit()
        await target.rollback()
        await desk.buy_async(target, 2)  # the next transaction is free
        await target.commit()

    assert run(desk, which, work) == ({2}, {2})


@pytest.mark.parametrize("which", WHICH)
def test_one_that_is_awaited_later(desk: Desk, which: str) -> None:
    """`asyncio.gather`, a variable, a task: what counts is that it ran before COMMIT."""

    async def work(target: Any) -> None:
        await save(desk, target, 1)
        later = desk.producer.send_async(desk.message(1), target)
        await target.execute(text("SELECT 1"))
        await later
        await save(desk, target, 2)
        await asyncio.create_task(desk.producer.send_async(desk.message(2), target))
        await target.commit()

    assert run(desk, which, work) == ({1, 2}, {1, 2})


@pytest.mark.parametrize("which", WHICH)
def test_several_at_once_before_the_session_has_a_connection(desk: Desk, which: str) -> None:
    async def work(target: Any) -> None:
        await asyncio.gather(*(desk.producer.send_async(desk.message(number), target) for number in (1, 2, 3)))
        for number in (1, 2, 3):
            await save(desk, target, number)
        await target.commit()

    assert run(desk, which, work) == ({1, 2, 3}, {1, 2, 3})


@pytest.mark.parametrize("which", WHICH)
def test_a_task_that_was_cancelled_before_it_began(desk: Desk, which: str) -> None:
    async def work(target: Any) -> None:
        await save(desk, target, 1)
        task = asyncio.create_task(desk.producer.send_async(desk.message(1), target))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with pytest.raises(TransactionError, match="could not be sent"):
            await target.commit()

    assert run(desk, which, work) == (set(), set())


@pytest.mark.parametrize("which", WHICH)
def test_a_task_that_was_cancelled_while_it_waited_for_its_turn(desk: Desk, which: str) -> None:
    """The order was saved and the other message sent, without the one that `asyncio.wait_for` had given up."""

    async def work(target: Any) -> None:
        await save(desk, target, 1)
        await save(desk, target, 2)
        first, second = (asyncio.create_task(desk.producer.send_async(desk.message(one), target)) for one in (1, 2))
        await asyncio.sleep(0)  # the first waits for the disk, the second for the first
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        with pytest.raises(TransactionError, match="could not be sent in it: CancelledError"):
            await target.commit()
        await target.rollback()
        await desk.buy_async(target, 3)
        await target.commit()

    assert run(desk, which, work) == ({3}, {3})


def test_several_at_once_in_a_session_that_outlives_an_event_loop(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """As one of a fixture does, where each test has a loop of its own."""
    with desk_of(Kind("sqlite", "embedded"), request, tmp_path) as desk:
        engine = create_async_engine(desk.url.set(drivername=ASYNC["sqlite"]), poolclass=NullPool)
        session = AsyncSession(engine)

        async def work(numbers: tuple[int, int]) -> None:
            await asyncio.gather(*(desk.producer.send_async(desk.message(number), session) for number in numbers))
            for number in numbers:
                await save(desk, session, number)
            await session.commit()

        for numbers in ((1, 2), (3, 4)):
            asyncio.run(work(numbers))
        assert desk.judge() == ({1, 2, 3, 4}, {1, 2, 3, 4})


@pytest.mark.parametrize("which", WHICH)
def test_one_in_a_savepoint_that_is_rolled_back(desk: Desk, which: str) -> None:
    async def work(target: Any) -> None:
        await desk.buy_async(target, 1)
        savepoint = await target.begin_nested()
        await save(desk, target, 2)
        _ = desk.producer.send_async(desk.message(2), target)
        await savepoint.rollback()
        await target.commit()

    assert run(desk, which, work) == ({1}, {1})


def test_another_forgotten_await_after_one_that_was_awaited(desk: Desk) -> None:
    async def work(target: Any) -> None:
        await desk.buy_async(target, 1)
        await save(desk, target, 2)
        _ = desk.producer.send_async(desk.message(2), target)
        with pytest.raises(TransactionError, match="nothing awaited it"):
            await target.commit()

    assert run(desk, "session", work) == (set(), set())


def test_what_the_database_refuses_at_commit_keeps_its_own_error(desk: Desk) -> None:
    """A connection that is known for such a send alone commits as any other does."""

    async def work(target: Any) -> None:
        later = desk.producer.send_async(desk.message(9, topic="ordres"), target)
        savepoint = await target.begin_nested()
        with pytest.raises(TransactionError, match="not one"):
            await later
        await savepoint.rollback()
        await save(desk, target, 1)
        await target.commit()

    assert run(desk, "connection", work) == ({1}, set())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("function", [broker.Producer.send_async, broker.App.send_async])
def test_frameworks_take_it_for_a_coroutine_function(function: object) -> None:
    """A background task calls others in a thread, where nobody would await what they return."""
    assert asyncio.iscoroutinefunction(function)
