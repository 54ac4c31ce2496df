"""What an error of a database means for check-back, and the name of a database without its password.

    answer(error, engine.url)       RUNNING: busy, ask again; DOWN: nobody could be asked; REFUSED: asking again is vain

How drivers name an error: `broker.database.driver_errors`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from broker.database.driver_errors import NO_TABLE, ErrorNames, is_named, text_of
from broker.errors import BrokerError
from recovery.checkback.protocol import NOTHING_DECIDED, Answer, Outcome

if TYPE_CHECKING:
    from sqlalchemy import URL

MAKING_TABLES = "ledger.create_all(), or with Django by manage.py migrate checkback"

# The statement may succeed when it is done again: somebody holds a lock, or two transactions met.
_AGAIN = ErrorNames(
    frozenset({"55P03", "40P01", "40001", "57014", "55006"}),
    frozenset({1205, 1213}),  # MySQL: lock wait time-out, deadlock
    ("database is locked", "database table is locked", "database is busy", "database schema is locked"),
)
# A tombstone cannot go in there, today or tomorrow: a standby, or what takes no writes.
_NO_WRITING = ErrorNames(
    frozenset({"25006"}), frozenset({1290, 1792, 1836}), ("readonly database", "read-only database")
)  # fmt: skip
_NO_PERMISSION = ErrorNames(frozenset({"42501"}), frozenset({1044, 1142, 1143, 1227}))  # row level security, too
_PERMISSIONS = "It needs SELECT and INSERT on the tables of the ledger, to remove old rows UPDATE and DELETE, too"


def answer(error: SQLAlchemyError, url: URL, making_tables: str = MAKING_TABLES) -> Answer:
    """What an error means, with the database that raised it; `making_tables` is the next step where it has none."""
    cause = _cause(error)
    cause_text = text_of(cause)
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if not isinstance(error, DBAPIError) or lost:
        return Answer(Outcome.DOWN, f"the ledger's database {place(url)} does not answer: {cause_text}")
    if is_missing_table(error):
        text = f"the ledger's database {place(url)} has no table of a ledger: {cause_text}"
        return Answer(
            Outcome.REFUSED, f"{NOTHING_DECIDED}{text}. Name the right database, or make them by {making_tables}"
        )
    if is_named(cause, _AGAIN):
        return Answer(Outcome.RUNNING, f"the local transaction still runs, or its database is busy: {cause_text}")
    if is_named(cause, _NO_WRITING):
        text = f"the ledger's database {place(url)} takes no tombstone: {cause_text}"
        return Answer(Outcome.REFUSED, f"{NOTHING_DECIDED}{text}. Check-back must insert there, on the primary")
    if is_named(cause, _NO_PERMISSION):
        text = f"the user of the ledger's database {place(url)} lacks a permission: {cause_text}"
        return Answer(Outcome.REFUSED, f"{NOTHING_DECIDED}{text}. {_PERMISSIONS}")
    return Answer(Outcome.DOWN, f"the ledger's database {place(url)} does not answer: {cause_text}")


@contextlib.contextmanager
def translated_errors(url: URL) -> Iterator[None]:
    """Raises BrokerError for what a database raises inside, with the sentence of `answer`."""
    try:
        yield
    except SQLAlchemyError as error:
        raise BrokerError(answer(error, url).why) from error


def is_missing_table(error: SQLAlchemyError) -> bool:
    """Whether a statement named a table that is not there."""
    return is_named(_cause(error), NO_TABLE)


def place(url: URL) -> str:
    """Where a database is: driver, host, name. Never the password, nor what the query part holds beside the host."""
    bare = url.set(password=None, query={})
    host = url.query.get("host") or url.query.get("unix_socket")
    return f"{bare.render_as_string()}" + (f" at {host}" if host else "")


def _cause(error: SQLAlchemyError) -> object:
    return error.orig if isinstance(error, DBAPIError) else error
