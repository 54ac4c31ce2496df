"""The writing side: what it writes is right in the eyes of the verification, whoever was killed in between."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import broker
from broker.errors import CorruptStore, StoreError
from broker.format.consumequeue import UNIT_SIZE, Unit
from broker.format.index import key_hash
from broker.format.java import string_hash
from broker.format.sysflag import TransactionType
from broker.store.disk.files import Disk
from broker.store.shared.control import Word
from broker.store.write import fast_append, mapped
from broker.store.write.mapped import NewNames, OpenMaps, UnitQueue
from broker.store.write.pending_record import draft, end_draft, index_code, index_codes, index_codes_of_both
from broker.store.writer import open_writer
from recovery.transactions.in_doubt import Pending
from recovery.verify.verifier import verify
from tests.compiled_module import use
from tests.store.filled import SMALL, assert_right, few_open_files, fill, fill_queues, half


def test_a_closed_store_is_right_and_opens_again(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 900)
    store.close()
    assert not (tmp_path / "abort").exists()
    assert_right(tmp_path, 300, 300, 300)
    again = open_writer(str(tmp_path), Disk(), sync="group")
    fill(again, 900, 30)
    again.close()
    assert_right(tmp_path, 310, 310, 310)


def test_our_own_reader_reads_it(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="each")
    fill(store, 0, 30)
    with broker.open(tmp_path, read_only=True) as reader:
        (found,) = [message for message in reader.by_key("Orders", "k3") if message.transaction_type == 8]
        assert found.body == b"bbb"
        assert reader.message("Orders", 3, 0) is not None
    store.close()


def test_more_queues_than_a_process_may_have_open_files(tmp_path: Path) -> None:
    """1,024 by default: each queue kept two for good, and each of its files, so that sends failed at 500 of them."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    with few_open_files(300):
        fill_queues(store, 200)
        store.close()
    assert_right(tmp_path, 0, 0, 0)


def test_two_stores_share_what_a_process_may_have_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took half of it for its queues, so that nothing was left for the files of the second one."""
    monkeypatch.setattr(mapped, "maps_of_queues_max", lambda: 40)
    stores = [open_writer(str(tmp_path / name), Disk(), SMALL, sync="os") for name in "ab"]
    with few_open_files(150):
        for store in stores:
            fill_queues(store, 45)
        fill_queues(stores[0], 45)
    for store in stores:
        store.close()
    for name in "ab":
        assert_right(tmp_path / name, 0, 0, 0)


def test_a_store_leaves_what_the_process_has_open_besides(tmp_path: Path) -> None:
    """It counted by the limit alone: an application that had half of it lost sends to "too many files are open"."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    with few_open_files(300), ExitStack() as others:
        for _ in range(270):
            others.enter_context(open(os.devnull))
        fill_queues(store, 60)
        store.close()
    assert_right(tmp_path, 0, 0, 0)


def test_a_batch_comes_together(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    plain = [draft("T", b"x", {"UNIQ_KEY": f"P{n}"}, queue_id=0, born_timestamp_ms=1) for n in range(5)]
    placed = store.append(plain)
    assert [one.queue_offset for one in placed] == [0, 1, 2, 3, 4]
    assert store.append(plain[:1])[0].queue_offset == 5
    store.close()
    assert_right(tmp_path, 0, 0, 0)


def test_an_end_counts_once(tmp_path: Path) -> None:
    """The slot keeps the first decision; a second end is a record, and a finding, but no second state."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    one = half(1)
    (placed,) = store.append([one])
    for kind in (TransactionType.COMMIT, TransactionType.ROLLBACK):
        store.append([end_draft(one, placed.commitlog_offset, placed.queue_offset, kind)])
    assert store.dispatcher.slot(0).state == TransactionType.COMMIT
    store.close()
    assert dict(verify(tmp_path).findings.counts) == {"decision-conflict": 1}


@pytest.mark.parametrize("lost", ["control", "control and checkpoint", "everything of ours but the sizes"])
def test_recovery_without_the_control_page(tmp_path: Path, lost: str) -> None:
    """As after a machine crash in which every page survived: the derived files are made again from the log."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 300)
    store.close()
    store = open_writer(str(tmp_path), Disk(), sync="os")
    fill(store, 300, 300)
    store.lock.release()
    own = tmp_path / "checkback"
    (own / "control").unlink()
    if lost != "control":
        (own / "checkpoint").unlink()
    if lost.startswith("everything"):
        (own / "queues").unlink()
    recovered = open_writer(str(tmp_path), Disk(), sync="os")
    assert_right(tmp_path, 200, 200, 200)
    fill(recovered, 600, 30)
    recovered.close()
    assert_right(tmp_path, 210, 210, 210)


def test_half_a_record_at_the_end_is_kept_aside_and_cut(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 30)
    end = store.control[Word.TAIL]
    store.close()
    (tmp_path / "checkback" / "control").unlink()
    segment = tmp_path / "commitlog" / f"{0:020}"
    with open(segment, "r+b") as file:
        file.seek(end)
        file.write(bytes.fromhex("000000ffdaa320a7") + b"torn")
    open_writer(str(tmp_path), Disk(), sync="os").close()
    assert_right(tmp_path, 10, 10, 10)
    assert (tmp_path / "checkback" / "torn" / f"{end:020}").read_bytes().endswith(b"torn")


@pytest.mark.parametrize("begun", [500, SMALL.segment_bytes], ids=["in its segment", "in the next"])
def test_an_intent_that_was_never_published_leaves_no_trace(tmp_path: Path, begun: int) -> None:
    """A process killed between the intent and the tail: the next one clears what it began."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 3)
    tail, log = store.control[Word.TAIL], store.appender.log
    store.control[Word.INTENT] = tail + begun
    for begins in (tail, tail + begun - 300):
        view, at = log.at(begins)
        view[at : at + 300] = b"\xda" * 300
    store.appender.heal()
    for begins in (tail, tail + begun - 300):
        view, at = log.at(begins)
        assert bytes(view[at : at + 300]) == bytes(300)
    fill(store, 3, 3)
    store.close()
    assert_right(tmp_path, 2, 2, 2)


@pytest.mark.parametrize("published", [False, True], ids=["before", "behind"])
def test_the_time_of_the_newest_record_is_that_of_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    """An append that is killed before its record exists leaves no time of it, and one killed behind that does."""
    use(monkeypatch, None)
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 6)
    newest = store.control[Word.STORE_MS]
    time.sleep(0.003)

    def killed(*_: object) -> None:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(fast_append, "_pack_unit" if published else "place", killed)
        with pytest.raises(SystemExit):
            store.append_one(half(6))
    store.append_lock.acquire()
    store.appender.heal()
    store.append_lock.release()
    assert (store.control[Word.STORE_MS] > newest) is published
    store.close()
    report = verify(tmp_path)
    assert report.ok, report.as_json()["findings"]


def test_the_hash_of_a_key_is_the_formats() -> None:
    """It is summed from a front that is remembered and the last letters, whatever the lengths and the letters."""
    chance = random.Random(7)
    letters = "abXY019-_#%é漢"
    for _ in range(5000):
        topic = "".join(chance.choices(letters[:11], k=chance.randint(1, 30)))
        key = "".join(chance.choices(letters[: chance.choice([11, 13])], k=chance.choice([1, 3, 4, 5, 8, 33, 300])))
        assert index_code(topic, key) == key_hash(topic, key), (topic, key)
        two = index_codes(topic, "k", key), index_codes("other", "k", key)
        assert index_codes_of_both(topic, "other", "k", key) == two, (topic, key)


def test_a_hash_that_has_no_absolute_value_counts_as_zero() -> None:
    """Java's Math.abs leaves the smallest number negative. RocketMQ: IndexFile.indexKeyHashMethod (5.3.3)."""
    topic, key = "t", "qolygtg"
    assert string_hash(f"{topic}#{key}") == -(1 << 31)
    assert key_hash(topic, key) == index_code(topic, key) == 0
    assert index_codes_of_both("o", topic, key, None)[1] == (0,)


def test_a_store_of_another_program_is_not_written_to(tmp_path: Path, golden_copy: object) -> None:
    path = golden_copy("rocketmq-3.1.5-clean")  # type: ignore[operator]
    with pytest.raises(StoreError, match="another program"):
        open_writer(str(path), Disk())


def test_what_killed_processes_left_of_small_files_goes(tmp_path: Path) -> None:
    """Each kill could leave a file under a name of its own, and none was ever removed."""
    open_writer(str(tmp_path), Disk(), SMALL).close()
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "config").mkdir(exist_ok=True)
    names = ["abort", "checkback/durable", "config/consumerOffset.json"]
    left = [tmp_path / f"{name}.{gone.pid}.tmp" for name in names]
    others = [tmp_path / "checkback" / name for name in (f"durable.{os.getpid()}.tmp", "notes.tmp")]
    for path in (*left, *others):
        path.write_bytes(b"x")
    open_writer(str(tmp_path), Disk()).close()
    assert [path for path in left if path.exists()] == []
    assert all(path.exists() for path in others)


def test_a_queue_file_appears_with_the_unit_of_the_record_that_it_begins_with(tmp_path: Path) -> None:
    """It was begun for another one, whose append failed behind that: as where the log found no room."""
    disk, store = Disk(), str(tmp_path)
    queue = UnitQueue(disk, f"{store}/orders", 20 * UNIT_SIZE, f"{store}/begun", OpenMaps(), NewNames(disk, store))
    queue.make_ready(0, 700, 90, 1)
    queue.make_ready(0, 700, 120, 2)
    (begun,) = tmp_path.glob("begun-*")
    assert begun.read_bytes()[:UNIT_SIZE] == Unit(700, 120, 2).pack()
    queue.put(0, 700, 120, 2)
    assert not begun.exists()
    assert queue.read(0, UNIT_SIZE) == Unit(700, 120, 2).pack()
    queue.close()


def test_processes_killed_at_random_lose_and_double_nothing(tmp_path: Path) -> None:
    """Three processes append and end transactions; one after another is killed with SIGKILL at a random instant."""
    path, notes = tmp_path / "store", tmp_path / "notes"
    open_writer(str(path), Disk(), SMALL, sync="os").close()
    chance = random.Random(1)
    keeper = open_writer(str(path), Disk(), sync="os")
    for number in range(12):
        command = [sys.executable, "-m", "tests.store.writing_worker", str(path), str(notes), str(number)]
        workers = [subprocess.Popen(command) for _ in range(3)]
        _wait_for_notes(notes)
        time.sleep(chance.random() * 0.2)
        for worker in workers:
            worker.send_signal(signal.SIGKILL)
            worker.wait()
    keeper.append([half(1, "After")])
    keeper.close()
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings][:5]
    _compare(path, notes)


def _wait_for_notes(notes: Path) -> None:
    before = notes.stat().st_size if notes.exists() else 0
    deadline = time.monotonic() + 20
    while not notes.exists() or notes.stat().st_size == before:
        assert time.monotonic() < deadline, "no worker has appended anything"
        time.sleep(0.01)


def _compare(path: Path, notes: Path) -> None:
    """Every acknowledged half is there once, every acknowledged end ended it."""
    ended = {}
    halves = set()
    for line in notes.read_text().splitlines():
        word, key, *rest = line.split()
        halves.add(key) if word == "half" else ended.update({key: int(rest[0])})
    with broker.open(path, read_only=True) as store:
        seen: dict[str, list[int]] = {}
        for record in store.records():
            seen.setdefault(record.property_map["UNIQ_KEY"], []).append(int(record.transaction_type))
    assert halves <= seen.keys()
    for key, kinds in seen.items():
        assert kinds[0] == TransactionType.PREPARED
        assert len(kinds) <= 2
        if key in ended:
            assert kinds == [TransactionType.PREPARED, ended[key]]
    in_doubt = {one.unique_key for one in Pending(path, 0)}
    assert in_doubt == {key for key, kinds in seen.items() if len(kinds) == 1}


def test_a_published_place_without_a_record_is_named_with_the_commands_for_this_store(tmp_path: Path) -> None:
    path = str(tmp_path / "my store")
    store = open_writer(path, Disk(), SMALL, sync="os")
    fill(store, 0, 3)
    with pytest.raises(CorruptStore, match="no record begins at CommitLog offset 1,") as caught:
        store.appender.replay(1, store.control[Word.TAIL])
    assert f"checkback verify '{path}', then checkback salvage '{path}' OUT" in str(caught.value)
    store.close()
