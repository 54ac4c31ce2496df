"""However a session is used, an order and its message are both there in the end, or neither is: a table of cases.

Each case is what an ordinary program might do. It is judged after check-back has run, on SQLite, PostgreSQL, MariaDB.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.orm import Session

import broker
from broker.enlisting.ledger_key import LEDGER_KEY
from broker.enlisting.sqlalchemy_enlistments import SessionEnlistment, note_error
from broker.errors import TransactionError
from broker.local_transaction import SessionTransaction
from broker.transaction.events import BY
from tests.consumer.messages import deadlock, lose_the_snapshot
from tests.producer import commit_cases, failure_cases
from tests.producer.desk import INSERT, Case, Desk, desk_of, kinds

KINDS = kinds(["sqlite", "postgres", "mariadb"], ["sqlite", "postgres"], half_op=["sqlite"])


@pytest.fixture(scope="module", params=KINDS, ids=str)
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Over a store of this process with each engine, and over `broker.connect`."""
    with desk_of(request.param, request, tmp_path_factory.mktemp("desk")) as desk:
        yield desk


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", [*commit_cases.cases, *failure_cases.cases], ids=repr)


def test_both_are_there_or_neither_is(desk: Desk, case: Case) -> None:
    desk.next_case()
    case.run(desk)
    gc.collect()
    orders, announced = desk.judge()
    assert (orders, announced) == (case.there, case.there)
    assert desk.shop.in_doubt() == 0


def test_a_savepoint_in_autocommit_is_saved_by_its_release(desk: Desk) -> None:
    """Behind a BEGIN, as one in a transaction needs it, the order would be rolled back with the connection."""
    if desk.engine.dialect.name != "sqlite":
        pytest.skip("SQLite's own")
    desk.next_case()
    with desk.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        with connection.begin_nested():
            desk.save(connection, 1)
        with pytest.raises(TransactionError, match="AUTOCOMMIT"), connection.begin_nested():
            desk.buy(connection, 2)
    assert desk.judge() == ({1}, set())


def test_a_commit_by_the_driver_is_found_out(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing sees it before the end. A row that is there tells; SQLite has none yet, so a person decides.

    A client cannot park at a broker: it answers "unknown" to each check, and the broker parks at its limit.
    """
    desk.next_case()
    with Session(desk.engine) as session:
        transaction = desk.producer.begin_transaction(session)
        desk.buy(session, 1, through=transaction)
        _commit_by_the_driver(session)
        session.rollback()
    if desk.shop.ledger.holds_a_lock:
        assert "went past the session" in caplog.text
        assert desk.judge() == ({1}, {1})
        return
    client = desk.shop.backend.client
    if isinstance(client, broker.LiveStore):
        assert "parked until `checkback resolve` decides" in caplog.text
        assert desk.judge() == ({1}, set())
        assert transaction.halves[0].commitlog_offset in client.transactions.parked()
    else:
        assert "is left to its broker, which parks it at its limit" in caplog.text
        assert (desk.there(), desk.shop.in_doubt()) == (({1}, set()), 1)
    _decide_by_hand(desk, transaction)
    assert desk.judge() == ({1}, {1})


def _commit_by_the_driver(session: Session) -> None:
    raw = session.connection().connection.dbapi_connection
    assert raw is not None
    raw.commit()


def _decide_by_hand(desk: Desk, transaction: SessionTransaction) -> None:
    """A person says that it was saved: by `checkback resolve`, or by the row that is missing, since no broker notes who
    decided, and a COMMIT without a row is evidence against the ledger.
    """
    client, ledger = desk.shop.backend.client, desk.shop.ledger
    (half,) = transaction.halves
    if isinstance(client, broker.LiveStore):
        client.transactions.commit(half, extra_properties={BY: "a person"})
        return
    with ledger.engine.begin() as connection:
        ledger.insert(connection, half.properties[LEDGER_KEY], desk.shop.group, client.store_id)
    client.half_messages.commit(half)


def test_what_comes_after_a_commit_by_the_driver_is_refused(desk: Desk) -> None:
    desk.next_case()
    with Session(desk.engine) as session:
        transaction = desk.producer.begin_transaction(session)
        desk.buy(session, 1, through=transaction)
        _commit_by_the_driver(session)
        with pytest.raises(TransactionError, match="went past the session"):
            desk.announce(session, 2)
        with pytest.raises(TransactionError, match="cannot commit"):
            session.commit()
    if not desk.shop.ledger.holds_a_lock:
        _decide_by_hand(desk, transaction)
    assert desk.judge() == ({1}, {1})


def test_a_statement_between_hides_no_commit_by_the_driver(desk: Desk) -> None:
    """It begins the driver's next transaction. A send that joined it was delivered with those before the COMMIT."""
    desk.next_case()
    with Session(desk.engine) as session:
        transaction = desk.producer.begin_transaction(session)
        desk.buy(session, 1, through=transaction)
        _commit_by_the_driver(session)
        desk.save(session, 2)
        with pytest.raises(TransactionError, match="went past the session"):
            desk.announce(session, 2)
        session.rollback()
    if not desk.shop.ledger.holds_a_lock:
        _decide_by_hand(desk, transaction)
    assert desk.judge() == ({1}, {1})


def test_a_rollback_by_sqlite_leaves_no_message_without_its_order(desk: Desk) -> None:
    """It may be a conflict's, a trigger's or a full disk's. Who catches the error and commits saves only what follows.

    Nobody knows here that it was no COMMIT, so a person decides.
    """
    if desk.shop.ledger.holds_a_lock:
        pytest.skip("SQLite's own")
    desk.next_case()
    with Session(desk.engine) as session:
        transaction = desk.producer.begin_transaction(session)
        desk.buy(session, 1, through=transaction)
        again = INSERT.text.replace("INSERT", "INSERT OR ROLLBACK")
        with pytest.raises(IntegrityError):
            session.execute(text(again), {"id": desk.first + 1})
        desk.save(session, 2)
        with pytest.raises(TransactionError, match="went past the session"):
            session.commit()
    assert desk.there() == (set(), set())
    (half,) = transaction.halves
    client = desk.shop.backend.client
    if isinstance(client, broker.LiveStore):
        client.transactions.rollback(half, extra_properties={BY: "a person"})
    else:
        client.half_messages.rollback(half)


@pytest.mark.parametrize("fail", [deadlock, lose_the_snapshot])
def test_a_rollback_by_mariadb_leaves_no_order_without_its_message(
    desk: Desk, fail: Callable[[Engine, Session], None]
) -> None:
    """For an error that is caught. The row of a released savepoint is gone then, as if it alone was."""
    if desk.url.get_backend_name() != "mariadb":
        pytest.skip("MySQL's and MariaDB's own")
    desk.next_case()
    with Session(desk.engine) as session:
        with session.begin_nested():
            desk.announce(session, 1)
        with pytest.raises(OperationalError):
            fail(desk.engine, session)
        desk.save(session, 1)
        with pytest.raises(TransactionError, match="rolled the whole transaction back for an error"):
            session.commit()
    assert desk.judge() == (set(), set())


@pytest.mark.parametrize("fail", [deadlock, lose_the_snapshot])
def test_a_rollback_by_mariadb_before_the_first_send_leaves_no_message_without_its_order(
    desk: Desk, fail: Callable[[Engine, Session], None]
) -> None:
    """For an error that is caught: the order was gone by then, and the message was sent and delivered."""
    if desk.url.get_backend_name() != "mariadb":
        pytest.skip("MySQL's and MariaDB's own")
    desk.next_case()
    with Session(desk.engine) as session:
        desk.save(session, 1)
        with pytest.raises(OperationalError):
            fail(desk.engine, session)
        with pytest.raises(TransactionError, match="rolled the whole transaction back for an error"):
            desk.announce(session, 1)
        session.rollback()
        desk.buy(session, 2)
        session.commit()
    assert desk.judge() == ({2}, {2})


def test_a_send_ends_no_result_that_is_read_row_by_row(desk: Desk) -> None:
    """PyMySQL would drop the other rows without an error. Behind a send there is nothing to write at the next."""
    if desk.url.get_backend_name() != "mariadb":
        pytest.skip("MySQL's and MariaDB's own")
    desk.next_case()
    numbers = text("SELECT 1 UNION SELECT 2 UNION SELECT 3").execution_options(yield_per=1)
    with Session(desk.engine) as session:
        read = session.execute(numbers).scalars()
        with pytest.raises(TransactionError, match="row by row"):
            desk.announce(session, next(read))
        read.close()
        session.rollback()
        desk.buy(session, 4)
        for number in session.execute(numbers).scalars():
            desk.announce(session, number)
        for number in (1, 2, 3):
            desk.save(session, number)
        session.commit()
    assert desk.judge() == ({1, 2, 3, 4}, {1, 2, 3, 4})


@pytest.mark.parametrize("is_first", [False, True])
def test_a_send_in_the_middle_of_a_copy_is_refused(desk: Desk, is_first: bool) -> None:
    """psycopg waited for the end of the COPY, which waited for the send. Behind a send there is nothing to write."""
    if desk.engine.dialect.driver != "psycopg":
        pytest.skip("psycopg's own")
    desk.next_case()
    with Session(desk.engine) as session:
        if not is_first:
            desk.buy(session, 2)
        driver: Any = session.connection().connection.driver_connection
        with driver.cursor().copy("COPY (SELECT 1) TO STDOUT") as rows:
            if is_first:
                with pytest.raises(TransactionError, match="in the middle of a statement"):
                    desk.announce(session, 1)
            else:
                desk.announce(session, 1)
            assert len(list(rows.rows())) == 1
        desk.save(session, 1)
        if is_first:
            with pytest.raises(TransactionError, match="cannot commit"):
                session.commit()
        else:
            session.commit()
    assert desk.judge() == ((set(), set()) if is_first else ({1, 2}, {1, 2}))


@pytest.mark.parametrize("is_first", [False, True])
def test_a_rollback_by_sqlite_before_the_first_send_leaves_no_message_without_its_order(
    desk: Desk, is_first: bool
) -> None:
    """The same of INSERT OR ROLLBACK, a trigger, or a full disk. A first statement takes nothing with it."""
    if desk.url.get_backend_name() != "sqlite":
        pytest.skip("SQLite's own")
    desk.next_case()
    with Session(desk.engine) as session, session.begin():
        desk.save(session, 1)
    with Session(desk.engine) as session:
        if not is_first:
            desk.save(session, 2)
        with pytest.raises(IntegrityError):
            session.execute(text(INSERT.text.replace("INSERT", "INSERT OR ROLLBACK")), {"id": desk.first + 1})
        if not is_first:
            with pytest.raises(TransactionError, match="rolled the whole transaction back for an error"):
                desk.announce(session, 2)
            session.rollback()
        desk.buy(session, 3)
        session.commit()
    assert desk.judge() == ({1, 3}, {3})


@pytest.mark.parametrize("was_in_transaction", [True, False])
def test_a_first_statement_that_mysql_rolls_back_takes_nothing_with_it(was_in_transaction: bool) -> None:
    """As a bulk UPDATE that meets a deadlock, is caught, and is left out: what comes after it is the transaction."""
    connection = MagicMock(invalidated=True)
    connection.dialect.name, connection.dialect.is_async = "mariadb", False
    connection.connection.dbapi_connection.driver_connection = SimpleNamespace(server_status=int(was_in_transaction))
    note_error(connection, Exception(1213, "Deadlock found when trying to get lock"))
    assert SessionEnlistment(connection).was_undone is was_in_transaction


@pytest.mark.parametrize(("setting", "takes_all"), [("ON", True), ("OFF", False), (None, False), (OSError(), True)])
def test_a_lock_that_mysql_waited_for_in_vain(setting: object, *, takes_all: bool) -> None:
    """With innodb_rollback_on_timeout the transaction goes with it: a message was delivered whose order was gone."""
    connection = MagicMock(invalidated=True)
    connection.dialect.name, connection.dialect.is_async = "mysql", False
    connection.connection.dbapi_connection.driver_connection = SimpleNamespace(server_status=1)
    rows = connection.connection.cursor.return_value.fetchall
    rows.return_value = [] if setting is None else [("innodb_rollback_on_timeout", setting)]
    rows.side_effect = setting if isinstance(setting, OSError) else None
    note_error(connection, Exception(1205, "Lock wait timeout exceeded; try restarting transaction"))
    assert SessionEnlistment(connection).was_undone is takes_all


def test_a_savepoint_whose_release_failed_leaves_nothing_in_doubt(desk: Desk) -> None:
    """SQLAlchemy executes nothing more then, so that the database seemed not to say how the transaction ended."""
    if desk.engine.dialect.name != "postgresql":
        pytest.skip("PostgreSQL's")
    desk.next_case()
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        savepoint = session.begin_nested()
        with contextlib.suppress(DBAPIError):
            session.execute(text("SELECT 1 / 0"))
        with pytest.raises(DBAPIError):
            savepoint.commit()
    assert desk.shop.in_doubt() == 0
    assert desk.there() == (set(), set())


def test_check_back_is_faster_than_a_commit_on_sqlite(desk: Desk) -> None:
    """Its tombstone is there when the session commits: AlreadyEnded, and nothing is saved."""
    if desk.shop.ledger.holds_a_lock:
        pytest.skip("there the row protects a running transaction")
    desk.next_case()
    for begin in (Session, type(desk.engine).connect):
        with begin(desk.engine) as target:
            desk.announce(target, 1)
            desk.check_back()
            assert desk.shop.in_doubt() == 0
            desk.save(target, 1)
            with pytest.raises(broker.AlreadyEnded, match="nothing was saved"):
                target.commit()
    assert desk.judge() == (set(), set())
