"""Measures transactions: how fast check-back settles, what a round over a settled table costs, what one purchase costs.

    python -m tests.bench.transactions [engines|settle|round|purchase ...] [--count 100000]

Each figure is measured side by side with its yardstick, in alternation, and the best of several counts. Measures, and
never fails a build.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Engine, Integer, LargeBinary, String, create_engine, event, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import broker
from broker.database.ledger_binding import LEDGER_BINDING
from broker.enlisting.ledger_key import LEDGER_KEY, new_key
from broker.ledger import Ledger
from broker.live import LiveStore
from broker.producer import Producer
from broker.store.engines import ENGINES
from broker.store.engines.half_op import HALF_OP
from broker.store.engines.state_table import STATE_TABLE
from recovery.checkback.catalog import Catalog
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.protocol import Answer, Outcome, Question
from recovery.checkback.round import CheckBack

LATER_MS = 3_600_000
BODY = b'{"order": 4711, "item": "phone", "price": "499.00", "user": 42}' * 3


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    item: Mapped[str] = mapped_column(String(32))


class Outbox(Base):
    __tablename__ = "outbox"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    topic: Mapped[str] = mapped_column(String(127))
    body: Mapped[bytes] = mapped_column(LargeBinary)


@contextmanager
def directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="checkback-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def database(path: Path, *, synchronous: str = "FULL") -> Engine:
    """SQLite as an application runs it: write-ahead log; FULL forces each COMMIT, as PostgreSQL does."""
    engine = create_engine(f"sqlite:///{path}", connect_args={"timeout": 60})

    @event.listens_for(engine, "connect")
    def _prepare(connection, _record):  # type: ignore[no-untyped-def]
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")

    return engine


def left_in_doubt(store: LiveStore, ledger: Ledger, count: int, *, rolled_back: int = 0) -> None:
    """`count` half messages whose ends were lost; all but the first `rolled_back` have a ledger row."""
    keys = [new_key(time.time_ns() // 1_000_000) for _ in range(count)]
    store.producer("shop", topics=["orders"], ledger=ledger)
    binding = ledger.binding(store.store_id).binding_id
    for number, key in enumerate(keys):
        message = broker.Message("orders", BODY, keys=[str(number)])
        extra = {LEDGER_KEY: key, LEDGER_BINDING: binding}
        store.transactions.prepare(message, "shop", queue_id=number % 4, extra_properties=extra)
    store.sync_now()
    rows = [
        {"ledger_key": key, "state": 8, "producer_group": "shop", "store_id": store.store_id, "decided_by": None}
        for key in keys[rolled_back:]
    ]
    with ledger.engine.begin() as connection:
        connection.execute(insert(ledger.rows), rows)


def settle(count: int) -> None:
    """Check-back of one process with a ledger on SQLite, from a store that was just opened."""
    for rolled_back in (0, count // 100):
        with directory() as path:
            engine = database(path / "shop.db")
            ledger = Ledger(engine)
            ledger.create_all()
            with broker.open(path / "store", sync="os", layout=broker.StoreLayout.rocketmq()) as store:
                left_in_doubt(store, ledger, count, rolled_back=rolled_back)
            with broker.open(path / "store", sync="group") as store:
                check = CheckBack(store, LedgerResolver(ledger, LedgerEvidence(store)), limit=count)
                wall, cpu = time.perf_counter(), time.process_time()
                report = check.round(time.time_ns() // 1_000_000 + LATER_MS)
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                check.catalog.close()
            engine.dispose()
            assert (report.committed, report.rolled_back) == (count - rolled_back, rolled_back), report
            text = f"settled {count} ({rolled_back} of them by tombstone)"
            print(f"{text}: {count / wall:,.0f} a second ({wall:.1f} s; CPU {cpu:.1f} s: {count / cpu:,.0f} a second)")


def round_over_settled(settled: int, in_doubt: int) -> None:
    """A round over a large table of which little is in doubt: the first, which asks, and one in which all wait."""
    with directory() as path:
        engine = database(path / "shop.db")
        ledger = Ledger(engine)
        ledger.create_all()
        with broker.open(path / "store", sync="os", layout=broker.StoreLayout.rocketmq()) as store:
            every = settled // in_doubt
            for number in range(settled + in_doubt):
                half = store.transactions.prepare(broker.Message("orders", b"x"), "shop", queue_id=number % 4)
                if number % (every + 1):
                    store.transactions.rollback(half)
            resolver = _Unknown()
            check = CheckBack(store, resolver, catalog=Catalog.open(str(path / "store"), store.store_id))
            now_ms = time.time_ns() // 1_000_000
            for name, at in (
                ("nothing is due", now_ms),
                ("all are asked about", now_ms + LATER_MS),
                ("all wait", now_ms),
            ):
                took = []
                for _ in range(1 if name == "all are asked about" else 5):
                    start = time.perf_counter()
                    report = check.round(at)
                    took.append(time.perf_counter() - start)
                print(
                    f"a round over {settled} settled and {report.in_doubt} in doubt, {name}: {min(took) * 1000:.0f} ms"
                )
            check.catalog.close()
        engine.dispose()


class _Unknown:
    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:  # noqa: ARG002
        return [Answer(Outcome.UNKNOWN, "nobody knows")] * len(questions)


def by_engine(chunks: int = 100, at_once: int = 200) -> None:
    """Prepare and commit, 1 KiB, mode `os`, by each engine in turn: CPU time of the calling thread."""
    message = broker.Message("orders", bytes(1024), keys=["order-4711"])
    took: dict[str, list[float]] = {name: [] for name in ENGINES}
    with directory() as path, contextlib.ExitStack() as stack:
        layout = broker.StoreLayout.rocketmq()
        stores = {
            name: stack.enter_context(broker.open(path / name, sync="os", layout=layout, transactions=name))
            for name in ENGINES
        }
        for store in stores.values():
            store.create_topic("orders", message_type="TRANSACTION")
        for _ in range(chunks):
            for name, store in stores.items():
                calls, start = store.transactions, time.thread_time()
                for _ in range(at_once):
                    calls.commit(calls.prepare(message, "shop", queue_id=0))
                took[name].append((time.thread_time() - start) / at_once * 1e6)
    low = {name: sorted(times)[chunks // 10] for name, times in took.items()}  # the best tenth: the machine was quiet
    texts = ", ".join([f"{name} {low_us:.1f} µs" for name, low_us in low.items()])
    print(f"prepare and commit by engine: {texts}; ratio {low[STATE_TABLE.name] / low[HALF_OP.name]:.2f}")


def purchase(seconds: float) -> None:
    """An order and its announcement, against the same with an outbox row and no message."""
    for threads in (1, 4):
        with directory() as path:
            outbox, ours = database(path / "outbox.db"), database(path / "shop.db")
            for engine in (outbox, ours):
                Base.metadata.create_all(engine)
            ledger = Ledger(ours)
            ledger.create_all()
            with broker.open(path / "store", sync="group", layout=broker.StoreLayout.rocketmq()) as store:
                producer = store.producer("shop", topics=["orders"], ledger=ledger)
                log = BareLog(path / "log", share=min(threads, 3))  # so many purchases share one, as ours do
                works = {"outbox": partial(with_outbox, outbox), "message": partial(with_message, ours, producer)}
                works["forced"] = partial(with_a_forced_write, outbox, log)
                best = dict.fromkeys(works, Pace(0.0, 0.0))
                for _ in range(4):
                    for name, work in works.items():
                        best[name] = max(best[name], pace(work, threads, seconds))
            theirs, our, forced = best["outbox"], best["message"], best["forced"].rate
            ratio = our.rate / theirs.rate
            print(f"purchases, {threads} thread(s): {our}; with an outbox row {theirs}; ratio {ratio:.2f}")
            print(f"  an outbox row and a bare forced write for every {log.share}: {forced / theirs.rate:.2f}")
            log.close()
            outbox.dispose()
            ours.dispose()


def with_outbox(engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        session.add(Order(item="phone"))
        session.add(Outbox(topic="orders", body=BODY))


def with_message(engine: Engine, producer: Producer) -> None:
    with Session(engine) as session, producer.begin_transaction(session) as transaction:
        session.add(Order(item="phone"))
        producer.send(broker.Message("orders", BODY), transaction)


class BareLog:
    """What no message can do without: a forced write of its bytes, shared by some purchases, which take turns."""

    def __init__(self, path: Path, share: int) -> None:
        self.share, self.turn, self._count = share, threading.RLock(), itertools.count()
        self._file = path.open("w+b", buffering=0)
        self._file.write(bytes(1 << 20))
        os.fsync(self._file.fileno())

    def force(self) -> None:
        number = next(self._count)
        if number % self.share == 0:
            os.pwrite(self._file.fileno(), BODY * self.share, number * 512 % (1 << 19))
            os.fdatasync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def with_a_forced_write(engine: Engine, log: BareLog) -> None:
    with Session(engine) as session:
        session.add(Order(item="phone"))
        session.add(Outbox(topic="orders", body=BODY))
        with log.turn:
            log.force()
            session.commit()


class Pace(NamedTuple):
    """How often a second a work is done, and within how many milliseconds it is done 99 times of 100."""

    rate: float
    most_ms: float

    def __str__(self) -> str:
        return f"{self.rate:,.0f} a second (99 % in {self.most_ms:.1f} ms)"


def pace(work: Callable[[], None], threads: int, seconds: float) -> Pace:
    took: list[float] = []
    work()
    stop = time.perf_counter() + seconds

    def run() -> None:
        start = time.perf_counter()
        while start < stop:
            work()
            end = time.perf_counter()
            took.append(end - start)
            start = end

    workers = [threading.Thread(target=run) for _ in range(threads)]
    start = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    wall = time.perf_counter() - start
    return Pace(len(took) / wall, sorted(took)[len(took) * 99 // 100] * 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["engines", "settle", "round", "purchase"])
    parser.add_argument("--count", type=int, default=100_000, help="in-doubt transactions to settle")
    parser.add_argument("--slots", type=int, default=1_000_000, help="settled slots of the table")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement of purchases")
    arguments = parser.parse_args()
    if "engines" in arguments.what:
        by_engine()
    if "settle" in arguments.what:
        settle(arguments.count)
    if "round" in arguments.what:
        round_over_settled(arguments.slots, 1_000)
    if "purchase" in arguments.what:
        purchase(arguments.seconds)


if __name__ == "__main__":
    main()
