"""Stores that real brokers wrote, read through the door and judged by what their producers saw."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
import zlib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.format.sysflag import TransactionType
from broker.format.topics import HALF_TOPIC, SCHEDULE_TOPIC
from tests.store.permissions import as_nobody

STORES = {
    "rocketmq-3.1.5-clean": 2130,
    "rocketmq-3.1.5-killed": 2870,
    "rocketmq-3.1.5-recovered": 2870,
    "rocketmq-5.3.3-clean": 2397,
    "rocketmq-5.3.3-killed": 3154,
}
# Its broker was killed before it had dispatched the last half message to the index, and a commit to its queue.
NOT_INDEXED = {"rocketmq-5.3.3-killed": {"order_producer-8-450"}}
NOT_QUEUED = {"rocketmq-5.3.3-killed": 1}
by_store = pytest.mark.parametrize("name", STORES)
Golden = Callable[[str], Path]
Truth = Callable[[str], list[dict[str, Any]]]


def sent(lines: list[dict[str, Any]]) -> list[tuple[str, str, int, int]]:
    """(topic, key, body length, body CRC) of each message that the producers sent."""
    found = []
    for line in lines:
        body = (line.get("body_len"), line.get("body_crc"))
        if line["event"] == "batch":  # the producer sends it as three messages with keys of their own, to another topic
            found += [("BatchTopic", f"{line['key']}-b{number}", *body) for number in range(line["n"])]
        elif line["event"] in ("half", "plain"):
            found.append((line["topic"], line["key"], *body))
    return found


@by_store
def test_every_message_is_found_by_key(golden: Golden, truth: Truth, name: str) -> None:
    """Its half message at least, in whichever topic that stands; a delayed one may still wait in the schedule topic."""
    missing = set()
    with broker.open(golden(name), read_only=True) as store:
        for topic, key, length, crc in sent(truth(name)):
            found = [message for home in (topic, HALF_TOPIC, SCHEDULE_TOPIC) for message in store.by_key(home, key)]
            if not found:
                missing.add(key)
            for message in found:
                assert (message.properties.get("REAL_TOPIC", message.topic)) == topic
                assert (len(message.body), zlib.crc32(message.body)) == (length, crc)
                assert key in message.keys
    assert missing == NOT_INDEXED.get(name, set())


@by_store
def test_every_deliverable_message_is_found_by_queue(golden: Golden, truth: Truth, name: str) -> None:
    """In its topic and under its queue offset; the broker that recovered the store overwrote 44 units of one queue."""
    bodies = {key: (topic, length, crc) for topic, key, length, crc in sent(truth(name))}
    with broker.open(golden(name), read_only=True) as store:
        elsewhere: dict[tuple[str, int], int] = defaultdict(int)
        queued = 0
        for topic in store.topics():
            for queue_id in store.queues(topic):
                begin, end = store.queue_range(topic, queue_id)
                assert begin == 0
                for queue_offset in range(end):
                    message = store.message(topic, queue_id, queue_offset)
                    assert message is not None
                    assert (message.topic, message.queue_id) == (topic, queue_id)
                    elsewhere[topic, queue_id] += message.queue_offset != queue_offset
                    queued += 1
                    if message.keys and message.keys[0] in bodies:
                        home = message.properties.get("REAL_TOPIC", topic)
                        assert bodies[message.keys[0]] == (home, len(message.body), zlib.crc32(message.body))
                assert store.message(topic, queue_id, end) is None
        deliverable = (TransactionType.NONE, TransactionType.COMMIT)
        expected = sum(record.transaction_type in deliverable for record in store.records())
    wrong = {queue: count for queue, count in elsewhere.items() if count}
    assert wrong == ({("OrderTopic", 0): 44} if name.endswith("recovered") else {})
    assert queued == expected - NOT_QUEUED.get(name, 0)


@by_store
def test_records_are_the_whole_log(golden: Golden, name: str) -> None:
    """Each begins where the one before it ended, and the last ends where the log does."""
    with broker.open(golden(name), read_only=True) as store:
        at, count = store.begin_offset, 0
        for record in store.records():
            assert record.commitlog_offset == at
            at, count = at + record.total_size, count + 1
        assert (count, at) == (STORES[name], store.end_offset)
        assert store.record(at) is None
        assert store.damages == ()


@by_store
def test_by_unique_key(golden: Golden, name: str) -> None:
    """5.x knows every message by its producer's id; 3.x has no such ids."""
    with broker.open(golden(name), read_only=True) as store:
        for record in list(store.records())[:200]:
            unique_key = record.property_map.get("UNIQ_KEY")
            assert (unique_key is None) == ("3.1.5" in name)
            if unique_key is not None:
                found = store.by_unique_key(record.topic, unique_key)
                assert record.commitlog_offset in [message.commitlog_offset for message in found]


@by_store
def test_by_time(golden: Golden, name: str) -> None:
    """What a look at every record says, at each moment at which something was stored."""
    with broker.open(golden(name), read_only=True) as store:
        times = [record.store_timestamp_ms for record in store.records()]
        begin, end = sorted(times)[len(times) // 3], sorted(times)[len(times) // 2]
        found = [record.store_timestamp_ms for record in store.records_between(begin, end)]
        assert found == [time_ms for time_ms in times if begin <= time_ms < end]
        first, last = store.queue_range("PayTopic", 0)
        queue = [store.message("PayTopic", 0, number) for number in range(first, last)]
        stored = [message.store_timestamp_ms for message in queue if message]
        for moment in {*stored, stored[0] - 1, stored[-1] + 1}:
            later = [number for number, time_ms in enumerate(stored) if time_ms >= moment]
            assert store.offset_at_time("PayTopic", 0, moment) == (later[0] if later else last)


def test_state_table_and_redo_log_of_3_1(golden: Golden) -> None:
    with broker.open(golden("rocketmq-3.1.5-clean"), read_only=True) as store:
        assert (store.state_table.first, store.state_table.end, store.redo_log.end) == (0, 960, 960 + 780 + 150)
        for number, slot in enumerate(store.state_table.walk()):
            record = store.record(slot.commitlog_offset)
            assert record is not None
            assert (record.queue_offset, record.total_size) == (number, slot.size)
        assert sum(1 for _ in store.redo_log.walk()) == store.redo_log.end
        assert store.state_table.get(960) is None


@by_store
def test_the_small_files(golden: Golden, name: str) -> None:
    with broker.open(golden(name), read_only=True) as store:
        assert store.has_abort == name.endswith("killed")
        assert {"OrderTopic", "PayTopic"} <= set(store.topic_configs().topics)
        checkpoint = store.checkpoint()
        assert checkpoint is not None
        assert checkpoint.commitlog_timestamp_ms > 0
        assert isinstance(store.consumer_offsets().positions, dict)


def tree(path: Path) -> str:
    """A hash of all names, kinds, sizes, times of change and contents below a path."""
    digest = hashlib.sha256()
    for directory, directories, files in os.walk(path):
        directories.sort()
        for name in [".", *sorted(files)]:
            item = Path(directory, name)
            found = item.stat()
            digest.update(
                repr((str(item), found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns)).encode()
            )
            digest.update(item.read_bytes() if item.is_file() else b"")
    return digest.hexdigest()


def read_all(path: Path) -> int:
    """Use every part of the reading side; returns the number of records."""
    with broker.open(path, read_only=True) as store:
        records = list(store.records())
        assert store.end_offset == records[-1].commitlog_offset + records[-1].total_size
        assert store.segments
        assert store.checkpoint()
        assert store.topic_configs().topics
        store.consumer_offsets()
        for topic in store.topics():
            for queue_id in store.queues(topic):
                for queue_offset in range(*store.queue_range(topic, queue_id)):
                    assert store.message(topic, queue_id, queue_offset)
        for record in records[:50]:
            for key in record.property_map.get("KEYS", "").split():
                assert store.by_key(record.topic, key)
        list(store.state_table.walk())
        list(store.redo_log.walk())
    return len(records)


@by_store
def test_reading_changes_nothing_and_needs_no_permission_to_write(golden: Golden, name: str) -> None:
    """Everything is read by a user who may write nothing; not a byte, a name or a time of change differs after it."""
    source = golden(name)
    assert read_all(source) == STORES[name]  # and every module that loads late is loaded
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories let nobody else in
        Path(directory).chmod(0o755)
        path = Path(directory, "store")
        subprocess.run(["cp", "-a", "--sparse=always", source, path], check=True)
        subprocess.run(["chmod", "-R", "a-w,a+rX", path], check=True)
        before = tree(path)
        with as_nobody():
            with pytest.raises(PermissionError):
                (path / "commitlog/00000000000000000000").open("r+b")
            assert read_all(path) == STORES[name]
        assert tree(path) == before
        subprocess.run(["chmod", "-R", "u+w", path], check=True)
