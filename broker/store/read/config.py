"""The files under `config`: topics, consumer offsets, and what else RocketMQ keeps there.

A broker writes a temporary file, moves the old one to `.bak` and the new one into place: for a moment only `.bak` is
there, so a missing or empty file means: look at `.bak`. RocketMQ: ConfigManager.load (5.3.3). Where a broker keeps them
in a RocksDB, that is read in place of the file (`kinds/rocksdb_config.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from broker.errors import CorruptRecord
from broker.format import config
from broker.format.config import ConsumerOffsets, SubscriptionGroups, Topics
from broker.store.disk.files import Missing
from broker.store.read.directory import StoreDirectory
from broker.store.read.kinds.rocksdb_config import read_config_database

_T = TypeVar("_T")


def read_topics(directory: StoreDirectory) -> Topics:
    return _read(directory, "topics.json", config.decode_topics, Topics())


def read_subscription_groups(directory: StoreDirectory) -> SubscriptionGroups:
    return _read(directory, "subscriptionGroup.json", config.decode_subscription_groups, SubscriptionGroups())


def read_consumer_offsets(directory: StoreDirectory) -> ConsumerOffsets:
    return _read(directory, "consumerOffset.json", config.decode_consumer_offsets, ConsumerOffsets())


def _read(directory: StoreDirectory, name: str, decode: Callable[[bytes], _T], default: _T) -> _T:
    raw = read_config_database(name, directory.paths, directory.disk)
    if raw is not None:
        return decode(raw)
    for candidate in (name, f"{name}.bak"):
        path = directory.paths.config(candidate)
        try:
            raw = directory.disk.read(path)
        except Missing:
            continue
        if raw.strip():
            try:
                return decode(raw)
            except CorruptRecord as error:
                raise undecoded(error, path) from None
    return default


def undecoded(error: CorruptRecord, path: str) -> CorruptRecord:
    """The error for a file of config/ that does not decode, with the next step."""
    before = f"{path.removesuffix('.bak')}.bak beside it, if it is there, is the version before"
    return CorruptRecord(f"{error.reason}. {before}: copy that over it. Else move it aside", at=error.at, path=path)
