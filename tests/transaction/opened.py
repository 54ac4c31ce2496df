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


def damage(store: broker.LiveStore, half: broker.Half) -> None:
    """Flip bits in the properties of a half message."""
    record = store.record(half.commitlog_offset)
    assert record is not None
    view, at = store.writer.appender.log.at(record.commitlog_offset + record.total_size - 40)
    view[at] ^= 0xFF
