"""Recipes for real stores with the truth beside them; `python -m tests.compat.stores DIRECTORY [NAME...]` makes
samples.

Each recipe makes `DIRECTORY/<version>-<name>/store` and `truth.jsonl`. What it draws at random comes from its seed.
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.compat import rocketmq
from tests.compat.rocketmq import Cluster, Java, running

LONG_TOPIC = "Long" + "x" * 110 + "Topic"


@dataclass
class Made:
    """A store that a real broker wrote, and what its producers and consumers say about it."""

    version: str
    store: Path
    truth: Path
    ending: str
    parameters: dict[str, object]

    def events(self) -> list[dict[str, Any]]:
        return rocketmq.read_truth(self.truth)


@dataclass
class Draw:
    """The random parameters of one store."""

    version: str
    seed: int
    options: dict[str, object] = field(default_factory=dict)
    properties: dict[str, object] = field(default_factory=dict)

    @classmethod
    def of(cls, version: str, seed: int) -> Draw:
        chance = random.Random(f"{version}/{seed}")
        topics = [f"Topic{chance.randrange(1000)}_{n}" for n in range(chance.randint(1, 3))] + [LONG_TOPIC]
        options: dict[str, object] = {
            "group": chance.choice(["order_producer", f"p{seed}", "G-" + "y" * chance.randint(1, 60)]),
            "seed": seed,
            "count": chance.randint(250, 600),
            "threads": chance.randint(1, 3),
            "body": chance.choice([40, 400, 1500]),
            "text": chance.choice([0, 20, 60]),
            "plain": chance.choice([0, 20, 40]),
            "rollback": chance.choice([5, 15, 30]),
            "unknown": chance.choice([5, 15, 30]),
            "topics": ",".join(topics),
            "keytail": chance.choice(["", " common", " common second"]),
        }
        if version == "3.1.4":
            return cls(version, seed, options, cls._state_table(chance))
        options.update(batch=chance.choice([0, 5, 15]), immunity=chance.choice([0, 10]))
        return cls(version, seed, options, cls._half_op(chance))

    @staticmethod
    def _state_table(chance: random.Random) -> dict[str, object]:
        return {
            "mapedFileSizeCommitLog": chance.choice([128 << 10, 300_000, 1 << 20]),
            "mapedFileSizeConsumeQueue": chance.choice([2000, 20_000, 60_000]),
            "tranStateTableMapedFileSize": chance.choice([2400, 24_000]),
            "tranRedoLogMapedFileSize": chance.choice([4000, 20_000]),
            "maxHashSlotNum": chance.choice([100, 1000]),
            "maxIndexNum": chance.choice([400, 4000]),
            "checkTransactionMessageTimerInterval": chance.choice([3000, 10_000]),
        }

    @staticmethod
    def _half_op(chance: random.Random) -> dict[str, object]:
        return {
            "mappedFileSizeCommitLog": chance.choice([128 << 10, 300_000, 1 << 20]),
            "mappedFileSizeConsumeQueue": chance.choice([2000, 20_000, 60_000]),
            "maxHashSlotNum": chance.choice([100, 1000]),
            "maxIndexNum": chance.choice([400, 4000]),
            "transactionCheckInterval": chance.choice([3000, 5000]),
            "transactionTimeOut": chance.choice([2000, 4000]),
            "transactionCheckMax": chance.choice([2, 3]),
            "enabledAppendPropCRC": chance.choice(["false", "true"]),
        }


def fresh(directory: Path) -> tuple[Path, Path]:
    """Where the store and the truth go, in a directory that is empty."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory / "store", directory / "truth.jsonl"


def _patience(version: str) -> dict[str, object]:
    """How long to wait for check-backs: `quiet` s without one when each was asked once, `stall` s in any case.

    3.1.4 first asks after 60 s; 5.3.3 asks in rounds, and parks a message that nobody settles after some of them.
    """
    return {"quiet": 5, "stall": 80} if version == "3.1.4" else {"quiet": 15, "stall": 30}


def clean(directory: Path, draw: Draw, **options: object) -> Made:
    """Send, let every check-back be answered (3.1.4 asks after 60 s at the earliest), stop with SIGTERM."""
    store, truth = fresh(directory)
    with running(rocketmq.install(draw.version), store, **draw.properties) as cluster:
        cluster.run("Generate", truth, **{**draw.options, **_patience(draw.version), **options})
        _broker(cluster).stop()
    return Made(draw.version, store, truth, "clean", {**draw.options, **draw.properties, **options})


def killed(directory: Path, draw: Draw, halves: int = 300, seconds: float = 0, **options: object) -> Made:
    """SIGKILL the broker in the middle of traffic, after so many half messages and so many seconds."""
    store, truth = fresh(directory)
    with running(rocketmq.install(draw.version), store, **draw.properties) as cluster:
        _kill_in_traffic(cluster, truth, halves, seconds, {**draw.options, **options})
    return Made(draw.version, store, truth, "killed", {**draw.options, **draw.properties, **options})


def _kill_in_traffic(cluster: Cluster, truth: Path, halves: int, seconds: float, options: dict[str, object]) -> None:
    sender = cluster.start("Generate", truth, **{"pause_ms": 4, **options, "count": 1_000_000})
    rocketmq.await_events(truth, bool)
    begun = time.monotonic()
    rocketmq.await_events(truth, lambda events: sum(e["event"] == "half" for e in events) >= halves)
    time.sleep(max(0.0, begun + seconds - time.monotonic()))
    _broker(cluster).kill()
    sender.kill()


def retries(directory: Path, draw: Draw, **options: object) -> Made:
    """As `clean`, with a consumer that sends messages back: the first transaction becomes a dead letter."""
    return clean(directory, draw, **{"consumer": f"consumer_{draw.seed}", "retries": 2, "count": 150, **options})


def retries_killed(directory: Path, draw: Draw, seconds: float = 20, **options: object) -> Made:
    """Retries and check-backs under way at the moment of the SIGKILL."""
    consumer = {"consumer": f"consumer_{draw.seed}", "retries": 2, "pause_ms": 60, **options}
    return killed(directory, draw, 150, seconds, **consumer)


def recovered(directory: Path, draw: Draw, more: int = 0, wait: float = 5) -> Made:
    """A killed 3.1.4 store of several redo log files (kept as `before`), opened again by the real broker.

    With `more`, so many further messages are sent after the recovery, so that slots of the compacted table are reused.
    """
    draw.properties.update(tranRedoLogMapedFileSize=4000, tranStateTableMapedFileSize=2400)
    made = killed(directory, draw, 400, unknown=25)
    shutil.copytree(made.store, directory / "before")
    shutil.copy(made.truth, directory / "before.truth.jsonl")
    first = 1 + max(int(e["key"].split("-")[-1]) for e in made.events() if e["event"] == "sending")
    with running(rocketmq.install(draw.version), made.store, **draw.properties) as cluster:
        if more:
            options = {**draw.options, "unknown": 25, "first": first, "count": more, "quiet": 10, "stall": 75}
            cluster.run("Generate", made.truth, **options)
        time.sleep(wait)
        _broker(cluster).stop()
    made.ending = "recovered"
    return made


def traps(directory: Path, draw: Draw, **options: object) -> Made:
    """Transactions that were ended twice, the other way or by strangers, and halves that a delay led astray."""
    store, truth = fresh(directory)
    with running(rocketmq.install(draw.version), store, **draw.properties) as cluster:
        cluster.run("Traps", truth, group="trapper", seed=draw.seed, rounds=5, **options)
        _broker(cluster).stop()
    return Made(draw.version, store, truth, "clean", {**draw.properties, **options})


def _broker(cluster: Cluster) -> Java:
    if cluster.broker is None:
        raise rocketmq.BrokerFailed("the broker was not started")
    return cluster.broker


SAMPLES: dict[str, Callable[[Path], Made]] = {
    "3.1.4-clean": lambda directory: clean(directory, Draw.of("3.1.4", 11)),
    "5.3.3-clean": lambda directory: clean(directory, Draw.of("5.3.3", 21)),
    "3.1.4-killed": lambda directory: killed(directory, Draw.of("3.1.4", 12)),
    "5.3.3-killed": lambda directory: killed(directory, Draw.of("5.3.3", 22), seconds=12),
    "3.1.4-retries": lambda directory: retries(directory, Draw.of("3.1.4", 13)),
    "5.3.3-retries": lambda directory: retries(directory, Draw.of("5.3.3", 23)),
    "3.1.4-recovered": lambda directory: recovered(directory, Draw.of("3.1.4", 14)),
    "3.1.4-recovered-more": lambda directory: recovered(directory, Draw.of("3.1.4", 15), more=300),
    "5.3.3-retries-killed": lambda directory: retries_killed(directory, Draw.of("5.3.3", 24)),
    "3.1.4-traps": lambda directory: traps(directory, Draw.of("3.1.4", 17)),
    "5.3.3-traps": lambda directory: traps(directory, Draw.of("5.3.3", 25)),
    "3.1.4-retries-killed": lambda directory: retries_killed(directory, Draw.of("3.1.4", 16), seconds=75),
}


def main(words: list[str]) -> None:
    target = Path(words[0])
    for name in words[1:] or SAMPLES:
        begun = time.monotonic()
        made = SAMPLES[name](target / name)
        print(f"{made.store.parent}  {made.ending}  {time.monotonic() - begun:.0f} s  {made.parameters}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
