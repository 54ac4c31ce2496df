"""What became of the transactions of the golden stores: by the issue, by pinned digests, and by the model."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from broker.format.commitlog import BLANK_SIZE, MAGIC_BLANK, Record, decode
from recovery.findings import Report
from recovery.verify.verifier import verify
from tests.transactions.model import Entry, judge

Golden = Callable[[str], Path]


@dataclass(frozen=True)
class Wanted:
    """The right answer about a store: (committed, rolled back, in doubt, parked), and the findings."""

    generation: str
    records: int
    transactions: tuple[int, int, int, int]
    digest: str
    counts: dict[str, int] = field(default_factory=dict)


KILLED_3 = "a958fc3124537688bcdf850126902a04"
RECOVERED = {"slot-missing": 58, "slot-wrong-state": 51, "slot-moved": 68, "table-compacted": 1, "queue-missing": 44}
KILLED_5 = {"committed-without-op": 270, "queue-missing": 1, "index-missing": 2}
STORES = {
    "rocketmq-3.1.5-clean": Wanted("state-table", 2130, (780, 150, 30, 0), "5cc3ed9ff2a56b5331737d6338ed4488"),
    "rocketmq-3.1.5-killed": Wanted("state-table", 2870, (1040, 194, 75, 0), KILLED_3),
    "rocketmq-3.1.5-recovered": Wanted("state-table", 2870, (1040, 194, 75, 0), KILLED_3, RECOVERED),
    "rocketmq-5.3.3-clean": Wanted("half-op", 2397, (780, 150, 0, 30), "4c17b693bce4ce54217dc43a64b39709"),
    "rocketmq-5.3.3-killed": Wanted("half-op", 3154, (1050, 150, 91, 30), "e0bc883e96643efb2d73f1fc23219bd0", KILLED_5),
}
by_store = pytest.mark.parametrize("name", STORES)


@by_store
def test_the_verdict_is_the_right_one(golden: Golden, name: str) -> None:
    wanted, report = STORES[name], verify(golden(name))
    committed, rolled_back, in_doubt, parked = wanted.transactions
    told = {"committed": committed, "rolled_back": rolled_back, "in_doubt": in_doubt, "parked": parked}
    assert report.transactions == {"total": sum(wanted.transactions), **told}
    assert (report.generation, report.records) == (wanted.generation, wanted.records)
    assert report.digest == wanted.digest
    assert dict(report.findings.counts) == wanted.counts
    assert report.ok is not bool(wanted.counts)


def of_kind(report: Report, kind: str) -> list[dict[str, Any]]:
    return [finding.as_json() for finding in report.findings if finding.kind == kind]


def test_the_recovery_of_3_x_overwrote_one_queue_and_lost_transactions(golden: Golden) -> None:
    report = verify(golden("rocketmq-3.1.5-recovered"))
    lost = of_kind(report, "queue-missing")
    assert {(finding["topic"], finding["queue_id"]) for finding in lost} == {("OrderTopic", 0)}
    entries = judge(entries_of(golden("rocketmq-3.1.5-recovered")), 0)
    states = {offset: told["state"] for offset, told in entries.transactions.items()}
    assert all(states[finding["commitlog_offset"]] == 4 for finding in of_kind(report, "slot-missing"))
    assert all(states[finding["commitlog_offset"]] in (8, 12) for finding in of_kind(report, "slot-wrong-state"))


def test_the_killed_broker_of_5_x_left_its_last_record_out_of_queue_and_index(golden: Golden) -> None:
    """A half message: it was stored, and the broker was killed before it had dispatched it."""
    report = verify(golden("rocketmq-5.3.3-killed"))
    last = list(records_of(golden("rocketmq-5.3.3-killed")))[-1]
    findings = of_kind(report, "queue-missing") + of_kind(report, "index-missing")
    assert [finding["commitlog_offset"] for finding in findings] == [last[0]] * 3
    assert (findings[0]["topic"], findings[0]["queue_offset"]) == (last[1].topic, last[1].queue_offset)
    assert last[1].topic == "RMQ_SYS_TRANS_HALF_TOPIC"
    assert last[1].property_map.keys() >= {"KEYS", "UNIQ_KEY"}


@by_store
def test_the_model_says_the_same_of_real_stores(golden: Golden, name: str) -> None:
    """From records decoded one by one, by dicts: state, deliveries, digest and findings."""
    judgement, wanted = judge(entries_of(golden(name)), 0), STORES[name]
    assert judgement.digest == wanted.digest
    assert judgement.counts == verify(golden(name)).transactions
    found = Counter(kind for kind, _ in judgement.findings.elements())
    assert found == {kind: count for kind, count in wanted.counts.items() if kind == "committed-without-op"}


def records_of(store: Path) -> Iterator[tuple[int, Record]]:
    """The records of a whole store, found by nothing but their lengths."""
    for path in sorted((store / "commitlog").iterdir()):
        held, at = path.read_bytes(), 0
        while at + BLANK_SIZE <= len(held):
            size, magic = struct.unpack_from(">ii", held, at)
            if size == 0 or magic == MAGIC_BLANK:
                break
            yield int(path.name) + at, decode(held, at)
            at += size


def entries_of(store: Path) -> list[Entry]:
    """What the records of a real store say, for the model."""
    return [entry for offset, record in records_of(store) if (entry := entry_of(offset, record)) is not None]


def entry_of(offset: int, record: Record) -> Entry | None:
    said, kind = record.property_map, record.sys_flag & 0xC
    facts = {
        "group": said.get("PGROUP", ""),
        "topic": record.topic,
        "crc": record.body_crc,
        "born": record.born_timestamp_ms,
    }
    if record.topic == "RMQ_SYS_TRANS_HALF_TOPIC":
        facts |= {"topic": said["REAL_TOPIC"], "queue": record.queue_id, "place": record.queue_offset}
        return {"says": "half", "offset": offset, **facts, "key": said.get("UNIQ_KEY", "")}
    if record.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC":
        numbers = [int(number) for number in record.body.decode().split(",") if number]
        return {"says": "op", "offset": offset, "queue": record.queue_id, "numbers": numbers}
    if record.topic == "TRANS_CHECK_MAX_TIME_TOPIC":
        return {"says": "parked", "offset": offset, "key": said["UNIQ_KEY"]}
    if record.topic == "SCHEDULE_TOPIC_XXXX":
        facts |= {"topic": said["REAL_TOPIC"]}
    if kind == 4:
        return {"says": "prepared", "offset": offset, "slot": record.queue_offset, **facts}
    if kind:
        says = "commit" if kind == 8 else "rollback"
        return {"says": says, "offset": offset, "names": record.prepared_transaction_offset, **facts}
    return None
