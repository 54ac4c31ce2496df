"""Queues of a topic that was deleted and made again: they begin at 0 again, and the log keeps the records of before.

No file says that a topic was deleted. It shows in a queue whose first unit names a later record than one that the log
has of this queue before it. Those of before are in no queue, which is right, and no finding. Queues that were lost, and
that a broker began again, look the same: so the report says what was not compared.
RocketMQ: DefaultMessageStore.deleteTopics (5.3.3), cleanUnusedTopic (4.9.7).
"""

from __future__ import annotations

import os
from collections import Counter
from functools import cache

from broker.store.read.segments import Listing
from recovery.findings import Finding, Findings, NotJudged
from recovery.scan.record_at import record_at
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import NumberedUnits, UnitFile
from recovery.verify.kinds.rocksdb_queues import RocksDBUnits

_BATCHES = "batchconsumequeue"
_WHY = (
    "its queues begin at 0 again there: the topic was deleted and made again, which is right, or its queues were lost"
)


def begun_at(units: NumberedUnits, log: Listing, topic: str, queue_id: int) -> int:
    """The CommitLog offset of the record with which a queue begins, as the queue is now; 0 where it does not show."""
    if units.begin or not units.end:
        return 0
    at = int(units.read(0, 1)["commitlog_offset"][0])
    record = record_at(log, at) if at > 0 else None
    return at if record is not None and stated_place(record) == (os.fsencode(topic), queue_id, 0) else 0


def batch_begun_at(units: UnitFile, log: Listing, topic: str, queue_id: int) -> int:
    """The same of a BatchConsumeQueue, whose units have other numbers than their messages."""
    if units.begin or not units.end:
        return 0
    first = units.read(0, 1)[0]
    at = int(first["commitlog_offset"])
    record = record_at(log, at) if at > 0 and first["queue_offset"] == 0 else None
    return at if record is not None and stated_place(record)[:2] == (os.fsencode(topic), queue_id) else 0


def stated_place(record: Records) -> tuple[bytes, int, int]:
    """The topic, the queue and the queue offset that a record states."""
    queue_id, queue_offset = (int(record.field(name)[0]) for name in ("queue_id", "queue_offset"))
    return record.topic_codes[1][0], queue_id, queue_offset


def take_back_earlier_lives(findings: Findings, files: StoreFiles) -> tuple[NotJudged, ...]:
    """Drop the missing units of earlier lives of queues; returns of which topics, and how many.

    A queue that is not there was not begun again yet: it has no life but those before the others of its topic began.
    """

    @cache
    def begun(path: str, topic: str, queue_id: int) -> int | None:
        return _begun(files, path, topic, queue_id)

    def directory(finding: Finding) -> str:
        if files.rocksdb and finding.file == files.rocksdb:
            return files.rocksdb
        return os.path.join(files.path, _BATCHES if finding.facts["topic"] in files.batch_topics else "consumequeue")

    again: dict[tuple[str, str], int] = {}  # by directory and topic: where the first of its queues was begun again
    for finding in findings:
        if finding.kind == "queue-missing":
            name = directory(finding), str(finding.facts["topic"])
            at = begun(*name, finding.facts["queue_id"]) or 0
            if finding.commitlog_offset < at:
                again[name] = min(at, again.get(name, at))

    def is_of_before(finding: Finding) -> bool:
        if finding.kind != "queue-missing" or not again:
            return False
        name = directory(finding), str(finding.facts["topic"])
        at = begun(*name, finding.facts["queue_id"])
        at = again.get(name, 0) if at is None else at
        return finding.commitlog_offset < at <= int(finding.facts.get("found_commitlog_offset", at))

    counts = Counter((directory(one), str(one.facts["topic"])) for one in findings if is_of_before(one))
    findings.drop(is_of_before)
    return tuple(
        NotJudged(os.path.join(*name), f"{count} records before CommitLog offset {again[name]}", _WHY)
        for name, count in sorted(counts.items())
    )


def _begun(files: StoreFiles, path: str, topic: str, queue_id: int) -> int | None:
    """Where a queue begins; None where the queue is not there."""
    if path == os.path.join(files.path, _BATCHES):
        batches = files.batch_units(topic, queue_id)
        return batch_begun_at(batches, files.commitlog, topic, queue_id) if batches.end else None
    units = _units(files, path, topic, queue_id)
    return begun_at(units, files.commitlog, topic, queue_id) if units.end else None


def _units(files: StoreFiles, path: str, topic: str, queue_id: int) -> NumberedUnits:
    if path == files.rocksdb and files.rocksdb_queues is not None:
        return RocksDBUnits(files.rocksdb_queues, topic, queue_id)
    return files.queue_units(topic, queue_id)
