"""A copy follows a real master for long: mixed traffic without end, check-backs, retries; both sides are killed.

`CHECKBACK_FOLLOWED_SECONDS` is how long there is traffic, `CHECKBACK_FOLLOWED_KILLS` how often the master is killed in
it; the follower is killed as often, at other moments. The hour of the release is `CHECKBACK_FOLLOWED_SECONDS=3600`.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.compat import rocketmq
from tests.compat.followed import assert_same, await_text, follow_to_the_end, follower
from tests.compat.rocketmq import Cluster, Java

SECONDS = float(os.environ.get("CHECKBACK_FOLLOWED_SECONDS", "60"))
KILLS = int(os.environ.get("CHECKBACK_FOLLOWED_KILLS", "1"))
VERSION = os.environ.get("CHECKBACK_FOLLOWED", "5.3.3").split(",")[0]
TRAFFIC = {
    "group": "order_producer", "threads": 3, "body": 3000, "plain": 30, "batch": 5, "rollback": 15, "unknown": 20,
    "topics": "Orders,Payments", "consumer": "billing", "count": 100_000_000, "pause_ms": 5,
}  # fmt: skip

pytestmark = pytest.mark.timeout(SECONDS + 1200)


@dataclass
class Traffic:
    """Senders and consumers, one process after another: each answers the checks that the one before it left."""

    cluster: Cluster
    directory: Path
    running: Java | None = None
    files: list[Path] = field(default_factory=list)

    def start(self) -> None:
        seed = len(self.files) + 1
        self.files.append(self.directory / f"sent-{seed}.jsonl")
        self.running = self.cluster.start("Generate", self.files[-1], **{**TRAFFIC, "seed": seed})

    def stop(self) -> None:
        """A kill: half messages stay in doubt."""
        assert self.running is not None
        self.running.kill()

    def keep(self) -> None:
        """Start the next one where this one gave up, as it does after 20 sends that failed."""
        assert self.running is not None
        if self.running.process.poll() is not None:
            self.start()

    def settle(self) -> None:
        """Send a little more, and answer checks until there are none."""
        self.files.append(self.directory / "last.jsonl")
        few = {**TRAFFIC, "seed": len(self.files) + 1, "count": 40, "quiet": 15}
        self.cluster.run("Generate", self.files[-1], **few)

    def counts(self) -> Counter[str]:
        """How often each kind of event was noted."""
        return Counter(str(one["event"]) for file in self.files for one in rocketmq.read_truth(file))


def moments(kills: int, seconds: float, chance: random.Random) -> list[tuple[float, str]]:
    """When whom to kill, in seconds from the beginning: master and follower, each once in each part of the time."""
    part = seconds / max(1, kills)
    victims = [(number, whom) for number in range(kills) for whom in ("master", "copy")]
    return sorted((part * (number + chance.uniform(0.2, 0.8)), whom) for number, whom in victims)


def test_an_hour_of_traffic(tmp_path: Path) -> None:
    try:
        installation = rocketmq.install(VERSION)
        rocketmq.install(rocketmq.NAME_SERVER)
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))
    store, copy, out = tmp_path / "master", tmp_path / "copy", tmp_path / "follow.log"
    with Cluster(installation, store) as cluster:
        cluster.start_broker()
        address, traffic = f"127.0.0.1:{cluster.broker_port + 1}", Traffic(cluster, tmp_path)
        following = follower(address, copy, out)
        try:
            traffic.start()
            following = disturb(cluster, traffic, following, copy, out)
            traffic.stop()
            traffic.settle()
            await_text(out, len(out.read_text()), "up to date")
            last = follow_to_the_end(cluster, following, address, copy)
        except BaseException:
            print(out.read_text()[-3000:])
            raise
        finally:
            following.kill()
            following.wait()
        assert cluster.broker is not None
        cluster.broker.stop()
    counts = traffic.counts()
    print(f"{SECONDS:.0f} s, {KILLS} kills each; {dict(counts)}; {last.line()}; {dict(last.transactions)}")
    assert_same(store, copy, last)
    assert counts["check"] > 10
    assert last.transactions["committed"] > 10 * SECONDS / 60


def disturb(
    cluster: Cluster, traffic: Traffic, following: subprocess.Popen[str], copy: Path, out: Path
) -> subprocess.Popen[str]:
    """Traffic for SECONDS, in which the kills happen; the follower that runs at the end."""
    started, kills = time.monotonic(), moments(KILLS, SECONDS, random.Random(17))
    while (passed_s := time.monotonic() - started) < SECONDS or kills:
        assert following.poll() is None, "the follower ended by itself"
        traffic.keep()
        if kills and passed_s >= kills[0][0]:
            _, whom = kills.pop(0)
            if whom == "master":
                assert cluster.broker is not None
                cluster.broker.kill()
                cluster.start_broker()
            else:
                following.kill()
                following.wait()
                following = follower(f"127.0.0.1:{cluster.broker_port + 1}", copy, out)
        time.sleep(0.2)
    return following
