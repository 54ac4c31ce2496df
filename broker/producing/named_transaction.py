"""The transaction that a send names, and what becomes of it when the send is refused or never runs."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from broker.enlisting.sqlalchemy_join import expect
from broker.enlisting.targets import sync_target_of, target_of
from broker.errors import TransactionError
from broker.local_transaction import AsyncTransaction, LocalTransaction, SessionTransaction

if TYPE_CHECKING:
    from broker.database.bound_ledger import BoundLedger
    from broker.enlisting.targets import AsyncTarget, SyncTarget, Target

_F = TypeVar("_F", bound=Callable[..., Any])
_NOT_AWAITED = "send_async() was called and nothing awaited it: write `await` before it"


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


def awaiting(transaction: object) -> Callable[[], None]:
    """Make the COMMIT of a session's transaction impossible until the function that is returned is called.

    It is called when the coroutine of a send begins: one without `await` never does.
    """
    try:
        target = named_target(cast("LocalTransaction | Target", transaction))
        return expect(sync_target_of(target), _NOT_AWAITED)
    except TransactionError:
        return _nothing


def coroutine_function(function: _F) -> _F:
    """Mark a function that returns a coroutine as what frameworks await: a BackgroundTask of Starlette, for one."""
    if hasattr(inspect, "markcoroutinefunction"):  # Python 3.12
        inspect.markcoroutinefunction(function)
    else:
        function._is_coroutine = getattr(asyncio.coroutines, "_is_coroutine", None)  # type: ignore[attr-defined]  # noqa: SLF001
    return function


def _nothing() -> None:
    """No session is waited for."""
