"""The store of a real slave is judged as its master's clients say, is rebuilt, and serves when its broker takes over.

A slave appends what its master sent, and derives the rest itself. Quirk (5.3.3): it learns the address of its master
from the name server, which the master told `brokerIP2`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from recovery.rebuild.rebuilder import rebuild
from recovery.repair import crash
from recovery.verify.verifier import verify
from tests.cluster.waiting import awaited
from tests.compat import rocketmq
from tests.compat.copied_log import await_same
from tests.compat.kinds_of_stores import PLAIN_QUEUES, SETTINGS, SMALL, installed, served, served_again
from tests.compat.rocketmq import Cluster, running
from tests.spark.inline import comparable, verify_inline

pytestmark = pytest.mark.timeout(900)


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", "5.5.0"])
def test_the_store_of_a_slave(version: str, end: str, tmp_path: Path) -> None:
    brokers, store, sent = installed(version), tmp_path / "slave", tmp_path / "sent.jsonl"
    slave = {**SMALL, "brokerRole": "SLAVE", "brokerId": 1}
    with (
        running(brokers, tmp_path / "master", **SMALL, brokerIP2="127.0.0.1") as master,
        Cluster(brokers, store, **slave, namesrvAddr=master.namesrv) as copying,
    ):
        process = copying.start_broker()
        for _ in range(3):
            master.run("Kinds", sent, topic="Plain", transactions=9)
        before = served(master, PLAIN_QUEUES, tmp_path / "before.jsonl")
        await_same(tmp_path / "master", store)
        topics = store / "config/topics.json"  # a slave asks for its master's topics every 10 s
        assert awaited(lambda: topics.exists() and '"Plain"' in topics.read_text(), 60)
        getattr(process, end)()
    if end == "kill":
        crash.apply(crash.plan(crash.survey(store)), broker_is_stopped=True, still_s=0)
    report = verify(store)
    decided = Counter(event["local"] for event in rocketmq.read_truth(sent) if event["event"] == "half")
    assert report.transactions["committed"] == decided["COMMIT_MESSAGE"] > 0
    assert report.transactions["rolled_back"] == decided["ROLLBACK_MESSAGE"] > 0
    assert set(report.findings.counts) <= {"delivered-twice", "double-end"}
    assert not report.not_judged
    assert comparable(verify_inline(str(store), 8192)) == comparable(report)
    shutil.rmtree(store / "index")
    if version != "5.5.0":  # whose index holds tags: refused, see test_kinds_of_stores
        assert rebuild(store, apply=True, broker_is_stopped=True).replacement is not None
    assert served_again(SETTINGS[f"plain-{version[:3]}"], store, tmp_path / "after.jsonl") == before
