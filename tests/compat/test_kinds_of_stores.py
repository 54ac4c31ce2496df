"""Real brokers in settings that people run: what checkback does not understand it leaves, and the broker serves on.

For each setting a store is made and judged: the truth comes from its clients. Where checkback does not build all of
its derived files, `rebuild --apply` and `recover --apply` change no byte. Where it does, the broker serves from rebuilt
files what it served before, and `undo` brings the old ones back.
"""

from __future__ import annotations

import shutil
from collections import Counter
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
from tests.compat.kinds_of_stores import (
    PLAIN,
    PLAIN_QUEUES,
    REFUSED,
    SETTINGS,
    UNDERSTOOD,
    Setting,
    made,
    on_disk,
    served_again,
)
from tests.spark.inline import comparable, verify_inline

pytestmark = pytest.mark.timeout(900)


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
    setting = Setting("5.3.3", "", [PLAIN, {"topic": "Other", "queues": 1}], f"{PLAIN_QUEUES},Other:0")
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
