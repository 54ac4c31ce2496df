"""XA, an outbox, transactional messages, DBOS, huey and procrastinate make the same purchase; and are killed.

    python -m tests.bench.comparison [xa outbox transactional with_dbos with_huey with_procrastinate] [--seconds 15]

A PostgreSQL server of its own, with durable commits, has two databases: the stock and the orders. Two buyers and the
contender's own workers run for some seconds undisturbed, then for as long while one after another is killed with
SIGKILL and started again; then what the databases hold is reconciled. Last, a buyer dies between the two halves of a
purchase, and the orders' database goes away.

Writes docs/comparison.json and, by docs/comparison.py, the page's table and plot. The libraries of others are installed
from examples/comparison/requirements.txt (hashes) into an environment of their own, build/comparison-venv.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from examples.comparison.shop import ORDERS_TABLES, STOCK_TABLES
from tests.bench.contenders import CONTENDERS, Contender, code_lines, environment, machine, version_of
from tests.house.tree import ROOT
from tests.ledger import postgres

BUYERS = 2
SETTLE_S = 90.0  # until every order must be there
START_S = 300.0  # until a contender made its first order, on a busy machine
BLOCKED_S = 5.0  # how long a purchase may wait behind one that died
KILL_EVERY_S = (0.4, 1.2)
SERVER = "-c shared_buffers=128MB -c max_connections=200 -c max_prepared_transactions=64 -c max_wal_size=2GB"
RESULT = ROOT / "docs" / "comparison.json"


# Processes


@dataclass
class Shop:
    """The databases of one contender, and its processes."""

    contender: Contender
    python: str
    socket: Path
    directory: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def url(self, name: str) -> str:
        return f"postgresql://shop@/{self.contender.module}_{name}?host={quote(str(self.socket))}"

    def start(self, name: str, *words: str, die: str = "") -> subprocess.Popen[bytes]:
        """A process of the contender; its errors go to a file of its name."""
        given = {"stock": self.url("stock"), "orders": self.url("orders"), "directory": str(self.directory)}
        values = {**os.environ, "PYTHONPATH": str(ROOT), "COMPARISON": json.dumps({**given, "name": name, "die": die})}
        with open(self.directory / f"{name}.err", "ab") as errors:
            process = subprocess.Popen(
                [self.python, "-m", *words], env=values, stdout=errors, stderr=errors, start_new_session=True,
                cwd=self.directory,
            )  # fmt: skip
        self.running[name] = process
        return process

    def start_role(self, name: str) -> None:
        """A buyer or a worker, by its name."""
        if name.startswith("buyer"):
            self.start(name, "examples.comparison.contender", self.contender.module, "buy")
        elif self.contender.commands:
            self.start(name, "recovery.cli", *self.contender.commands[int(name.removeprefix("worker"))])
        else:
            self.start(name, "examples.comparison.contender", self.contender.module, "work")

    def start_ended_workers(self) -> None:
        """What a process manager does with a worker that ended by itself, when its database was away."""
        for name in self.workers():
            if name in self.running and self.running[name].poll() is not None:
                self.start_role(name)

    def workers(self) -> list[str]:
        return [f"worker{number}" for number in range(max(1, len(self.contender.commands)))]

    def kill(self, name: str) -> None:
        """SIGKILL, and all that the process started."""
        process = self.running.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def kill_all(self, prefix: str = "") -> None:
        for name in [name for name in self.running if name.startswith(prefix)]:
            self.kill(name)

    def rows(self, database: str, query: str) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(database)) as connection:
            return connection.execute(query).fetchall()


@contextlib.contextmanager
def opened(contender: Contender, python: str, socket: Path, home: Path) -> Iterator[Shop]:
    """New databases for a contender, with its own tables; its processes are killed at the end."""
    directory = Path(tempfile.mkdtemp(prefix=f"{contender.module}-", dir=home))
    shop = Shop(contender, python, socket, directory)
    root = f"postgresql://shop@/postgres?host={quote(str(socket))}"
    with psycopg.connect(root, autocommit=True) as server:
        for name in ("stock", "orders"):
            server.execute(f"DROP DATABASE IF EXISTS {contender.module}_{name} WITH (FORCE)")  # type: ignore[arg-type]
            server.execute(f"CREATE DATABASE {contender.module}_{name}")  # type: ignore[arg-type]
    for name, tables in (("stock", STOCK_TABLES), ("orders", ORDERS_TABLES)):
        with psycopg.connect(shop.url(name)) as connection:
            for table in tables:
                connection.execute(table)  # type: ignore[arg-type]
    made = shop.start("setup", "examples.comparison.contender", contender.module, "setup")
    if made.wait(timeout=600):
        raise RuntimeError((directory / "setup.err").read_text()[-2000:])
    del shop.running["setup"]
    try:
        yield shop
    finally:
        shop.kill_all()
        for name in ("stock", "orders"):  # what one_dies leaves prepared on purpose
            with psycopg.connect(shop.url(name)) as connection:
                for xid in connection.tpc_recover():
                    if xid.database == connection.info.dbname:
                        connection.tpc_rollback(xid)
        shutil.rmtree(directory)


# Measuring


def notes(shop: Shop) -> list[tuple[str, float]]:
    """Each purchase that was acknowledged, and its milliseconds; a last line may be torn by a kill."""
    lines = [line for path in shop.directory.glob("buyer*.notes") for line in path.read_text().splitlines()]
    return [(key, float(took)) for key, _, took in (line.partition(" ") for line in lines) if took]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values) or [float("nan")]
    return {
        "p50_ms": round(ordered[len(ordered) // 2], 2),
        "p99_ms": round(ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)], 2),
    }


def reconcile(shop: Shop) -> dict[str, int]:
    """What the databases hold: locks without an order, orders without a lock, orders for one lock."""
    locks = {row[0] for row in shop.rows("stock", "SELECT id FROM locks")}
    orders = dict(shop.rows("orders", "SELECT lock_id, count(*) FROM orders GROUP BY lock_id"))
    acknowledged = {key for key, _ in notes(shop)}
    (counted,) = shop.rows("stock", "SELECT sum(locked) FROM products")
    return {
        "locks": len(locks),
        "lost": len(locks - orders.keys()),
        "invented": len(orders.keys() - locks),
        "doubled": sum(count > 1 for count in orders.values()),
        "acknowledged_and_gone": len(acknowledged - locks),
        "miscounted": abs(int(counted[0] or 0) - len(locks)),
    }


def settle(shop: Shop) -> float:
    """Wait until every lock has its order, at most SETTLE_S; how long it took."""
    started = time.monotonic()
    while time.monotonic() - started < SETTLE_S:
        (locks,), (orders,) = (
            shop.rows("stock", "SELECT count(*) FROM locks")[0],
            shop.rows("orders", "SELECT count(DISTINCT lock_id) FROM orders")[0],
        )
        prepared = shop.rows("stock", "SELECT count(*) FROM pg_prepared_xacts")[0][0]
        if locks == orders and not prepared:
            break
        shop.start_ended_workers()
        time.sleep(0.2)
    return round(time.monotonic() - started, 1)


def await_orders(shop: Shop, count: int = 1) -> None:
    """Wait until the contender is at work: its first orders are made."""
    deadline = time.monotonic() + START_S
    while shop.rows("orders", "SELECT count(*) FROM orders")[0][0] < count:
        if time.monotonic() > deadline:
            texts = {path.name: path.read_text()[-1500:] for path in shop.directory.glob("*.err")}
            raise RuntimeError(f"{shop.contender.module} made no order: {texts}")
        time.sleep(0.05)


def undisturbed(shop: Shop, seconds: float) -> dict[str, Any]:
    """Rate and latencies of purchases; and from a purchase to its order."""
    names = [*shop.workers(), *(f"buyer{number}" for number in range(BUYERS))]
    for name in names:
        shop.start_role(name)
    await_orders(shop)
    before, started = len(notes(shop)), time.monotonic()
    time.sleep(seconds)
    bought, took = notes(shop)[before:], time.monotonic() - started
    orders_before_stop = shop.rows("orders", "SELECT count(*) FROM orders")[0][0]
    locks_before_stop = shop.rows("stock", "SELECT count(*) FROM locks")[0][0]
    settled = settle_without_buyers(shop)
    made = dict(shop.rows("orders", "SELECT lock_id, extract(epoch FROM made_at)::float8 FROM orders"))
    locked = shop.rows("stock", "SELECT id, extract(epoch FROM made_at)::float8 FROM locks")
    delays = [(made[key] - at) * 1000 for key, at in locked if key in made]
    shop.kill_all()
    return {
        "rate": round(len(bought) / took, 1),
        "purchase": percentiles([ms for _, ms in bought]),
        "to_order": percentiles(delays),
        "waiting_at_the_end": max(0, locks_before_stop - orders_before_stop),
        "caught_up_s": settled,
    }


def settle_without_buyers(shop: Shop) -> float:
    """Kill the buyers and start each again, so that it ends what its kill left, but buys no more; then settle."""
    shop.kill_all("buyer")
    for number in range(BUYERS):
        shop.start(f"buyer{number}", "examples.comparison.contender", shop.contender.module, "recover")
    return settle(shop)


def killed(shop: Shop, seconds: float, seed: int) -> dict[str, Any]:
    """The same while one process after another is killed and started again; then what the databases hold."""
    chance, kills = random.Random(seed), 0
    names = [*shop.workers(), *(f"buyer{number}" for number in range(BUYERS))]
    for name in names:
        shop.start_role(name)
    await_orders(shop, shop.rows("orders", "SELECT count(*) FROM orders")[0][0] + 1)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(chance.uniform(*KILL_EVERY_S))
        name = chance.choice(names)
        shop.kill(name)
        shop.start_role(name)
        kills += 1
    settled = settle_without_buyers(shop)
    shop.kill_all()
    return {"kills": kills, "settled_s": settled, **reconcile(shop)}


def one_dies(shop: Shop) -> dict[str, Any]:
    """A buyer dies between the two halves of a purchase: may others buy the same product, and does the order come?"""
    for name in shop.workers():
        shop.start_role(name)
    words = ("examples.comparison.contender", shop.contender.module, "buy", "sku0")
    before = {row[0] for row in shop.rows("orders", "SELECT lock_id FROM orders")}
    ended = shop.start("buyer-dies", *words, die="between").wait(timeout=START_S)
    assert ended == -signal.SIGKILL, (shop.directory / "buyer-dies.err").read_text()
    del shop.running["buyer-dies"]
    started = time.monotonic()
    blocked = False
    with psycopg.connect(shop.url("stock")) as stock:
        stock.execute(f"SET lock_timeout = '{int(BLOCKED_S * 1000)}ms'")  # type: ignore[arg-type]
        try:
            stock.execute("UPDATE products SET locked = locked WHERE sku = 'sku0'")
        except psycopg.errors.LockNotAvailable:
            blocked = True
    came = None
    while time.monotonic() - started < 30 and came is None:
        now = {row[0] for row in shop.rows("orders", "SELECT lock_id FROM orders")}
        came = round(time.monotonic() - started, 1) if now - before else None
        time.sleep(0.1)
    prepared = shop.rows("stock", "SELECT count(*) FROM pg_prepared_xacts")[0][0]
    shop.kill_all()
    return {"blocks_the_product": blocked, "order_came_after_s": came, "left_prepared": prepared}


def orders_away(shop: Shop, seconds: float) -> dict[str, Any]:
    """The database of the orders refuses connections for some seconds: how many purchases a second go on?"""
    for name in [*shop.workers(), *(f"buyer{number}" for number in range(BUYERS))]:
        shop.start_role(name)
    await_orders(shop, shop.rows("orders", "SELECT count(*) FROM orders")[0][0] + 1)
    time.sleep(1)
    database = f"{shop.contender.module}_orders"
    root = f"postgresql://shop@/postgres?host={quote(str(shop.socket))}"
    with psycopg.connect(root, autocommit=True) as server:
        server.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")  # type: ignore[arg-type]
        server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (database,))
        before = len(notes(shop))
        time.sleep(seconds)
        rate = round((len(notes(shop)) - before) / seconds, 1)
        server.execute(f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")  # type: ignore[arg-type]
    settled = settle_without_buyers(shop)
    result = reconcile(shop)
    shop.kill_all()
    return {"rate": rate, "settled_s": settled, "lost": result["lost"], "doubled": result["doubled"]}


def measure(contender: Contender, socket: Path, home: Path, seconds: float, seed: int) -> dict[str, Any]:
    """All of one contender."""
    python = environment() if contender.package else sys.executable
    row: dict[str, Any] = {
        "module": contender.module,
        "title": contender.title,
        "version": version_of(contender, python),
        "durability": contender.durability,
        "code_lines": code_lines(contender.module),
    }
    steps = {
        "undisturbed": lambda shop: undisturbed(shop, seconds),
        "killed": lambda shop: killed(shop, seconds, seed),
        "one_dies": one_dies,
        "orders_away": lambda shop: orders_away(shop, min(5.0, seconds)),
    }
    for name, step in steps.items():
        with opened(contender, python, socket, home) as shop:
            row[name] = step(shop)
        print(f"{contender.module:<20} {name:<12} {json.dumps(row[name])}", flush=True)
    return row


def main() -> None:
    names = [contender.module for contender in CONTENDERS]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contenders", nargs="*", help=f"some of: {', '.join(names)}; all without")
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    if unknown := set(given.contenders) - set(names):
        parser.error(f"there is no contender {', '.join(sorted(unknown))}: {', '.join(names)}")
    if reason := postgres.missing():
        parser.error(reason)
    load = os.getloadavg()
    home = Path(tempfile.mkdtemp(prefix="comparison-"))
    try:
        home.chmod(0o755)
        with postgres.server(SERVER) as socket:
            chosen = [one for one in CONTENDERS if not given.contenders or one.module in given.contenders]
            for contender in chosen:
                _keep(measure(contender, socket, home, given.seconds, given.seed), machine(load), given.seconds)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    _load_page().main()


def _keep(row: dict[str, Any], about: dict[str, Any], seconds: float) -> None:
    """Put a contender's measurements into the JSON, in the place of its last ones."""
    old = json.loads(RESULT.read_text(encoding="utf-8"))["contenders"] if RESULT.exists() else []
    known = {one["module"]: one for one in [*old, row]}
    rows = [known[one.module] for one in CONTENDERS if one.module in known]
    result = {"machine": about, "seconds": seconds, "buyers": BUYERS, "contenders": rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _load_page() -> Any:
    spec = importlib.util.spec_from_file_location("comparison_page", ROOT / "docs" / "comparison.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
