"""A real cluster of two masters, of which one is killed now and then, and started again."""

from __future__ import annotations

import contextlib
import random
import threading
from pathlib import Path

import broker
from tests.compat import rocketmq

MASTERS = ("broker-a", "broker-b")
LONG_AWAY_S = 20.0
BOOTS = 3  # how often a master is started before the machine counts as too busy
SOON = {"transactionCheckInterval": 1000, "transactionTimeOut": 1000, "transactionCheckMax": 1000,
        "messageDelayLevel": " ".join(["1s"] * 18)}  # fmt: skip
"""Settings of brokers that check soon, and never give up."""


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
