"""The producer of the shop: made at its first use, once in each process."""

from functools import cache

from broker import Producer
from broker.django import DjangoLedger, open_store


@cache
def producer() -> Producer:
    return open_store().producer("shop", topics=["orders"], ledger=DjangoLedger())
