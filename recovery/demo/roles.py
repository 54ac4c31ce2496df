"""The processes of the demo: each opens the store and the database for itself and works until it is killed.

order    sells, and announces the lock           desk        turns locks into orders
pay      takes the money, and announces it       stockroom, shipping, points    each does its step
check    resolves what is in doubt
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

import broker
from broker.cluster.live_cluster import LiveCluster
from broker.database.dedup import Processed
from broker.ledger import Ledger
from broker.live import LiveStore
from broker.message import ReceivedMessage
from broker.receiving import Receiver
from broker.testing.fixtures import SMALL
from recovery.answering.group_answering import answering
from recovery.checkback.leader import LeaderLock
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.protocol import Answer, Outcome
from recovery.checkback.round import CheckBack
from recovery.checkback.service import CheckService
from recovery.demo import shop
from recovery.demo.crashes import CONSUMER_FAILS, LOCAL_FAILS, OF_CONSUMERS, Crashes, Failure, die, of_producers

CHECK_BACK, DEDUP, TOMBSTONE, DISPATCH = "check-back", "dedup", "tombstone", "dispatch"
SWITCHES = (CHECK_BACK, DEDUP, TOMBSTONE, DISPATCH)
STEPS: dict[str, tuple[str, Callable[[Session, ReceivedMessage], None]]] = {
    "desk": (shop.STOCK_LOCKED, shop.create_order),
    "stockroom": (shop.ORDER_PAID, shop.deduct_stock),
    "shipping": (shop.ORDER_PAID, shop.ship),
    "points": (shop.ORDER_PAID, shop.grant_points),
}
ROLES = ("order", "order", "pay", "desk", "desk", "stockroom", "shipping", "points", "check")

ORDERS, PAYMENTS = "flash-sale-orders", "flash-sale-payments"  # the producer groups
Shop = LiveStore | LiveCluster

_PAUSE_S = 0.02  # of a customer
_HESITATES, _HESITATES_S = 0.1, 0.7  # longer than check-back waits: it answers for a transaction that still runs
_CHANGES_MIND = 0.1
_CONSUMERS_SHARE = 0.3  # four messages are consumed for each transaction
_CHECK_EVERY_S = 0.2
_RETRY_LEVEL = 1  # a second
_RULE = Rule(first_check_after_ms=300, interval_ms=200, backoff=1.0, most_checks=None)


@dataclass(frozen=True)
class Setting:
    """The arguments of every process."""

    store: str
    database: str  # a URL of SQLAlchemy
    crash_log: str
    stop_selling: str  # when this file is there, nobody buys any more, and nothing crashes
    rate: float
    off: frozenset[str] = frozenset()
    broker: str = ""  # the URL of a cluster, in place of the store

    @property
    def is_over(self) -> bool:
        return Path(self.stop_selling).exists()


def connect(url: str) -> Engine:
    """The shop's database. SQLite waits for the process that is writing, and fsyncs as seldom as it may."""
    if not url.startswith("sqlite"):
        return create_engine(url)
    engine = create_engine(url, connect_args={"timeout": 30})

    @event.listens_for(engine, "connect")
    def _(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")

    return engine


def ledger(engine: Engine) -> Ledger:
    return Ledger(engine, table="flash_sale_ledger")


def processed() -> Processed:
    return Processed(table="flash_sale_processed")


def play(role: str, setting: Setting, seed: int) -> None:
    """Be one process of the shop, until it is killed or the one that started it is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # who started us ends us
    threading.Thread(target=_die_with_parent, daemon=True).start()
    logging.getLogger("broker").addHandler(logging.NullHandler())  # what fails here fails on purpose
    logging.getLogger("recovery").addHandler(logging.NullHandler())
    rate = setting.rate * (_CONSUMERS_SHARE if role in STEPS else 1)
    engine, crashes = connect(setting.database), Crashes(setting.crash_log, seed, rate)
    with open_store(setting) as store:
        if role in STEPS:
            _consume(store, engine, crashes, role, setting)
        elif role == "check":
            _check(store, engine, setting)
        else:
            crashes.into_producers(store)
            _sell(store, engine, crashes, setting) if role == "order" else _collect(store, engine, crashes, setting)


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        die()


def open_store(setting: Setting) -> Shop:
    """The store, or the cluster; with dispatch completion off, what a killed process published is not put into its
    queue.
    """
    if setting.broker:
        return broker.connect(setting.broker)
    store = broker.open(setting.store, layout=SMALL)
    if DISPATCH in setting.off:
        appender: Any = store.writer.appender

        def forget(_start: int, stop: int) -> None:
            from broker.store.shared.control import Word

            appender.control[Word.DISPATCHED] = stop

        appender.replay = forget
    return store


def _sell(store: Shop, engine: Engine, crashes: Crashes, setting: Setting) -> None:
    producer = store.producer(ORDERS, topics=[shop.STOCK_LOCKED], ledger=ledger(engine))
    with Session(engine) as session:
        skus = session.scalars(select(shop.Product.sku)).all()
    chance, kinds = crashes.chance, of_producers(in_cluster=bool(setting.broker))
    while True:
        if setting.is_over:
            time.sleep(_PAUSE_S)
            continue
        crashes.draw(kinds)
        hesitates = chance.random() < _HESITATES

        def hesitate(pause_s: float = _HESITATES_S if hesitates else 0.0) -> None:
            time.sleep(pause_s)
            crashes.raise_if(LOCAL_FAILS)

        with (
            contextlib.suppress(broker.BrokerError, SQLAlchemyError, Failure, shop.SoldOut),
            Session(engine) as session,
        ):
            lock_id = shop.buy(session, producer, chance.choice(skus), hesitate=hesitate)
            if chance.random() < _CHANGES_MIND:
                shop.change_mind(session, lock_id)
        time.sleep(_PAUSE_S * chance.random())


def _collect(store: Shop, engine: Engine, crashes: Crashes, setting: Setting) -> None:
    producer = store.producer(PAYMENTS, topics=[shop.ORDER_PAID], ledger=ledger(engine))
    kinds = of_producers(in_cluster=bool(setting.broker))
    for turn in itertools.count(crashes.chance.randrange(8)):
        with Session(engine) as session:
            order = shop.next_unpaid(session, turn)
        if order is None:
            time.sleep(_PAUSE_S)
            continue
        crashes.calm() if setting.is_over else crashes.draw(kinds)
        hurdles = (broker.BrokerError, SQLAlchemyError, Failure, shop.NothingToPay)
        with contextlib.suppress(*hurdles), Session(engine) as session:
            shop.pay(session, producer, order, hesitate=lambda: crashes.raise_if(LOCAL_FAILS))


def _consume(store: Shop, engine: Engine, crashes: Crashes, role: str, setting: Setting) -> None:
    topic, step = STEPS[role]
    table = processed()
    if DEDUP in setting.off:
        table.first_time = _always_the_first_time  # type: ignore[assignment, method-assign]
    with store.consumer(f"flash-sale-{role}", topic, processed=table, retry_delay_level=_RETRY_LEVEL) as consumer:
        crashes.into_consumer(consumer)
        for message in consumer:
            crashes.calm() if setting.is_over else crashes.draw(OF_CONSUMERS)
            with contextlib.suppress(SQLAlchemyError, Failure):
                _process(engine, consumer, message, step, crashes)


def _always_the_first_time(session: Session, _group: str, _message: ReceivedMessage) -> bool:
    """Notes nothing for the next delivery. Asked again before COMMIT, it finds the note of this one, as it should."""
    is_first = "was_noted" not in session.info
    session.info["was_noted"] = True
    return is_first


def _process(
    engine: Engine,
    consumer: Receiver,
    message: ReceivedMessage,
    step: Callable[[Session, ReceivedMessage], None],
    crashes: Crashes,
) -> None:
    with Session(engine) as session, consumer.process(message, session) as first:
        if first:
            step(session, message)
            session.flush()
            crashes.raise_if(CONSUMER_FAILS)


def _check(store: Shop, engine: Engine, setting: Setting) -> None:
    if isinstance(store, LiveCluster):
        _answer(store, engine, setting)
        return
    resolver = LedgerResolver(ledger(engine), LedgerEvidence(store))
    if TOMBSTONE in setting.off:
        resolver.decide = lambda *_, **__: Answer(Outcome.ROLLED_BACK, "no row")  # type: ignore[method-assign]
    if CHECK_BACK in setting.off:
        while True:
            time.sleep(_CHECK_EVERY_S)
    check = CheckBack(store, resolver, policy=Policy(_RULE))
    CheckService(check, LeaderLock(store.path), interval_s=_CHECK_EVERY_S).run()


def _answer(cluster: LiveCluster, engine: Engine, setting: Setting) -> None:
    """Answer what the brokers of a cluster check."""
    with contextlib.ExitStack() as stack:
        for group in (ORDERS, PAYMENTS) if CHECK_BACK not in setting.off else ():
            stack.enter_context(answering(cluster, group, [ledger(engine)]))
        while True:
            time.sleep(_CHECK_EVERY_S)
