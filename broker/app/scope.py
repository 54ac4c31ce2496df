"""The transaction that a send joins without naming it: of the handler, or of the `app.transaction()` block, it is in.

A scope ends with its block. A task or a callback that outlives the block still sees it, and its sends are refused
instead of joining a transaction that is never committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from broker.database.arguments import is_async_session, session_of
from broker.enlisting.enlistment import Doom
from broker.enlisting.sqlalchemy_join import doom
from broker.enlisting.targets import is_async as belongs_to_loop
from broker.enlisting.targets import session_now, sync_target_of, target_of
from broker.errors import TransactionError, shown
from broker.producing.named_transaction import expected


@dataclass(slots=True, eq=False)
class Scope:
    """A session whose transaction sends join, until the block is left."""

    session: Any  # Session or AsyncSession
    is_over: bool = False


class Scopes:
    """The scopes of one application, by thread and task."""

    def __init__(self) -> None:
        self._current: ContextVar[Scope | None] = ContextVar("checkback_scope", default=None)

    def session(self) -> Any:
        """The session of the innermost block; None outside. Raises TransactionError in a task that outlived it."""
        scope = self._current.get()
        if scope is None:
            return None
        if scope.is_over:
            text = "the transaction of the handler or block that began this task is over"
            raise TransactionError(f"{text}: send before it ends, or in a transaction of its own, app.transaction()")
        return scope.session

    @contextlib.contextmanager
    def failing_makes_commit_impossible(self, session: Any) -> Iterator[None]:
        """Around a send: who catches its error must not commit the block or the session without the message.

        `session`: what the send was given; None where it was given none.
        """
        try:
            yield
        except BaseException as error:
            scope = self._current.get()
            if not _doom(session, error) and scope is not None and not scope.is_over:
                _doom(scope.session, error)
            raise

    def expected(self, session: Any) -> Doom:
        """What makes the COMMIT impossible that a send takes part in, until it is done. `session`: as above."""
        scope = self._current.get()
        return expected(scope.session if session is None and scope is not None and not scope.is_over else session)

    @contextlib.contextmanager
    def entered(self, session: Any) -> Iterator[None]:
        """Within the block, sends join the session's transaction."""
        scope = Scope(session_now(session))
        token = self._current.set(scope)
        try:
            yield
        finally:
            scope.is_over = True
            with contextlib.suppress(ValueError):  # left in a copy of the context, as FastAPI leaves a `def` dependency
                self._current.reset(token)


def check_kind(session: Any, *, is_async: bool) -> None:
    """Raises TransactionError for a session of the other kind than a block takes, and for what is not a session."""
    if belongs_to_loop(target_of(session)) != is_async:
        wanted, step = (
            ("an AsyncSession", "with app.transaction(session)")
            if is_async
            else ("a Session", "async with app.transaction_async(session)")
        )
        raise TransactionError(f"the block takes {wanted}, not {shown(session)}: write `{step}`")


async def note_in(session: Any, note: Callable[[Any], bool]) -> bool:
    """Make a note in the transaction of a session of either kind. Raises TransactionError for anything else."""
    found: Any = session_of(session, "app.send_async(..., dedup_key=...)")
    return await found.run_sync(note) if is_async_session(found) else note(found)


def _doom(session: Any, error: BaseException) -> bool:
    """Make the COMMIT of a session impossible; False for anything else."""
    try:
        target = sync_target_of(session)
    except TransactionError:
        return False
    doom(target, f"{type(error).__name__}: {error}")
    return True
