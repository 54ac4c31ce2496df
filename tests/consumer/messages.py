"""Send to a place and receive from it, whichever place that is; and where the places differ."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import broker
from broker.consumer import Consumer
from broker.consuming.group.positions import Positions
from broker.message import ReceivedMessage
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from tests.backends.backend import Backend
from tests.backends.clusters import Connected
from tests.server.wire_client import WireClient

Member: TypeAlias = Consumer | broker.ClusterConsumer

ABSENT_S = 0.3  # how long a test waits for what must not come
SAVED_S = 2.5  # a consumer of a cluster writes its position each second


def publish(backend: Backend, *bodies: str, topic: str = "orders", **named: str | list[str] | dict[str, str]) -> None:
    """To one queue, in order."""
    producer = backend.client.producer("plain")
    for body in bodies:
        producer.send(broker.Message(topic, body.encode(), **named), sharding_key="one")  # type: ignore[arg-type]


def spread(backend: Backend, *bodies: str, topic: str = "orders") -> None:
    """To the queues of the topic by turns."""
    producer = backend.client.producer("plain")
    for body in bodies:
        producer.send(broker.Message(topic, body.encode()))


def next_of(backend: Backend, consumer: Member) -> ReceivedMessage:
    message = consumer.receive(backend.soon_s)
    assert message is not None, "no message came"
    return message


def bodies(backend: Backend, consumer: Member, count: int) -> list[str]:
    """The next messages, acknowledged."""
    received = []
    for _ in range(count):
        message = consumer.receive(backend.soon_s)
        assert message is not None, f"only {received}"
        received.append(message.body.decode())
        assert consumer.ack(message)
    return received


def dead_letters(backend: Backend, count: int, group: str = "billing") -> list[str]:
    """The bodies of a group's dead letters, as an application reads them."""
    with backend.client.consumer("undertaker", f"%DLQ%{group}") as consumer:
        received = bodies(backend, consumer, count)
        assert consumer.receive(0) is None
        return received


def queues_of(consumer: Member, topic: str = "orders") -> set[tuple[object, ...]]:
    """Those that are this consumer's now, without its group's retries."""
    return {queue for queue in consumer.queues if queue[0] == topic}


def acknowledged(consumer: Member, topic: str = "orders") -> int:
    """How many messages of a topic are behind the positions of a consumer."""
    return sum(position for queue, position in consumer.positions().items() if queue[0] == topic)


def eventually(backend: Backend, fact: Callable[[], object]) -> None:
    """What the place, or another thread, does soon."""
    deadline = time.monotonic() + backend.soon_s
    while not fact():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


# Where the places differ: docs/cluster.md, "What a cluster promises"


def soonest(backend: Backend) -> int:
    """The shortest delay level of a retry: a cluster has none for at once."""
    return 1 if backend.is_cluster else 0


def is_before_5(backend: Backend) -> bool:
    """A real broker that itself has a new group begin with the first message of a young topic, and leaves a reset of
    positions to its Java clients."""
    return backend.name[0].isdigit() and int(backend.name.split(".")[0]) < 5


def reset_to_first(backend: Backend) -> None:
    """Put the group `billing` back, as `checkback consumer --reset first` does, and `mqadmin resetOffsetByTime`."""
    if isinstance(backend, Connected):
        asked = {"topic": "orders", "group": "billing", "timestamp": 0, "isForce": "true"}
        with WireClient(backend.proxy.target) as client:
            client.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked)
    else:
        positions = Positions(backend.client)  # type: ignore[arg-type]
        positions.reset("billing", "orders", 0)
        positions.close()


@contextmanager
def lost_positions(backend: Backend) -> Iterator[None]:
    """What the group `billing` acknowledges while it lasts comes again, as after a crash."""
    if not isinstance(backend, Connected):
        yield
        reset_to_first(backend)
        return
    backend.proxy.request = _at_the_first
    try:
        yield
    finally:
        backend.proxy.request = lambda command: command


def _at_the_first(command: RemotingCommand) -> RemotingCommand:
    if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
        command.ext["commitOffset"] = "0"
    return command


def kill_connection(engine: Engine, session: Session) -> None:
    """What a server that is restarted does to the connection of a session, on PostgreSQL."""
    number = session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    with engine.connect() as other:
        other.execute(text(f"SELECT pg_terminate_backend({number})"))
    time.sleep(0.2)


def deadlock(engine: Engine, session: Session) -> None:
    """Have a session's statement fail by a deadlock, for which MySQL and MariaDB roll its whole transaction back."""
    _make_stock(engine)
    session.execute(text("UPDATE stock SET left_over = 1 WHERE id = 1"))
    with engine.connect() as other:  # it has written more, so it is the one that goes on
        other.execute(text("UPDATE stock SET left_over = left_over + 1 WHERE id > 1"))
        waiting = threading.Thread(target=other.execute, args=(text("UPDATE stock SET left_over = 2 WHERE id = 1"),))
        waiting.start()
        try:
            _await_lock(engine)
            session.execute(text("UPDATE stock SET left_over = 2 WHERE id = 2"))
        finally:
            waiting.join()


def lose_the_snapshot(engine: Engine, session: Session) -> None:
    """The same by a row that another transaction changed: MariaDB's default from 11.6 on."""
    _make_stock(engine)
    session.execute(text("SET SESSION innodb_snapshot_isolation = ON"))
    try:
        session.execute(text("SELECT * FROM stock")).all()
        with engine.begin() as other:
            other.execute(text("UPDATE stock SET left_over = left_over + 1"))
        session.execute(text("UPDATE stock SET left_over = 0"))
    finally:
        session.execute(text("SET SESSION innodb_snapshot_isolation = DEFAULT"))


def _make_stock(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS stock (id integer PRIMARY KEY, left_over integer)"))
        connection.execute(text("INSERT IGNORE INTO stock VALUES (1, 0), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)"))


def _await_lock(engine: Engine) -> None:
    waiting = text("SELECT count(*) FROM information_schema.innodb_trx WHERE trx_state = 'LOCK WAIT'")
    deadline = time.monotonic() + 10.0
    with engine.connect() as connection:
        while not connection.execute(waiting).scalar_one():
            assert time.monotonic() < deadline, "nothing waits for a lock"
            time.sleep(0.15)  # who reads the table more often than each 100 ms reads what it held at first
