"""What a message can be sent in: a session or a connection of SQLAlchemy, sync or async, scoped or not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from broker.errors import TransactionError

if TYPE_CHECKING:
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    SyncTarget = Session | Connection
    AsyncTarget = AsyncSession | AsyncConnection
    Target = SyncTarget | scoped_session[Any] | AsyncTarget | async_scoped_session[Any]

_T = TypeVar("_T")
_WANTED = (
    "send(message, session) takes an open SQLAlchemy Session, scoped_session or Connection (send_async: AsyncSession, "
    "async_scoped_session or AsyncConnection), or what begin_transaction() returned"
)


def target_of(value: object) -> SyncTarget | AsyncTarget:
    """The session or the connection that a value stands for.

    Raises TransactionError for anything else, and for an AsyncConnection that is not open.
    """
    value = session_now(value)
    sync, asynchronous = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.ext.asyncio")
    core = sys.modules.get("sqlalchemy.engine")
    # Another thread may be importing one of them just now: its names are not all there yet.
    if isinstance(value, getattr(sync, "Session", ())):
        return cast("Session", value)
    if isinstance(value, getattr(core, "Connection", ())):
        return cast("Connection", value)
    if isinstance(value, (getattr(asynchronous, "AsyncSession", ()), getattr(asynchronous, "AsyncConnection", ()))):
        sync_part(cast("AsyncTarget", value))  # SQLAlchemy would speak of a context that has not been started
        return cast("AsyncTarget", value)
    module = type(value).__module__
    if module.partition(".")[0] in ("sqlite3", "psycopg"):
        text = f"a plain connection of {module.partition('.')[0]} needs a ledger of its kind"
        raise TransactionError(f"{text}: store.producer(group, topics=[...], ledger=broker.ConnectionLedger(connect))")
    raise TransactionError(f"{_WANTED}, not {module}.{type(value).__qualname__}")


def session_now(value: object) -> object:
    """The session that a scoped one stands for in this thread or task, at this moment; anything else as it is."""
    sync, asynchronous = sys.modules.get("sqlalchemy.orm"), sys.modules.get("sqlalchemy.ext.asyncio")
    kinds = (getattr(sync, "scoped_session", ()), getattr(asynchronous, "async_scoped_session", ()))
    return cast(Any, value)() if isinstance(value, kinds) else value


def is_async(target: SyncTarget | AsyncTarget) -> bool:
    """Whether it belongs to an event loop."""
    return hasattr(target, "run_sync")


def sync_part(target: AsyncTarget) -> SyncTarget:
    """What SQLAlchemy's events know it by. Raises TransactionError for a connection that is not open."""
    found = target.sync_session if hasattr(target, "sync_session") else target.sync_connection
    if found is None:
        raise TransactionError("the connection is not open: async with engine.connect() as connection")
    return found


def sync_target_of(value: object) -> SyncTarget:
    """The same for what `target_of` takes. Raises TransactionError."""
    target = target_of(value)
    return sync_part(cast("AsyncTarget", target)) if is_async(target) else cast("SyncTarget", target)


def in_a_thread(work: Callable[[], _T]) -> _T:
    """Run what waits for the disk while the event loop goes on; only within SQLAlchemy's greenlets."""
    from sqlalchemy.util import await_only

    return await_only(asyncio.to_thread(work))


def in_a_thread_to_the_end(work: Callable[[], _T]) -> _T:
    """The same behind a COMMIT: a cancellation takes nothing back then, and comes where the task next waits."""
    from sqlalchemy.util import await_only

    return await_only(_to_the_end(work))


async def _to_the_end(work: Callable[[], _T]) -> _T:
    running, cancelled, task = asyncio.ensure_future(asyncio.to_thread(work)), None, asyncio.current_task()
    while not running.done():
        try:
            await asyncio.shield(running)
        except asyncio.CancelledError as error:
            cancelled = error
        except Exception:  # noqa: BLE001 - the result raises it
            break
    if cancelled is not None and task is not None:
        asyncio.get_running_loop().call_soon(_cancel_again, task, cancelled.args)
    return running.result()


def _cancel_again(task: asyncio.Task[object], arguments: tuple[object, ...]) -> None:
    """Where a task waits next, unless it has left the time limit that cancelled it, which took that back.

    At once, it would come all the same before Python 3.13: to a task that nobody cancels any more.
    """
    if not task.done() and task.cancelling():
        task.uncancel()  # counted once, as a time limit expects it
        task.cancel(*arguments)
