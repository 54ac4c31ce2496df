"""A store that is open for writing: sends, batches, topics, what is refused before anything is written."""

from __future__ import annotations

import copy
import json
import os
import pickle
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

import broker
from broker.format.config import Topics, decode_topics, new_topic
from broker.format.java import parse_unique_key
from broker.live import open_live
from broker.store.read.directory import StoreDirectory
from broker.store.read.layout import StoreLayout
from broker.store.shared import topicfile
from broker.store.write.uniquekey import new_unique_key
from broker.testing.crash_disk import CrashDisk
from recovery.verify.verifier import verify
from tests.golden.unpack import unpack

SMALL = StoreLayout(1 << 20, 6000, 2400, 2000, 100, 400)


def opened(path: Path, **options: Any) -> broker.LiveStore:
    return broker.open(path / "store", layout=SMALL, **options)


def end(store: broker.LiveStore) -> int:
    """Where the log ends, durable or not."""
    return store.writer.control.words[8]


def test_what_is_sent_is_found(tmp_path: Path) -> None:
    with opened(tmp_path, sync="each") as store:
        sent = broker.Message("orders", b"paid", tag="new", keys=["4711"], properties={"colour": "blue"})
        placed = [store.append(sent, queue_id=1), store.append(sent, queue_id=1)]
        assert [one.queue_offset for one in placed] == [0, 1]
        found = store.message("orders", 1, 1)
        assert found is not None
        assert (found.body, found.tag, found.keys) == (b"paid", "new", ("4711",))
        assert len(store.by_key("orders", "4711")) == 2
        assert store.queue_range("orders", 1) == (0, 2)
        assert [one.commitlog_offset for one in store.records()] == [one.commitlog_offset for one in placed]
        assert repr(store) == f"<broker.LiveStore {str(tmp_path / 'store')!r}, sync='each'>"
    store.close()
    assert verify(tmp_path / "store").ok


def test_every_message_gets_a_key_of_its_own(tmp_path: Path) -> None:
    """UNIQ_KEY, as RocketMQ's client makes it; one that is given stays."""
    with opened(tmp_path, sync="os") as store:
        for _ in range(3):
            store.append(broker.Message("orders", b"x"))
        store.append(broker.Message("orders", b"x"), extra_properties={"UNIQ_KEY": "MINE"})
        keys = [record.property_map["UNIQ_KEY"] for record in store.records()]
        assert len(set(keys)) == 4
        assert keys[3] == "MINE"
        parts = parse_unique_key(keys[0])
        assert (parts.address, parts.pid) == (bytes((127, 0, 0, 1)), os.getpid() & 0xFFFF)
        assert parts.ms_of_month < 31 * 24 * 3_600_000


def test_unique_keys_stay_apart() -> None:
    """Within a millisecond, across a month's end, and in a forked child."""
    assert len({new_unique_key(1_700_000_000_000) for _ in range(60_000)}) == 60_000
    key = new_unique_key(1_700_000_000_000)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_unique_key(1_700_000_000_000).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 100).decode()
    os.close(read)
    os.close(write)
    assert theirs[:20] != key[:20]
    month_ms = parse_unique_key(new_unique_key(1_704_067_200_000 + 40 * 24 * 3_600_000)).ms_of_month
    assert month_ms < 31 * 24 * 3_600_000


def test_a_batch_is_all_or_none(tmp_path: Path) -> None:
    with opened(tmp_path, sync="each") as store:
        store.create_topic("orders", message_type="NORMAL")
        messages = [broker.Message("orders", b"%d" % number) for number in range(5)]
        placed = store.append_batch(messages, queue_id=3)
        assert [one.queue_offset for one in placed] == [0, 1, 2, 3, 4]
        before = end(store)
        others = [broker.Message("orders", b"1"), broker.Message("others", b"2")]
        delayed = [broker.Message("orders", b"1", properties={"__SHARDINGKEY": "x"})]
        large = [broker.Message("orders", bytes(3 << 20))] * 2
        retry = [broker.Message("%RETRY%shop", b"1")]
        refused = [
            ([], "at least one"),
            (others, "has one topic, and this one has orders and others"),
            (retry, "cannot be sent as a batch"),
            (large, "6291456 bytes; at most 4194304"),
            (delayed, "takes NORMAL messages, and this is a FIFO one"),
        ]
        for batch, reason in refused:
            with pytest.raises(broker.MessageRejected, match=reason):
                store.append_batch(batch, queue_id=3)
        with pytest.raises(broker.MessageRejected, match="a segment of this store holds at most"):
            store.append_batch([broker.Message("orders", bytes(600_000))] * 2, queue_id=3)
        assert end(store) == before


def test_a_topic_without_a_queue_to_write_to_is_refused(tmp_path: Path) -> None:
    """One that another program made so."""
    with opened(tmp_path) as store:
        store.create_topic("orders", message_type="")
    topics = tmp_path / "store" / "config" / "topics.json"
    topics.write_bytes(topics.read_bytes().replace(b'"writeQueueNums":4', b'"writeQueueNums":0'))
    with opened(tmp_path) as store:
        reason = r"may not be written: its writeQueueNums in config/topics\.json is 0"
        with pytest.raises(broker.NotPermitted, match=reason):
            store.append(broker.Message("orders", b"x"))
        with pytest.raises(broker.NotPermitted, match=reason):
            store.transactions.prepare(broker.Message("orders", b"x"), "shop")
        assert end(store) == 0


def test_what_rocketmq_refuses_is_refused(tmp_path: Path) -> None:
    """Before anything is written."""
    with opened(tmp_path) as store:
        calls: list[tuple[dict[str, Any], str]] = [
            ({"topic": "orders", "body": b""}, "the body is empty"),
            ({"topic": "orders", "body": bytes((4 << 20) + 1)}, "at most 4194304"),
            ({"topic": "x" * 128, "body": b"1"}, "at most 127"),
            ({"topic": "a b", "body": b"1"}, "may only have"),
            ({"topic": "SCHEDULE_TOPIC_XXXX", "body": b"1"}, "the broker's own topic"),
            ({"topic": "RMQ_SYS_TRANS_HALF_TOPIC", "body": b"1"}, "the broker's own topic"),
            ({"topic": "orders", "body": b"1", "properties": {"a": "x" * 32_767}}, "at most 32767"),
            ({"topic": "orders", "body": b"1", "properties": {"a": "x" * 32_740}}, "too large for a record"),
        ]
        for fields, reason in calls:
            with pytest.raises(broker.MessageRejected, match=reason):
                store.append(broker.Message(**fields))
            with pytest.raises(broker.MessageRejected, match=reason):
                store.transactions.prepare(broker.Message(**{"topic": "t", **fields}), "shop")
        good = broker.Message("plain", b"1")
        for queue_id in (-1, 4):
            with pytest.raises(broker.MessageRejected, match=f"queues 0 to 3, and no queue {queue_id}"):
                store.append(good, queue_id=queue_id)
        with pytest.raises(broker.MessageRejected, match="the broker's own topic"):
            store.append(broker.Message("TRANS_CHECK_MAX_TIME_TOPIC", b"1"))
        with pytest.raises(broker.MessageRejected, match="0x01 or 0x02"):
            store.append(good, extra_properties={"a": "b\x01"})
        assert end(store) == 0
        assert not (tmp_path / "store" / "config").exists() or store.topic("orders") is None
    assert verify(tmp_path / "store").ok


def test_what_another_process_lets_a_topic_take_is_not_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a second a queue that it had added did not exist, and a topic did not take the type that it takes."""
    monkeypatch.setattr(topicfile, "_LOOK_MS", 1 << 40)  # the second does not end
    with opened(tmp_path) as store, opened(tmp_path) as other:
        plain, ordered = broker.Message("t", b"x"), broker.Message("t", b"x", properties={"__SHARDINGKEY": "x"})
        store.append(plain)
        other.create_topic("t", queues=8)
        assert store.append(plain, queue_id=7).queue_offset == 0
        other.create_topic("t", queues=8, message_type="FIFO", perm=4)
        with pytest.raises(broker.MessageRejected, match="takes FIFO messages"):
            store.append(plain, queue_id=8)  # it looks, since there was no such queue, and knows better from here on
        with pytest.raises(broker.NotPermitted, match="may not be written"):
            store.append(ordered)
        other.create_topic("t", queues=8, message_type="FIFO", perm=6)
        store.append(ordered)
        other.create_topic("t", queues=8, message_type="TRANSACTION")
        store.transactions.prepare(plain, "shop")
        other.create_topic("t", queues=8)
        with pytest.raises(broker.MessageRejected, match="takes NORMAL messages"):
            store.append(ordered)
        with pytest.raises(broker.TransactionError, match="takes NORMAL messages"):
            store.producer("shop", topics=["t"], resolver=lambda *_: None)
        other.create_topic("t", queues=8, message_type="MIXED")
        store.producer("shop", topics=["t"], resolver=lambda *_: None)
    assert verify(tmp_path / "store").ok


def test_a_delayed_message_waits_in_the_schedule_topic(tmp_path: Path) -> None:
    """With the place where it belongs; what is no delay is refused."""
    with opened(tmp_path, sync="each") as store:
        later = broker.Message("later", b"x")
        for level, queue_id in (("3", 2), ("99", 17)):
            store.append(later, queue_id=1, extra_properties={"DELAY": level})
            found = store.message("SCHEDULE_TOPIC_XXXX", queue_id, 0)
            assert found is not None
            assert found.properties.items() >= {"REAL_TOPIC": "later", "REAL_QID": "1", "DELAY": level}.items()
        assert store.message("later", 1, 0) is None
        before = end(store)
        for wrong in ({"DELAY": "soon"}, {"TIMER_DELAY_MS": "soon"}, {"TIMER_DELAY_SEC": "99999999"}):
            with pytest.raises(broker.MessageRejected, match=r"level|TIMER"):
                store.append(later, extra_properties=wrong)
        assert end(store) == before


def test_a_topic_that_was_not_declared_takes_every_message(tmp_path: Path) -> None:
    """As with RocketMQ. One that was declared takes its type and no other; MIXED takes all."""
    with opened(tmp_path) as store:
        plain, ordered, delayed = broker.Message("orders", b"1"), {"__SHARDINGKEY": "4711"}, {"DELAY": "3"}
        for _ in ("undeclared", "mixed"):
            store.append(plain)
            store.append(plain, extra_properties=ordered)
            store.append(plain, extra_properties=delayed)
            store.transactions.rollback(store.transactions.prepare(plain, "shop"))
            store.create_topic("orders", message_type="MIXED", queues=6)
        assert (topic := store.topic("orders")) is not None
        assert (topic.write_queue_count, topic.perm) == (6, 6)
        store.create_topic("plain", message_type="NORMAL")
        plain = broker.Message("plain", b"1")
        store.append(plain)
        with pytest.raises(broker.MessageRejected, match="takes NORMAL messages, and this is a TRANSACTION one"):
            store.transactions.prepare(plain, "shop")
        for message, extra in ((plain, ordered), (broker.Message("plain", b"1", properties=ordered), {"A": "b"})):
            with pytest.raises(broker.MessageRejected, match="this is a FIFO one"):
                store.append(message, extra_properties=extra)
        with pytest.raises(broker.MessageRejected, match="this is a DELAY one"):
            store.append(plain, extra_properties=delayed)
        store.create_topic("half", message_type="TRANSACTION")
        store.transactions.rollback(store.transactions.prepare(broker.Message("half", b"1"), "shop"))
        with pytest.raises(broker.MessageRejected, match="takes TRANSACTION messages, and this is a NORMAL one"):
            store.append(broker.Message("half", b"1"))


def test_topics_are_created_and_changed(tmp_path: Path) -> None:
    """In RocketMQ's file, the old one kept beside it; another process sees them within a second."""
    config = tmp_path / "store" / "config"
    with opened(tmp_path) as store, opened(tmp_path) as other:
        store.create_topic("a", queues=2, message_type="FIFO")
        assert not (config / "topics.json.bak").exists()
        store.create_topic("b", queues=3, perm=4)
        other.append(broker.Message("c", b"x"))
        said = decode_topics((config / "topics.json").read_bytes())
        assert sorted(said.topics) == ["a", "b", "c"]
        assert said.version.counter == 3
        assert sorted(json.loads((config / "topics.json.bak").read_bytes())["topicConfigTable"]) == ["a", "b"]
        assert (said.topics["a"].message_type, said.topics["a"].order, said.topics["a"].read_queue_count) == (
            "FIFO", True, 2,
        )  # fmt: skip
        with pytest.raises(broker.NotPermitted, match="may not be written"):
            other.append(broker.Message("b", b"x"))
        store.append(broker.Message("c", b"x"))
        store.append(broker.Message("c", b"x"), queue_id=3)
        with pytest.raises(broker.MessageRejected, match="queue 3 holds messages, so it needs 4 queues"):
            store.create_topic("c", queues=3)
        wrong: list[dict[str, Any]] = [
            {"name": "a b"}, {"name": "a", "queues": 0}, {"name": "a", "message_type": "X"}, {"name": "a", "perm": 99},
        ]  # fmt: skip
        for fields in wrong:
            with pytest.raises(broker.MessageRejected):
                store.create_topic(**fields)
        assert store.topic("nowhere") is None
        kept = other.create_topic("a", queues=8, message_type="NORMAL", change=False)
        assert (kept.message_type, kept.read_queue_count) == ("FIFO", 2)
        assert other.create_topic("d", queues=8, change=False).read_queue_count == 8


def test_a_topic_file_of_rocketmq_is_kept(tmp_path: Path) -> None:
    """What it says of other topics stays; a topic without a type takes every message, as in 3.x and 4.x."""
    opened(tmp_path).close()
    config = tmp_path / "store" / "config"
    config.mkdir()
    table = {"old": {"topicName": "old", "perm": 6, "readQueueNums": 8, "writeQueueNums": 8, "future": "kept"}}
    (config / "topics.json").write_text(json.dumps({"dataVersion": {"counter": 7}, "topicConfigTable": table}))
    with opened(tmp_path) as store:
        store.append(broker.Message("old", b"x"), queue_id=7)
        store.transactions.rollback(store.transactions.prepare(broker.Message("old", b"x"), "shop"))
        store.append(broker.Message("new", b"x"))
    said = json.loads((config / "topics.json").read_bytes())
    assert said["topicConfigTable"]["old"]["future"] == "kept"
    assert said["dataVersion"]["counter"] == 8
    assert "new" in said["topicConfigTable"]


def test_readers_see_what_is_durable(tmp_path: Path) -> None:
    """An end that is not yet forced could be taken back by a power cut: nobody gets the message before."""
    with open_live(tmp_path / "store", disk=CrashDisk(tmp_path), layout=SMALL) as store:  # without a background
        half = store.transactions.prepare(broker.Message("half", b"1"), "shop")
        ended = store.transactions.commit(half)
        assert ended.commitlog_offset is not None
        assert store.visible_end == half.end == store.end_offset
        assert store.message("half", 0, 0) is None
        assert store.queue_range("half", 0) == (0, 0)
        assert store.queue_end("half", 0) == 1
        assert store.record(ended.commitlog_offset) is None
        assert len(list(store.records())) == 1
        store.sync_now()
        assert store.message("half", 0, 0) is not None
        assert store.queue_range("half", 0) == (0, 1)
        assert len(list(store.records())) == 2


@pytest.mark.parametrize(
    ("name", "reason"),
    [("rocketmq-5.3.3-clean", "--broker-is-stopped"), ("rocketmq-3.1.5-recovered", "--broker-is-stopped")],
)
def test_a_store_that_rocketmq_wrote_is_not_written(tmp_path: Path, name: str, reason: str) -> None:
    """Not before it was taken over; the sentence says how, or why not at all."""
    store = unpack(name, tmp_path / "store")
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    with pytest.raises(broker.StoreError, match=reason):
        broker.open(store)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before
    broker.open(store, read_only=True).close()


def test_a_directory_of_something_else_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear all")
    with pytest.raises(broker.NotAStore, match=r"it holds letter\.txt"):
        broker.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(broker.NotAStore, match="is a file"):
        broker.open(tmp_path / "letter.txt")


def test_a_store_is_not_pickled(tmp_path: Path) -> None:
    """For a process that is spawned: Python would say that it cannot pickle an mmap."""
    with opened(tmp_path) as store, store.consumer("billing", "orders") as consumer:
        for thing in (store, store.producer("web"), consumer):
            with pytest.raises(
                broker.StoreError, match=r"open it in the process that uses it, broker\.open\('.*store'\)"
            ):
                pickle.dumps(thing)


def test_a_ledger_and_an_application_are_not_pickled(tmp_path: Path) -> None:
    """Python would speak of a local object of SQLAlchemy's; a copy would know nothing of the binding."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    ledgers = broker.Ledger(engine), broker.ConnectionLedger(lambda: sqlite3.connect(tmp_path / "shop.db"))
    for thing in (*ledgers, broker.App(tmp_path / "store", engine=engine)):
        for copies in (pickle.dumps, copy.deepcopy):
            with pytest.raises(broker.BrokerError, match="is not copied and goes to no other process"):
                copies(thing)


def test_options_have_names_that_exist(tmp_path: Path) -> None:
    with pytest.raises(broker.BrokerError, match="sync is one of each, group, os, not 'never'"):
        opened(tmp_path, sync="never")
    with pytest.raises(broker.BrokerError, match="role is one of master, slave, not 'boss'"):
        opened(tmp_path, role="boss")
    opened(tmp_path).close()


def test_a_look_that_began_before_a_change_does_not_undo_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads share the topics of a store: what one has read late must not hide what another has made."""
    has_read, may_go_on = threading.Event(), threading.Event()
    read = topicfile.read_topics

    def slowly(directory: StoreDirectory) -> Topics:
        found = read(directory)
        if threading.current_thread() is slow:
            has_read.set()
            may_go_on.wait(10)
        return found

    with opened(tmp_path) as store, opened(tmp_path) as other:
        store.create_topic("a")
        topics = store._admission.topics
        now_ms = time.time_ns() // 1_000_000 + 3_600_000  # none of the two looks again by itself
        slow = threading.Thread(target=topics.look, args=(now_ms,))
        change = threading.Thread(target=topics.put, args=(new_topic("c"), now_ms))
        other.create_topic("b")
        monkeypatch.setattr(topicfile, "read_topics", slowly)
        slow.start()
        assert has_read.wait(10)
        change.start()
        change.join(0.3)
        may_go_on.set()
        slow.join()
        change.join()
        assert topics.get("c", now_ms) is not None


def test_a_topic_is_made_with_one_look_at_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a store of thousands each look takes tens of milliseconds, under the lock that every send needs."""
    reads: list[StoreDirectory] = []
    read = topicfile.read_topics

    def counted(directory: StoreDirectory) -> Topics:
        reads.append(directory)
        return read(directory)

    with opened(tmp_path) as store:
        store.create_topic("a")
        monkeypatch.setattr(topicfile, "read_topics", counted)
        store.create_topic("b")
        store.append(broker.Message("c", b"x"))
        store.delete_topic("a")
        assert len(reads) == 3
        assert [store.topic(name) is not None for name in "abc"] == [False, True, True]
