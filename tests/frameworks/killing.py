"""Runs a shop under customers, kills its processes at random, settles what is in doubt, and reconciles.

The sums rest on two things only: the table of orders in the database, and the messages that a consumer receives.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import URL, Engine, create_engine, text

from broker.ledger import Ledger
from broker.live import LiveStore
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.round import CheckBack
from tests.checkback.shop import open_store
from tests.frameworks.customers import Customers
from tests.frameworks.server import Server

PROGRESS_S = 60.0  # in which a server must serve somebody
EARLY_MS = 60_000  # a round so far ahead of time asks about transactions that still run
DAY_MS = 86_400_000
EVERY = 3  # of so many kills one is of the whole server


@dataclass(frozen=True)
class Shop:
    """How to run a shop: the command of its server, its environment, and the wishes that it knows."""

    command: Sequence[str]
    environment: Mapping[str, str]
    wishes: Sequence[str] = ()


@dataclass
class Tally:
    """What came of it."""

    kills: int = 0
    kills_of_all: int = 0
    in_doubt: int = 0  # when the whole server had been killed
    orders: int = 0
    promised: int = 0
    lost: list[str] = field(default_factory=list)  # orders without a message
    ghosts: list[str] = field(default_factory=list)  # messages without an order
    doubled: list[str] = field(default_factory=list)  # orders with two messages
    broken: list[str] = field(default_factory=list)  # promised, and not there
    left: int = 0  # in doubt in the end
    answers: Counter[str] = field(default_factory=Counter)

    @property
    def adds_up(self) -> bool:
        return not (self.lost or self.ghosts or self.doubled or self.broken or self.left)

    def __str__(self) -> str:
        sums = {name: len(getattr(self, name)) for name in ("lost", "ghosts", "doubled", "broken")}
        counts = f"{self.kills} kills ({self.kills_of_all} of the whole server), {self.orders} orders"
        return f"{counts}, {self.in_doubt} in doubt at kills, {sums}, {self.left} left in doubt; {dict(self.answers)}"


def run_and_kill(shop: Shop, directory: Path, url: URL, kills: int, seed: int) -> Tally:
    """Kill a server `kills` times while customers order, and reconcile. The store and the tables are there already."""
    chance, tally = random.Random(seed), Tally()
    engine = create_engine(url, connect_args={"timeout": 30} if url.get_backend_name() == "sqlite" else {})
    with open_store(directory / "store") as store, Server(shop.command, shop.environment, directory / "log") as server:
        with Customers(server.port, shop.wishes, seed) as customers:
            for kill in range(kills):
                _wait_for_progress(customers, server, chance.randrange(3, 25))
                time.sleep(chance.random() * 0.05)
                if kill % EVERY == EVERY - 1:
                    server.kill()
                    tally.kills_of_all += 1
                    tally.in_doubt += len(store.transactions.in_doubt_slots())
                    check_back(store, engine, EARLY_MS)
                    server.start()
                elif not server.kill_worker(chance):
                    continue
                else:
                    check_back(store, engine, EARLY_MS)
                tally.kills += 1
        server.kill()
        for days in range(1, 4):
            check_back(store, engine, days * DAY_MS)
        tally.answers, tally.promised = customers.answers, len(customers.promised)
        tally.left = len(store.transactions.in_doubt_slots())
        with engine.connect() as connection:
            orders = [item for (item,) in connection.execute(text("SELECT item FROM orders"))]
        reconcile(tally, orders, received(store), customers.promised)
    engine.dispose()
    return tally


def _wait_for_progress(customers: Customers, server: Server, orders: int) -> None:
    wanted, deadline = customers.served + orders, time.monotonic() + PROGRESS_S
    while customers.served < wanted:
        assert time.monotonic() < deadline, f"nothing is served: {customers.answers}, {server.log.read_text()[-3000:]}"
        time.sleep(0.005)


def check_back(store: LiveStore, engine: Engine, later_ms: int) -> None:
    """One round, as if it were later by so much: it asks about transactions that still run, too."""
    check = CheckBack(store, LedgerResolver(Ledger(engine), LedgerEvidence(store)), policy=Policy(Rule(jitter=0.0)))
    try:
        check.round(time.time_ns() // 1_000_000 + later_ms)
    finally:
        check.catalog.close()


def received(store: LiveStore) -> list[str]:
    """The items that a consumer is told of, one for each delivery."""
    found = []
    with store.consumer("audit", "orders") as consumer:
        while (message := consumer.receive(1.0)) is not None:
            found.append(str(json.loads(message.body)["item"]))
            consumer.ack(message)
    return found


def reconcile(tally: Tally, orders: Sequence[str], items: Sequence[str], promised: Sequence[str]) -> None:
    """Compare the orders that were saved with the messages that were delivered, and both with what was promised."""
    saved, told = Counter(orders), Counter(items)
    assert max(saved.values(), default=0) <= 1, "each wish has an item of its own"
    tally.orders = len(saved)
    tally.lost = sorted(saved - told)
    tally.ghosts = sorted(told.keys() - saved.keys())
    tally.doubled = sorted(item for item, count in told.items() if count > 1)
    tally.broken = sorted(set(promised) - saved.keys())
