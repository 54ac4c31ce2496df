"""Orders and their messages in the cases of this shop: what was saved, announced and left in doubt."""

from __future__ import annotations

import time
from collections import Counter

import broker
from broker.django import open_store
from broker.producer import Producer
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.round import CheckBack, RoundReport
from tests.frameworks.django_shop.announcements import producer
from tests.frameworks.django_shop.models import Order

LATER_MS = 60_000


def order(item: str, by: Producer | None = None) -> None:
    Order.objects.create(item=item)
    (by or producer()).send(broker.Message("orders", item.encode()))


def announced() -> Counter[str]:
    """What consumers are told of, since the store was made."""
    store = open_store()
    store.sync_now()
    places = [
        (queue, number) for queue in store.queues("orders") for number in range(*store.queue_range("orders", queue))
    ]
    return Counter(store.message("orders", *place).body.decode() for place in places)


def in_doubt() -> int:
    return len(open_store().transactions.in_doubt_slots())


def check_back() -> RoundReport:
    resolver = LedgerResolver(producer().ledger, LedgerEvidence(open_store()), lock_timeout_ms=50)
    check = CheckBack(open_store(), resolver, policy=Policy(Rule(jitter=0.0)))
    try:
        return check.round(time.time_ns() // 1_000_000 + LATER_MS)
    finally:
        check.catalog.close()


class Messages:
    """Compares what was saved and what was announced during a test."""

    def setUp(self) -> None:
        self.before = announced()
        assert in_doubt() == 0, "an earlier test left something in doubt"

    def check(self, *items: str, doubt: int = 0) -> None:
        """These items, and no others, are saved and announced; nothing else is in doubt."""
        saved = sorted(Order.objects.values_list("item", flat=True))
        assert saved == sorted(items)
        assert sorted((announced() - self.before).elements()) == sorted(items)
        assert in_doubt() == doubt
