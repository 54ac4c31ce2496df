"""The table of cases for plain connections: both are there, or neither is, in each mode and however it is written."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.schema import CreateTable

import broker
from broker.enlisting import connection_ledger
from broker.errors import TransactionError
from tests.backends.kinds import backend_of
from tests.producer.desk import Case, Cases, database, kinds
from tests.producer.plain_desk import POSTGRES, SQLITE, PlainDesk, ends_with, plain_desk_at

cases = Cases()
BASES = ("sqlite", "postgres")
ERRORS = (sqlite3.Error, psycopg.Error)


@pytest.fixture(scope="module", params=kinds(BASES, BASES), ids=str)
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainDesk]:
    path, kind = tmp_path_factory.mktemp("desk"), request.param
    with (
        database(kind.base, request, path) as url,
        backend_of(kind.place, path / "place") as backend,
        plain_desk_at(backend, url) as made,
    ):
        yield made


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", cases, ids=repr)


def test_both_are_there_or_neither_is(desk: PlainDesk, case: Case) -> None:
    """A mode is the driver's, and of no interest to a cluster."""
    begun, modes = {}, SQLITE if desk.is_sqlite else POSTGRES
    for mode in modes[:1] if desk.shop.backend.is_cluster else modes:
        desk.next_case()
        begun[mode], desk.mode = desk.first, mode
        case.run(desk)
        desk.close_connections()
    desk.check_back()
    for mode, first in begun.items():
        desk.first = first
        assert desk.there() == (case.there, case.there), mode
    assert desk.shop.in_doubt() == 0


@cases.there(1, 2)
def the_block(desk: PlainDesk) -> None:
    with desk.producer.begin_transaction(desk.connection()) as transaction:
        desk.save(transaction._connection, 1)
        desk.announce(transaction, 1)
        desk.buy(transaction._connection, 2)
    assert len(transaction.halves) == 1, "the other was sent by the connection"


@cases.there(1)
def its_messages_are_delivered_when_the_block_is_left(desk: PlainDesk) -> None:
    connection = desk.connection()
    with desk.producer.begin_transaction(connection) as transaction:
        desk.buy(connection, 1, through=transaction)
        assert desk.first + 1 not in desk.shop.announced()
    assert desk.first + 1 in desk.shop.announced(), "without check-back"


@cases.there()
def an_exception(desk: PlainDesk) -> None:
    connection = desk.connection()
    with contextlib.suppress(KeyError), desk.producer.begin_transaction(connection) as transaction:
        desk.buy(connection, 1, through=transaction)
        raise KeyError
    assert desk.shop.in_doubt() == 0, "without check-back"


@cases.there(1, 3)
def one_connection_for_several(desk: PlainDesk) -> None:
    connection = desk.connection()
    for number in (1, 2, 3):
        with contextlib.suppress(KeyError), desk.producer.begin_transaction(connection):
            desk.buy(connection, number)
            if number == 2:
                raise KeyError


@cases.there(1)
def with_connection_around_it(desk: PlainDesk) -> None:
    connection = desk.connection()
    with connection, desk.producer.begin_transaction(connection):
        desk.buy(connection, 1)


@cases.there(1)
def with_connection_inside_it(desk: PlainDesk) -> None:
    """psycopg's closes the connection."""
    connection = desk.connection()
    with desk.producer.begin_transaction(connection), connection:
        desk.buy(connection, 1)
    assert desk.first + 1 in desk.shop.announced(), "without check-back"


@cases.there()
def with_connection_inside_it_and_an_exception(desk: PlainDesk) -> None:
    connection = desk.connection()
    with contextlib.suppress(KeyError), desk.producer.begin_transaction(connection), connection:
        desk.buy(connection, 1)
        raise KeyError


@cases.there(1)
def commit_twice(desk: PlainDesk) -> None:
    connection = desk.connection()
    with desk.producer.begin_transaction(connection):
        desk.buy(connection, 1)
        _commit(desk, connection)
        _commit(desk, connection)


@cases.there(1)
def commit_inside_and_then_an_exception(desk: PlainDesk) -> None:
    connection = desk.connection()
    with contextlib.suppress(KeyError), desk.producer.begin_transaction(connection):
        desk.buy(connection, 1)
        _commit(desk, connection)
        raise KeyError


@cases.there(1)
def a_send_after_the_commit_inside(desk: PlainDesk) -> None:
    connection = desk.connection()
    with (
        ends_with(TransactionError, match="ended inside the block"),
        desk.producer.begin_transaction(connection) as transaction,
    ):
        desk.buy(connection, 1)
        _commit(desk, connection)
        desk.announce(transaction, 2)


@cases.there()
def rollback_inside(desk: PlainDesk) -> None:
    connection = desk.connection()
    with desk.producer.begin_transaction(connection):
        desk.buy(connection, 1)
        desk.execute(connection, "ROLLBACK")


@cases.there()
def closed_inside(desk: PlainDesk) -> None:
    connection = desk.connection()
    with desk.producer.begin_transaction(connection):
        desk.buy(connection, 1)
        connection.close()


@cases.there(1, 3)
def a_savepoint_that_is_rolled_back(desk: PlainDesk) -> None:
    connection = desk.connection()
    with desk.producer.begin_transaction(connection):
        desk.buy(connection, 1)
        desk.execute(connection, "SAVEPOINT gift")
        desk.buy(connection, 2)
        desk.execute(connection, "ROLLBACK TO SAVEPOINT gift")
        desk.buy(connection, 3)


@cases.there(1, 2)
def what_was_written_before_the_block_is_in_it(desk: PlainDesk) -> None:
    connection = desk.connection()
    if desk.mode in ("none", "autocommit"):
        desk.execute(connection, "BEGIN")
    desk.save(connection, 1)
    with desk.producer.begin_transaction(connection):
        desk.announce(connection, 1)
        desk.buy(connection, 2)


@cases.there()
def a_send_that_fails_and_is_swallowed(desk: PlainDesk) -> None:
    connection = desk.connection()
    with (
        ends_with(TransactionError, match=r"could not be sent.*elsewhere"),
        desk.producer.begin_transaction(connection),
    ):
        desk.buy(connection, 1)
        with contextlib.suppress(TransactionError):
            desk.producer.send(desk.message(1, topic="elsewhere"), connection)


@cases.there()
def a_send_that_fails_and_is_swallowed_before_the_users_own_commit(desk: PlainDesk) -> None:
    connection = desk.connection()
    with ends_with((TransactionError, *ERRORS)), desk.producer.begin_transaction(connection):
        desk.buy(connection, 1)
        with contextlib.suppress(TransactionError):
            desk.producer.send(desk.message(1, topic="elsewhere"), connection)
        _commit(desk, connection)


@cases.there(1)
def the_connection_works_after_a_send_that_failed(desk: PlainDesk) -> None:
    connection = desk.connection()
    with contextlib.suppress(TransactionError), desk.producer.begin_transaction(connection):
        desk.buy(connection, 2)
        desk.producer.send(desk.message(2, topic="elsewhere"), connection)
    with desk.producer.begin_transaction(connection):
        desk.buy(connection, 1)


@cases.there()
def a_statement_that_fails(desk: PlainDesk) -> None:
    connection = desk.connection()
    with contextlib.suppress(*ERRORS), desk.producer.begin_transaction(connection):
        desk.buy(connection, 1)
        desk.save(connection, 1)


@cases.there(1)
def commit_of_the_transaction_without_a_block(desk: PlainDesk) -> None:
    connection = desk.connection()
    transaction = desk.producer.begin_transaction(connection)
    desk.buy(connection, 1, through=transaction)
    transaction.commit()
    with pytest.raises(TransactionError, match="the transaction is over"):
        transaction.commit()


@cases.there(1, 2)
def two_producers_with_one_ledger(desk: PlainDesk) -> None:
    connection = desk.connection()
    other = desk.producer_of("stock", ledger=desk.producer.ledger)
    with desk.producer.begin_transaction(connection):
        desk.buy(connection, 1)
        desk.save(connection, 2)
        other.send(desk.message(2), connection)


@cases.there()
def the_block_is_forgotten(desk: PlainDesk) -> None:
    """Nothing ends it: the connection goes, and check-back discards the message."""
    connection = desk.connection()
    desk.buy(connection, 1, through=desk.producer.begin_transaction(connection))
    connection.close()


@cases.there(1)
def an_end_that_is_lost(desk: PlainDesk) -> None:
    """A process that is killed after COMMIT: check-back delivers."""
    connection = desk.connection()
    transaction = desk.producer.begin_transaction(connection)
    desk.buy(connection, 1, through=transaction)
    desk.execute(connection, "COMMIT")


def _commit(desk: PlainDesk, connection: object) -> None:
    """As the mode has it: with isolation_level None, and with autocommit, applications write it in SQL."""
    if desk.mode in ("none", "autocommit"):
        with contextlib.suppress(*ERRORS):  # the second one: there is no transaction
            desk.execute(connection, "COMMIT")
    else:
        connection.commit()  # type: ignore[attr-defined]


def test_a_script_that_commits_in_the_middle(desk: PlainDesk) -> None:
    """`executescript` commits first: what was sent before is delivered, and a send afterwards is refused."""
    if not desk.is_sqlite:
        pytest.skip("a method of sqlite3")
    desk.next_case()
    desk.mode = "deferred"
    connection = desk.connection()
    with ends_with(TransactionError), desk.producer.begin_transaction(connection) as transaction:
        desk.buy(connection, 1, through=transaction)
        connection.executescript("CREATE TABLE IF NOT EXISTS gifts (id INTEGER)")
        desk.announce(transaction, 2)
    desk.close_connections()
    assert desk.judge() == ({1}, {1})


def test_the_tables_are_those_of_sqlalchemy(desk: PlainDesk) -> None:
    """Declared twice, since SQLAlchemy may not be there: word for word the same."""
    dialect = desk.engine.dialect
    of_sqlalchemy = [
        str(CreateTable(table, if_not_exists=True).compile(dialect=dialect))
        for table in (desk.shop.ledger.rows, desk.shop.ledger.marks, desk.shop.ledger.bindings)
    ]
    ends = {"without_rowid": " WITHOUT ROWID" if desk.is_sqlite else ""}
    names = {key: f"checkback_ledger{end}" for key, end in (("ledger", ""), ("mark", "_mark"), ("binding", "_binding"))}
    ours = [one.format(**names, **ends) for one in connection_ledger._TABLES]
    assert [_words(one) for one in ours] == [_words(one) for one in of_sqlalchemy]


def _words(statement: str) -> list[str]:
    return statement.replace("(", " ( ").replace(")", " ) ").replace(",", " , ").split()


PROGRAM = """
import sqlite3, sys, threading
import broker

def connect():
    return sqlite3.connect("shop.db")

ledger = broker.ConnectionLedger(connect)
threads = [threading.Thread(target=ledger.create_all) for _ in range(4)]
[one.start() for one in threads]; [one.join() for one in threads]
with broker.open("shop.store", layout=broker.StoreLayout(segment_bytes=1 << 20)) as store:
    producer = store.producer("shop", topics=["orders"], ledger=ledger)
    connection = connect()
    connection.execute("CREATE TABLE orders (item TEXT)")
    with producer.begin_transaction(connection) as transaction:
        connection.execute("INSERT INTO orders VALUES ('lamp')")
        producer.send(broker.Message("orders", b"lamp"), transaction)
    with store.consumer("billing", "orders") as consumer:
        message = consumer.receive(10)
        consumer.ack(message)
        print(message.body.decode(), connection.execute("SELECT * FROM orders").fetchall())
    connection.close()
loaded = {"sqlalchemy", "psycopg", "numpy", "opentelemetry"} & {name.partition(".")[0] for name in sys.modules}
assert not loaded, loaded
"""


def test_an_application_with_sqlite3_alone_loads_the_standard_library_alone(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("lamp [('lamp',)]\n", "")


def test_check_back_in_the_same_process_takes_the_ledger(desk: PlainDesk) -> None:
    """`for_producers` asks the same database by SQLAlchemy."""
    ledger = desk.producer.ledger
    assert ledger is not None
    found = ledger.with_engine()
    assert (found.dialect, found.table) == (ledger.dialect, "checkback_ledger")
    store_id = desk.shop.backend.client.store_id
    assert found.binding(store_id).binding_id == ledger.binding(store_id).binding_id
    found.engine.dispose()


def test_a_producer_has_one_kind_of_ledger() -> None:
    with pytest.raises(broker.BrokerError, match="takes a function that opens a connection"):
        broker.ConnectionLedger("shop.db")  # type: ignore[arg-type]
