"""`consumer.process` where a block catches an error that took its transaction with it: nothing is acknowledged."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator

import psycopg
import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, ProgrammingError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from broker.consumer import Consumer
from broker.errors import TransactionError
from tests.consumer.charging import CHARGE, charges, consumer, make_tables, taken, work
from tests.consumer.messages import deadlock, lose_the_snapshot

__all__ = ["consumer"]
NOWHERE = text("SELECT 1 FROM nowhere")


class Base(DeclarativeBase):
    """Of the application."""


class Booking(Base):
    __tablename__ = "bookings"

    id: Mapped[int] = mapped_column(primary_key=True)


@pytest.fixture
def postgres(postgres_url: URL) -> Iterator[Engine]:
    yield from _with_tables(postgres_url)


@pytest.fixture
def mariadb(mariadb_url: URL) -> Iterator[Engine]:
    yield from _with_tables(mariadb_url)


def _with_tables(url: URL) -> Iterator[Engine]:
    engine = create_engine(url)
    make_tables(engine)
    yield engine
    engine.dispose()


@pytest.mark.parametrize("by_sqlalchemy", [True, False])
def test_an_error_that_postgresql_answers_with_a_rollback_acknowledges_nothing(
    consumer: Consumer, postgres: Engine, by_sqlalchemy: bool
) -> None:
    """The block catches it and goes on: PostgreSQL takes COMMIT as a ROLLBACK, and says nothing."""
    with pytest.raises(TransactionError, match="and its error was caught"), Session(postgres) as session:  # noqa: PT012, SIM117
        with consumer.process(taken(consumer), session):
            session.execute(CHARGE)
            with contextlib.suppress(ProgrammingError, psycopg.Error):
                if by_sqlalchemy:
                    session.execute(NOWHERE)
                else:
                    session.connection().connection.cursor().execute(NOWHERE.text)
    assert charges(postgres) == 0
    work(consumer, postgres)
    assert charges(postgres) == 1


def test_the_same_of_asyncpg(consumer: Consumer, postgres: Engine) -> None:
    made = create_async_engine(postgres.url.set(drivername="postgresql+asyncpg"))

    async def run() -> None:
        with pytest.raises(TransactionError, match="and its error was caught"):  # noqa: PT012
            async with AsyncSession(made) as session, consumer.process(taken(consumer), session):
                await session.execute(CHARGE)
                with contextlib.suppress(ProgrammingError):
                    await session.execute(NOWHERE)
        await made.dispose()

    asyncio.run(run())
    work(consumer, postgres)
    assert charges(postgres) == 1


def test_an_error_in_a_savepoint_fails_nothing_else(consumer: Consumer, postgres: Engine) -> None:
    with Session(postgres) as session, consumer.process(taken(consumer), session):
        session.execute(CHARGE)
        with contextlib.suppress(ProgrammingError), session.begin_nested():
            session.execute(NOWHERE)
    work(consumer, postgres)
    assert charges(postgres) == 1


@pytest.mark.parametrize("fail", [deadlock, lose_the_snapshot])
def test_an_error_for_which_mariadb_rolls_back_acknowledges_nothing(
    consumer: Consumer, mariadb: Engine, fail: Callable[[Engine, Session], None]
) -> None:
    """The block catches it and goes on, in a transaction without the note and without what it did before."""
    with pytest.raises(TransactionError, match="rolled back past its session"), Session(mariadb) as session:  # noqa: PT012, SIM117
        with consumer.process(taken(consumer), session):
            session.execute(CHARGE)
            with contextlib.suppress(OperationalError):
                fail(mariadb, session)
            session.execute(CHARGE)
    assert charges(mariadb) == 0
    work(consumer, mariadb)
    assert charges(mariadb) == 1


def test_a_note_that_postgresql_takes_back_is_not_committed_elsewhere(consumer: Consumer, postgres: Engine) -> None:
    _note_and_fail(consumer, postgres, lambda _, session: session.execute(NOWHERE))


@pytest.mark.parametrize("fail", [deadlock, lose_the_snapshot])
def test_a_note_that_mariadb_takes_back_is_not_committed_elsewhere(
    consumer: Consumer, mariadb: Engine, fail: Callable[[Engine, Session], None]
) -> None:
    _note_and_fail(consumer, mariadb, fail)


def _note_and_fail(consumer: Consumer, engine: Engine, fail: Callable[[Engine, Session], object]) -> None:
    """With `first_time`, after whose COMMIT the application acknowledges."""
    message = taken(consumer)
    with pytest.raises(TransactionError), Session(engine) as session, session.begin():  # noqa: PT012
        assert consumer.first_time(message, session)
        session.execute(CHARGE)
        with contextlib.suppress(DBAPIError):
            fail(engine, session)
    assert charges(engine) == 0
    with Session(engine) as session, session.begin():
        assert consumer.first_time(message, session)
        session.execute(CHARGE)
        with contextlib.suppress(DBAPIError), session.begin_nested():
            session.execute(NOWHERE)
    assert consumer.ack(message)
    assert charges(engine) == 1


def test_a_note_of_a_savepoint_goes_with_it(consumer: Consumer, postgres: Engine) -> None:
    """The transaction around it is the application's own, and commits."""
    message = taken(consumer)
    with Session(postgres) as session, session.begin():
        with contextlib.suppress(DBAPIError), session.begin_nested():
            assert consumer.first_time(message, session)
            session.execute(NOWHERE)
        session.execute(CHARGE)
    assert charges(postgres) == 1


@pytest.mark.parametrize("database", ["postgres", "mariadb"])
def test_a_row_that_the_application_cannot_save_is_no_second_delivery(
    consumer: Consumer, database: str, request: pytest.FixtureRequest
) -> None:
    """On MySQL its error was taken for that of the note: the message was acknowledged, and no block ever had it."""
    engine: Engine = request.getfixturevalue(database)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add(Booking(id=1))
    with pytest.raises(IntegrityError), Session(engine) as session:  # noqa: PT012
        session.add(Booking(id=1))
        with consumer.process(taken(consumer), session):
            raise AssertionError
    work(consumer, engine)
    assert charges(engine) == 1
