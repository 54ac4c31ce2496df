"""Cases in which somebody commits, in every way, or does not; and savepoints."""

from __future__ import annotations

import gc

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from broker.errors import TransactionError
from broker.ledger import Ledger
from tests.producer.desk import Cases, Desk

cases = Cases()

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


@cases.there(3, 4)
def sessions_that_are_dropped_where_the_pool_does_not_roll_back(desk: Desk) -> None:
    """It would commit the order, on SQLite without the ledger's row, or leave it to the next session."""
    for number, reset in ((1, "commit"), (2, None)):
        engine = desk.another_engine(pool_reset_on_return=reset)
        desk.buy(Session(engine), number)
        gc.collect()
        with Session(engine) as session:
            desk.buy(session, number + 2)
            session.commit()


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


@cases.there(1, 4)
def an_inner_savepoint_of_a_connection_that_is_left_open(desk: Desk) -> None:
    """SQLAlchemy goes on in it, and the database has it no more: it went with the outer one."""
    with desk.engine.connect() as connection:
        desk.buy(connection, 1)
        outer = connection.begin_nested()
        desk.buy(connection, 2)
        connection.begin_nested()
        desk.buy(connection, 3)
        outer.close()
        desk.buy(connection, 4)
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


@cases.there(1)
def a_savepoint_in_sql_before_the_send(desk: Desk) -> None:
    """Its release ends no transaction. On SQLite, where it began one, it is a COMMIT, and is refused."""
    with Session(desk.engine) as session:
        session.execute(text("SAVEPOINT mine"))
        desk.buy(session, 1)
        if desk.engine.dialect.name == "sqlite":
            with pytest.raises(TransactionError, match="begin_nested"):
                session.execute(text("RELEASE SAVEPOINT mine"))
        else:
            session.execute(text("RELEASE SAVEPOINT mine"))
        session.commit()
