"""What an error of a database's driver means, whichever driver it is.

Drivers name errors by SQLSTATE (PostgreSQL; pg8000 in a dictionary), by number (MySQL, MariaDB) or in words (SQLite).
"""

from __future__ import annotations

from typing import Any, NamedTuple

_TEXT_SIZE = 200  # characters of what a server says


class ErrorNames(NamedTuple):
    """How one kind of error is named by all drivers."""

    states: frozenset[str]
    numbers: frozenset[int]
    words: tuple[str, ...] = ()


NO_TABLE = ErrorNames(frozenset({"42P01", "3F000"}), frozenset({1146}), ("no such table",))
"""A statement named a table, or the schema of one, that is not there."""


def is_named(error: object, names: ErrorNames) -> bool:
    """Whether a driver's error is of a kind."""
    state = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None) or _fields(error).get("C")
    arguments = getattr(error, "args", None)
    number = arguments[0] if arguments and isinstance(arguments[0], int) else None
    text = text_of(error)
    return state in names.states or number in names.numbers or any(words in text for words in names.words)


def text_of(error: object) -> str:
    """What a driver's error says, in one line of at most 200 characters."""
    return " ".join(str(_fields(error).get("M", error)).split())[:_TEXT_SIZE] or type(error).__name__


def _fields(error: object) -> dict[str, Any]:
    """The fields of PostgreSQL's answer by their codes, as pg8000 has them: C is the SQLSTATE, M the message."""
    arguments = getattr(error, "args", None)
    return arguments[0] if arguments and isinstance(arguments[0], dict) else {}
