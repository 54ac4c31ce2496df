"""Settings of real brokers that people run, what is sent to each of them, and what they serve."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.compat import rocketmq
from tests.compat.rocketmq import Cluster, running

SMALL: dict[str, object] = {
    "mappedFileSizeCommitLog": 256 << 10,
    "mappedFileSizeConsumeQueue": 6000,
    "mappedFileSizeConsumeQueueExt": 65536,
    "mapperFileSizeBatchConsumeQueue": 4600,
    "maxHashSlotNum": 50,
    "maxIndexNum": 200,
}
PLAIN: dict[str, object] = {"topic": "Plain"}
SEED = int(os.environ.get("CHECKBACK_SEED", "0"))


@dataclass(frozen=True)
class Setting:
    """How a broker is set, what is sent to it, which queues it serves, and how a refusal names what it wrote."""

    version: str
    what: str
    sends: Sequence[dict[str, object]]
    queues: str
    properties: dict[str, object] = field(default_factory=dict)
    understood: bool = False  # a rebuild makes its derived files


PLAIN_QUEUES = "Plain:0,Plain:1"
_MIXED: dict[str, object] = {"topic": "Plain", "transactions": 9}
_ROCKSDB: dict[str, Any] = {
    "sends": [_MIXED], "queues": PLAIN_QUEUES, "properties": {"storeType": "defaultRocksDB"},
}  # fmt: skip
_LIGHT: dict[str, Any] = {
    "sends": [PLAIN, {"topic": "Fan", "lmq": "%LMQ%qa,%LMQ%qb", "transactions": 6}],
    "queues": f"%LMQ%qa:0,%LMQ%qb:0,Fan:0,Fan:1,{PLAIN_QUEUES}",
    "properties": {"enableLmq": "true", "enableMultiDispatch": "true"}, "understood": True,
}  # fmt: skip
_BATCHES: dict[str, Any] = {
    "sends": [{"topic": "Batch", "attributes": "+queue.type:BatchCQ", "batch": 3, "transactions": 6}, _MIXED],
    "queues": f"Batch:0,Batch:1,{PLAIN_QUEUES}", "understood": True,
}  # fmt: skip
_FILTERS: dict[str, Any] = {
    "sends": [{"topic": "Plain", "sql": "number > 5", "transactions": 9}], "queues": PLAIN_QUEUES,
    "properties": {"enableConsumeQueueExt": "true", "enableCalcFilterBitMap": "true", "enablePropertyFilter": "true"},
    "understood": True,
}  # fmt: skip
_MIXED_ONLY: dict[str, Any] = {"sends": [_MIXED], "queues": PLAIN_QUEUES, "understood": True}
SETTINGS = {
    "batchcq": Setting("5.3.3", "a BatchConsumeQueue", **_BATCHES),
    "batchcq-5.5": Setting("5.5.0", "a BatchConsumeQueue", **_BATCHES),
    "lmq": Setting("5.3.3", "light messages", **_LIGHT),
    "lmq-4.9": Setting("4.9.7", "light messages", **_LIGHT),
    "lmq-5.5": Setting("5.5.0", "light messages", **_LIGHT),
    "rocksdb": Setting("5.3.3", "a RocksDB of queues", **_ROCKSDB),
    "double-write": Setting(
        "5.3.3", "a RocksDB of queues", [PLAIN], PLAIN_QUEUES, {"rocksdbCQDoubleWriteEnable": "true"},
    ),
    "double-write-5.5": Setting(  # which does not start with the first one alone
        "5.5.0", "a RocksDB of queues", [_MIXED], PLAIN_QUEUES,
        {"rocksdbCQDoubleWriteEnable": "true", "combineCQUseRocksdbForLmq": "true"},
    ),
    "combined-5.5": Setting(
        "5.5.0", "a RocksDB of queues", **{
            **_LIGHT, "understood": False, "properties": {
                **_LIGHT["properties"], "rocksdbCQDoubleWriteEnable": "true", "combineCQUseRocksdbForLmq": "true",
                "useSeparateStorePathForRocksdbCQ": "true",
            },
        },
    ),
    "rocksdb-lmq": Setting(
        "5.3.3", "a RocksDB of queues", **{
            **_LIGHT, "understood": False, "properties": {**_LIGHT["properties"], "storeType": "defaultRocksDB"},
        },
    ),
    "config-v2-5.5": Setting("5.5.0", "", **_MIXED_ONLY, properties={"configManagerVersion": "v2"}),
    "timers-5.5": Setting(
        "5.5.0", "", [{"topic": "Plain", "later": 300_000, "transactions": 9}], PLAIN_QUEUES, understood=True,
    ),
    "ext": Setting("5.3.3", "a ConsumeQueueExt", **_FILTERS),
    "ext-5.5": Setting("5.5.0", "a ConsumeQueueExt", **_FILTERS),
    "plain-4.9": Setting("4.9.7", "", **_MIXED_ONLY),
    "plain-5.0": Setting("5.0.0", "", **_MIXED_ONLY),
    "plain-5.1": Setting("5.1.4", "", **_MIXED_ONLY),
    "plain-5.3": Setting("5.3.3", "", **_MIXED_ONLY),
    "plain-5.4": Setting("5.4.0", "items for tags", **_MIXED_ONLY),
    "plain-5.5": Setting("5.5.0", "items for tags", **_MIXED_ONLY),
    "no-mmap-5.5": Setting("5.5.0", "", **_MIXED_ONLY, properties={"writeWithoutMmap": "true"}),
    "rocksdb-5.4": Setting("5.4.0", "a RocksDB of queues", **_ROCKSDB),
    "rocksdb-5.5": Setting("5.5.0", "a RocksDB of queues", **_ROCKSDB),
}  # fmt: skip
REFUSED = [name for name, setting in SETTINGS.items() if not setting.understood]
UNDERSTOOD = [name for name, setting in SETTINGS.items() if setting.understood]


def installed(version: str) -> rocketmq.Installation:
    """The brokers, or the reason why they cannot be run."""
    try:
        rocketmq.install(rocketmq.NAME_SERVER)
        return rocketmq.install(version)
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))


def on_disk(store: Path) -> dict[str, str]:
    """Every directory and file, with the digest of what it holds."""
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in store.rglob("*")
        if path.relative_to(store).parts[0] != "checkback"
    }


def served(cluster: Cluster, queues: str, truth: Path) -> list[dict[str, Any]]:
    """What a pull of each queue gets from its first to its last offset."""
    cluster.run("Serve", truth, via="Plain", queues=queues)
    return rocketmq.read_truth(truth)


def seeded(options: dict[str, object]) -> dict[str, object]:
    """With CHECKBACK_SEED=N: other bodies, tags and decisions, and more of them."""
    if not SEED:
        return options
    chance = random.Random(f"{SEED} {options['topic']}")
    transactions = {"transactions": chance.randint(6, 30)} if "transactions" in options else {}
    return {**options, **transactions, "count": chance.randint(20, 90), "seed": SEED}


def made(setting: Setting, directory: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A store that a broker closed, and what it served before."""
    store = directory / "store"
    with running(installed(setting.version), store, **{**SMALL, **setting.properties}) as cluster:
        for options in setting.sends:
            cluster.run("Kinds", directory / "sent.jsonl", **seeded(options))
        before = served(cluster, setting.queues, directory / "before.jsonl")
        assert cluster.broker is not None
        cluster.broker.stop()
    return store, before


def served_again(setting: Setting, store: Path, truth: Path) -> list[dict[str, Any]]:
    """What a broker serves that is started on the store; it is stopped again."""
    with running(installed(setting.version), store, **{**SMALL, **setting.properties}) as cluster:
        after = served(cluster, setting.queues, truth)
        assert cluster.broker is not None
        cluster.broker.stop()
    return after
