"""Real brokers open the stores that we write: 3.1.4, whose state table we write, and 5.3.3."""

from __future__ import annotations

import shutil
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import broker
from recovery.verify.verifier import verify
from tests.compat import ours, rocketmq, witness
from tests.compat.ours import Event, place, places
from tests.compat.rocketmq import Cluster, running

ASKED_S = 75  # 3.1.4 asks 60 s after its start, and every 10 s from then on


def read(cluster: Cluster, directory: Path) -> list[Event]:
    """What a Java consumer gets from our topics."""
    truth = directory / "read.jsonl"
    cluster.run("Reader", truth, topics=",".join(ours.TOPICS))
    return rocketmq.read_truth(truth)


def settle(cluster: Cluster, directory: Path) -> list[Event]:
    """Let a producer of the group answer the broker for a while; returns what it was asked."""
    truth = directory / "settled.jsonl"
    cluster.run("Settler", truth, group=ours.GROUP, topic=ours.TOPICS[0], seconds=ASKED_S)
    return [event for event in rocketmq.read_truth(truth) if event["event"] == "check"]


def expected_totals(events: list[Event], left: dict[str, int]) -> dict[str, int]:
    """What the store must say when the in-doubt ones were answered as their keys say."""
    halves = [event["key"] for event in events if event["event"] == "half"]
    answers = Counter(key[-1] for key in left)
    delivered = {event["key"] for event in events if event["event"] == "delivered"}
    committed = sum(key in delivered for key in halves) + answers["c"]
    rolled_back = sum(event["event"] == "rolled back" for event in events) + answers["r"]
    return {
        "total": len(halves),
        "committed": committed,
        "rolled_back": rolled_back,
        "in_doubt": answers["u"],
        "parked": 0,
    }


@pytest.mark.parametrize("ending", ["clean", "killed"])
def test_3_1_4_goes_on_where_we_stopped(ending: str, tmp_path: Path) -> None:
    """Same queue offsets, bodies and in-doubt slots; it asks about those, and settles them by what it is answered."""
    store = tmp_path / "store"
    seed = time.time_ns() % 1_000_000
    if ending == "clean":
        events = ours.written_clean(store, seed)
    else:
        events = ours.written_killed(store, seed)
        broker.open(store).close()  # recovers it
    before = verify(store)
    assert before.ok, before.as_json()["counts"]
    if ending == "clean":
        left = ours.in_doubt(events)
    else:  # what was under way at the kill may have happened without a word of it
        with broker.open(store, read_only=True) as opened:
            found = {half.keys[0]: half for half in _halves(opened)}
        left = {key: found[key].queue_offset for key in found}
        assert ours.in_doubt(events).items() >= {k: v for k, v in left.items() if k in ours.in_doubt(events)}.items()
    with running(rocketmq.install("3.1.4"), store) as cluster:
        read_events = read(cluster, tmp_path)
        if ending == "clean":
            assert places(read_events, "pulled") == places(events, "delivered")
        else:
            assert not places(events, "delivered") - places(read_events, "pulled")
        asked = settle(cluster, tmp_path)
        assert cluster.broker is not None
        cluster.broker.stop()
    assert {event["key"].split()[0]: event["slot"] for event in asked} == left
    after = verify(store).as_json()
    if ending == "clean":
        assert after["transactions"] == expected_totals(events, left)
    # 3.1.4 leaves its ends out of the index, which is ours up to where it went on.
    assert set(after["counts"]) <= {"index-missing"}
    assert all(finding["commitlog_offset"] >= before.end_offset for finding in after["findings"])


def _halves(store: Any) -> list[broker.ReceivedMessage]:
    from recovery.transactions.in_doubt import Pending

    found = Pending(store.path, time.time_ns() // 1_000_000, parked=False, progress=lambda done, total: None)
    return [broker.ReceivedMessage.of(store.record(half.as_json()["commitlog_offset"])) for half in found]


def test_3_1_4_reads_a_killed_store_that_nobody_recovered(tmp_path: Path) -> None:
    """Records, queue offsets and bodies. Its own recovery may overwrite units of a queue: then verification names each.

    Quirk (3.1.4): two threads put units into a queue while it recovers, see `rocketmq-3.1.5/recovered`.
    """
    store = tmp_path / "store"
    events = ours.written_killed(store, time.time_ns() % 1_000_000)
    with running(rocketmq.install("3.1.4"), store) as cluster:
        found = read(cluster, tmp_path)
        assert cluster.broker is not None
        cluster.broker.stop()
    there = {(record.commitlog_offset, record.key, zlib.crc32(record.body)) for record in witness.records(store)}
    delivered = [event for event in events if event["event"] == "delivered"]
    assert {(event["commitlog_offset"], event["key"], event["body_crc"]) for event in delivered} <= there
    lost = places(events, "delivered") - places(found, "pulled")
    named = {finding["commitlog_offset"] for finding in verify(store).as_json()["findings"]}
    assert {event["commitlog_offset"] for event in delivered if place(event) in lost} <= named


@pytest.mark.parametrize("ending", ["clean", "killed"])
def test_5_3_3_opens_our_store(ending: str, tmp_path: Path) -> None:
    """A Java consumer gets every message, a query by key finds each; what 5.3.3 then writes makes the store `mixed`."""
    store = tmp_path / "store"
    seed = time.time_ns() % 1_000_000
    events = ours.written_clean(store, seed) if ending == "clean" else ours.written_killed(store, seed)
    if ending == "killed":
        broker.open(store).close()
    shutil.copytree(store, tmp_path / "before")
    with running(rocketmq.install("5.3.3"), store) as cluster:
        found = read(cluster, tmp_path)
        assert not places(events, "delivered") - places(found, "pulled")
        if ending == "clean":
            assert places(found, "pulled") == places(events, "delivered")
        assert all(event["asked"] >= 1 for event in found if event["event"] == "pulled")
        options = {"group": "java_producer", "seed": seed, "count": 60, "topics": ",".join(ours.TOPICS), "quiet": 15}
        cluster.run("Generate", tmp_path / "truth.jsonl", stall=30, **options)
        assert cluster.broker is not None
        cluster.broker.stop()
    after = verify(store).as_json()
    assert after["generation"] == "mixed"
    before = verify(tmp_path / "before").as_json()
    halves = sum(event["event"] == "half" for event in rocketmq.read_truth(tmp_path / "truth.jsonl"))
    assert after["transactions"]["total"] == before["transactions"]["total"] + halves
    assert after["ok"], after["counts"]
