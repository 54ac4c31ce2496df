"""What is no function that connects, and no connection, is told in a sentence that names what to pass."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import broker
from broker.errors import BrokerError, TransactionError
from broker.producer import Producer
from tests.producer.delivered import delivered

SENTENCE = "a producer with a ConnectionLedger takes an open connection of sqlite3 or psycopg, not"


@pytest.fixture
def database(tmp_path: Path) -> str:
    return str(tmp_path / "shop.db")


@pytest.fixture
def producer(tmp_path: Path, database: str) -> Iterator[Producer]:
    ledger = broker.ConnectionLedger(lambda: sqlite3.connect(database))
    ledger.create_all()
    with broker.open(tmp_path / "shop.store", sync="os") as store:
        yield store.producer("shop", topics=["orders"], ledger=ledger)


def test_a_connection_in_place_of_a_function_that_connects(database: str) -> None:
    """One of sqlite3 can be called; `sqlite3.connect` cannot without a file."""
    with contextlib.closing(sqlite3.connect(database)) as connection:
        wrong: list[Any] = [connection, sqlite3.connect, create_engine(f"sqlite:///{database}"), database, None]
        for one in wrong:
            with pytest.raises(BrokerError, match="a ConnectionLedger takes a function that opens a connection"):
                broker.ConnectionLedger(one)


@pytest.mark.parametrize("names", [{"table": None}, {"table": b"ledger"}, {"table": ""}, {"schema": 5}])
def test_names_that_are_not_text(database: str, names: dict[str, Any]) -> None:
    with pytest.raises(BrokerError, match="is the name of a"):
        broker.ConnectionLedger(lambda: sqlite3.connect(database), **names)


def test_a_cursor(producer: Producer, database: str) -> None:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        cursor: Any = connection.cursor()
        with pytest.raises(TransactionError) as begun:
            producer.begin_transaction(cursor)
        with pytest.raises(TransactionError) as sent:
            producer.send(broker.Message("orders", b"1"), cursor)
        assert str(begun.value) == str(sent.value) == f"{SENTENCE} sqlite3.Cursor: pass cursor.connection"
        with producer.begin_transaction(cursor.connection) as transaction:
            producer.send(broker.Message("orders", b"1"), transaction)


@pytest.mark.parametrize("wrong", ["engine", "text", "class"])
def test_what_is_no_connection(producer: Producer, database: str, wrong: str) -> None:
    made: Any = {"engine": create_engine(f"sqlite:///{database}"), "text": database, "class": sqlite3.Connection}[wrong]
    with pytest.raises(TransactionError, match=rf"{SENTENCE} .*: pass what sqlite3\.connect\(\) or"):
        producer.begin_transaction(made)


def test_a_session_is_told_which_ledger_it_needs(producer: Producer, database: str) -> None:
    with (
        Session(create_engine(f"sqlite:///{database}")) as session,
        pytest.raises(TransactionError, match=r"give it broker\.Ledger\(engine\) for sessions of SQLAlchemy"),
    ):
        producer.begin_transaction(session)


def test_a_connect_that_leads_to_another_database_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a path relative to the working directory: the order was saved in a file that check-back does not ask."""
    ledger = broker.ConnectionLedger(lambda: sqlite3.connect("shop.db"))
    for name in ("there", "here"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        broker.ConnectionLedger(lambda: sqlite3.connect("shop.db")).create_all()
    with broker.open(tmp_path / "shop.store", sync="os") as store, broker.open(tmp_path / "other.store") as other:
        producer = store.producer("shop", topics=["orders"], ledger=ledger)
        monkeypatch.chdir(tmp_path / "there")
        with contextlib.closing(sqlite3.connect("shop.db")) as connection:
            with pytest.raises(TransactionError, match=r"leads to .*there.*, and the ledger is in .*here"):
                producer.begin_transaction(connection)
            with pytest.raises(TransactionError, match=r"connect\(\) leads to .*there.* now, and the ledger"):
                other.producer("shop", topics=["orders"], ledger=ledger)
        with contextlib.closing(sqlite3.connect(tmp_path / "here" / "shop.db")) as connection:
            with producer.begin_transaction(connection) as transaction:
                producer.send(broker.Message("orders", b"1"), transaction)
            assert delivered(store) == [b"1"]
