"""`checkback move` to a real cluster, killed on its way; and back: a broker's store is followed and taken over.

`CHECKBACK_MOVED_TO` names other versions than the default, with blanks between.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

import broker
from recovery.answering.group_answering import answering
from tests.cluster.waiting import awaited
from tests.compat import rocketmq
from tests.moving.shops import GROUP, TOPIC, Shop, filled

VERSIONS = os.environ.get("CHECKBACK_MOVED_TO", "5.3.3").split()
KILLS = int(os.environ.get("CHECKBACK_MOVE_KILLS", "4"))
MESSAGES = int(os.environ.get("CHECKBACK_MOVE_MESSAGES", "3000"))

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(scope="module", params=VERSIONS)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[rocketmq.Cluster]:
    try:
        installation = rocketmq.install(request.param)
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))
    options = {"transactionCheckMax": 60, "messageDelayLevel": "1s 5s 10s 30s 1m 2m"}
    with rocketmq.running(installation, tmp_path_factory.mktemp("real") / "store", **options) as running:
        assert awaited(lambda: _is_registered(running), 60)
        yield running


def _is_registered(running: rocketmq.Cluster) -> bool:
    try:
        broker.connect(f"rocketmq://{running.namesrv}").close()
    except broker.ClusterError:
        return False
    return True


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args={"timeout": 30})
    yield made
    made.dispose()


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "recovery.cli", *map(str, words)]


def moved(shop: Shop, real: rocketmq.Cluster, engine: Engine) -> dict[str, Any]:
    """kill -9 of the command some times, and the report of the run that ends."""
    words = command("move", shop.path, f"rocketmq://{real.namesrv}", "--ledger", engine.url, "--apply", "--json")
    for turn in range(KILLS):
        before = noted(shop)
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            assert awaited(lambda: process.poll() is not None or noted(shop) > before, 120)  # noqa: B023
            time.sleep(0.03 * turn)
            process.send_signal(signal.SIGKILL)
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return dict(json.loads(ran.stdout))


def noted(shop: Shop) -> int:
    """Up to where the queues were sent, summed up, as the move has noted it."""
    path = shop.path / "checkback" / "move.db"
    if not path.exists():
        return 0
    with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(sqlite3.connect(path, timeout=5)) as catalog:
        return int(catalog.execute("SELECT coalesce(sum(next_offset), 0) FROM queues").fetchone()[0])
    return 0


def received(consumer: broker.ClusterConsumer, seconds: float) -> list[tuple[str, bytes]]:
    found = []
    while (message := consumer.receive(seconds)) is not None:
        found.append((message.topic, message.body))
        consumer.ack(message)
    return found


def test_a_store_moves_to_a_real_cluster(real: rocketmq.Cluster, tmp_path: Path, engine: Engine) -> None:
    shop = filled(tmp_path / "shop.store", engine, messages=MESSAGES, delay_s=40.0)
    report = moved(shop, real, engine)
    print({name: report[name] for name in ("sent", "sent_before", "recognised", "delayed", "in_doubt", "positions")})
    assert report["ok"]
    assert report["sent_before"] > 0
    for one in report["topics"].values():
        assert one["messages"] == one["read_back"]
        assert one["digest"] == one["read_back_digest"]
    with broker.connect(f"rocketmq://{real.namesrv}") as cluster:
        with cluster.consumer(GROUP, TOPIC) as consumer:
            left = [body for _, body in received(consumer, 15.0)]
        assert sorted(left) == sorted(set(shop.bodies[TOPIC]) - set(shop.consumed))
        with (
            answering(cluster, "shop", [broker.Ledger(engine)]) as answerer,
            cluster.consumer("all", [TOPIC, "reminders", "%DLQ%billing"]) as consumer,
        ):
            seen: list[tuple[str, bytes]] = []
            wanted = {("reminders", one) for one in shop.waiting} | {(TOPIC, shop.committed)}
            assert awaited(lambda: seen.extend(received(consumer, 1.0)) or wanted <= set(seen), 150), wanted - set(seen)
            assert awaited(lambda: answerer.report.rolled_back >= 1, 60)
    expected = {(topic, body) for topic in (TOPIC, "reminders", "%DLQ%billing") for body in shop.bodies[topic]} | wanted
    assert sorted(seen) == sorted(expected)  # each once, and none that was lost


def test_and_back(real: rocketmq.Cluster, tmp_path: Path) -> None:
    """A copy of the log with the broker's configuration becomes a store; and so does the broker's own directory."""
    topic, group = f"orders{time.time_ns()}", f"g{time.time_ns()}"
    with broker.connect(f"rocketmq://{real.namesrv}") as cluster:
        cluster.create_topic(topic, queues=2)
        producer = cluster.producer("plain")
        for number in range(40):
            producer.send(broker.Message(topic, b"%d" % number, keys=[f"k{number}"]))
        producer.send(broker.Message(topic, b"later"), delay_level=6)
        left = {b"%d" % number for number in range(40)}
        with cluster.consumer(group, topic) as consumer:
            for _ in range(15):
                message = consumer.receive(30.0)
                assert message is not None
                left.remove(message.body)
                consumer.ack(message)
    time.sleep(6)  # flushConsumerOffsetInterval
    copy, made = tmp_path / "copy.store", tmp_path / "shop.store"
    follow = (
        "follow",
        f"127.0.0.1:{real.broker_port + 1}",
        copy,
        "--from",
        "first",
        "--segment-bytes",
        "4MiB",
        "--once",
    )
    for words in (follow, follow):
        subprocess.run(command(*words), check=True, timeout=300)
    assert real.broker is not None
    real.broker.stop()
    shutil.copytree(real.store / "config", copy / "config")
    subprocess.run(command("salvage", copy, made), check=True, timeout=300)
    for path in (made, real.store):
        subprocess.run(command("recover", path, "--apply", "--broker-is-stopped"), check=True, timeout=300)
        with broker.open(path) as store, store.consumer(group, topic) as consumer:
            found = set()
            while (message := consumer.receive(2.0)) is not None:
                found.add(message.body)
                consumer.ack(message)
            assert left <= found <= left | {b"later"}, path
