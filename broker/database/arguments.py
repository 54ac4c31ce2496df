"""What of SQLAlchemy's the doors to a database take: an engine, a session, a name. All else is refused in a sentence.

SQLAlchemy is not imported for it: who has one of its objects has loaded it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, cast

from broker.errors import BrokerError, TransactionError, shown

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    SomeSession = Session | scoped_session[Any]
    SomeAsyncSession = AsyncSession | async_scoped_session[Any]
    SessionOrConnection = SomeSession | Connection
    AsyncSessionOrConnection = SomeAsyncSession | AsyncConnection

_OPEN_ONE = "with Session(engine) as session"
_OPEN_ASYNC = "async with AsyncSession(engine) as session"


def is_engine(value: object) -> bool:
    """Whether it is an Engine of SQLAlchemy."""
    return _is_of(value, "sqlalchemy.engine", "Engine")


def is_async_engine(value: object) -> bool:
    """Whether it is an AsyncEngine of SQLAlchemy."""
    return _is_of(value, "sqlalchemy.ext.asyncio", "AsyncEngine")


def is_async_session(value: object) -> bool:
    """Whether it is an AsyncSession of SQLAlchemy."""
    return _is_of(value, "sqlalchemy.ext.asyncio", "AsyncSession")


def session_of(value: object, call: str) -> Session | AsyncSession:
    """The session that a value stands for, a scoped one that of its thread or task.

    `call` is what the application called. Raises TransactionError for anything else.
    """
    if _is_of(value, "sqlalchemy.orm", "scoped_session") or _is_of(
        value, "sqlalchemy.ext.asyncio", "async_scoped_session"
    ):
        value = cast(Any, value)()
    if _is_of(value, "sqlalchemy.orm", "Session") or is_async_session(value):
        return cast("Session | AsyncSession", value)
    text = f"{call} takes an open Session, scoped_session, AsyncSession or async_scoped_session of SQLAlchemy"
    raise TransactionError(f"{text}, not {shown(value)}: {_OPEN_ASYNC if is_async_engine(value) else _OPEN_ONE}")


def sync_session_of(value: object, call: str, async_step: str = "open a Session") -> Session:
    """The same where only a Session will do; `async_step` is the next step for who has an AsyncSession."""
    if _is_of(value, "sqlalchemy.orm", "Session"):  # what it nearly always is
        return cast("Session", value)
    if _is_of(value, "sqlalchemy.orm", "scoped_session"):
        return cast("Session", cast(Any, value)())
    is_async = is_async_session(value) or _is_of(value, "sqlalchemy.ext.asyncio", "async_scoped_session")
    text = f"{call} takes an open Session or scoped_session of SQLAlchemy, not {shown(value)}"
    raise TransactionError(f"{text}: {async_step if is_async else _OPEN_ONE}")


class OnlyWith:
    """A block that `async with` does not open: a sentence says so, where Python would speak of its protocol."""

    _statement = ""  # what is written behind `with`

    if not TYPE_CHECKING:  # a type checker refuses it earlier

        async def __aenter__(self) -> None:
            text = f"the block of {self._statement} belongs to no event loop"
            raise TransactionError(f"{text}: write `with {self._statement}`")

        async def __aexit__(self, *_: object) -> None:
            """Never called; Python looks it up first."""


class OnlyAsyncWith:
    """The same for what belongs to an event loop, and `with`."""

    _statement = ""

    if not TYPE_CHECKING:

        def __enter__(self) -> None:
            raise TransactionError(f"the block of {self._statement} is async: write `async with {self._statement}`")

        def __exit__(self, *_: object) -> None:
            """As above."""


def check_engines(engine: Engine | None, async_engine: AsyncEngine | None) -> None:
    """Raises BrokerError for engines that are mixed up; the Ledger refuses what is not an engine."""
    if engine is not None and is_async_engine(engine):
        text = "broker.App(engine=...) takes an Engine: pass the AsyncEngine as async_engine=..."
        raise BrokerError(f"{text}, and engine=create_engine(...) to the same database, too")
    if async_engine is None:
        return
    if not is_async_engine(async_engine):
        text = "broker.App(async_engine=...) takes an AsyncEngine, create_async_engine(...)"
        raise BrokerError(f"{text}, not {shown(async_engine)}{': pass it as engine=...' * is_engine(async_engine)}")
    if engine is None:
        text = "check-back works without an event loop: give the App engine=create_engine(...) too"
        raise BrokerError(f"{text}, to the database of its async_engine")


def check_table(table: object, schema: object) -> None:
    """Raises BrokerError for what cannot name a table and its schema."""
    if not isinstance(table, str) or not table:
        raise BrokerError(f"table is the name of a table, as text, not {shown(table)}")
    if schema is not None and (not isinstance(schema, str) or not schema):
        raise BrokerError(f"schema is the name of a schema, as text, or None, not {shown(schema)}")


def _is_of(value: object, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)  # another thread may be importing the module
    return kind is not None and isinstance(value, kind)
