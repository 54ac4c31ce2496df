"""What is no session, no table and no message is told in a sentence with the next step; the message stays in hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import broker
from broker.consumer import Consumer
from broker.errors import BrokerError, TransactionError
from tests.consumer.charging import consumer, taken

__all__ = ["consumer"]


@pytest.fixture
def engine(sqlite_url: URL) -> Iterator[Engine]:
    made = create_engine(sqlite_url)
    broker.Processed().create_all(made)
    yield made
    made.dispose()


def async_of(engine: Engine) -> Any:
    return create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))


NO_SESSIONS: dict[str, tuple[Callable[[Engine], Any], str]] = {
    "engine": (lambda engine: engine, r"not sqlalchemy\.engine\.base\.Engine: with Session\(engine\)"),
    "async-engine": (async_of, r"AsyncEngine: async with AsyncSession\(engine\)"),
    "connection": (lambda engine: engine.connect(), r"not sqlalchemy\.engine\.base\.Connection: with Session"),
    "maker": (sessionmaker, "sessionmaker: with Session"),
    "async-maker": (lambda engine: async_sessionmaker(async_of(engine)), "async_sessionmaker"),
    "class": (lambda _: Session, "not the class Session"),
    "none": (lambda _: None, "not None"),
    "text": (lambda _: "sqlite://", "not 'sqlite://'"),
}


@pytest.mark.parametrize("name", NO_SESSIONS)
def test_what_is_no_session(consumer: Consumer, engine: Engine, name: str) -> None:
    make, sentence = NO_SESSIONS[name]
    message, given = taken(consumer), make(engine)
    with pytest.raises(TransactionError, match=f"consumer.process.* takes an open Session.*{sentence}"):
        consumer.process(message, given)
    with pytest.raises(TransactionError, match=rf"first_time\(\.\.\.\) takes an open Session.*{sentence[:8]}"):
        consumer.first_time(message, given)
    assert consumer.ack(message)  # it is in hand: nothing was sent back


def test_first_time_with_an_async_session(consumer: Consumer, engine: Engine) -> None:
    async def run() -> None:
        async with AsyncSession(async_of(engine)) as session:
            with pytest.raises(
                TransactionError, match=r"not sqlalchemy.*AsyncSession: call it in `await session\.run_sync"
            ):
                consumer.first_time(taken(consumer), session)  # type: ignore[arg-type]

    asyncio.run(run())


def test_first_time_with_a_scoped_session(consumer: Consumer, engine: Engine) -> None:
    scoped = scoped_session(sessionmaker(engine))
    message = taken(consumer)
    assert consumer.first_time(message, scoped)
    assert not consumer.first_time(message, scoped)
    scoped.remove()


@pytest.mark.parametrize(
    "act",
    [
        lambda consumer, session, _: consumer.process(None, session),
        lambda consumer, session, message: consumer.process(session, message),
        lambda consumer, session, message: consumer.process(message.message_id, session),
        lambda consumer, session, message: consumer.first_time(message.body, session),
        lambda consumer, _, message: consumer.ack_all(message),
        lambda consumer, _, message: consumer.ack_all(message.message_id),
    ],
    ids=["none", "swapped", "id", "body", "one-message", "one-id"],
)
def test_what_is_no_message(consumer: Consumer, engine: Engine, act: Callable[..., object]) -> None:
    message = taken(consumer)
    with Session(engine) as session, pytest.raises(BrokerError, match=r"message.* received|receive\(\)"):
        act(consumer, session, message)
    assert consumer.ack(message)


def test_tables_are_not_made_in_an_async_engine(engine: Engine) -> None:
    with pytest.raises(BrokerError, match=r"not an AsyncEngine: await connection\.run_sync"):
        broker.Processed().create_all(async_of(engine))


@pytest.mark.parametrize("older_than_ms", ["5", None, True, -1, 1_798_000_000.5])
def test_rows_are_forgotten_by_a_time(engine: Engine, older_than_ms: Any) -> None:
    with Session(engine) as session, pytest.raises(BrokerError, match="milliseconds since 1970"):
        broker.Processed().forget(session, older_than_ms)
