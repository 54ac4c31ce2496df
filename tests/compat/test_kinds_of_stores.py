"""Real brokers in settings that people run: what checkback does not understand it leaves, and the broker serves on.

For each setting a store is made and judged: the truth comes from its clients. Where checkback does not build all of
its derived files, `rebuild --apply` and `recover --apply` change no byte. Where it does, the broker serves from rebuilt
files what it served before, and `undo` brings the old ones back.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.errors import NotUnderstood, StoreError
from recovery.rebuild.rebuilder import rebuild
from recovery.rebuild.undo import undo
from recovery.repair import crash
from recovery.repair.salvage import salvage
from recovery.verify.verifier import verify
from tests.compat import rocketmq
from tests.compat.rocketmq import Cluster, running
from tests.spark.inline import comparable, verify_inline

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

pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Setting:
    """How a broker is set, what is sent to it, which queues it serves, and how a refusal names what it wrote."""

    version: str
    what: str
    sends: Sequence[dict[str, object]]
    queues: str
    properties: dict[str, object] = field(default_factory=dict)
    understood: bool = False  # a rebuild makes its derived files


_PLAIN_QUEUES = "Plain:0,Plain:1"
_MIXED: dict[str, object] = {"topic": "Plain", "transactions": 9}
_ROCKSDB: dict[str, Any] = {
    "sends": [_MIXED], "queues": _PLAIN_QUEUES, "properties": {"storeType": "defaultRocksDB"},
}  # fmt: skip
_LIGHT: dict[str, Any] = {
    "sends": [PLAIN, {"topic": "Fan", "lmq": "%LMQ%qa,%LMQ%qb", "transactions": 6}],
    "queues": f"%LMQ%qa:0,%LMQ%qb:0,Fan:0,Fan:1,{_PLAIN_QUEUES}",
    "properties": {"enableLmq": "true", "enableMultiDispatch": "true"}, "understood": True,
}  # fmt: skip
_BATCHES: dict[str, Any] = {
    "sends": [{"topic": "Batch", "attributes": "+queue.type:BatchCQ", "batch": 3, "transactions": 6}, _MIXED],
    "queues": f"Batch:0,Batch:1,{_PLAIN_QUEUES}", "understood": True,
}  # fmt: skip
_FILTERS: dict[str, Any] = {
    "sends": [{"topic": "Plain", "sql": "number > 5", "transactions": 9}], "queues": _PLAIN_QUEUES,
    "properties": {"enableConsumeQueueExt": "true", "enableCalcFilterBitMap": "true", "enablePropertyFilter": "true"},
    "understood": True,
}  # fmt: skip
_MIXED_ONLY: dict[str, Any] = {"sends": [_MIXED], "queues": _PLAIN_QUEUES, "understood": True}
SETTINGS = {
    "batchcq": Setting("5.3.3", "a BatchConsumeQueue", **_BATCHES),
    "batchcq-5.5": Setting("5.5.0", "a BatchConsumeQueue", **_BATCHES),
    "lmq": Setting("5.3.3", "light messages", **_LIGHT),
    "lmq-4.9": Setting("4.9.7", "light messages", **_LIGHT),
    "lmq-5.5": Setting("5.5.0", "light messages", **_LIGHT),
    "rocksdb": Setting("5.3.3", "a RocksDB of queues", **_ROCKSDB),
    "double-write": Setting(
        "5.3.3", "a RocksDB of queues", [PLAIN], _PLAIN_QUEUES, {"rocksdbCQDoubleWriteEnable": "true"},
    ),
    "double-write-5.5": Setting(
        "5.5.0", "a RocksDB of queues", [_MIXED], _PLAIN_QUEUES,
        {"rocksdbCQDoubleWriteEnable": "true", "useSeparateStorePathForRocksdbCQ": "true"},
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
        "5.5.0", "", [{"topic": "Plain", "later": 300_000, "transactions": 9}], _PLAIN_QUEUES, understood=True,
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


def made(setting: Setting, folder: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A store that a broker closed, and what it served before."""
    store = folder / "store"
    with running(installed(setting.version), store, **{**SMALL, **setting.properties}) as cluster:
        for options in setting.sends:
            cluster.run("Kinds", folder / "sent.jsonl", **seeded(options))
        before = served(cluster, setting.queues, folder / "before.jsonl")
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


@pytest.mark.parametrize("name", SETTINGS)
def test_a_store_is_judged_as_its_clients_say(name: str, tmp_path: Path) -> None:
    """No finding but what the check-backs explain, the transactions that were sent, one report from both engines."""
    setting = SETTINGS[name]
    store, _ = made(setting, tmp_path)
    report = verify(store)
    sent = rocketmq.read_truth(tmp_path / "sent.jsonl")
    decided = Counter(event["local"] for event in sent if event["event"] == "half")
    assert report.transactions["committed"] == decided["COMMIT_MESSAGE"]
    assert report.transactions["rolled_back"] == decided["ROLLBACK_MESSAGE"]
    asked = any(event["event"] == "check" for event in sent)
    assert set(report.findings.counts) <= ({"delivered-twice", "double-end"} if asked else set())
    assert not report.not_judged
    assert comparable(verify_inline(str(store), 8192)) == comparable(report)


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_what_is_understood_is_rebuilt_and_served(name: str, tmp_path: Path) -> None:
    """Without its index, and with a damaged queue, a store is rebuilt, and the broker serves what it served before."""
    setting = SETTINGS[name]
    store, before = made(setting, tmp_path)
    assert rebuild(store).ok
    shutil.rmtree(store / "index")
    for directory, size in (("consumequeue", 20), ("batchconsumequeue", 46)):
        for damaged in sorted((store / directory).rglob("0" * 20))[:1]:
            damaged.write_bytes(bytes(size) + damaged.read_bytes()[size:])
    assert _rebuild(store).replacement is not None
    assert verify(store).ok or not set(verify(store).findings.counts) - {"delivered-twice", "double-end"}
    assert served_again(setting, store, tmp_path / "after.jsonl") == before


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_understood_is_left_as_it_is(name: str, tmp_path: Path) -> None:
    setting = SETTINGS[name]
    store, before = made(setting, tmp_path)
    pulled = [event for event in before if event["event"] == "pulled"]
    assert len(pulled) >= 20
    bytes_before = on_disk(store)
    report = rebuild(store)
    assert not report.ok
    assert setting.what in str([str(one) for one in report.misfits])
    for act in (_rebuild, _recover):
        with pytest.raises(NotUnderstood) as refused:
            act(store)
        assert str(refused.value).startswith(str(store))
    assert on_disk(store) == bytes_before
    assert not (store / "checkback").exists()
    assert served_again(setting, store, tmp_path / "after.jsonl") == before


@pytest.mark.parametrize("name", ["batchcq", "lmq", "rocksdb", "ext"])
def test_a_salvage_serves_the_same(name: str, tmp_path: Path) -> None:
    setting = SETTINGS[name]
    store, before = made(setting, tmp_path)
    assert not salvage(store, tmp_path / "out").left_behind
    after = served_again(setting, tmp_path / "out", tmp_path / "after.jsonl")
    keys = [{event["key"] for event in events if event["event"] == "pulled"} for events in (before, after)]
    assert keys[0] == keys[1]


def test_undo_brings_back_what_a_rebuild_exchanged(tmp_path: Path) -> None:
    setting = Setting("5.3.3", "", [PLAIN, {"topic": "Other", "queues": 1}], f"{_PLAIN_QUEUES},Other:0")
    store, before = made(setting, tmp_path)
    damaged = store / "consumequeue" / "Plain" / "0" / f"{0:020}"
    raw = bytearray(damaged.read_bytes())
    raw[20:40] = bytes(20)
    damaged.write_bytes(raw)
    shutil.rmtree(store / "index")
    bytes_before = on_disk(store)
    assert _rebuild(store).replacement is not None
    assert on_disk(store) != bytes_before
    undo(store, broker_is_stopped=True)
    assert on_disk(store) == bytes_before
    assert _rebuild(store).ok
    assert served_again(setting, store, tmp_path / "after.jsonl") == before
    with pytest.raises(StoreError, match="changed since"):
        undo(store, broker_is_stopped=True)


def _rebuild(store: Path) -> Any:
    return rebuild(store, apply=True, broker_is_stopped=True)


def _recover(store: Path) -> Any:
    return crash.apply(crash.plan(crash.survey(store)), broker_is_stopped=True)
