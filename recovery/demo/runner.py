"""Run the flash sale: start its processes, kill them at random, let it come to rest, and reconcile.

Demo("directory", seed=7).run()      -> Reconciliation

sale: crashes and kills ──► everything struck often enough ──► calm: nobody buys, nothing crashes ──► at rest ──► sums
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Collection
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from unittest import mock

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from broker.cluster.live_cluster import connect as connect_to
from broker.consuming.group.consumer_table import UNSET
from broker.consuming.group.positions import Positions
from broker.errors import BrokerError
from broker.format.topics import SCHEDULE_TOPIC, retry_topic
from broker.live import LiveStore
from recovery.demo.crashes import KILLED, OF_STORE, counted, note
from recovery.demo.reconcile import Reconciliation, reconcile
from recovery.demo.roles import ROLES, STEPS, SWITCHES, Setting, connect, ledger, open_store, play, processed
from recovery.demo.shop import ORDER_PAID, STOCK_LOCKED, Base, Effect, Lock, Order, Product

LEAST = 20  # how often each kind of crash must have hit
_LOOK_S = 0.02
_KILL_EVERY_S, _CLUSTER_KILL_EVERY_S = 0.8, 4.0  # a member of a cluster takes seconds to be back
_REST_S, _STALLED_S = 30.0, 3.0
_CLUSTER_REST_S, _CLUSTER_STILL_S = 240.0, 20.0  # a broker checks now and then, and op messages are late
_LONGER = 10.0  # times as long as asked for at most, until every kind of crash hit often enough
_HOT_STOCK = [(f"hot-{number}", 12) for number in range(4)]
_PLENTY_STOCK = [(f"plenty-{number}", 1000) for number in range(4)]


class Demo:
    """One sale in a directory of its own. `database` is a URL; without one it is a SQLite file in the directory.

    Tables named flash_sale_… are made again in it. `off` switches safeguards off, to see that they are needed:
    check-back, dedup, tombstone, dispatch. `broker` is the URL of a cluster, in place of a store; of the switches it
    has check-back and dedup. Raises BrokerError for an unknown one.
    """

    def __init__(
        self,
        directory: str,
        *,
        database: str | None = None,
        seed: int = 0,
        seconds: float = 20.0,
        least: int = LEAST,
        rate: float = 0.35,
        off: Collection[str] = (),
        broker: str | None = None,
        say: Callable[[str], object] = lambda _: None,
    ) -> None:
        switches = SWITCHES[:2] if broker else SWITCHES
        if unknown := set(off) - set(switches):
            raise BrokerError(f"{', '.join(sorted(unknown))}: only {', '.join(switches)} can be switched off")
        url = database or f"sqlite:///{os.path.join(directory, 'shop.db')}"
        names = ("store", "crashes", "calm")
        store, crash_log, calm = (os.path.join(directory, name) for name in names)
        self.setting = Setting(store, url, crash_log, calm, rate, frozenset(off), broker or "")
        self._seconds, self._least, self._say = seconds, least, say
        self._chance = random.Random(seed)
        self._context: ForkServerContext = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["recovery.demo.prefork"])
        self._processes: list[tuple[str, BaseProcess]] = []

    def run(self) -> Reconciliation:
        """The whole sale; no process of it is left when this returns."""
        started = time.monotonic()
        self._engine = connect(self.setting.database)
        try:
            self._open_shop()
            with open_store(self.setting) as store:
                try:
                    self._processes = [(role, self._start(role)) for role in ROLES]
                    self._sale()
                    self._calm_store(store) if isinstance(store, LiveStore) else self._calm_cluster()
                finally:
                    for _, process in self._processes:
                        process.kill()
                        process.join()
            crashes, spent = self._counted(), time.monotonic() - started
            return reconcile(self._engine, crashes, round(spent, 1), least=self._least)
        finally:
            self._engine.dispose()

    def _open_shop(self) -> None:
        """Empty tables and full shelves, of which some are soon sold out."""
        for metadata in (Base.metadata, ledger(self._engine).metadata, processed().metadata):
            metadata.drop_all(self._engine)
            metadata.create_all(self._engine)
        if self.setting.broker:
            with connect_to(self.setting.broker) as cluster:
                for topic in (STOCK_LOCKED, ORDER_PAID):
                    cluster.create_topic(topic)
        with Session(self._engine) as session:
            for sku, stock in (*_HOT_STOCK, *_PLENTY_STOCK):
                session.add(Product(sku=sku, first_stock=stock, stock=stock))
            session.commit()

    def _start(self, role: str) -> BaseProcess:
        seed = self._chance.getrandbits(32)
        process = self._context.Process(target=play, args=(role, self.setting, seed), daemon=True)
        main = sys.modules["__main__"]
        with mock.patch.multiple(main, __file__=None, __spec__=None, create=True):  # else each child imports it again
            process.start()
        return process

    def _look_after(self) -> None:
        """Start those again that were killed, by us or by their fate."""
        for index, (role, process) in enumerate(self._processes):
            if not process.is_alive():
                process.join()
                self._processes[index] = role, self._start(role)

    def _sale(self) -> None:
        """Until the time is over and every kind of crash hit often enough; it ends after _LONGER times that anyway."""
        every_s = _CLUSTER_KILL_EVERY_S if self.setting.broker else _KILL_EVERY_S
        began = last_kill = time.monotonic()
        while (now := time.monotonic()) - began < _LONGER * self._seconds:
            if now - began >= self._seconds and min(self._counted().values()) >= self._least:
                break
            if now - last_kill >= every_s * self._chance.uniform(0.5, 1.5):
                last_kill = now
                self._kill_one()
            self._look_after()
            time.sleep(_LOOK_S)
        self._say(f"the sale is over after {time.monotonic() - began:.0f} s; waiting until all is done")

    def _kill_one(self) -> None:
        _, process = self._chance.choice(self._processes)
        if process.is_alive():
            process.kill()
            note(self.setting.crash_log, KILLED)

    def _counted(self) -> dict[str, int]:
        """How often each kind hit that there is here."""
        found = counted(self.setting.crash_log)
        return {kind: hits for kind, hits in found.items() if not self.setting.broker or kind not in OF_STORE}

    def _calm_cluster(self) -> None:
        """The same of a cluster, which does not say what is left: until the database has stood still for a while."""
        with open(self.setting.stop_selling, "wb"):
            pass
        began = moved = time.monotonic()
        before: object = None
        while (now := time.monotonic()) - began < _CLUSTER_REST_S and now - moved < _CLUSTER_STILL_S:
            self._look_after()
            open_work, state = self._open_rows()
            if state != before or open_work:
                before, moved = state, now
            time.sleep(10 * _LOOK_S)
        if open_work := self._open_rows()[0]:
            self._say(f"it did not come to rest: {open_work} things are still to be done")

    def _calm_store(self, store: LiveStore) -> None:
        """Nobody buys and nothing crashes; until everything came to rest, or nothing moves any more."""
        with open(self.setting.stop_selling, "wb"):
            pass
        began = moved = time.monotonic()
        before: object = None
        open_work = 0
        with contextlib.closing(Positions(store)) as positions:
            while (now := time.monotonic()) - began < _REST_S and now - moved < _STALLED_S:
                self._look_after()
                open_work, state = self._open_work(store, positions)
                if not open_work:
                    return
                if state != before:
                    before, moved = state, now
                time.sleep(10 * _LOOK_S)
        self._say(f"it did not come to rest: {open_work} things are still to be done")

    def _open_work(self, store: LiveStore, positions: Positions) -> tuple[int, object]:
        """How much is to be done yet, and something that changes when anything is done."""
        count, state = self._open_rows()
        in_doubt, behind = len(store.transactions.in_doubt_slots()), _lag(store, positions)
        return count + in_doubt + behind, (state, in_doubt, behind)

    def _open_rows(self) -> tuple[int, object]:
        """The same of what the database knows."""
        with Session(self._engine) as session:
            locks = session.scalar(select(func.count()).where(Lock.state == "locked")) or 0
            orders = session.scalar(select(func.count()).where(Order.state == "created")) or 0
            effects = session.scalar(select(func.count(Effect.id)))
        return locks + orders, (locks, orders, effects)


def _lag(store: LiveStore, positions: Positions) -> int:
    """Messages that a group has yet to acknowledge, delayed ones included."""
    topics = (
        {topic for topic, _ in STEPS.values()} | {SCHEDULE_TOPIC} | {retry_topic(f"flash-sale-{one}") for one in STEPS}
    )
    cells, behind = positions.cells, 0
    for cell, (_, topic, queue_id) in cells.all():
        position = cells.position(cell)
        if queue_id >= 0 and topic in topics and position != UNSET:
            behind += max(0, store.queue_range(topic, queue_id)[1] - position)
    return behind


def new_directory(path: str) -> str:
    """Make a directory for a sale. Raises BrokerError when something is there already."""
    try:
        os.makedirs(path)
    except FileExistsError:
        raise BrokerError(f"{path} is there already: a demo is kept in a directory of its own") from None
    return path
