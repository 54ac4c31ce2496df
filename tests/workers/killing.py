"""Runs an application under `checkback work`, kills its processes at random, and reconciles its tables."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from sqlalchemy import URL, Engine, text

import broker
from recovery.views import dead_letters
from tests.house.tree import ROOT
from tests.workers.databases import engine_of

WAIT_S = 180.0
ROUNDS_OF_KILLS = ("worker", "worker", "customer", "supervisor")
POLICY = '[policy."*"]\nfirst_check_after = "500ms"\ninterval = "1s"\nmost_checks = "never"\n'
EFFECTS = ("charges", "posted", "packed")


@dataclass
class Tally:
    """What came of it."""

    kills: Counter[str] = field(default_factory=Counter)
    orders: int = 0
    lost: dict[str, list[int]] = field(default_factory=dict)  # by table: orders without their effect
    doubled: dict[str, list[int]] = field(default_factory=dict)
    ghosts: dict[str, list[int]] = field(default_factory=dict)
    in_doubt: int = 0
    dead: int = 0

    @property
    def adds_up(self) -> bool:
        wrong = (*self.lost.values(), *self.doubled.values(), *self.ghosts.values())
        return not any(wrong) and not self.in_doubt and not self.dead


class Deployment:
    """`checkback work` with two processes, and a customer, each started again by the test when it was killed."""

    def __init__(self, directory: Path, url: URL, transactions: str) -> None:
        self.store, self.log = directory / "shop.store", directory / "log"
        own = {"DATABASE": url.render_as_string(hide_password=False), "STORE": str(self.store)}
        self._environment = {**os.environ, **own, "TRANSACTIONS": transactions, "PYTHONPATH": str(ROOT)}
        self.supervisor = self.start_supervisor()
        self.customer = self.start_customer()

    def run(self, *words: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            line = [sys.executable, "-m", *words]
            return subprocess.Popen(line, stdout=log, stderr=log, env=self._environment, cwd=ROOT)

    def start_supervisor(self) -> subprocess.Popen[bytes]:
        options = ("--processes", "2", "--check-every", "500ms", "--config", str(self.log.with_name("policy.toml")))
        return self.run("recovery.cli", "work", "tests.workers.killed_shop:app", *options)

    def start_customer(self) -> subprocess.Popen[bytes]:
        return self.run("tests.workers.customer")

    def workers(self) -> list[int]:
        path = Path(f"/proc/{self.supervisor.pid}/task/{self.supervisor.pid}/children")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def kill(self, what: str, chance: random.Random) -> None:
        """By its own id; what is killed as a whole is started again at once."""
        if what == "worker":
            until(lambda: len(self.workers()) == 2, self)
            os.kill(chance.choice(self.workers()), signal.SIGKILL)
            return
        victim = getattr(self, what)
        victim.kill()
        victim.wait()
        setattr(self, what, getattr(self, f"start_{what}")())

    def stop(self) -> int:
        """End the customer by a kill and the workers cleanly; the exit code of the supervisor."""
        self.end_customer()
        self.supervisor.terminate()
        return self.supervisor.wait(WAIT_S)

    def end_customer(self) -> None:
        self.customer.kill()
        self.customer.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in (self.customer, self.supervisor):
            process.kill()
            process.wait()


def run_and_kill(directory: Path, url: URL, kills: int, transactions: str) -> Tally:
    """Kill workers, supervisors and customers `kills` times, let the rest finish, and reconcile."""
    (directory / "policy.toml").write_text(POLICY)
    chance, tally, engine = random.Random(kills), Tally(), engine_of(url)
    _make_tables(engine)
    with Deployment(directory, url, transactions) as deployment:
        for number in range(kills):
            wanted = _count(engine, "packed") + chance.randrange(1, 8)
            until(lambda wanted=wanted: _count(engine, "packed") >= wanted, deployment)
            what = ROUNDS_OF_KILLS[number % len(ROUNDS_OF_KILLS)]
            deployment.kill(what, chance)
            tally.kills[what] += 1
        deployment.end_customer()
        until(lambda: all(_count(engine, table) >= _count(engine, "orders") for table in EFFECTS), deployment)
        with broker.open(deployment.store, create=False) as store:
            until(lambda: not store.transactions.in_doubt_slots(), deployment)
            assert deployment.stop() == 0, deployment.log.read_text()[-3000:]
            tally.in_doubt = len(store.transactions.in_doubt_slots())
            tally.dead = sum(dead_letters.groups(store).values())
    reconcile(tally, engine)
    engine.dispose()
    return tally


def reconcile(tally: Tally, engine: Engine) -> None:
    """Each order has one row in each table, and no row is without an order."""
    with engine.connect() as connection:
        orders = {number for (number,) in connection.execute(text("SELECT id FROM orders"))}
        tally.orders = len(orders)
        for table in EFFECTS:
            found = Counter(number for (number,) in connection.execute(text(f"SELECT order_id FROM {table}")))  # noqa: S608
            tally.lost[table] = sorted(orders - found.keys())
            tally.ghosts[table] = sorted(found.keys() - orders)
            tally.doubled[table] = sorted(number for number, count in found.items() if count > 1)


def until(true: Callable[[], object], deployment: Deployment) -> None:
    deadline = time.monotonic() + WAIT_S
    while not true():
        ended = deployment.supervisor.poll() is not None
        assert not ended, f"the supervisor ended: {deployment.log.read_text()[-3000:]}"
        assert time.monotonic() < deadline, f"it never came true: {deployment.log.read_text()[-3000:]}"
        time.sleep(0.02)


def _make_tables(engine: Engine) -> None:
    with engine.begin() as connection:
        key = "SERIAL PRIMARY KEY" if engine.dialect.name == "postgresql" else "INTEGER PRIMARY KEY AUTOINCREMENT"
        connection.execute(text(f"CREATE TABLE orders (id {key})"))
        for table in EFFECTS:
            connection.execute(text(f"CREATE TABLE {table} (id {key}, order_id INTEGER)"))


def _count(engine: Engine, table: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar() or 0)  # noqa: S608
