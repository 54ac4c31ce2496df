"""`consumer.process` where a message and its effects could part: nothing is lost, and nothing is doubled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from broker.consumer import Consumer
from broker.errors import TransactionError
from tests.consumer.charging import CHARGE, charges, consumer, make_tables, taken, work
from tests.consumer.messages import kill_connection

__all__ = ["consumer"]


@pytest.fixture
def engine(sqlite_url: URL) -> Iterator[Engine]:
    made = create_engine(sqlite_url)
    make_tables(made)
    yield made
    made.dispose()


def test_the_program_without_a_mistake(consumer: Consumer, engine: Engine) -> None:
    work(consumer, engine)
    assert charges(engine) == 1


def test_a_scoped_session_is_that_of_the_thread(consumer: Consumer, engine: Engine) -> None:
    session = scoped_session(sessionmaker(engine))
    with consumer.process(taken(consumer), session) as first:
        assert first
        session.execute(CHARGE)
    session.remove()
    assert charges(engine) == 1


def test_autocommit_is_refused(consumer: Consumer, engine: Engine) -> None:
    """There the note would be saved at once, and stay when the block fails."""
    loose = engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(TransactionError, match="AUTOCOMMIT"), Session(loose) as session:  # noqa: SIM117
        with consumer.process(taken(consumer), session):
            raise ZeroDivisionError
    work(consumer, engine)
    assert charges(engine) == 1


def test_a_session_in_an_outer_transaction_is_refused(consumer: Consumer, engine: Engine) -> None:
    """The message would be acknowledged before the COMMIT, which perhaps never comes."""
    with pytest.raises(TransactionError, match="outer transaction"), engine.begin() as connection:  # noqa: PT012, SIM117
        with Session(connection) as session:
            with consumer.process(taken(consumer), session):
                session.execute(CHARGE)
            raise ZeroDivisionError
    work(consumer, engine)
    assert charges(engine) == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_a_commit_inside_the_block_is_refused(consumer: Consumer, engine: Engine, is_first: bool) -> None:
    """It would save the note, or the effects of a duplicate, although the block may still fail."""
    message = taken(consumer)
    if not is_first:
        with Session(engine) as session:
            assert consumer.first_time(message, session)
            session.execute(CHARGE)
            session.commit()
    with Session(engine) as session, contextlib.ExitStack() as stack:
        if is_first:
            stack.enter_context(pytest.raises(TransactionError, match="commits the session"))
        stack.enter_context(consumer.process(message, session))
        session.execute(CHARGE)
        session.commit()
    work(consumer, engine)
    assert charges(engine) == 1


PAST = {
    "connection": lambda session: session.connection().commit(),
    "sql": lambda session: session.execute(text("COMMIT")),
    "comment": lambda session: session.execute(text("/* the end */ END")),
}


@pytest.mark.parametrize("commit", PAST.values(), ids=PAST.keys())
@pytest.mark.parametrize("is_swallowed", [True, False], ids=["swallowed", "raised"])
def test_a_commit_past_the_session_is_refused(
    consumer: Consumer, engine: Engine, commit: Callable[[Session], Any], is_swallowed: bool
) -> None:
    """It would save the note although the block fails: the message would never be processed."""
    caught = contextlib.suppress(TransactionError) if is_swallowed else contextlib.nullcontext()
    error = ZeroDivisionError if is_swallowed else TransactionError
    with pytest.raises(error), Session(engine) as session, consumer.process(taken(consumer), session):  # noqa: PT012
        with caught:
            commit(session)
        raise ZeroDivisionError
    work(consumer, engine)
    assert charges(engine) == 1


def test_who_swallows_the_refusal_of_a_commit_past_the_session_has_failed(consumer: Consumer, engine: Engine) -> None:
    """The transaction of the connection is over, and the note with it."""
    with pytest.raises(TransactionError, match="the note"), Session(engine) as session:  # noqa: SIM117
        with consumer.process(taken(consumer), session), contextlib.suppress(TransactionError):
            session.connection().commit()
    work(consumer, engine)
    assert charges(engine) == 1


def test_a_savepoint_in_sql_inside_the_block_is_free(consumer: Consumer, engine: Engine) -> None:
    with Session(engine) as session, consumer.process(taken(consumer), session):
        for statement in ("SAVEPOINT part", "INSERT INTO charges VALUES (2)", "ROLLBACK TO part", "RELEASE part"):
            session.execute(text(statement))
        session.execute(CHARGE)
    assert charges(engine) == 1


def test_after_the_block_the_session_is_free(consumer: Consumer, engine: Engine) -> None:
    with Session(engine) as session:
        with consumer.process(taken(consumer), session):
            session.execute(CHARGE)
        session.execute(CHARGE)
        session.connection().commit()
    assert charges(engine) == 2


def test_a_rollback_inside_the_block_fails_it(
    consumer: Consumer, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the note with it: a second delivery would have its effect again."""
    message = taken(consumer)
    with monkeypatch.context() as killed:
        killed.setattr(consumer, "ack", lambda _: False)  # the process dies after COMMIT
        with pytest.raises(TransactionError, match="rolled back"), Session(engine) as session:  # noqa: PT012, SIM117
            with consumer.process(message, session):
                session.rollback()
                session.execute(CHARGE)
    work(consumer, engine)
    assert charges(engine) == 1


def test_a_savepoint_inside_the_block_is_free(consumer: Consumer, engine: Engine) -> None:
    with Session(engine) as session, consumer.process(taken(consumer), session):
        session.begin_nested().rollback()
        with session.begin_nested():
            session.execute(CHARGE)
    assert charges(engine) == 1


def test_an_ack_inside_the_block_is_refused(consumer: Consumer, engine: Engine) -> None:
    """It would count, although the block may still fail. After the block it is free."""
    message = taken(consumer)
    with pytest.raises(TransactionError, match="leave the ack"), Session(engine) as session:  # noqa: PT012, SIM117
        with consumer.process(message, session):
            session.execute(CHARGE)
            consumer.ack(message)
    work(consumer, engine)
    assert charges(engine) == 1
    assert not consumer.ack(message)


@pytest.mark.parametrize("act", ["commit", "rollback"])
def test_an_async_block_ends_nothing_itself(consumer: Consumer, engine: Engine, act: str) -> None:
    made = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))

    async def run() -> None:
        with pytest.raises(TransactionError, match="the block of process"):  # noqa: PT012
            async with AsyncSession(made) as session, consumer.process(taken(consumer), session):
                await getattr(session, act)()
                await session.execute(CHARGE)
        await made.dispose()

    asyncio.run(run())
    work(consumer, engine)
    assert charges(engine) == 1


def roll_back_in_sqlite(session: Session) -> None:
    """By the conflict of a statement, whose error is swallowed."""
    session.execute(text("CREATE UNIQUE INDEX IF NOT EXISTS each_once ON charges (id)"))
    session.execute(CHARGE)
    with contextlib.suppress(IntegrityError):
        session.execute(text("INSERT OR ROLLBACK INTO charges VALUES (1)"))


def roll_back_by_the_driver(session: Session) -> None:
    session.execute(CHARGE)
    raw = session.connection().connection.dbapi_connection
    assert raw is not None
    raw.rollback()


@pytest.mark.parametrize("goes_on", [False, True])
@pytest.mark.parametrize("roll_back", [roll_back_in_sqlite, roll_back_by_the_driver])
def test_a_rollback_past_the_session_acknowledges_nothing(
    consumer: Consumer, engine: Engine, roll_back: Callable[[Session], None], goes_on: bool
) -> None:
    """It takes the note and the effects. What the block does next is in another transaction, and hides that."""
    with pytest.raises(TransactionError, match="rolled back past its session"), Session(engine) as session:  # noqa: PT012, SIM117
        with consumer.process(taken(consumer), session):
            roll_back(session)
            if goes_on:
                session.execute(CHARGE)
    assert charges(engine) == 0
    work(consumer, engine)
    assert charges(engine) == 1


def test_a_commit_by_the_driver_keeps_the_note(consumer: Consumer, engine: Engine) -> None:
    """Nothing can stop it. The message was processed, and what follows is saved by the block's own end."""
    with Session(engine) as session, consumer.process(taken(consumer), session):
        session.execute(CHARGE)
        raw = session.connection().connection.dbapi_connection
        assert raw is not None
        raw.commit()
        session.execute(CHARGE)
    work(consumer, engine)
    assert charges(engine) == 2


def test_a_rollback_past_an_async_session_acknowledges_nothing(consumer: Consumer, engine: Engine) -> None:
    made = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))

    async def run() -> None:
        with pytest.raises(TransactionError, match="rolled back past its session"):  # noqa: PT012
            async with AsyncSession(made) as session, consumer.process(taken(consumer), session):
                await session.run_sync(roll_back_in_sqlite)
                await session.execute(CHARGE)
        await made.dispose()

    asyncio.run(run())
    work(consumer, engine)
    assert charges(engine) == 1


def test_a_failure_after_the_connection_died_comes_again_at_once(consumer: Consumer, postgres_url: URL) -> None:
    """A rollback raises there. The message is retried, and the error is the block's own."""
    engine = create_engine(postgres_url)
    make_tables(engine)
    with pytest.raises(ZeroDivisionError), Session(engine) as session:  # noqa: PT012, SIM117
        with consumer.process(taken(consumer), session):
            session.execute(CHARGE)
            kill_connection(engine, session)
            raise ZeroDivisionError
    work(consumer, engine)
    assert charges(engine) == 1
    engine.dispose()


@pytest.mark.parametrize("is_first", [True, False])
def test_a_rollback_that_fails_leaves_nothing_undecided(
    consumer: Consumer, engine: Engine, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Of a first delivery, which is retried, and of a duplicate, which is acknowledged."""
    message = taken(consumer)
    if not is_first:
        with Session(engine) as session:
            assert consumer.first_time(message, session)
            session.execute(CHARGE)
            session.commit()
    with Session(engine) as session, monkeypatch.context() as dead:
        dead.setattr(session, "rollback", lambda: 1 / 0)
        with contextlib.suppress(KeyError), consumer.process(message, session):
            session.execute(CHARGE)
            raise KeyError
    again = consumer.receive(0.5)
    assert (again is not None) is is_first
    assert charges(engine) == (0 if is_first else 1)


def test_an_async_rollback_that_fails(consumer: Consumer, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    made = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))

    async def fail() -> None:
        raise OSError

    async def run() -> None:
        async with AsyncSession(made) as session:
            with monkeypatch.context() as dead:
                dead.setattr(session, "rollback", fail)
                with pytest.raises(KeyError):  # noqa: PT012
                    async with consumer.process(taken(consumer), session):
                        await session.execute(CHARGE)
                        raise KeyError
        await made.dispose()

    asyncio.run(run())
    work(consumer, engine)
    assert charges(engine) == 1
