"""`consumer.process` where a message and its effects could part: nothing is lost, and nothing is doubled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

import broker
from broker.consumer import Consumer
from broker.errors import TransactionError
from broker.message import ReceivedMessage

CHARGE = text("INSERT INTO charges VALUES (1)")


@pytest.fixture
def consumer(tmp_path: Path) -> Iterator[Consumer]:
    """One message waits for it; a retry comes at once."""
    with broker.open(tmp_path / "shop.store", sync="os") as store:
        store.producer("shop").send(broker.Message("orders", b"1"))
        with store.consumer("billing", "orders", retry_delay_level=0) as made:
            yield made


@pytest.fixture
def engine(sqlite_url: URL) -> Iterator[Engine]:
    made = create_engine(sqlite_url)
    make_tables(made)
    yield made
    made.dispose()


def make_tables(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE charges (id integer)"))
    broker.Processed().create_all(engine)


def charges(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM charges")).scalar_one())


def work(consumer: Consumer, engine: Engine) -> None:
    """A program without a mistake, which has whatever is left."""
    while (message := consumer.receive(0.5)) is not None:
        with Session(engine) as session, consumer.process(message, session) as first:
            if first:
                session.execute(CHARGE)


def taken(consumer: Consumer) -> ReceivedMessage:
    message = consumer.receive(2.0)
    assert message is not None
    return message


def test_the_program_without_a_mistake(consumer: Consumer, engine: Engine) -> None:
    work(consumer, engine)
    assert charges(engine) == 1


def test_a_scoped_session_is_that_of_the_thread(consumer: Consumer, engine: Engine) -> None:
    session = scoped_session(sessionmaker(engine))
    with consumer.process(taken(consumer), session) as first:  # type: ignore[call-overload]
        assert first
        session.execute(CHARGE)
    session.remove()
    assert charges(engine) == 1


def test_autocommit_is_refused(consumer: Consumer, engine: Engine) -> None:
    """There the note would be saved at once, and stay when the block fails."""
    loose = engine.execution_options(isolation_level="AUTOCOMMIT")
    with pytest.raises(TransactionError, match="AUTOCOMMIT"), Session(loose) as session:  # noqa: SIM117
        with consumer.process(taken(consumer), session):
            raise ZeroDivisionError
    work(consumer, engine)
    assert charges(engine) == 1


def test_a_session_in_an_outer_transaction_is_refused(consumer: Consumer, engine: Engine) -> None:
    """The message would be acknowledged before the COMMIT, which perhaps never comes."""
    with pytest.raises(TransactionError, match="outer transaction"), engine.begin() as connection:  # noqa: SIM117
        with Session(connection) as session:
            with consumer.process(taken(consumer), session):
                session.execute(CHARGE)
            raise ZeroDivisionError
    work(consumer, engine)
    assert charges(engine) == 1
