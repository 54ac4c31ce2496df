"""Stores with the engine half-op pass between us and real brokers: who is in doubt is asked, once, and nobody else.

A broker of 5.x checks back on what we left in doubt, also after a kill that nobody recovered; we settle what a broker
left that was killed with op messages in its memory. Nothing is delivered twice, and nothing is asked about again.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.transaction.events import TransactionState
from recovery.repair import crash
from recovery.verify.verifier import verify
from tests.compat import ours, rocketmq
from tests.compat.rocketmq import Cluster, running

VERSIONS = ("5.3.3", "5.5.0")
CHECKED_S = 25  # a round comes every 5 s, and every 1 s more where it waits for op messages
CHECKS = {
    "transactionCheckMax": 50,  # else what nobody knows is given up while we look
    "transactionOpBatchInterval": 100,  # ms; by default 3 s, in which a broker with little CPU asks and delivers again
}
SETTINGS: dict[str, dict[str, object]] = {"5.3.3": {}, "5.5.0": {"messageIndexEnable": "false"}}  # its index holds tags
COUNT = 600

pytestmark = pytest.mark.timeout(900)

Events = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _brokers_to_be_had() -> None:
    """Skip, with the reason, where the brokers cannot be run."""
    try:
        for version in VERSIONS:
            rocketmq.install(version)
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))


class Keys(broker.CheckListener):
    """Answers what a producer would: c for commit, r for roll back, else what `default` says."""

    def __init__(self, default: broker.LocalTransactionState = broker.LocalTransactionState.UNKNOW) -> None:
        self.default, self.asked = default, list[str]()

    def resolve_half_message(self, half: broker.Half, message: broker.ReceivedMessage) -> broker.LocalTransactionState:
        key = half.keys[0]
        assert message.keys[0] == key
        self.asked.append(key)
        answers = {"c": broker.LocalTransactionState.COMMIT_MESSAGE, "r": broker.LocalTransactionState.ROLLBACK_MESSAGE}
        return answers.get(key[-1], self.default)


def settled(cluster: Cluster, truth: Path, group: str = ours.GROUP) -> list[str]:
    """Let a producer of the group answer the broker for a while: the keys that it was asked about."""
    cluster.run("Settler", truth, group=group, topic=ours.TOPICS[0], seconds=CHECKED_S)
    return [event["key"] for event in rocketmq.read_truth(truth) if event["event"] == "check"]


def delivered(cluster: Cluster, truth: Path) -> Counter[str]:
    """What a consumer gets of our topics, by key."""
    cluster.run("Reader", truth, topics=",".join(ours.TOPICS))
    return Counter(event["key"].split()[0] for event in rocketmq.read_truth(truth) if event["event"] == "pulled")


def taken_over(store: Path) -> None:
    found = crash.plan(crash.survey(str(store)))
    if found.survey.facts.owner in (crash.Owner.FOREIGN_SINCE, crash.Owner.FOREIGN):
        crash.apply(found, broker_is_stopped=True, still_s=0)


def in_doubt(store: Path) -> set[str]:
    with broker.open(store) as opened:
        return {half.keys[0] for half in opened.transactions.in_doubt()}


def healthy(store: Path) -> dict[str, int]:
    report = verify(store)
    assert report.ok, [str(finding) for finding in report.findings][:6]
    assert report.generation == "half-op"
    return report.transactions


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ending", ["clean", "killed"])
def test_a_broker_settles_what_we_left_in_doubt(ending: str, version: str, tmp_path: Path) -> None:
    """It asks about these and no others, delivers each once, and we go on where it stopped; then it asks no more."""
    store, seed = tmp_path / "store", time.time_ns() % 1_000_000
    written = ours.written_clean if ending == "clean" else ours.written_killed
    events = written(store, seed, COUNT, "half-op")
    left = set(ours.in_doubt(events))
    before = Counter(event["key"] for event in events if event["event"] == "delivered")
    installation = rocketmq.install(version)
    with running(
        installation, store, **CHECKS, **SETTINGS[version]
    ) as cluster:  # of the killed one, nobody recovered it before
        asked = set(settled(cluster, tmp_path / "asked.jsonl"))
        first = delivered(cluster, tmp_path / "first.jsonl")
        assert cluster.broker is not None
        cluster.broker.stop()
    if ending == "killed":  # the last one may have been under way without a word of it
        assert len(asked - left) <= 1
        assert len(left - asked) <= 1
        left = asked
    assert asked == left
    committed = before + Counter(key for key in left if key[-1] == "c")
    assert set(first.values()) == {1}
    assert len(set(first) ^ set(committed)) <= (ending == "killed")
    taken_over(store)
    unknown = {key for key in left if key[-1] == "u"}
    assert in_doubt(store) == unknown
    with broker.open(store) as opened:
        assert opened.writer.dispatcher.engine.name == "half-op"
        listener = Keys(broker.LocalTransactionState.COMMIT_MESSAGE)
        opened.transactions.check(0, 15, listener)
        assert sorted(listener.asked) == sorted(unknown)
        half = opened.transactions.prepare(broker.Message("OrderTopic", b"after", keys=["after-c"]), ours.GROUP)
        opened.transactions.commit(half)
        assert opened.transactions.in_doubt_slots() == []
    assert healthy(store)["in_doubt"] == 0
    with running(installation, store, **CHECKS, **SETTINGS[version]) as cluster:
        assert settled(cluster, tmp_path / "again.jsonl") == []
        last = delivered(cluster, tmp_path / "last.jsonl")
        assert cluster.broker is not None
        cluster.broker.stop()
    assert set(last.values()) == {1}
    assert set(last) == set(first) | unknown | {"after-c"}


@pytest.mark.parametrize("version", VERSIONS)
def test_we_settle_what_a_killed_broker_left(version: str, tmp_path: Path) -> None:
    """Its op messages of the last seconds died with it: what it delivered is not asked about, by us or by it."""
    store, truth, seed = tmp_path / "store", tmp_path / "truth.jsonl", time.time_ns() % 1_000_000
    installation = rocketmq.install(version)
    options = {"group": "java_producer", "seed": seed, "count": 300, "topics": ",".join(ours.TOPICS), "quiet": 1}
    slow = {"transactionCheckInterval": 600_000, "transactionOpBatchInterval": 600_000, **SETTINGS[version]}
    with running(installation, store, **slow) as cluster:
        producer = cluster.start("Generate", truth, unknown=40, plain=10, stall=400, **options)
        rocketmq.await_events(truth, lambda events: any(event["event"] == "sent" for event in events))
        assert cluster.broker is not None
        cluster.broker.kill()
        producer.kill()
    events = rocketmq.read_truth(truth)
    halves = {event["key"]: event for event in events if event["event"] == "half"}
    ends = {key: (event["local"] if event["local"] != "UNKNOW" else event["check"]) for key, event in halves.items()}
    wanted = {
        key for key, event in halves.items() if event["local"] != "COMMIT_MESSAGE"
    }  # a rollback is an op, no more
    assert wanted
    assert not verify(store).ok  # delivered, and no op message says so
    taken_over(store)
    assert in_doubt(store) == wanted
    with broker.open(store) as opened:
        for half in list(opened.transactions.in_doubt()):
            if ends[half.keys[0]] == "COMMIT_MESSAGE":
                assert opened.transactions.commit(half).state is TransactionState.COMMITTED
            else:
                opened.transactions.rollback(half)
    assert healthy(store)["in_doubt"] == 0
    with running(installation, store, **SETTINGS[version]) as cluster:
        assert settled(cluster, tmp_path / "again.jsonl", "java_producer") == []
        found = delivered(cluster, tmp_path / "found.jsonl")
        assert cluster.broker is not None
        cluster.broker.stop()
    plain = {event["key"] for event in events if event["event"] == "plain" and not event["delay"]}
    committed = {key for key, end in ends.items() if end == "COMMIT_MESSAGE"}
    assert {found[key] for key in committed} == {1}  # what is delayed it delivers again after a kill
    assert plain | committed <= set(found)
    assert not set(found) & (set(halves) - committed)
