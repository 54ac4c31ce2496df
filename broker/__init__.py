"""checkback: an embedded transactional-message broker, byte-compatible with Apache RocketMQ's store.

    import broker

    with broker.open("shop.store", read_only=True) as store:
        for message in store.by_key("orders", "4711"):
            print(message.topic, message.body)

What is not named here is plumbing. Everything but the errors loads at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from broker.errors import (
    AlreadyEnded,
    BrokerError,
    CorruptRecord,
    CorruptStore,
    MessageRejected,
    NotAStore,
    StoreError,
    StoreFull,
    StoreLocked,
    TransactionError,
    UnknownOutcome,
)

if TYPE_CHECKING:
    import os

    from broker.message import Message, ReceivedMessage
    from broker.store.store import Store

__all__ = [
    "AlreadyEnded",
    "BrokerError",
    "CorruptRecord",
    "CorruptStore",
    "Message",
    "MessageRejected",
    "NotAStore",
    "ReceivedMessage",
    "Store",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "TransactionError",
    "UnknownOutcome",
    "open",
]

_HOMES = {"Message": "broker.message", "ReceivedMessage": "broker.message", "Store": "broker.store.store"}


def open(path: str | os.PathLike[str], *, read_only: bool = False) -> Store:
    """Open the store in a folder, one that RocketMQ or checkback wrote.

    With `read_only` nothing on disk changes and no permission to write is needed; another program, a live RocketMQ
    broker included, may be writing to the store at the same time. Opening is cheap: nothing is scanned. What is damaged
    inside raises CorruptStore when it is read. Raises NotAStore when there is no store at the path.
    """
    from broker.store.store import open_store

    return open_store(path, read_only=read_only)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'broker' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return __all__
