"""A consumer that charges for one message, its table, and a program without a mistake for what others leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import broker
from broker.consumer import Consumer
from broker.message import ReceivedMessage

CHARGE = text("INSERT INTO charges VALUES (1)")


@pytest.fixture
def consumer(tmp_path: Path) -> Iterator[Consumer]:
    """One message waits for it; a retry comes at once."""
    with broker.open(tmp_path / "shop.store", sync="os") as store:
        store.producer("shop").send(broker.Message("orders", b"1"))
        with store.consumer("billing", "orders", retry_delay_level=0) as made:
            yield made


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
