"""The engine half-op: what it appends, what a broker finds after a kill, and stores that real brokers left."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import broker
from broker.format import properties as names
from broker.format.statetable import RENEWED
from broker.format.topics import CHECK_GROUP, HALF_TOPIC, OP_TOPIC, PARK_TOPIC
from broker.store.engines import replay_watch
from broker.store.read.index import Index
from broker.store.shared.control import Word
from broker.store.write.pending_record import draft
from broker.transaction.events import PARKED_OFFSET
from recovery.rebuild.rebuilder import rebuild
from recovery.repair import crash
from recovery.torture.second_reader import COMMIT, assert_one_truth, records
from recovery.torture.second_reader import HALF_TOPIC as HALVES
from recovery.torture.second_reader import OP_TOPIC as OPS
from recovery.verify.verifier import verify
from tests.cli.command import command
from tests.golden.unpack import unpack
from tests.scan.effort import EFFORT
from tests.transaction.opened import message, opened

HALF_OP = "half-op"
KILLS = 6 * EFFORT

WORKER = """
import sys
import broker
from tests.transaction.opened import SMALL, message

with broker.open(sys.argv[1], layout=SMALL, sync="os", transactions="half-op") as store:
    number = 0
    print("begun", flush=True)
    while True:
        half = store.transactions.prepare(message(str(number)), "shop", queue_id=number % 4)
        if number % 3:
            store.transactions.commit(half)
        elif number % 2:
            store.transactions.rollback(half)
        number += 1
"""


def test_the_records_are_rocketmq_s(tmp_path: Path) -> None:
    """Field by field as 5.3.3 writes them; the op message has no comma, so that brokers before 5.1 read it."""
    with opened(tmp_path, sync="each", transactions=HALF_OP) as store:
        half = store.transactions.prepare(message(), "shop", queue_id=2)
        ended = store.transactions.commit(half)
        stored, delivered, op = list(store.records())
        assert (stored.topic, stored.queue_id, stored.queue_offset, stored.sys_flag) == (HALF_TOPIC, 0, 0, 0)
        said = stored.property_map
        assert (said["REAL_TOPIC"], said["REAL_QID"], said["TRAN_MSG"], said["PGROUP"]) == (
            "orders",
            "2",
            "true",
            "shop",
        )
        assert said["__transactionId__"] == said["UNIQ_KEY"] == half.unique_key
        assert (delivered.topic, delivered.queue_id, delivered.queue_offset, delivered.sys_flag) == ("orders", 2, 0, 8)
        assert delivered.prepared_transaction_offset == stored.commitlog_offset == half.commitlog_offset
        assert {**delivered.property_map, "__CRC32#": ""} == {**said, "__CRC32#": ""}
        copied = ("body", "born_timestamp_ms", "born_host", "store_host", "flag", "reconsume_times")
        assert all(getattr(delivered, name) == getattr(stored, name) for name in copied)
        assert delivered.commitlog_offset == ended.commitlog_offset
        assert (op.topic, op.queue_id, op.body, op.sys_flag) == (OP_TOPIC, 0, b"0", 0)
        assert [(name, value) for name, value in op.property_map.items()][:2] == [("WAIT", "true"), ("TAGS", "d")]
        assert store.message(OP_TOPIC, 0, 0) is not None
        assert {name: store.topic(name) is not None for name in (HALF_TOPIC, OP_TOPIC)} == {
            HALF_TOPIC: True,
            OP_TOPIC: True,
        }


def test_a_store_keeps_its_engine(tmp_path: Path) -> None:
    """Every process gets it without being told; another one is refused, in one sentence."""
    with opened(tmp_path, transactions=HALF_OP) as store:
        store.transactions.prepare(message(), "shop")
    with opened(tmp_path) as store:
        assert store.transactions.in_doubt_slots() == [0]
    with pytest.raises(broker.StoreError, match="as half-op, and cannot as state-table"):
        opened(tmp_path, transactions="state-table")
    (tmp_path / "other").mkdir()
    with opened(tmp_path / "other") as store:
        assert store.writer.dispatcher.engine.name == "state-table"


def test_the_progress_is_where_a_broker_goes_on(tmp_path: Path) -> None:
    """At the first half that nobody ended or parked; at the op queue's first message behind that half."""

    def progress(store: broker.Store) -> tuple[int, int]:
        held = store.consumer_offsets().positions
        return held[HALF_TOPIC, CHECK_GROUP][0], held[OP_TOPIC, CHECK_GROUP][0]

    with opened(tmp_path, transactions=HALF_OP) as store:
        service = store.transactions
        for number in range(4):
            service.commit(service.prepare(message(str(number)), "shop"))
        halves = [service.prepare(message(), "shop") for _ in range(3)]
        service.rollback(halves[1])
    with opened(tmp_path) as store, store.consumer("billing", "orders") as consumer:
        assert progress(store) == (4, 4)
        got = consumer.receive(10)
        assert got is not None
        consumer.ack(got)
        store.transactions.park(halves[0], "nobody answers")
        store.note_check_progress()
        assert progress(store) == (6, 4)
        store.transactions.unpark(halves[0], "somebody does")
        store.note_check_progress()
        assert progress(store) == (4, 4)
        for half in (halves[0], halves[2]):
            store.transactions.commit(half)
    with broker.open(tmp_path / "store", read_only=True) as reader:
        assert progress(reader) == (7, 7)
        assert reader.consumer_offsets().positions["orders", "billing"]
    assert verify(tmp_path / "store").ok


def test_a_kill_leaves_no_delivery_without_its_op(tmp_path: Path) -> None:
    """As a broker reads the log that opens the store next: it would ask about such a half, and deliver it twice."""
    store, chance = tmp_path / "store", random.Random(4)
    for _ in range(KILLS):
        with subprocess.Popen([sys.executable, "-c", WORKER, str(store)], stdout=subprocess.PIPE) as worker:
            assert worker.stdout is not None
            worker.stdout.readline()
            time.sleep(chance.random() / 5)
            worker.send_signal(signal.SIGKILL)
        log = records(store)
        halves = {one.commitlog_offset: one.queue_offset for one in log if one.topic == HALVES}
        ended = Counter(int(one.body) for one in log if one.topic == OPS)
        delivered = Counter(halves[one.names] for one in log if one.kind == COMMIT)
        assert set(delivered.values()) | set(ended.values()) <= {1}
        assert set(delivered) <= set(ended)
    with opened(tmp_path) as again:
        assert again.transactions.in_doubt_slots() == sorted(set(halves.values()) - set(ended))
    assert_one_truth(store)
    assert verify(store).ok


def test_a_delivery_whose_op_was_lost_gets_one(tmp_path: Path) -> None:
    """A power cut can take what lies behind a commit: recovery says so, before a broker asks."""
    with opened(tmp_path, sync="each", transactions=HALF_OP) as store:
        halves = [store.transactions.prepare(message(str(number)), "shop") for number in range(3)]
        store.transactions.rollback(halves[0])
        ended = store.transactions.commit(halves[1])
        assert ended.commitlog_offset is not None
        *_, last = store.records()
        op_at = last.commitlog_offset
    path = tmp_path / "store"
    with (path / "commitlog" / f"{0:020}").open("r+b") as log:
        log.seek(op_at)
        log.write(bytes(last.total_size))
    forget_where_it_ended(path)
    assert [finding.kind for finding in verify(path).findings if finding.kind == "committed-without-op"]
    with opened(tmp_path) as store:
        assert store.transactions.in_doubt_slots() == [2]
        assert store.transactions.commit(halves[1]).again
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings]
    assert_one_truth(path)


def forget_where_it_ended(path: Path) -> None:
    """As when the machine stopped: the next open reads the log from the beginning."""
    for name in ("checkpoint", "control", "durable"):
        (path / "checkback" / name).unlink(missing_ok=True)
    (path / "abort").touch()


@pytest.mark.parametrize("number", ["\u00b2", "\u0665", "9" * 5000])
def test_a_copy_that_a_broker_parked_states_any_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: str
) -> None:
    """With the properties of a client's half message: what is no place in the log names no half message."""
    said = {names.UNIQ_KEY: "U-1", names.PGROUP: "shop", names.REAL_TOPIC: "orders", PARKED_OFFSET: number}
    with opened(tmp_path, sync="each", transactions=HALF_OP) as store:
        half = store.transactions.prepare(message(), "shop")
        store.writer.append([draft(PARK_TOPIC, b"x", said, queue_id=0, born_timestamp_ms=1)])
        assert store.transactions.parked() == {}
    assert command(capsys, "dump", tmp_path / "store").code == 0
    with opened(tmp_path) as store:
        assert [one.commitlog_offset for one in store.transactions.in_doubt()] == [half.commitlog_offset]


@pytest.mark.parametrize("level", ["\u00b2", "\u0665", "-1", "9" * 5000])
def test_a_delay_that_is_no_level_is_none(tmp_path: Path, level: str) -> None:
    """A store may hold anything, and opens: no client of any kind may prevent that."""
    with opened(tmp_path, sync="each", transactions=HALF_OP) as store:
        store.transactions.prepare(message(), "shop", extra_properties={"CHECKBACK_DELAY": level})
    forget_where_it_ended(tmp_path / "store")
    with opened(tmp_path) as store:
        (half,) = store.transactions.in_doubt()
        assert store.transactions.commit(half).queue_offset == 0


def test_a_delay_counts_whichever_code_stores_the_half_message(tmp_path: Path) -> None:
    """The C module ends what it stored from memory: a half message with a delay is not its own."""
    with opened(tmp_path, sync="each", transactions=HALF_OP) as store:
        for key in ("DELAY", "CHECKBACK_DELAY"):
            half = store.transactions.prepare(message(), "shop", extra_properties={key: "5"})
            assert store.transactions.commit(half).queue_offset is None
        assert store.queue_range("SCHEDULE_TOPIC_XXXX", 4) == (0, 2)


@pytest.mark.parametrize("name", ["rocketmq-5.3.3-clean", "rocketmq-5.3.3-killed"])
def test_what_5_3_3_left_is_taken_over_and_settled(name: str, tmp_path: Path) -> None:
    """Renewed halves are one transaction, parked ones stay parked, deliveries whose op died with the broker get one."""
    path = unpack(name, tmp_path / "store")
    before = verify(path).transactions
    crash.apply(crash.plan(crash.survey(str(path))), broker_is_stopped=True, still_s=0)
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings][:4]
    assert report.transactions == before
    with broker.open(path) as store:
        halves = list(store.transactions.in_doubt())
        parked = store.transactions.parked()
        assert (len(halves) - len(parked), len(parked)) == (before["in_doubt"], before["parked"])
        slots = store.writer.control[Word.SLOTS]
        renewed = [slot for slot in range(slots) if store.writer.dispatcher.slot(slot).state == RENEWED]
        assert renewed
        first = store.transactions.half(store.writer.dispatcher.slot(renewed[0]).commitlog_offset)
        last = store.by_unique_key(HALF_TOPIC, first.unique_key or "")[0]
        assert store.transactions.state(first) == store.transactions.state(
            store.transactions.half(last.commitlog_offset)
        )  # fmt: skip
        deliveries = store.queue_end("OrderTopic", 0)
        for number, half in enumerate(halves):
            (store.transactions.rollback if number % 2 else store.transactions.commit)(half)
        assert store.transactions.in_doubt_slots() == []
        assert store.queue_end("OrderTopic", 0) >= deliveries
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings][:4]
    assert report.transactions["committed"] == before["committed"] + (len(halves) + 1) // 2
    assert rebuild(path).differences == ()


@pytest.mark.parametrize("name", ["rocketmq-5.3.3-clean", "rocketmq-5.3.3-killed"])
def test_a_copy_is_found_by_memory_as_by_the_index(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery remembers where last copies are: else each copy costs a search of all index files."""
    searches: list[int] = []
    found = Index.find
    monkeypatch.setattr(Index, "find", lambda *arguments: (searches.append(1), found(*arguments))[1])
    tables, counts = [], []
    for kept in (replay_watch._KEPT, 0):
        monkeypatch.setattr(replay_watch, "_KEPT", kept)
        path = unpack(name, tmp_path / f"store-{kept}")
        searches.clear()
        crash.apply(crash.plan(crash.survey(str(path))), broker_is_stopped=True, still_s=0)
        counts.append(len(searches))
        tables.append([file.read_bytes() for file in sorted((path / "checkback/halfstates").iterdir())])
    assert tables[0] == tables[1]
    assert any(map(any, tables[0]))
    assert counts[0] < counts[1]
