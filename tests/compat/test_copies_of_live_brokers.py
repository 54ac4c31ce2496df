"""`checkback copy` beside a real broker that is written to: each copy verifies and is served.

It has the findings of a crash at that moment: an op message of 5.x that was not written yet is missing.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from broker.store.read.store import open_store
from recovery.findings import Finding, Findings
from recovery.repair.copying import copy_store
from recovery.verify.live_writes import LAG_MS
from recovery.verify.verifier import verify
from tests.compat import rocketmq
from tests.compat.kinds_of_stores import PLAIN_QUEUES, SMALL, installed, served
from tests.compat.rocketmq import running

COPIES, PAUSE_S = 5, 1.5
EXPLAINED = {
    "delivered-twice",  # by check-backs under load
    "double-end",
    "torn-tail",  # the broker wrote a record while the end of the log was copied
}

pytestmark = pytest.mark.timeout(900)


def unexplained(copy: Path, findings: Findings) -> list[Finding]:
    """All but those of deliveries in the last seconds of a copy, whose op messages would have come."""
    with open_store(copy) as store:
        last_ms = max(record.store_timestamp_ms for record in store.records())

        def is_late(finding: Finding) -> bool:
            delivered = store.record(int(finding.facts.get("delivered_offset", finding.commitlog_offset)))
            return delivered is not None and delivered.store_timestamp_ms > last_ms - LAG_MS

        return [one for one in findings if one.kind != "committed-without-op" or not is_late(one)]


@pytest.mark.parametrize("version", ["4.9.7", "5.3.3", "5.5.0"])
def test_copies_of_a_store_in_use(version: str, tmp_path: Path) -> None:
    brokers, store, sent = installed(version), tmp_path / "store", tmp_path / "sent.jsonl"
    with running(brokers, store, **SMALL) as cluster:
        cluster.run("Kinds", sent, topic="Plain", transactions=3, count=5)
        before = acknowledged = len(rocketmq.read_truth(sent))
        sending = cluster.start("Kinds", sent, topic="Plain", transactions=2000, count=4000, seed=1)
        rocketmq.await_events(sent, lambda events: len(events) > before)
        for number in range(COPIES):
            acknowledged = len(rocketmq.read_truth(sent))
            report = copy_store(str(store), str(tmp_path / f"copy-{number}"))
            assert report.was_live
            copy = verify(tmp_path / f"copy-{number}")
            found = unexplained(tmp_path / f"copy-{number}", copy.findings)
            assert {one.kind for one in found} <= EXPLAINED, [str(one) for one in found][:5]
            assert not copy.not_judged
            assert copy.records >= acknowledged  # a half message has an end, too
            time.sleep(PAUSE_S)
        assert sending.process.poll() is None  # or the last copies were taken of an idle broker
        sending.kill()
        assert cluster.broker is not None
        cluster.broker.stop()
    with running(brokers, tmp_path / f"copy-{COPIES - 1}", **SMALL) as cluster:
        again = served(cluster, PLAIN_QUEUES, tmp_path / "served.jsonl")
        plain = {event["key"] for event in again if event["event"] == "pulled"}
    events = [event for event in rocketmq.read_truth(sent)[:acknowledged] if event["event"] == "plain"]
    assert {event["key"] for event in events} <= plain
