"""The transaction that a send names, and what becomes of it when the send is refused or never runs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from broker.enlisting.enlistment import Doom
from broker.enlisting.sqlalchemy_join import expect
from broker.enlisting.targets import sync_target_of, target_of
from broker.errors import TransactionError
from broker.local_transaction import AsyncTransaction, LocalTransaction, SessionTransaction

if TYPE_CHECKING:
    from broker.database.bound_ledger import BoundLedger
    from broker.enlisting.targets import AsyncTarget, SyncTarget, Target

_F = TypeVar("_F", bound=Callable[..., Any])
_T = TypeVar("_T")
_NOT_AWAITED = "send_async() was called and nothing awaited it: write `await` before it"
_STILL_RUNS = "a send_async() in another task still runs: await that task before COMMIT"


def named_target(transaction: LocalTransaction | Target) -> SyncTarget | AsyncTarget:
    """The session that a message is sent in. Raises TransactionError."""
    if isinstance(transaction, SessionTransaction | AsyncTransaction):
        return transaction.target
    return target_of(transaction)


def doom_named(ledger: BoundLedger | None, transaction: object, error: TransactionError) -> None:
    """After a send that names no session: what it may mean cannot commit.

    That is the transaction of a plain connection, and the one that the ledger knows to run.
    """
    from broker.enlisting.connection_drivers import doom_connection  # imports sqlite3

    doom_connection(transaction)
    with contextlib.suppress(TransactionError):
        if ledger is not None and (running := ledger.running_transaction()) is not None:
            with running.sending():
                raise error


def expected(transaction: object, ledger: BoundLedger | None = None) -> Doom:
    """What makes the COMMIT of a transaction impossible until a send in it, which was called just now, is done.

    Raises TransactionError, after which COMMIT is impossible, where the ledger knows the transaction that runs: that of
    a thread, which awaits nothing.
    """
    if ledger is not None and transaction is None and (running := ledger.running_transaction()) is not None:
        with running.sending():
            text = "send_async() cannot join the transaction of this thread, in which nothing is awaited"
            raise TransactionError(f"{text}: call producer.send(message)")
    made = Doom(_NOT_AWAITED)
    joined = _of_connection(transaction)
    if joined is not None:
        joined.expect(made)
        return made
    with contextlib.suppress(TransactionError):
        expect(sync_target_of(named_target(cast("LocalTransaction | Target", transaction))), made)
    return made


async def send_async(send: Doom, work: Callable[[], Awaitable[_T]]) -> _T:
    """Run an expected send: one that fails makes COMMIT impossible itself. Python's warning names this function."""
    send.reason = _STILL_RUNS
    try:
        return await work()
    finally:
        send.is_lifted = True


def _of_connection(transaction: object) -> LocalTransaction | None:
    """A transaction that no SQLAlchemy knows: without a database, or of a plain connection."""
    if isinstance(transaction, LocalTransaction):
        return None if isinstance(transaction, SessionTransaction | AsyncTransaction) else transaction
    if type(transaction).__module__.partition(".")[0] not in ("sqlite3", "psycopg"):
        return None
    from broker.enlisting.connection_transaction import open_transaction  # imports sqlite3

    return open_transaction(transaction)


def coroutine_function(function: _F) -> _F:
    """Mark a function that returns a coroutine as what frameworks await: a BackgroundTask of Starlette, for one."""
    if hasattr(inspect, "markcoroutinefunction"):  # Python 3.12
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)  # type: ignore[attr-defined]  # noqa: SLF001
    return function
