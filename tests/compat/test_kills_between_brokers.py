"""Our processes are killed, then a real broker has the store, and so on: nothing is lost, delivered twice or forgotten.

Every other broker is killed, too. The last letter of a key is the end that its transaction shall have, whoever settles
it: the process that sent it, the broker that asks `Settler`, or our check-back at the end.

A broker of 5.x that has little CPU checks a half message once more before it reads its own op message, appends another
copy of it, and delivers both copies: that is its own doing. No copy is ever delivered twice, by anybody.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

import broker
from recovery.repair import crash
from recovery.torture import kills
from recovery.torture.notes import read_notes
from recovery.torture.second_reader import COMMIT
from recovery.verify.verifier import verify
from tests.compat import rocketmq
from tests.compat.rocketmq import running
from tests.compat.witness import records

VERSIONS = ("5.3.3", "5.5.0")
ROUNDS, KILLS = 20, 25
ASKED_S = 25
SETTINGS = {
    "transactionCheckMax": 50,
    "transactionOpBatchInterval": 100,  # ms; by default 3 s, in which it may check again
    "messageIndexEnable": "false",  # that of 5.5 holds tags
    "mappedFileSizeCommitLog": kills.LAYOUT.segment_bytes,
}


@pytest.mark.timeout(7200)
def test_kills_between_brokers(tmp_path: Path) -> None:
    store, notes = tmp_path / "store", tmp_path / "notes"
    try:
        installed = [rocketmq.install(version) for version in VERSIONS]
    except rocketmq.NotToBeHad as missing:
        pytest.skip(str(missing))
    asked = 0
    for number in range(int(os.environ.get("CHECKBACK_ROUNDS", ROUNDS))):
        kills.run(kills.KillPlan(str(store), str(notes), number, "half-op", kills=KILLS))
        with running(installed[number % 2], store, **SETTINGS) as cluster:
            truth = tmp_path / f"asked-{number}.jsonl"
            cluster.run("Settler", truth, group=kills.GROUP, topic=kills.TOPICS[0], seconds=ASKED_S)
            asked += sum(event["event"] == "check" for event in rocketmq.read_truth(truth))
            assert cluster.broker is not None
            cluster.broker.kill() if number % 4 < 2 else cluster.broker.stop()
        found = crash.plan(crash.survey(str(store)))
        if found.survey.facts.owner in (crash.Owner.FOREIGN_SINCE, crash.Owner.FOREIGN):
            crash.apply(found, broker_is_stopped=True, still_s=0)
    assert asked > 0
    with broker.open(store) as opened:
        for half in list(opened.transactions.in_doubt()):
            (opened.transactions.commit if half.keys[0][-1] == "c" else opened.transactions.rollback)(half)
    judge(store, notes)
    with running(installed[0], store, **SETTINGS) as cluster:
        cluster.run("Reader", tmp_path / "read.jsonl", topics=",".join(kills.TOPICS))
        events = rocketmq.read_truth(tmp_path / "read.jsonl")
    read = Counter(event["key"].split()[0] for event in events if event["event"] == "pulled")
    assert read == Counter({key: len(places) for key, places in kills.contents_of(store).delivered.items()})


def judge(store: Path, notes: Path) -> None:
    """By the log: each transaction ended as its key says, once; all that was acknowledged is there."""
    account = kills.contents_of(store)
    deliveries = Counter(one.names for one in records(store) if one.kind == COMMIT)
    assert [half for half, count in deliveries.items() if count > 1] == []
    twice = {key for key, places in account.delivered.items() if len(places) > 1}
    assert twice <= {key for key, copies in account.halves.items() if copies > 2}  # see the note at the top
    wrong = {key for key in account.halves if (key[-1] == "c") != (key in account.delivered)}
    assert wrong == set()
    for said in read_notes(notes):
        key = said["key"]
        if said["event"] == "half":
            assert key in account.halves
        elif said["event"] == "delivered":
            assert account.delivered[key] == [(said["topic"], said["crc"], said["queue_offset"])]
    report = verify(store)
    counts = {"delivered-twice": len(twice)} if twice else {}
    assert dict(report.findings.counts) == counts, [str(finding) for finding in report.findings][:6]
    assert report.transactions["in_doubt"] == 0
