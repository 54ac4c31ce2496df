"""A shop that announces its orders at a backend: an order is saved in a database, its message goes to the place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import pytest
from sqlalchemy import Engine, QueuePool, create_engine, text
from sqlalchemy.orm import Session

import broker
from broker.database.bound_ledger import BoundLedger
from broker.ledger import Ledger
from broker.local_transaction import SessionTransaction
from broker.producer import Producer
from tests.backends.backend import Backend, Client
from tests.backends.kinds import NAMES, backend_of
from tests.cluster.waiting import awaited

TOPICS = ("orders", "stock")


class BackendShop:
    """A place for messages, the application's ledger, and another connection to its database for check-back."""

    def __init__(self, backend: Backend, ledger: Ledger, resolvers_ledger: Ledger, group: str = "shop") -> None:
        self.backend, self.ledger, self.resolvers_ledger, self.group = backend, ledger, resolvers_ledger, group
        with ledger.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)"))

    def producer(self, client: Client | None = None) -> Producer:
        """The shop's own, of the backend's client or of another one."""
        return self.producer_of(self.group, TOPICS, self.ledger, client=client)

    def producer_of(
        self,
        group: str,
        topics: Sequence[str] = (),
        ledger: BoundLedger | None = None,
        *,
        client: Client | None = None,
        **named: Any,
    ) -> Producer:
        """A producer of any group, where the shop's messages go."""
        return (client or self.backend.client).producer(group, topics=topics, ledger=ledger, **named)

    def session(self) -> Session:
        return Session(self.ledger.engine)

    def buy(
        self,
        number: int,
        *,
        topics: Sequence[str] = ("orders",),
        in_between: Callable[[Session, SessionTransaction], object] = lambda *_: None,
        watch: Callable[[Session], object] = lambda _: None,
        producer: Producer | None = None,
    ) -> SessionTransaction:
        """One business transaction: an order is saved and announced; `in_between` comes before it is left."""
        producer = producer or self.producer()
        with self.session() as session:
            watch(session)
            with producer.begin_transaction(session) as transaction:
                save(session, number)
                for topic in topics:
                    announce(producer, transaction, number, topic)
                in_between(session, transaction)
        return transaction

    def buy_and_vanish(self, *numbers: int, saved: bool = True) -> None:
        """Another process buys, and its ends are lost until it is gone. So its database alone knows what it decided."""
        with self.backend.lost_ends(), self.backend.another() as gone:
            producer = self.producer(gone)
            for number in numbers:
                if saved:
                    self.buy(number, producer=producer)
                else:
                    with pytest.raises(ZeroDivisionError):
                        self.buy(number, producer=producer, in_between=raiser(ZeroDivisionError()))

    def settle(self) -> None:
        """Check-back asks the database until nothing is in doubt."""
        self.backend.check_back([self.resolvers_ledger], self.group)

    def close(self) -> None:
        """Whoever made the backend closes it."""

    # What became of it

    def orders(self) -> list[int]:
        with self.ledger.engine.connect() as connection:
            return [number for (number,) in connection.execute(text("SELECT id FROM orders ORDER BY id"))]

    def announced(self, topic: str = "orders") -> list[int]:
        """The orders that consumers are told of: by a real broker some of them twice, which docs/cluster.md says."""
        found = [int(body) for body in self.backend.delivered(topic)]
        return sorted(set(found) if self.backend.is_real else found)

    def in_doubt(self) -> int:
        return self.backend.in_doubt()


def save(session: Session, number: int) -> None:
    session.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": number})


def announce(producer: Producer, transaction: SessionTransaction, number: int, topic: str = "orders") -> None:
    producer.send(broker.Message(topic, b"%d" % number, keys=[str(number)]), transaction)


def raiser(error: BaseException) -> Callable[..., NoReturn]:
    """A function that takes anything and raises this."""

    def raises(*_: object, **__: object) -> NoReturn:
        raise error

    return raises


# Where a database matters: what a place does with a ledger of MariaDB, it does with one of PostgreSQL.
DATABASES = {"embedded": ("sqlite", "postgres", "mariadb")}
ELSEWHERE = ("sqlite", "postgres")
KINDS = [(name, base) for name in NAMES for base in DATABASES.get(name, ELSEWHERE)]


@pytest.fixture(params=KINDS, ids="-".join)
def backend_shop(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[BackendShop]:
    """The same test over each place, with each database."""
    name, base = request.param
    url = request.getfixturevalue(f"{base}_url")
    engine, other = create_engine(url), create_engine(url)
    ledger = Ledger(engine)
    ledger.create_all()
    with backend_of(name, tmp_path / "place") as backend:
        yield BackendShop(backend, ledger, Ledger(other))
    dispose(engine)
    dispose(other)


def dispose(engine: Engine) -> None:
    """Once no connection is in use any more: the answer to a broker's check may still be on its way."""
    pool = engine.pool
    assert isinstance(pool, QueuePool)
    assert awaited(lambda: pool.checkedout() == 0), pool.status()
    engine.dispose()
