"""However a session is used, an order and its message are both there in the end, or neither is: a table of cases.

Each case is what an ordinary program might do. It is judged after check-back has run, on SQLite, PostgreSQL, MariaDB.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import broker
from broker.enlisting.ledger_key import LEDGER_KEY
from broker.errors import MessageRejected, TransactionError, UnknownOutcome
from broker.ledger import Ledger
from broker.local_transaction import SessionTransaction
from broker.testing.fixtures import lose_the_commit
from broker.transaction.events import BY
from tests.producer.desk import Case, Cases, Desk, desk_of, kinds

cases = Cases()


KINDS = kinds(["sqlite", "postgres", "mariadb"], ["sqlite", "postgres"], half_op=["sqlite"])


@pytest.fixture(scope="module", params=KINDS, ids=str)
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Over a store of this process with each engine, and over `broker.connect`."""
    gc.freeze()  # what the tests before have imported need not be searched after each case
    with desk_of(request.param, request, tmp_path_factory.mktemp("desk")) as desk:
        yield desk
    gc.unfreeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", cases, ids=repr)


def test_both_are_there_or_neither_is(desk: Desk, case: Case) -> None:
    desk.next_case()
    case.run(desk)
    gc.collect()
    orders, announced = desk.judge()
    assert (orders, announced) == (case.there, case.there)
    assert desk.shop.in_doubt() == 0


# Who commits


@cases.there(1)
def the_sessions_own_commit(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        session.commit()


@cases.there(1)
def the_block_of_a_session(desk: Desk) -> None:
    with Session(desk.engine) as session, session.begin():
        desk.buy(session, 1)


@cases.there(1)
def begin_transaction(desk: Desk) -> None:
    with Session(desk.engine) as session, desk.producer.begin_transaction(session) as transaction:
        desk.buy(session, 1, through=transaction)


@cases.there(1, 2)
def commit_inside_the_block(desk: Desk) -> None:
    with Session(desk.engine) as session, desk.producer.begin_transaction(session) as transaction:
        desk.buy(session, 1, through=transaction)
        session.commit()
        desk.buy(session, 2, through=transaction)


@cases.there(2)
def rollback_inside_the_block(desk: Desk) -> None:
    with Session(desk.engine) as session, desk.producer.begin_transaction(session) as transaction:
        desk.buy(session, 1, through=transaction)
        session.rollback()
        desk.buy(session, 2, through=transaction)


@cases.there(1)
def a_forgotten_with(desk: Desk) -> None:
    with Session(desk.engine) as session:
        transaction = desk.producer.begin_transaction(session)
        desk.buy(session, 1, through=transaction)
        session.commit()


@cases.there(1, 2, 3)
def two_blocks_in_one_session(desk: Desk) -> None:
    with Session(desk.engine) as session, desk.producer.begin_transaction(session) as outer:
        desk.buy(session, 1, through=outer)
        with desk.producer.begin_transaction(session) as inner:
            desk.buy(session, 2, through=inner)
        desk.buy(session, 3, through=outer)


@cases.there(3)
def an_inner_block_that_fails(desk: Desk) -> None:
    """It rolls the session back, with what the outer one did before."""
    with Session(desk.engine) as session, desk.producer.begin_transaction(session) as outer:
        desk.buy(session, 1, through=outer)
        with pytest.raises(ZeroDivisionError):
            _fail_in_a_block(desk, session)
        desk.buy(session, 3, through=outer)


def _fail_in_a_block(desk: Desk, session: Session | Connection) -> None:
    with desk.producer.begin_transaction(session) as inner:
        desk.buy(session, 2, through=inner)
        raise ZeroDivisionError


@cases.there(1, 2)
def two_producers_in_one_session(desk: Desk) -> None:
    other = desk.producer_of("stock-keepers", ledger=desk.shop.ledger)
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        desk.save(session, 2)
        other.send(desk.message(2), session)
        session.commit()


@cases.there(1, 2)
def two_ledgers_in_one_database(desk: Desk) -> None:
    other = Ledger(desk.another_engine())
    producer = desk.producer_of("others", ledger=other)
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        desk.save(session, 2)
        producer.send(desk.message(2), session)
        session.commit()


@cases.there(1)
def a_sessionmaker(desk: Desk) -> None:
    with sessionmaker(desk.engine).begin() as session:
        desk.buy(session, 1)


@cases.there(1)
def a_session_of_another_engine_with_the_same_url(desk: Desk) -> None:
    with Session(desk.another_engine()) as session:
        desk.buy(session, 1)
        session.commit()


@cases.there(1)
def a_scoped_session(desk: Desk) -> None:
    scoped = scoped_session(sessionmaker(desk.engine))
    desk.buy(scoped, 1)
    scoped.commit()
    desk.buy(scoped, 2)
    scoped.remove()


@cases.there(1)
def a_block_with_a_scoped_session(desk: Desk) -> None:
    scoped = scoped_session(sessionmaker(desk.engine))
    with desk.producer.begin_transaction(scoped) as transaction:
        desk.buy(scoped, 1, through=transaction)
    scoped.remove()


@cases.there(1)
def the_connection_of_the_session_commits(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        session.connection().commit()


@cases.there(1, 3)
def a_session_that_commits_twice(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        session.commit()
        desk.buy(session, 2)
        session.rollback()
        desk.buy(session, 3)
        session.commit()


@cases.there(1, 2)
def a_core_connection(desk: Desk) -> None:
    with desk.engine.begin() as connection:
        desk.buy(connection, 1)
    with desk.engine.connect() as connection:
        desk.buy(connection, 2)
        connection.commit()
        desk.buy(connection, 3)
        connection.rollback()
        desk.buy(connection, 4)


@cases.there(1)
def a_block_with_a_core_connection(desk: Desk) -> None:
    with desk.engine.connect() as connection:
        with desk.producer.begin_transaction(connection) as transaction:
            desk.buy(connection, 1, through=transaction)
        with pytest.raises(ZeroDivisionError):
            _fail_in_a_block(desk, connection)


@cases.there(1)
def a_session_bound_to_a_connection_of_its_own(desk: Desk) -> None:
    with desk.engine.connect() as connection, Session(connection) as session:
        desk.buy(session, 1)
        session.commit()


@cases.there(1, 2)
def a_message_sent_while_the_session_commits(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        event.listen(session, "before_commit", lambda _: desk.buy(session, 2), once=True)
        session.commit()


@cases.there(1, 2)
def a_message_sent_while_the_session_flushes(desk: Desk) -> None:
    """As an application does that announces each new object."""
    with Session(desk.engine) as session:
        event.listen(
            session,
            "after_flush",
            lambda session, _: [desk.announce(session, one.id - desk.first) for one in session.new],
        )
        session.add_all([desk.order(1), desk.order(2)])
        session.commit()


# Who does not


@cases.there()
def a_session_that_is_closed(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)


@cases.there()
def a_session_that_is_dropped(desk: Desk) -> None:
    """The pool takes its connection back; what became of the messages, check-back finds out."""
    desk.buy(Session(desk.another_engine()), 1)


@cases.there()
def an_exception(desk: Desk) -> None:
    with pytest.raises(ZeroDivisionError), Session(desk.engine) as session, session.begin():
        _fail(desk, session)


def _fail(desk: Desk, session: Session) -> None:
    desk.buy(session, 1)
    raise ZeroDivisionError


@cases.there()
def a_broken_connection(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        session.invalidate()


@cases.there(1)
def a_row_that_the_database_refuses(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        session.commit()
        session.add(desk.order(1))
        desk.announce(session, 2)
        with pytest.raises(IntegrityError):
            session.commit()


# Savepoints


@cases.there(1, 3)
def a_savepoint_that_is_rolled_back(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        with pytest.raises(ZeroDivisionError):
            _fail_in_a_savepoint(desk, session, 2)
        desk.buy(session, 3)
        session.commit()


def _fail_in_a_savepoint(desk: Desk, session: Session, number: int) -> None:
    with session.begin_nested():
        desk.buy(session, number)
        raise ZeroDivisionError


@cases.there(1)
def a_savepoint_before_anything_else(desk: Desk) -> None:
    with Session(desk.engine) as session:
        with pytest.raises(ZeroDivisionError):
            _fail_in_a_savepoint(desk, session, 2)
        desk.buy(session, 1)
        session.commit()


@cases.there()
def a_savepoint_that_is_released_in_a_transaction_that_fails(desk: Desk) -> None:
    """Python's driver for SQLite would commit here at the release."""
    with Session(desk.engine) as session:
        with session.begin_nested():
            desk.buy(session, 1)
        session.rollback()


@cases.there(1, 2, 5)
def savepoints_in_savepoints(desk: Desk) -> None:
    with Session(desk.engine) as session:
        with session.begin_nested():
            desk.buy(session, 1)
            with session.begin_nested():
                desk.buy(session, 2)
            with pytest.raises(ZeroDivisionError):
                _fail_in_a_savepoint(desk, session, 3)
        with session.begin_nested() as outer:
            with session.begin_nested():
                desk.buy(session, 4)
            outer.rollback()
        desk.buy(session, 5)
        session.commit()


@cases.there(1)
def a_savepoint_of_a_connection(desk: Desk) -> None:
    with desk.engine.connect() as connection:
        desk.buy(connection, 1)
        with connection.begin_nested() as savepoint:
            desk.buy(connection, 2)
            savepoint.rollback()
        connection.commit()


@cases.there(1)
def a_savepoint_in_sql(desk: Desk) -> None:
    """Nobody would see what is rolled back to it, so it is refused."""
    with Session(desk.engine) as session:
        session.execute(text("SELECT 1"))
        desk.buy(session, 1)
        for words in ("SAVEPOINT mine", "ROLLBACK TO mine", "ROLLBACK TO SAVEPOINT mine"):
            with pytest.raises(TransactionError, match="begin_nested"):
                session.execute(text(words))
        session.commit()


# Errors that nobody handles


@cases.there()
def a_topic_that_is_unknown(desk: Desk) -> None:
    _swallow(desk, desk.message(1, topic="ordres"), TransactionError)


@cases.there()
def a_property_that_is_ours(desk: Desk) -> None:
    _swallow(desk, desk.message(1, properties={"CHECKBACK_X": "1"}), MessageRejected)


@cases.there()
def something_that_is_no_message(desk: Desk) -> None:
    _swallow(desk, None, MessageRejected)


@cases.there()
def a_delay_that_does_not_exist(desk: Desk) -> None:
    _swallow(desk, desk.message(1), MessageRejected, delay_level=99)


@cases.there()
def a_sharding_key_that_is_a_number(desk: Desk) -> None:
    _swallow(desk, desk.message(1), MessageRejected, sharding_key=7)


def _swallow(desk: Desk, message: object, error: type[Exception], **named: object) -> None:
    """Nobody can commit any more; and a session that was rolled back works again."""
    with Session(desk.engine) as session:
        desk.save(session, 1)
        with pytest.raises(error):
            desk.producer.send(message, session, **named)  # type: ignore[arg-type]
        for _ in range(2):
            with pytest.raises(TransactionError, match="cannot commit"):
                session.commit()
        session.rollback()
        session.execute(text("SELECT 1"))
        session.commit()
    with desk.engine.connect() as connection:
        desk.save(connection, 1)
        with pytest.raises(error):
            desk.producer.send(message, connection, **named)  # type: ignore[arg-type]
        with pytest.raises(TransactionError, match="cannot commit"):
            connection.commit()
        connection.rollback()
        connection.execute(text("SELECT 1"))
        connection.commit()


@cases.there()
def a_producer_without_a_ledger(desk: Desk) -> None:
    plain = desk.producer_of("plain", [])
    with Session(desk.engine) as session:
        desk.save(session, 1)
        with pytest.raises(TransactionError, match="needs a ledger"):
            plain.send(desk.message(1), session)
        with pytest.raises(TransactionError, match="cannot commit"):
            session.commit()


@cases.there()
def a_send_that_failed_before_anything_was_done(desk: Desk) -> None:
    """The session's transaction had not even begun."""
    for target in (Session(desk.engine), desk.engine.connect()):
        with target:
            with pytest.raises(TransactionError):
                desk.producer.send(desk.message(1, topic="ordres"), target)
            desk.save(target, 1)
            with pytest.raises(TransactionError, match="cannot commit"):
                target.commit()


@cases.there(1)
def a_send_that_failed_in_a_savepoint(desk: Desk) -> None:
    """The savepoint was rolled back, with what belongs to the message: the rest may commit."""
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        with pytest.raises(TransactionError):
            _send_to_nowhere(desk, session)
        session.commit()


def _send_to_nowhere(desk: Desk, session: Session) -> None:
    with session.begin_nested():
        desk.save(session, 2)
        desk.producer.send(desk.message(2, topic="ordres"), session)


@cases.there(1)
def a_send_that_failed_in_a_savepoint_as_the_first_of_all(desk: Desk) -> None:
    with Session(desk.engine) as session:
        for _ in range(2):
            with pytest.raises(TransactionError):
                _send_to_nowhere(desk, session)
        desk.buy(session, 1)
        session.commit()


@cases.there(1)
def a_send_that_failed_in_a_savepoint_in_which_nothing_was_done(desk: Desk) -> None:
    """SQLAlchemy sets it when something is."""
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        with pytest.raises(TransactionError), session.begin_nested():
            desk.producer.send(desk.message(2, topic="ordres"), session)
        session.commit()


@cases.there(1)
def a_send_that_failed_in_a_savepoint_within_another(desk: Desk) -> None:
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        with pytest.raises(TransactionError), session.begin_nested(), session.begin_nested():
            desk.producer.send(desk.message(2, topic="ordres"), session)
        session.commit()


@cases.there()
def a_send_that_failed_in_a_savepoint_that_was_kept(desk: Desk) -> None:
    """Whoever swallows the error inside the savepoint saves its order without the message."""
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        with session.begin_nested():
            desk.save(session, 2)
            with pytest.raises(TransactionError):
                desk.producer.send(desk.message(2, topic="ordres"), session)
        with pytest.raises(TransactionError, match="cannot commit"):
            session.commit()


@cases.there(1, 2)
def a_send_that_failed_before_anything_was_done_and_was_rolled_back(desk: Desk) -> None:
    """As its error advises."""
    for number, target in ((1, Session(desk.engine)), (2, desk.engine.connect())):
        with target:
            with pytest.raises(TransactionError):
                desk.producer.send(desk.message(number, topic="ordres"), target)
            target.rollback()
            desk.buy(target, number)
            target.commit()


@cases.there()
def a_topic_and_a_body_instead_of_a_message(desk: Desk) -> None:
    _swallow(desk, "orders", MessageRejected)


# COMMIT that goes past the session, or fails


@cases.there(1)
def commit_in_sql(desk: Desk) -> None:
    """It is refused, and so it is no mistake any more."""
    with Session(desk.engine) as session:
        desk.buy(session, 1)
        for words in ("COMMIT", "  commit;", "-- now\n/* really */ ROLLBACK"):
            with pytest.raises(TransactionError, match="in SQL would go past"):
                session.execute(text(words))
        session.commit()


@cases.there()
def commit_in_sql_and_an_exception(desk: Desk) -> None:
    with pytest.raises(TransactionError, match="COMMIT in SQL"), Session(desk.engine) as session, session.begin():
        _commit_in_sql(desk, session)


def _commit_in_sql(desk: Desk, session: Session) -> None:
    desk.buy(session, 1)
    session.execute(text("COMMIT"))


@cases.there(1, 2, 3, 4)
def commit_fails(desk: Desk) -> None:
    """The driver's error, or UnknownOutcome: in truth it did commit. Check-back finds out."""
    with lose_the_commit(desk.engine, committed=True), Session(desk.engine) as session:
        desk.buy(session, 1)
        with pytest.raises(DBAPIError, match="lost"):
            session.commit()
    with lose_the_commit(desk.engine, committed=True), pytest.raises(UnknownOutcome, match="lost"):
        begun_by_a_block(desk, 2)
    with (
        lose_the_commit(desk.engine, committed=True),
        pytest.raises(UnknownOutcome, match="lost"),
        desk.engine.begin() as connection,
    ):
        desk.buy(connection, 3)
    with desk.engine.begin() as connection:
        desk.buy(connection, 4)


@cases.there()
def commit_fails_and_did_not_take_place(desk: Desk) -> None:
    with lose_the_commit(desk.engine, committed=False), Session(desk.engine) as session:
        desk.buy(session, 1)
        with pytest.raises(DBAPIError, match="lost"):
            session.commit()
    with lose_the_commit(desk.engine, committed=False), pytest.raises(UnknownOutcome, match="lost"):
        begun_by_a_block(desk, 2)


def begun_by_a_block(desk: Desk, number: int) -> None:
    with Session(desk.engine) as session, desk.producer.begin_transaction(session) as transaction:
        desk.buy(session, number, through=transaction)


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
