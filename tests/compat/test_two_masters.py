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
LONG_AWAY_S = 20.0
BOOTS = 3  # how often a master is started before the machine counts as too busy
SOON = {"transactionCheckInterval": 1000, "transactionTimeOut": 1000, "transactionCheckMax": 1000,
        "messageDelayLevel": " ".join(["1s"] * 18)}  # fmt: skip

pytestmark = pytest.mark.timeout(2400)


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


class Masters:
    """The two of them; a thread kills one now and then, and lets it be away for moments or for long."""

    def __init__(self, cluster: rocketmq.Cluster, directory: Path, chance: random.Random) -> None:
        self._cluster, self._directory, self._chance = cluster, directory, chance
        self._ports = {name: rocketmq.free_port() for name in MASTERS}
        self._running = {name: self._started(name) for name in MASTERS}
        self._over = threading.Event()
        self._killer = threading.Thread(target=self._kill_now_and_then, daemon=True)
        self.kills = 0

    def _started(self, name: str) -> rocketmq.Java:
        return self._cluster.start_master(name, self._directory / name, self._ports[name])

    def _kill_now_and_then(self) -> None:
        while not self._over.wait(self._chance.uniform(8, 16)):
            name = self._chance.choice(MASTERS)
            self._running[name].kill()
            self.kills += 1
            self._over.wait(self._chance.choice((1, 3, LONG_AWAY_S)))
            with contextlib.suppress(rocketmq.BrokerFailed):  # a busy machine: the other master is left
                self._running[name] = self._started(name)

    def begin_killing(self) -> None:
        self._killer.start()

    def end_killing(self) -> None:
        """No more kills, and both are there: what is stored at a master that is away cannot come to rest."""
        if self._over.is_set():
            return
        self._over.set()
        self._killer.join(rocketmq.BOOT_SECONDS)
        for name in MASTERS:
            for _ in range(BOOTS):
                if self._running[name].process.poll() is None:
                    break
                with contextlib.suppress(rocketmq.BrokerFailed):
                    self._running[name] = self._started(name)
            assert self._running[name].process.poll() is None, f"{name} does not start on this machine"


def test_the_sums_agree(namesrv: rocketmq.Cluster, tmp_path: Path) -> None:
    masters = Masters(namesrv, tmp_path, random.Random(4711))
    assert awaited(lambda: are_there(namesrv.namesrv), 90)

    def said(sentence: str) -> None:
        print(sentence)
        if "the sale is over" in sentence:
            masters.end_killing()  # the time that the sale has to come to rest begins with both

    (tmp_path / "sale").mkdir()
    demo = Demo(str(tmp_path / "sale"), seconds=SECONDS, least=LEAST, rate=0.3, seed=4711,
                broker=f"rocketmq://{namesrv.namesrv}", say=said)  # fmt: skip
    masters.begin_killing()
    try:
        result = demo.run()
    finally:
        masters.end_killing()
    print(masters.kills, "kills of a master;", result.as_json())
    assert masters.kills >= 1
    assert not result.faults, result.faults
    assert not result.rare, result.rare
    assert {line.what: line.found for line in result.counts}["orders"] > 10
