"""The adapter for Django: a message joins the transaction of `transaction.atomic()`.

    INSTALLED_APPS = [..., "broker.django"]               # manage.py migrate makes the tables of the ledger
    CHECKBACK = {"STORE": BASE_DIR / "shop.store"}

    @functools.cache
    def producer() -> broker.Producer:
        return open_store().producer("shop", topics=["orders"], ledger=DjangoLedger())

    with transaction.atomic():
        order = Order.objects.create(item="phone")
        producer().send(broker.Message("orders", b"%d" % order.id))

The modules of this room load Django, and nothing outside it imports them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from broker.django.ledger import DjangoLedger
    from broker.django.opening import open_store

__all__ = ["DjangoLedger", "open_store"]

_HOMES = {"DjangoLedger": "broker.django.ledger", "open_store": "broker.django.opening"}


def __getattr__(name: str) -> object:
    # Django imports this package while it still loads its settings: what needs them loads at first use.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'broker.django' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value
