"""A real 5.3.3 opens a store that our consumers used: it knows their positions, and delivers what they delayed."""

from __future__ import annotations

import time
from pathlib import Path

import broker
from broker.format.config import decode_consumer_offsets, decode_delay_offsets
from tests.compat import ours, rocketmq
from tests.compat.rocketmq import running

WAIT_S = 60
LEVEL = 3  # 2 s for this broker, 10 s for us: what is due later than it would say itself, it delivers at once


def test_5_3_3_goes_on_where_our_consumers_stopped(tmp_path: Path) -> None:
    """Positions stay, a message that was sent back reaches the retry topic, and delayOffset.json moves on."""
    path = tmp_path / "store"
    with broker.open(path, layout=ours.LAYOUT) as store:
        for body in (b"sent back", b"done", b"open"):
            store.append(broker.Message("OrderTopic", body, keys=["k"]))
        with store.consumer("billing", "OrderTopic") as consumer:
            first, second = consumer.receive(WAIT_S), consumer.receive(WAIT_S)
            assert first is not None
            assert second is not None
            assert consumer.retry(first, delay_level=LEVEL)
            assert consumer.ack(second)
    with running(rocketmq.install("5.3.3"), path) as cluster, broker.open(path, read_only=True) as store:
        deadline = time.monotonic() + WAIT_S
        while store.queue_range("%RETRY%billing", 0) != (0, 1):
            assert time.monotonic() < deadline, "the broker did not deliver it"
            time.sleep(0.2)
        again = store.message("%RETRY%billing", 0, 0)
        assert cluster.broker is not None
        cluster.broker.stop()
    assert again is not None
    assert (again.body, again.reconsume_times, again.unique_key) == (b"sent back", 1, first.unique_key)
    assert again.properties["RETRY_TOPIC"] == "OrderTopic"
    offsets = decode_consumer_offsets((path / "config/consumerOffset.json").read_bytes()).positions
    assert offsets["OrderTopic", "billing"][0] == 2
    assert offsets["%RETRY%billing", "billing"] == {0: 0}
    assert decode_delay_offsets((path / "config/delayOffset.json").read_bytes()).positions[LEVEL] == 1
