"""The business that the tests of check-back run: an order is saved in a database and announced in a store."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import pytest
from sqlalchemy import text
from sqlalchemy.orm import Session

import broker
from broker.errors import StoreFull
from broker.ledger import Ledger
from broker.live import LiveStore, open_live
from broker.local_transaction import SessionTransaction
from broker.producer import Producer
from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.round import CheckBack, RoundReport

SMALL = StoreLayout(1 << 22, 20 * 4000, 24 * 4000, 20 * 4000, 1000, 4000)
LATER_MS = 60_000  # after the first check is due


def open_store(path: Path, disk: Disk | None = None) -> LiveStore:
    return open_live(path, layout=SMALL, sync="group", disk=disk)


class Shop:
    """A store, the application's ledger, and another connection to the same database for check-back."""

    def __init__(self, path: Path, ledger: Ledger, resolvers_ledger: Ledger, disk: Disk | None = None) -> None:
        self.path, self.ledger, self.resolvers_ledger = path, ledger, resolvers_ledger
        with ledger.engine.begin() as connection:
            connection.execute(text("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY)"))
        self.store = open_store(path, disk)
        self.policy = Policy(Rule(jitter=0.0))
        self._checks: list[CheckBack] = []

    def producer(self) -> Producer:
        return self.store.producer("shop", topics=["orders", "stock"], ledger=self.ledger)

    def session(self) -> Session:
        return Session(self.ledger.engine)

    def check(self) -> CheckBack:
        resolver = LedgerResolver(self.resolvers_ledger, LedgerEvidence(self.store), lock_timeout_ms=50)
        check = CheckBack(self.store, resolver, policy=self.policy)
        self._checks.append(check)
        return check

    def check_back(self, later_ms: int = LATER_MS) -> RoundReport:
        """One round, a minute from now by default."""
        return self.check().round(self.now_ms() + later_ms)

    def buy(
        self,
        number: int,
        *,
        topics: Sequence[str] = ("orders",),
        in_between: Callable[[Session, SessionTransaction], object] = lambda *_: None,
        watch: Callable[[Session], object] = lambda _: None,
    ) -> SessionTransaction:
        """One business transaction: an order is saved and announced; `in_between` comes before it is left."""
        producer = self.producer()
        with self.session() as session:
            watch(session)
            with producer.begin_transaction(session) as transaction:
                save(session, number)
                for topic in topics:
                    announce(producer, transaction, number, topic)
                in_between(session, transaction)
        return transaction

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def reopen(self) -> None:
        """As another process would find it."""
        self.close()
        self.store = open_store(self.path)

    def close(self) -> None:
        for check in self._checks:
            check.catalog.close()
        self._checks.clear()
        self.store.close()

    # What became of it

    def orders(self) -> list[int]:
        with self.ledger.engine.connect() as connection:
            return [number for (number,) in connection.execute(text("SELECT id FROM orders ORDER BY id"))]

    def announced(self, topic: str = "orders") -> list[int]:
        """The orders that consumers are told of."""
        self.store.sync_now()
        found = []
        for queue_id in self.store.queues(topic):
            first, end = self.store.queue_range(topic, queue_id)
            for number in range(first, end):
                message = self.store.message(topic, queue_id, number)
                assert message is not None
                found.append(int(message.body))
        return sorted(found)

    def in_doubt(self) -> int:
        return len(self.store.transactions.in_doubt_slots())


def save(session: Session, number: int) -> None:
    session.execute(text("INSERT INTO orders (id) VALUES (:id)"), {"id": number})


def announce(producer: Producer, transaction: SessionTransaction, number: int, topic: str = "orders") -> None:
    producer.send(broker.Message(topic, b"%d" % number, keys=[str(number)]), transaction)


def raiser(error: Exception) -> Callable[..., NoReturn]:
    """A function that takes anything and raises this."""

    def raises(*_: object, **__: object) -> NoReturn:
        raise error

    return raises


def leave_in_doubt(shop: Shop, monkeypatch: pytest.MonkeyPatch, *numbers: int, saved: bool = True) -> None:
    """Orders whose ends are lost."""
    with monkeypatch.context() as patch:
        for end in ("commit", "rollback"):
            patch.setattr(shop.store.transactions, end, raiser(StoreFull("the end is lost")))
        for number in numbers:
            if saved:
                shop.buy(number)
            else:
                with pytest.raises(ZeroDivisionError):
                    shop.buy(number, in_between=raiser(ZeroDivisionError()))
