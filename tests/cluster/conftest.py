"""A cluster behind a proxy: a store that is served in this process, or a real RocketMQ. See tests/backends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session

import broker
from broker.store import engines
from tests.backends.clusters import Connected
from tests.backends.clusters import served as served_in
from tests.backends.kinds import NAMES, backend_of

LAYOUT = broker.StoreLayout(segment_bytes=8 << 20)
SOON = {"check_interval_s": 0.2, "transaction_timeout_s": 0.3, "delay_levels": " ".join(["1s"] * 18)}

# A store that is served has either engine of transactions, a real broker the one of its version.
PLACES = [
    pytest.param((name, engine), id=f"{name}-{engine}" if name == "served" else name)
    for name in NAMES
    if name != "embedded"
    for engine in (sorted(engines.ENGINES, reverse=True) if name == "served" else [engines.default])
]

# For what takes seconds and looks at no transaction's records: each place once.
ONE_ENGINE = pytest.mark.parametrize(
    "backend", [one for one in PLACES if engines.default in one.values[0]], indirect=True
)


@pytest.fixture(params=PLACES)
def backend(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connected]:
    """The same test over each place that `broker.connect` may reach."""
    name, engine = request.param
    monkeypatch.setattr(engines, "default", engine)
    with backend_of(name, tmp_path / "place") as made:
        assert isinstance(made, Connected)
        yield made


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Connected]:
    """For what no broker has to do with: a served store is the quickest cluster."""
    with served_in(tmp_path / "place") as made:
        yield made


@pytest.fixture
def cluster(backend: Connected) -> broker.LiveCluster:
    return backend.client


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
