"""What Python 3.12 made of SQLite's driver: autocommit=False, always in a transaction, and True, which ends none."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from broker.errors import TransactionError
from tests.producer.desk import INSERT, Desk, Kind, desk_of


@pytest.fixture
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_of(Kind("sqlite", "embedded"), request, tmp_path_factory.mktemp("desk")) as desk:
        yield desk


class EndsNothing(sqlite3.Connection):
    """What autocommit=True makes of a connection from Python 3.12 on."""

    if sys.version_info < (3, 12):
        autocommit = True

        def __init__(self, database: str, **named: Any) -> None:
            super().__init__(database, **{**named, "isolation_level": None})

        def commit(self) -> None: ...

        def rollback(self) -> None: ...


class AlwaysInTransaction(sqlite3.Connection):
    """What autocommit=False makes of a connection from Python 3.12 on."""

    if sys.version_info < (3, 12):
        autocommit = False

        def __init__(self, database: str, **named: Any) -> None:
            super().__init__(database, **{**named, "isolation_level": None})
            self.execute("BEGIN")

        def commit(self) -> None:
            super().commit()
            self.execute("BEGIN")

        def rollback(self) -> None:
            super().rollback()
            self.execute("BEGIN")


ALWAYS: dict[str, Any] = {"factory": AlwaysInTransaction} if sys.version_info < (3, 12) else {"autocommit": False}


def test_a_driver_whose_commit_ends_nothing_is_refused_in_each_transaction(desk: Desk) -> None:
    """The savepoint of a send that was refused stayed open on the connection: in it the next one seemed to be well."""
    desk.next_case()
    named = {"factory": EndsNothing} if sys.version_info < (3, 12) else {"autocommit": True}
    engine = desk.another_engine(connect_args=named)
    for _ in range(3):
        with Session(engine) as session, pytest.raises(TransactionError), session.begin_nested():
            desk.buy(session, 1)
    engine.dispose()
    assert desk.judge() == (set(), set())


def test_a_driver_that_begins_the_next_transaction_hides_no_end_of_one(desk: Desk) -> None:
    """It is in a transaction behind a ROLLBACK, too: the message was delivered without its order."""
    engine = desk.another_engine(connect_args=ALWAYS)
    for past, there in ((AlwaysInTransaction.rollback, set()), (AlwaysInTransaction.commit, {1})):
        desk.next_case()
        with Session(engine) as session:
            desk.buy(session, 1)
            past(session.connection().connection.driver_connection)  # type: ignore[arg-type]
            desk.save(session, 2)
            if not there:
                with pytest.raises(TransactionError, match="rolled back past the session"):
                    session.commit()
        with Session(engine) as session:
            desk.buy(session, 3)
            session.commit()
            desk.buy(session, 4)
        assert desk.judge() == (there | {3}, there | {3})


def test_an_async_driver_that_begins_the_next_transaction_hides_none_either(desk: Desk) -> None:
    desk.next_case()

    async def buy_and_roll_back() -> None:
        engine = create_async_engine(desk.url.set(drivername="sqlite+aiosqlite"), connect_args=ALWAYS)
        async with AsyncSession(engine) as session:
            await desk.buy_async(session, 1)
            raw: Any = await (await session.connection()).get_raw_connection()
            await raw.driver_connection.rollback()
            await session.execute(INSERT, {"id": desk.first + 2})
            with pytest.raises(TransactionError, match="rolled back past the session"):
                await session.commit()
        await engine.dispose()

    asyncio.run(buy_and_roll_back())
    assert desk.judge() == (set(), set())
