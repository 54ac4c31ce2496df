"""A store that is served in this process, and a client of it as of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

import broker
from tests.cluster.network import Proxy

LAYOUT = broker.StoreLayout(segment_bytes=8 << 20)
SOON = {"check_interval_s": 0.2, "transaction_timeout_s": 0.3, "delay_levels": " ".join(["1s"] * 18)}


@dataclass
class Served:
    """A broker behind a proxy, which the route names."""

    store: broker.LiveStore
    server: broker.Server
    proxy: Proxy

    @property
    def url(self) -> str:
        return f"rocketmq://{self.server.address}"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy())
        store = stack.enter_context(broker.open(tmp_path / "store", sync="os", layout=LAYOUT))
        server = stack.enter_context(broker.serve(store, "127.0.0.1:0", advertise=proxy.address, **SOON))
        proxy.target = server.address
        yield Served(store, server, proxy)


@pytest.fixture
def cluster(served: Served) -> Iterator[broker.LiveCluster]:
    with broker.connect(served.url) as connected:
        yield connected


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with made.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    yield made
    made.dispose()


@pytest.fixture
def ledger(engine: Engine) -> broker.Ledger:
    made = broker.Ledger(engine)
    made.create_all()
    return made


Buy = Callable[[broker.Producer, int], None]


@pytest.fixture
def buy(engine: Engine) -> Buy:
    """`buy(producer, 7)`: save an order and announce it, in one transaction."""

    def one(producer: broker.Producer, number: int) -> None:
        with Session(engine) as session, session.begin():
            session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
            producer.send(broker.Message("orders", b"%d" % number), session)

    return one
