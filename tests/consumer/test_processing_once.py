"""`consumer.process`: delivered at least once, processed once, with its effects in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from sqlalchemy import URL, Engine, Integer, String, create_engine, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import broker
from broker.consumer import Consumer
from broker.database.dedup import Processed
from broker.live import LiveStore
from broker.message import ReceivedMessage
from broker.testing.crash_disk import FakeClock, lose_the_commit

WAIT_S = 20
_ASYNC = {"sqlite": "sqlite+aiosqlite", "mariadb+pymysql": "mariadb+aiomysql"}  # psycopg is both


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


def next_of(consumer: Consumer) -> ReceivedMessage:
    message = consumer.receive(WAIT_S)
    assert message is not None
    return message


def charges(engine: Engine) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(Charge)) or 0


def charge(engine: Engine, consumer: Consumer, message: ReceivedMessage, *, fail: bool = False) -> bool:
    with Session(engine) as session, consumer.process(message, session) as first:
        session.add(Charge(order=message.body.decode()))
        session.flush()
        if fail:
            raise RuntimeError("no")
    return first


def test_a_message_that_is_delivered_twice_has_one_effect(checkback_store: LiveStore, engine: Engine) -> None:
    """The body runs again, and what it did is rolled back, even when it does not ask whether it is the first time."""
    checkback_store.append(broker.Message("orders", b"4711"))
    with checkback_store.consumer("billing", "orders") as consumer:
        message = next_of(consumer)
        assert consumer.retry(message, delay_level=0)  # a copy, with the same unique key
        assert charge(engine, consumer, next_of(consumer))
        consumer._positions.reset("billing", "orders", 0, 0)
        assert not charge(engine, consumer, next_of(consumer))
        assert consumer.receive(0.1) is None
    assert charges(engine) == 1


def test_another_group_processes_it_too(checkback_store: LiveStore, engine: Engine) -> None:
    checkback_store.append(broker.Message("orders", b"4711"))
    for group in ("billing", "bonus"):
        with checkback_store.consumer(group, "orders") as consumer:
            assert charge(engine, consumer, next_of(consumer))
    assert charges(engine) == 2


def test_a_failure_undoes_everything_and_the_message_comes_again(
    checkback_store: LiveStore, engine: Engine, checkback_clock: FakeClock
) -> None:
    checkback_store.append(broker.Message("orders", b"4711"))
    with checkback_store.consumer("billing", "orders") as consumer:
        with pytest.raises(RuntimeError, match="no"):
            charge(engine, consumer, next_of(consumer), fail=True)
        assert charges(engine) == 0
        checkback_clock.advance(11)
        assert charge(engine, consumer, next_of(consumer))
    assert charges(engine) == 1


def test_a_duplicate_that_fails_is_done(checkback_store: LiveStore, engine: Engine) -> None:
    """Its effects are there already: that they cannot be made twice is no fault."""
    checkback_store.append(broker.Message("orders", b"4711"))
    with checkback_store.consumer("billing", "orders") as consumer:
        message = next_of(consumer)
        charge(engine, consumer, message)
        consumer._positions.reset("billing", "orders", 0, 0)
        charge(engine, consumer, next_of(consumer), fail=True)
        assert consumer.receive(0.1) is None


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_answer_was_lost_is_found_out_by_the_next_delivery(
    checkback_store: LiveStore, engine: Engine, checkback_clock: FakeClock, committed: bool
) -> None:
    """Whether it took effect or not: in the end there is one."""
    checkback_store.append(broker.Message("orders", b"4711"))
    with checkback_store.consumer("billing", "orders") as consumer:
        with lose_the_commit(engine, committed=committed), pytest.raises(DBAPIError):
            charge(engine, consumer, next_of(consumer))
        checkback_clock.advance(11)
        assert charge(engine, consumer, next_of(consumer)) is not committed
    assert charges(engine) == 1


def test_first_time_takes_part_in_a_transaction_of_your_own(checkback_store: LiveStore, engine: Engine) -> None:
    """What is rolled back was not processed."""
    checkback_store.append(broker.Message("orders", b"4711"))
    with checkback_store.consumer("billing", "orders") as consumer:
        message = next_of(consumer)
        answers = []
        for commit in (False, True, True):
            with Session(engine) as session:
                answers.append(consumer.first_time(message, session))
                session.commit() if commit else session.rollback()
        assert answers == [True, True, False]


def test_old_rows_can_go(checkback_store: LiveStore, engine: Engine) -> None:
    checkback_store.append(broker.Message("orders", b"4711"))
    with checkback_store.consumer("billing", "orders") as consumer:
        message = next_of(consumer)
        charge(engine, consumer, message)
        with Session(engine) as session:
            assert consumer.processed.forget(session, 1) == 0
            assert consumer.processed.forget(session, 1 << 50) == 1
            with pytest.raises(broker.BrokerError, match="milliseconds"):
                consumer.processed.forget(session, -1)


def test_with_an_async_session(checkback_store: LiveStore, engine: Engine, url: URL) -> None:
    checkback_store.append(broker.Message("orders", b"4711"))

    async def work() -> list[bool]:
        answers = []
        async_engine = create_async_engine(url.set(drivername=_ASYNC.get(url.drivername, url.drivername)))
        async with checkback_store.consumer("billing", "orders") as consumer:
            async for message in consumer:
                async with AsyncSession(async_engine) as session:
                    if not answers:
                        try:
                            async with consumer.process(message, session) as first:
                                answers.append(first)
                                raise RuntimeError("no")
                        except RuntimeError:
                            pass
                        consumer._positions.reset("billing", "orders", 0, 0)
                    else:
                        async with consumer.process(message, session) as first:
                            answers.append(first)
                            session.add(Charge(order="4711"))
                        consumer._positions.reset("billing", "orders", 0, 0)
                if len(answers) == 3:
                    break
        await async_engine.dispose()
        return answers

    assert asyncio.run(work()) == [True, True, False]
    assert charges(engine) == 1
