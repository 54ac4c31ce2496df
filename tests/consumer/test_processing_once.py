"""`consumer.process`: delivered at least once, processed once, with its effects in one transaction. Over each place.

Each kind of database is tried with the store alone: the table of what was processed knows of no place.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, Integer, String, create_engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import broker
from broker.database.dedup import Processed
from broker.message import ReceivedMessage
from broker.testing.crash_disk import lose_the_commit
from tests.backends.backend import Backend
from tests.backends.kinds import NAMES
from tests.consumer.messages import ABSENT_S, Member, lost_positions, next_of, publish, soonest

_DATABASES = ("sqlite", "postgres", "mariadb")
_ASYNC = {"sqlite": "sqlite+aiosqlite", "mariadb+pymysql": "mariadb+aiomysql"}  # psycopg is both


_PAIRS = [(name, kind) for name in NAMES for kind in (_DATABASES if name == "embedded" else _DATABASES[:1])]
pytestmark = pytest.mark.parametrize(("backend", "url"), _PAIRS, indirect=True)


class Base(DeclarativeBase):
    pass


class Charge(Base):
    __tablename__ = "charges"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    order: Mapped[str] = mapped_column(String(20))


@pytest.fixture
def engine(url: URL) -> Iterator[Engine]:
    """One of each kind."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    Processed().create_all(engine)
    yield engine
    engine.dispose()


def charges(engine: Engine) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(Charge)) or 0


def charge(engine: Engine, consumer: Member, message: ReceivedMessage, *, fail: bool = False) -> bool:
    with Session(engine) as session, consumer.process(message, session) as first:
        session.add(Charge(order=message.body.decode()))
        session.flush()
        if fail:
            raise RuntimeError("no")
    return first


def test_a_message_that_is_delivered_twice_has_one_effect(backend: Backend, engine: Engine) -> None:
    """The body runs again, and what it did is rolled back, even when it does not ask whether it is the first time."""
    publish(backend, "4711")
    with lost_positions(backend), backend.client.consumer("billing", "orders") as consumer:
        assert consumer.retry(next_of(backend, consumer), soonest(backend))  # a copy, with the same unique key
        assert charge(engine, consumer, next_of(backend, consumer))
    with backend.client.consumer("billing", "orders") as consumer:
        assert not charge(engine, consumer, next_of(backend, consumer))
    assert charges(engine) == 1


def test_each_message_of_a_batch_has_its_effect(backend: Backend, engine: Engine) -> None:
    """They are told apart by unique keys, which a broker must not replace by one of the batch."""
    sent = backend.client.producer("plain").send_batch([broker.Message("orders", body) for body in (b"1", b"2", b"3")])
    with backend.client.consumer("billing", "orders") as consumer:
        assert [charge(engine, consumer, next_of(backend, consumer)) for _ in sent] == [True, True, True]
    assert charges(engine) == 3


def test_another_group_processes_it_too(backend: Backend, engine: Engine) -> None:
    publish(backend, "4711")
    for group in ("billing", "bonus"):
        with backend.client.consumer(group, "orders") as consumer:
            assert charge(engine, consumer, next_of(backend, consumer))
    assert charges(engine) == 2


def test_a_failure_undoes_everything_and_the_message_comes_again(backend: Backend, engine: Engine) -> None:
    publish(backend, "4711")
    level = soonest(backend)
    with backend.client.consumer("billing", "orders", retry_delay_level=level) as consumer:
        with pytest.raises(RuntimeError, match="no"):
            charge(engine, consumer, next_of(backend, consumer), fail=True)
        assert charges(engine) == 0
        assert charge(engine, consumer, next_of(backend, consumer))
    assert charges(engine) == 1


def test_a_duplicate_that_fails_is_done(backend: Backend, engine: Engine) -> None:
    """Its effects are there already: that they cannot be made twice is no fault."""
    publish(backend, "4711")
    with lost_positions(backend), backend.client.consumer("billing", "orders") as consumer:
        charge(engine, consumer, next_of(backend, consumer))
    level = soonest(backend)
    with backend.client.consumer("billing", "orders", retry_delay_level=level) as consumer:
        charge(engine, consumer, next_of(backend, consumer), fail=True)
        assert consumer.receive(ABSENT_S) is None


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_answer_was_lost_is_found_out_by_the_next_delivery(
    backend: Backend, engine: Engine, committed: bool
) -> None:
    """Whether it took effect or not: in the end there is one."""
    publish(backend, "4711")
    level = soonest(backend)
    with backend.client.consumer("billing", "orders", retry_delay_level=level) as consumer:
        with lose_the_commit(engine, committed=committed), pytest.raises(DBAPIError):
            charge(engine, consumer, next_of(backend, consumer))
        assert charge(engine, consumer, next_of(backend, consumer)) is not committed
    assert charges(engine) == 1


def test_first_time_takes_part_in_a_transaction_of_your_own(backend: Backend, engine: Engine) -> None:
    """What is rolled back was not processed."""
    publish(backend, "4711")
    with backend.client.consumer("billing", "orders") as consumer:
        message = next_of(backend, consumer)
        answers = []
        for commit in (False, True, True):
            with Session(engine) as session:
                answers.append(consumer.first_time(message, session))
                session.commit() if commit else session.rollback()
        assert answers == [True, True, False]


def test_with_an_async_session(backend: Backend, engine: Engine, url: URL) -> None:
    """It fails, is processed, and comes once more."""
    publish(backend, "4711")

    async def work(*outcomes: bool) -> list[bool]:
        answers: list[bool] = []
        async_engine = create_async_engine(url.set(drivername=_ASYNC.get(url.drivername, url.drivername)))
        level = soonest(backend)
        async with backend.client.consumer("billing", "orders", retry_delay_level=level) as consumer:
            async for message in consumer:
                async with AsyncSession(async_engine) as session:
                    with contextlib.suppress(RuntimeError):
                        async with consumer.process(message, session) as first:
                            succeeds = outcomes[len(answers)]
                            answers.append(first)
                            session.add(Charge(order="4711"))
                            if not succeeds:
                                raise RuntimeError
                if len(answers) == len(outcomes):
                    break
        await async_engine.dispose()
        return answers

    with lost_positions(backend):
        assert asyncio.run(asyncio.wait_for(work(False, True), backend.soon_s)) == [True, True]
    assert asyncio.run(asyncio.wait_for(work(True), backend.soon_s)) == [False]
    assert charges(engine) == 1


def test_the_wrong_with_is_named(backend: Backend, engine: Engine, url: URL) -> None:
    """And the message stays in hand, for the right one."""
    publish(backend, "4711")
    async_engine = create_async_engine(url.set(drivername=_ASYNC.get(url.drivername, url.drivername)))
    with backend.client.consumer("billing", "orders") as consumer:
        message = next_of(backend, consumer)

        async def of_a_loop() -> None:
            wrong: Any = consumer.process(message, Session(engine))
            async with wrong:
                pytest.fail("it was entered")

        with pytest.raises(broker.TransactionError, match=r"write `with consumer\.process\(message, session\)`"):
            asyncio.run(of_a_loop())
        wrong: Any = consumer.process(message, AsyncSession(async_engine))
        with pytest.raises(broker.TransactionError, match=r"write `async with consumer\.process\(message"), wrong:
            pytest.fail("it was entered")
        assert charge(engine, consumer, message)


def test_a_process_without_with_is_no_answer(backend: Backend, engine: Engine) -> None:
    """`first = consumer.process(...)` was true for each delivery, and the effects took place each time."""
    publish(backend, "4711")
    with backend.client.consumer("billing", "orders") as consumer, Session(engine) as session:
        first = consumer.process(next_of(backend, consumer), session)
        with pytest.raises(broker.TransactionError, match=r"write `with consumer\.process\(.*\) as first`"):
            assert not first
        with first as is_first:
            assert is_first


def test_old_rows_can_go(backend: Backend, engine: Engine) -> None:
    publish(backend, "4711")
    with backend.client.consumer("billing", "orders") as consumer:
        message = next_of(backend, consumer)
        charge(engine, consumer, message)
        with Session(engine) as session:
            assert consumer.processed.forget(session, 1) == 0
            assert consumer.processed.forget(session, 1 << 50) == 1
            with pytest.raises(broker.BrokerError, match="milliseconds"):
                consumer.processed.forget(session, -1)
