"""The shops of tests/frameworks on a real cluster of two masters, one line changed: servers and masters are killed.

`CHECKBACK_SHOP_KILLS` is how often a server is killed in each shop, in part or as a whole.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, create_engine, text

import broker
from tests.cluster.waiting import awaited
from tests.compat import rocketmq
from tests.compat.two_masters import SOON, Masters, are_there
from tests.frameworks import shop_kinds
from tests.frameworks.customers import Customers
from tests.frameworks.killing import EVERY, Shop, Tally, reconcile
from tests.frameworks.server import Server
from tests.house.tree import ROOT
from tests.ledger.databases import postgres_url, sqlite_url

__all__ = ["postgres_url", "sqlite_url"]

KILLS = int(os.environ.get("CHECKBACK_SHOP_KILLS", "4"))
SHOPS = [
    ("flask", "postgres"),
    ("fastapi", "sqlite"),
    ("fastapi_async", "postgres"),
    ("starlette", "sqlite"),
    ("plain", "postgres"),
    ("django", "postgres"),
]
CHANGED = ROOT / "tests" / "frameworks" / "one_line_changed"
REST_S = 240.0  # a broker checks now and then, and a busy machine is slow
PROGRESS_S = 120.0
NO_MORE_S = 12.0
# A broker that checks before its op messages are written, 3 s after an end, has what it checks committed twice.
CHECKS = {**SOON, "transactionCheckInterval": 3000, "transactionTimeOut": 6000}

pytestmark = pytest.mark.timeout(1200 + 60 * KILLS)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, Masters]]:
    """The URL of a new cluster, and its masters: the shops have the same groups, topics and items."""
    try:
        installation = rocketmq.install("5.3.3")
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))
    with rocketmq.Cluster(installation, tmp_path / "unused", **CHECKS) as namesrv:
        masters = Masters(namesrv, tmp_path, random.Random(17))
        assert awaited(lambda: are_there(namesrv.namesrv), 90)
        yield f"rocketmq://{namesrv.namesrv}", masters


def on_a_cluster(shop: Shop, url: str) -> Shop:
    """The same shop, with `broker.connect(url)` in place of `broker.open(path)`; Django's has it in its settings."""
    return replace(shop, environment={**shop.environment, "SHOP_STORE": url, "PYTHONPATH": f"{CHANGED}:{ROOT}"})


@contextmanager
def answering(url: str, database: URL) -> Iterator[None]:
    """`checkback answer`, since nobody of the group lives when the whole server is killed."""
    namesrv, ledger = url.removeprefix("rocketmq://"), database.render_as_string(hide_password=False)
    words = [sys.executable, "-m", "recovery.cli", "answer", namesrv, "--group", "shop", "--ledger", ledger]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        try:
            yield
            assert process.poll() is None, "it ended by itself"
        finally:
            process.kill()


def kill_servers(server: Server, customers: Customers, chance: random.Random, tally: Tally) -> None:
    """Kill workers, and each third time the whole server, while customers order."""
    for kill in range(KILLS):
        wanted = customers.served + chance.randrange(3, 15)
        served = awaited(lambda: customers.served >= wanted, PROGRESS_S)  # noqa: B023
        assert served, f"nothing is served: {customers.answers}, {server.log.read_text()[-3000:]}"
        if kill % EVERY == EVERY - 1:
            server.kill()
            tally.kills_of_all += 1
            server.start()
        elif not server.kill_worker(chance):
            continue
        tally.kills += 1


def received(consumer: broker.ClusterConsumer, seconds: float) -> list[str]:
    """The items of the messages that come."""
    found = []
    while (message := consumer.receive(seconds)) is not None:
        found.append(str(json.loads(message.body)["item"]))
        consumer.ack(message)
    return found


def saved(engine: Engine) -> list[str]:
    """The items of the orders in the database."""
    with engine.connect() as connection:
        return [str(item) for (item,) in connection.execute(text("SELECT item FROM orders"))]


@pytest.mark.parametrize(("kind", "database"), SHOPS)
def test_orders_and_messages_agree(
    kind: str, database: str, cluster: tuple[str, Masters], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each saved order has its message, each message its order; a master that checks twice may deliver twice."""
    (url, masters), tally, found, chance = cluster, Tally(), [], random.Random(KILLS)
    database_url: URL = request.getfixturevalue(f"{database}_url")
    shop = on_a_cluster(getattr(shop_kinds, kind)(tmp_path, database_url), url)
    engine = create_engine(database_url)
    with (
        Server(shop.command, shop.environment, tmp_path / "log") as server,
        answering(url, database_url),
        broker.connect(url) as connected,
        connected.consumer("audit", "orders") as consumer,
    ):
        masters.begin_killing()
        with Customers(server.port, shop.wishes, KILLS) as customers:
            kill_servers(server, customers, chance, tally)
            assert awaited(lambda: masters.kills, PROGRESS_S)
            wanted = customers.served + 20
            assert awaited(lambda: customers.served >= wanted, PROGRESS_S), f"nothing is served: {customers.answers}"
        server.kill()  # for good: what is in doubt is answered by the other process
        masters.end_killing()
        awaited(lambda: found.extend(received(consumer, 1.0)) or set(found) == set(saved(engine)), REST_S)
        found += received(consumer, NO_MORE_S)
    tally.answers, tally.promised = customers.answers, len(customers.promised)
    reconcile(tally, saved(engine), found, customers.promised)
    engine.dispose()
    print(f"{kind} on {database}: {masters.kills} kills of masters, {tally}")
    assert (tally.lost, tally.ghosts, tally.broken) == ([], [], []), tally
    assert tally.kills >= KILLS // 2
    assert tally.promised > KILLS
