"""`checkback move` to a real cluster, killed on its way; and back: a broker's store is followed and taken over.

`CHECKBACK_MOVED_TO` names other versions than the default, with blanks between.
"""

from __future__ import annotations

import json
import os
import signal
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
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
            catalog = shop.path / "checkback" / "move.db"
            assert awaited(lambda: process.poll() is not None or catalog.exists(), 120)  # noqa: B023
            time.sleep(0.3 + 4.5 * bool(turn) + 0.4 * turn)  # a run that goes on waits 4 s first
            process.send_signal(signal.SIGKILL)
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    return dict(json.loads(ran.stdout))


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
