"""Cases in which a send, a commit or what stands in between fails."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from broker.errors import MessageRejected, TransactionError, UnknownOutcome
from broker.testing.fixtures import lose_the_commit
from tests.producer.desk import Cases, Desk

cases = Cases()

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


@cases.there()
def a_block_behind_a_send_that_failed(desk: Desk) -> None:
    """It was never at COMMIT: nothing is unknown."""
    with Session(desk.engine) as session:
        with pytest.raises(TransactionError):
            desk.producer.send(desk.message(9, topic="ordres"), session)
        with pytest.raises(TransactionError, match=r"^the transaction cannot commit"):  # noqa: SIM117
            with desk.producer.begin_transaction(session) as transaction:
                desk.buy(session, 1, through=transaction)


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
