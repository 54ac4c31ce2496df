"""An error is of a kind whichever driver raised it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import ProgrammingError

from broker.database.dedup import Processed, insert_once
from broker.database.driver_errors import NO_TABLE, is_named, text_of
from broker.errors import BrokerError

WORDS = 'relation "checkback_processed" does not exist'


def error_of(*arguments: Any, **attributes: Any) -> Exception:
    made = Exception(*arguments)
    made.__dict__.update(attributes)
    return made


MISSING = {
    "psycopg": error_of(WORDS, sqlstate="42P01"),
    "psycopg2": error_of(WORDS, pgcode="42P01"),
    "pg8000": error_of({"S": "ERROR", "C": "42P01", "M": WORDS}),
    "pg8000, no schema": error_of({"S": "ERROR", "C": "3F000", "M": 'schema "shop" does not exist'}),
    "pymysql": error_of(1146, "Table 'shop.checkback_processed' doesn't exist"),
    "sqlite3": error_of("no such table: checkback_processed"),
}
OTHERS = {
    "psycopg": error_of("in words", sqlstate="23505"),
    "psycopg2": error_of("in words", pgcode="42703"),
    "pg8000": error_of({"S": "ERROR", "C": "42703", "M": "in words"}),
    "pymysql": error_of(1054, "Unknown column"),
    "sqlite3": error_of("no such column: x"),
    "nothing": None,
}


@pytest.mark.parametrize("error", MISSING.values(), ids=MISSING)
def test_a_table_that_is_missing_is_known_by_each_driver(error: Exception) -> None:
    assert is_named(error, NO_TABLE)


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
def test_another_error_is_none_of_a_missing_table(error: Exception | None) -> None:
    assert not is_named(error, NO_TABLE)


@pytest.mark.parametrize("error", MISSING.values(), ids=MISSING)
def test_a_handler_without_its_table_reads_a_sentence(error: Exception) -> None:
    """Of psycopg2 and pg8000 it was the driver's own error, with the statement and its values."""
    processed = Processed()

    def execute(statement: object, **_: object) -> None:
        raise ProgrammingError(str(statement), None, error)

    session: Any = SimpleNamespace(execute=execute, get_bind=processed_bind)
    with pytest.raises(BrokerError, match="the table checkback_processed is not in the database: make it"):
        insert_once(session, processed.rows, {"consumer_group": "billing", "message_key": "1", "processed_ms": 1})


def processed_bind(clause: object) -> object:
    return SimpleNamespace(dialect=SimpleNamespace(name="postgresql"))


def test_what_a_server_says_is_one_line() -> None:
    assert text_of(MISSING["pg8000"]) == WORDS
    assert text_of(error_of("one\n  two")) == "one two"
    assert text_of(error_of()) == "Exception"
    assert len(text_of(error_of("x" * 500))) == 200
