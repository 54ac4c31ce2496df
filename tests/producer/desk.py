"""A desk that sells: orders are saved and announced in one transaction, in every way that people write that."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import URL, Connection, Engine, create_engine, make_url, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import broker
from broker.database.bound_ledger import BoundLedger
from broker.ledger import Ledger
from broker.producer import Producer
from broker.store import engines
from tests.backends.backend import Backend
from tests.backends.kinds import NAMES, backend_of
from tests.backends.shop import BackendShop, dispose

A_CASE = 100  # numbers of orders that each case may use
INSERT = text("INSERT INTO orders (id) VALUES (:id)")


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@dataclass(frozen=True)
class Kind:
    """Where orders are saved, and where they are announced: "embedded", "served" or the version of a RocketMQ."""

    base: str
    place: str
    engine: str = engines.default

    def __str__(self) -> str:
        return "-".join([self.place, self.base] + [self.engine] * (self.engine != engines.default))


def kinds(embedded: Iterable[str], elsewhere: Iterable[str], half_op: Iterable[str] = ()) -> list[Kind]:
    """The kinds of desks of a module: the databases of each place that CHECKBACK_BACKENDS names."""
    elsewhere = list(elsewhere)
    found = [Kind(base, place) for place in NAMES for base in (embedded if place == "embedded" else elsewhere)]
    return found + [Kind(base, "embedded", "half-op") for base in half_op if "embedded" in NAMES]


@dataclass
class Desk:
    """Orders are numbered from `first` on in each case, so that many cases share one database and one place."""

    shop: BackendShop
    url: URL
    first: int = 0
    engines: list[Engine] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.producer: Producer = self.shop.producer()

    def producer_of(
        self, group: str, topics: Sequence[str] = ("orders",), ledger: BoundLedger | None = None
    ) -> Producer:
        """A producer of another group, in the same place."""
        return self.shop.producer_of(group, topics, ledger)

    @property
    def engine(self) -> Engine:
        return self.shop.ledger.engine

    def message(self, number: int, **named: Any) -> broker.Message:
        return broker.Message(named.pop("topic", "orders"), b"%d" % (self.first + number), **named)

    def buy(self, session: Any, number: int, *, through: Any = None) -> None:
        """Save an order and announce it, in a session (or connection), by default through the session itself."""
        self.save(session, number)
        self.announce(session if through is None else through, number)

    def save(self, session: Any, number: int) -> None:
        session.execute(INSERT, {"id": self.first + number})

    def announce(self, through: Any, number: int) -> None:
        self.producer.send(self.message(number), through)

    async def buy_async(self, session: Any, number: int, *, through: Any = None) -> None:
        await session.execute(INSERT, {"id": self.first + number})
        await self.producer.send_async(self.message(number), session if through is None else through)

    def order(self, number: int) -> Order:
        return Order(id=self.first + number)

    def another_engine(self, **named: Any) -> Engine:
        """Another engine of the same database."""
        made = create_engine(self.url, **named)
        self.engines.append(made)
        return made

    def judge(self) -> tuple[set[int], set[int]]:
        """The orders of this case that are there and those that were announced, after check-back."""
        self.check_back()
        return self.there()

    def check_back(self) -> None:
        self.shop.settle()

    def there(self) -> tuple[set[int], set[int]]:
        return self._mine(self.shop.orders()), self._mine(self.shop.announced())

    def _mine(self, numbers: list[int]) -> set[int]:
        mine = [number - self.first for number in numbers if 0 <= number - self.first < A_CASE]
        assert len(mine) == len(set(mine)), "delivered twice"  # never by a store: see BackendShop.announced
        return set(mine)

    def next_case(self) -> None:
        self.first += A_CASE

    def close(self) -> None:
        for engine in self.engines:
            engine.dispose()


@contextmanager
def desk_at(backend: Backend, url: URL, group: str = "shop") -> Iterator[Desk]:
    """A desk with an empty database."""
    engine, other = create_engine(url), create_engine(url)
    ledger = Ledger(engine)
    ledger.create_all()
    Base.metadata.create_all(engine)
    desk = Desk(BackendShop(backend, ledger, Ledger(other), group), url)
    try:
        yield desk
    finally:
        gc.collect()  # sessions that a case dropped: behind dispose() nobody would close their connections
        desk.close()
        dispose(engine)
        dispose(other)


@contextmanager
def desk_of(kind: Kind, request: pytest.FixtureRequest, path: Path) -> Iterator[Desk]:
    """A desk with an empty database and a new place for its messages: of a real RocketMQ one broker for a module."""
    with (
        pytest.MonkeyPatch.context() as patched,
        database(kind.base, request, path) as url,
    ):
        patched.setattr(engines, "default", kind.engine)
        with backend_of(kind.place, path / "place") as backend, desk_at(backend, url) as desk:
            yield desk


@contextmanager
def database(kind: str, request: pytest.FixtureRequest, path: Path) -> Iterator[URL]:
    """A database of its own: "sqlite", "postgres" or "mariadb"."""
    if kind == "sqlite":
        yield make_url(f"sqlite:///{path / 'shop.db'}")
        return
    socket = request.getfixturevalue(f"{kind}_socket")
    name = f"desk{abs(hash(path)) % 10**9}"
    root = make_url(
        f"postgresql+psycopg://shop@/postgres?host={quote(str(socket))}"
        if kind == "postgres"
        else f"mariadb+pymysql://root@localhost/mysql?unix_socket={quote(str(socket))}"
    )
    engine = create_engine(root, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    yield root.set(database=name)
    with engine.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name}{' WITH (FORCE)' if kind == 'postgres' else ''}"))
    engine.dispose()


@dataclass(frozen=True)
class Case:
    """One way to write it, and which orders must be there with their messages in the end."""

    run: Callable[[Desk], Any]
    there: frozenset[int]

    def __repr__(self) -> str:
        return self.run.__name__


class Cases(list[Case]):
    """A table of cases, filled by a decorator: `@cases.there(1, 2)` names the orders that are there in the end."""

    def there(self, *numbers: int) -> Callable[[Callable[[Desk], Any]], Callable[[Desk], Any]]:
        def keep(run: Callable[[Desk], Any]) -> Callable[[Desk], Any]:
            self.append(Case(run, frozenset(numbers)))
            return run

        return keep


Target = Session | Connection
