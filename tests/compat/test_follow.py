"""A copy follows a real master through mixed traffic, a kill and a restart: the same bytes, the same judgement."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.compat import rocketmq
from tests.compat.followed import assert_same, await_text, follow_to_the_end, follower
from tests.compat.rocketmq import Cluster

VERSIONS = os.environ.get("CHECKBACK_FOLLOWED", "5.3.3").split(",")  # 4.9.7 and 5.5.0 pass, too
COUNT = int(os.environ.get("CHECKBACK_FOLLOWED_COUNT", "1500"))

pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(autouse=True, params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    try:
        rocketmq.install(request.param)
        rocketmq.install(rocketmq.NAME_SERVER)
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))
    return str(request.param)


def test_it_has_every_byte_of_a_master_that_is_killed(tmp_path: Path, version: str) -> None:
    store, copy, out = tmp_path / "master", tmp_path / "copy", tmp_path / "follow.log"
    options = {
        "group": "order_producer", "seed": 7, "threads": 2, "body": 9000, "plain": 30, "rollback": 20, "unknown": 20,
        "topics": "Orders,Payments", "quiet": 5,
    }  # fmt: skip
    with Cluster(rocketmq.install(version), store) as cluster:
        cluster.start_broker()
        address = f"127.0.0.1:{cluster.broker_port + 1}"
        following = follower(address, copy, out)
        try:
            cluster.run("Generate", tmp_path / "first.jsonl", count=COUNT, **options)
            sender = cluster.start("Generate", tmp_path / "second.jsonl", count=100_000, pause_ms=2, **options)
            sent = tmp_path / "second.jsonl"
            rocketmq.await_events(sent, lambda events: sum(one["event"] == "half" for one in events) > 100)
            written = len(out.read_text())
            await_text(out, written, "up to date")  # while two threads send every 2 ms: the master is never silent
            assert cluster.broker is not None
            cluster.broker.kill()
            sender.kill()
            cluster.start_broker()
            following.kill()  # the copy's turn
            following.wait()
            cluster.run("Generate", tmp_path / "third.jsonl", count=300, **{**options, "seed": 8})
            known = len(out.read_text())
            following = follower(address, copy, out)
            await_text(out, known, "up to date")
            last = follow_to_the_end(cluster, following, address, copy)
        except BaseException:
            print(out.read_text()[-3000:])
            raise
        finally:
            following.kill()
            following.wait()
        cluster.broker.stop()
    assert_same(store, copy, last)
    assert last.transactions["committed"] > 100
