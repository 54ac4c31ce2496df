"""A small store with the transaction service, and a message for it."""

from __future__ import annotations

from pathlib import Path

import broker
from broker.store.read.layout import StoreLayout

SMALL = StoreLayout(1 << 18, 6000, 2400, 2000, 100, 400)


def message(text: str = "body", topic: str = "orders") -> broker.Message:
    return broker.Message(topic, text.encode(), tag="new", keys=[f"key-{text[:9]}"], properties={"colour": "blue"})


def opened(path: Path, **options: object) -> broker.LiveStore:
    return broker.open(path / "store", layout=SMALL, **options)  # type: ignore[call-overload, no-any-return]
