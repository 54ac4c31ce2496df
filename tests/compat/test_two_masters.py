"""The flash sale on a real cluster of two masters, one of which is killed at random: do the sums agree?

`CHECKBACK_SALE_SECONDS` is how long it lasts, `CHECKBACK_SALE_LEAST` how often each kind of crash must have struck.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import broker
from recovery.demo.runner import Demo
from tests.cluster.waiting import awaited
from tests.compat import rocketmq

SECONDS = float(os.environ.get("CHECKBACK_SALE_SECONDS", "60"))
LEAST = int(os.environ.get("CHECKBACK_SALE_LEAST", "1"))
MASTERS = ("broker-a", "broker-b")
SOON = {"transactionCheckInterval": 1000, "transactionTimeOut": 1000, "transactionCheckMax": 1000,
        "messageDelayLevel": " ".join(["1s"] * 18)}  # fmt: skip

pytestmark = pytest.mark.timeout(1800)


@pytest.fixture
def namesrv(tmp_path: Path) -> Iterator[rocketmq.Cluster]:
    try:
        installation = rocketmq.install("5.3.3")
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))
    with rocketmq.Cluster(installation, tmp_path / "unused", **SOON) as cluster:
        yield cluster


def are_there(namesrv: str) -> bool:
    """Whether the name server knows both masters."""
    try:
        with broker.connect(f"rocketmq://{namesrv}") as cluster:
            cluster.create_topic("probe")
            route = cluster.topic("probe")
    except broker.BrokerError:
        return False
    return route is not None and len(route.brokers) == len(MASTERS)


def test_the_sums_agree(namesrv: rocketmq.Cluster, tmp_path: Path) -> None:
    ports = [rocketmq.free_port() for _ in MASTERS]
    running = {name: namesrv.start_master(name, tmp_path / name, port)
               for name, port in zip(MASTERS, ports, strict=True)}  # fmt: skip
    assert awaited(lambda: are_there(namesrv.namesrv), 90)
    over, kills, chance = threading.Event(), [0], random.Random(4711)

    def kill_now_and_then() -> None:
        while not over.wait(chance.uniform(8, 16)):
            name = chance.choice(MASTERS)
            running[name].kill()
            kills[0] += 1
            over.wait(chance.uniform(0, 3))
            with contextlib.suppress(rocketmq.BrokerFailed):  # a busy machine: the other master is left
                running[name] = namesrv.start_master(name, tmp_path / name, ports[MASTERS.index(name)])

    def said(sentence: str) -> None:
        print(sentence)
        if "the sale is over" in sentence:
            over.set()

    (tmp_path / "sale").mkdir()
    demo = Demo(str(tmp_path / "sale"), seconds=SECONDS, least=LEAST, rate=0.3, seed=4711,
                broker=f"rocketmq://{namesrv.namesrv}", say=said)  # fmt: skip
    killer = threading.Thread(target=kill_now_and_then, daemon=True)
    killer.start()
    try:
        result = demo.run()
    finally:
        over.set()
        killer.join(rocketmq.BOOT_SECONDS)
    print(kills[0], "kills of a master;", result.as_json())
    assert kills[0] >= 1
    assert not result.faults, result.faults
    assert not result.rare, result.rare
    assert {line.what: line.found for line in result.counts}["orders"] > 10
