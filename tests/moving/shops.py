"""A store with something of everything, to be carried elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import broker

GROUP, TOPIC = "billing", "orders"


@dataclass
class Shop:
    """What a store holds: bodies by what became of them."""

    path: Path
    bodies: dict[str, list[bytes]]  # by topic, in the order of their queues
    consumed: list[bytes]
    waiting: set[bytes]  # for its time
    retried: bytes
    committed: bytes  # in doubt, its row is there
    lost: bytes  # in doubt, without a row
    binding_id: str  # of the ledger


def filled(path: Path, engine: Engine, *, messages: int = 30, delay_s: float = 3.0) -> Shop:
    """Make the store. Two transactions are in doubt: the process that began them is gone."""
    layout = broker.StoreLayout(segment_bytes=4 << 20)
    ledger = broker.Ledger(engine)
    ledger.create_all()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)"))
    with broker.open(path, sync="os", layout=layout) as store:
        store.create_topic(TOPIC, queues=3, message_type="MIXED")
        for number in range(messages):
            message = broker.Message(TOPIC, b"%d" % number, tag="AB"[number % 2], keys=[f"k{number}"],
                                     properties={"colour": "blue"})  # fmt: skip
            store.append(message, queue_id=number % 3)
        producer = store.producer("shop", topics=[TOPIC], ledger=ledger)
        with Session(engine) as session, session.begin():
            producer.send(broker.Message(TOPIC, b"paid", keys=["paid"]), session)
        consumed = _consumed(store)
        plain = store.producer("plain")
        store.create_topic("reminders", queues=2, message_type="DELAY")
        plain.send(broker.Message("reminders", b"was due"), delay_level=1)
        with store.consumer("clock", "reminders") as consumer:
            assert consumer.receive(20.0) is not None
        waiting = {b"later", b"at last"}
        plain.send(broker.Message("reminders", b"later"), delay=delay_s)
        plain.send(broker.Message("reminders", b"at last", keys=["r"]), delay_level=4 if delay_s > 10 else 2)
        store.append(broker.Message("%DLQ%billing", b"dead", keys=["d"]))
        _in_doubt(store, engine, ledger)
        bodies = {topic: _bodies(store, topic) for topic in store.topics()}
        binding_id = ledger.binding(store.store_id).binding_id
    return Shop(path, bodies, consumed[:-1], waiting, consumed[-1], b"row", b"none", binding_id)


def _consumed(store: broker.LiveStore) -> list[bytes]:
    """A group has ten messages; the last is to come again, at once."""
    found = []
    with store.consumer(GROUP, TOPIC) as consumer:
        while len(found) < 10:
            message = consumer.receive(5.0)
            assert message is not None
            found.append(message.body)
            if len(found) < 10:
                consumer.ack(message)
            else:
                consumer.retry(message, delay_level=0)
    return found


def _in_doubt(store: broker.LiveStore, engine: Engine, ledger: broker.Ledger) -> None:
    """Half messages whose process ends before it can end them; one of them has committed in the database."""
    from broker.database.ledger_binding import LEDGER_BINDING
    from broker.enlisting.ledger_key import LEDGER_KEY, new_key

    binding = ledger.binding(store.store_id).binding_id
    for body in (b"row", b"none"):
        key = new_key(1_795_000_000_000)
        extra = {LEDGER_KEY: key, LEDGER_BINDING: binding}
        store.transactions.prepare(broker.Message(TOPIC, body, keys=[body.decode()]), "shop", queue_id=1,
                                   extra_properties=extra)  # fmt: skip
        if body == b"row":
            with Session(engine) as session, session.begin():
                ledger.insert(session, key, "shop", store.store_id)


def _bodies(store: broker.LiveStore, topic: str) -> list[bytes]:
    found = []
    for queue_id in store.queues(topic):
        for number in range(*store.queue_range(topic, queue_id)):
            message = store.message(topic, queue_id, number)
            assert message is not None
            found.append(message.body)
    return found
