"""A real 5.3.3 opens stores of our layout presets, with its file sizes set alike, serves what is there, and goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

import broker
from recovery.verify.verifier import verify
from tests.compat import ours, rocketmq
from tests.compat.ours import places, write
from tests.compat.rocketmq import running


def sizes(layout: broker.StoreLayout) -> dict[str, object]:
    """The settings of 5.3.3 for a layout, as `StoreLayout` names them."""
    return {
        "mappedFileSizeCommitLog": layout.segment_bytes,
        "mappedFileSizeConsumeQueue": layout.consume_queue_bytes,
        "maxHashSlotNum": layout.index_slots,
        "maxIndexNum": layout.index_items,
    }


@pytest.mark.parametrize("preset", ["small", "default"])
def test_5_3_3_opens_a_layout(preset: str, tmp_path: Path) -> None:
    """Several segments; every message at its place; what it writes then is verified, and our index finds the old."""
    path, layout = tmp_path / "store", getattr(broker.StoreLayout, preset)()
    seed = time.time_ns() % 1_000_000
    with broker.open(path, layout=layout, sync="os") as store:
        events = list(write(store, seed, 1500))
        for number in range(5):
            store.append(broker.Message("Large", bytes([number]) * (4 << 20), keys=[f"large-{number}"]))
        assert len(store.segments) > 1
    before = verify(path)
    assert before.ok, before.as_json()["counts"]
    with running(rocketmq.install("5.3.3"), path, **sizes(layout)) as cluster:
        cluster.run("Reader", tmp_path / "read.jsonl", topics=",".join((*ours.TOPICS, "Large")))
        options = {"group": "java_producer", "seed": seed, "count": 60, "topics": ",".join(ours.TOPICS), "quiet": 15}
        cluster.run("Generate", tmp_path / "generated.jsonl", stall=30, **options)
        assert cluster.broker is not None
        cluster.broker.stop()
    seen = rocketmq.read_truth(tmp_path / "read.jsonl")
    ordinary = [event for event in seen if event.get("topic") != "Large"]
    assert places(ordinary, "pulled") == places(events, "delivered")
    assert {event["body_len"] for event in seen if event["event"] == "pulled" and event["topic"] == "Large"} == {
        4 << 20
    }
    assert all(event["asked"] >= 1 for event in seen if event["event"] == "pulled")
    after = verify(path).as_json()
    slow = {"delivered-twice", "double-end", "committed-without-op"}  # it asks about what a slow client just committed
    assert not after["counts"].keys() - slow, after["counts"]
    assert after["generation"] == "mixed"
    with broker.open(path, read_only=True) as reader:
        (found,) = reader.by_key("Large", "large-3")
        assert found.body == bytes([3]) * (4 << 20)
