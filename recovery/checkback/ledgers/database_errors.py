"""What an error of a database means for check-back, and the name of a database without its password.

    answer(error, engine.url)       RUNNING: busy, ask again; DOWN: nobody could be asked; REFUSED: asking again is vain

Drivers name errors by SQLSTATE (PostgreSQL; pg8000 in a dictionary), by number (MySQL, MariaDB) or in words (SQLite).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from broker.errors import BrokerError
from recovery.checkback.protocol import NOTHING_DECIDED, Answer, Outcome

if TYPE_CHECKING:
    from sqlalchemy import URL

MAKING_TABLES = "ledger.create_all(), or with Django by manage.py migrate checkback"
_SAID_SIZE = 200

# The statement may succeed when it is done again: somebody holds a lock, or two transactions met.
_AGAIN_STATES = {"55P03", "40P01", "40001", "57014", "55006"}
_AGAIN_NUMBERS = {1205, 1213}  # MySQL: lock wait time-out, deadlock
_AGAIN_WORDS = ("database is locked", "database table is locked", "database is busy", "database schema is locked")

_NO_TABLE_STATES = {"42P01", "3F000"}
_NO_TABLE_NUMBERS = {1146}
_NO_TABLE_WORDS = ("no such table",)

# A tombstone cannot go in there, today or tomorrow: a standby, or what takes no writes.
_NO_WRITING_STATES = {"25006"}
_NO_WRITING_NUMBERS = {1290, 1792, 1836}
_NO_WRITING_WORDS = ("readonly database", "read-only database")

_NO_PERMISSION_STATES = {"42501"}  # row level security, too
_NO_PERMISSION_NUMBERS = {1044, 1142, 1143, 1227}
_PERMISSIONS = "It needs SELECT and INSERT on the tables of the ledger, to remove old rows UPDATE and DELETE, too"


def answer(error: SQLAlchemyError, url: URL, making_tables: str = MAKING_TABLES) -> Answer:
    """What an error means, with the database that raised it; `making_tables` is the next step where it has none."""
    cause, cause_text = _cause(error)
    lost = isinstance(error, DBAPIError) and error.connection_invalidated
    if not isinstance(error, DBAPIError) or lost:
        return Answer(Outcome.DOWN, f"the ledger's database {place(url)} does not answer: {cause_text}")
    if is_missing_table(error):
        text = f"the ledger's database {place(url)} has no table of a ledger: {cause_text}"
        return Answer(
            Outcome.REFUSED, f"{NOTHING_DECIDED}{text}. Name the right database, or make them by {making_tables}"
        )
    if _is(cause, cause_text, _AGAIN_STATES, _AGAIN_NUMBERS, _AGAIN_WORDS):
        return Answer(Outcome.RUNNING, f"the local transaction still runs, or its database is busy: {cause_text}")
    if _is(cause, cause_text, _NO_WRITING_STATES, _NO_WRITING_NUMBERS, _NO_WRITING_WORDS):
        text = f"the ledger's database {place(url)} takes no tombstone: {cause_text}"
        return Answer(Outcome.REFUSED, f"{NOTHING_DECIDED}{text}. Check-back must insert there, on the primary")
    if _is(cause, cause_text, _NO_PERMISSION_STATES, _NO_PERMISSION_NUMBERS, ()):
        text = f"the user of the ledger's database {place(url)} lacks a permission: {cause_text}"
        return Answer(Outcome.REFUSED, f"{NOTHING_DECIDED}{text}. {_PERMISSIONS}")
    return Answer(Outcome.DOWN, f"the ledger's database {place(url)} does not answer: {cause_text}")


@contextlib.contextmanager
def told(url: URL) -> Iterator[None]:
    """Raises BrokerError for what a database raises inside, with the sentence of `answer`."""
    try:
        yield
    except SQLAlchemyError as error:
        raise BrokerError(answer(error, url).why) from error


def is_missing_table(error: SQLAlchemyError) -> bool:
    """Whether a statement named a table that is not there."""
    cause, cause_text = _cause(error)
    return _is(cause, cause_text, _NO_TABLE_STATES, _NO_TABLE_NUMBERS, _NO_TABLE_WORDS)


def place(url: URL) -> str:
    """Where a database is: driver, host, name. Never the password, nor what the query part holds beside the host."""
    bare = url.set(password=None, query={})
    host = url.query.get("host") or url.query.get("unix_socket")
    return f"{bare.render_as_string()}" + (f" at {host}" if host else "")


def _cause(error: SQLAlchemyError) -> tuple[Any, str]:
    cause: Any = error.orig if isinstance(error, DBAPIError) else error
    return cause, " ".join(str(_fields(cause).get("M", cause)).split())[:_SAID_SIZE] or type(cause).__name__


def _fields(cause: Any) -> dict[str, str]:
    """The fields of PostgreSQL's answer by their codes, as pg8000 has them: C is the SQLSTATE, M the message."""
    arguments = getattr(cause, "args", None)
    return arguments[0] if arguments and isinstance(arguments[0], dict) else {}


def _is(cause: Any, cause_text: str, states: set[str], numbers: set[int], words: tuple[str, ...]) -> bool:
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None) or _fields(cause).get("C")
    arguments = getattr(cause, "args", None)
    number = arguments[0] if arguments and isinstance(arguments[0], int) else None
    return state in states or number in numbers or any(word in cause_text for word in words)
