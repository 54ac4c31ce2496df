"""Many threads and processes on one store: forked, spawned, of another version, or with a disk that fails."""

from __future__ import annotations

import errno
import multiprocessing
import os
import re
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.errors import StoreError, StoreLocked, SyncFailed
from broker.format.sysflag import TransactionType
from broker.store.disk import maps, platform_info
from broker.store.disk.files import Disk
from broker.store.disk.store_lock import StoreLock
from broker.store.shared.control import Word
from broker.store.write.pending_record import end_draft
from broker.store.writer import StoreWriter, open_writer
from recovery.checkback.catalog import Catalog
from recovery.verify.verifier import verify
from tests.store.filled import SMALL, assert_right, fill, half
from tests.store.permissions import NOBODY

FORK = multiprocessing.get_context("fork")
SPAWN = multiprocessing.get_context("spawn")

# From 3.12 on Python warns of a fork while other threads run, which is just what is tried here.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def work(store: StoreWriter, first: int, count: int) -> None:
    fill(store, first, count)
    store.close()


def work_spawned(path: str, first: int, count: int) -> None:
    work(open_writer(path, Disk(), sync="group"), first, count)


@pytest.mark.parametrize("sync", ["os", "group"])
def test_forked_children_go_on_with_their_parents_store(tmp_path: Path, sync: str) -> None:
    """The very object that the parent made, in use before and after."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync=sync)
    fill(store, 0, 30)
    children = [FORK.Process(target=work, args=(store, 1000 * n, 60)) for n in range(1, 4)]
    for child in children:
        child.start()
    fill(store, 4000, 60)
    for child in children:
        child.join()
        assert child.exitcode == 0
    fill(store, 5000, 30)
    store.close()
    assert_right(tmp_path, 100, 100, 100)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_a_process_of_root_leaves_the_store_to_its_owner(tmp_path: Path) -> None:
    """`sudo checkback check-back` made a segment that the application could not open."""
    store = open_writer(str(tmp_path), Disk(), SMALL)
    store.close()
    everything = [tmp_path, *tmp_path.rglob("*")]
    for path in everything:
        os.chown(path, NOBODY, NOBODY)
    before = len(everything)
    with broker.open(tmp_path) as opened:
        fill(opened.writer, 0, 100)
        opened.append(broker.Message("new", b"1"))
        Catalog.open(str(tmp_path), opened.store_id).close()
        with opened.consumer("billing", "new") as consumer:
            assert consumer.receive() is not None
    made = [tmp_path, *tmp_path.rglob("*")]
    assert len(made) > before + 10
    assert [str(path) for path in made if path.stat().st_uid != NOBODY] == []


def test_a_lone_writer_makes_room_for_one_who_joins(tmp_path: Path) -> None:
    """Alone it keeps the append lock from one record to the next; it gives it up while it works, and while it idles."""
    begun, idle = FORK.Event(), FORK.Event()

    def write() -> None:
        store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
        first = 0
        while not idle.is_set():
            fill(store, first, 30)
            first += 30
            if first == 9000:
                begun.set()
        time.sleep(60)  # until it is killed

    child = FORK.Process(target=write)
    child.start()
    assert begun.wait(60)
    started = time.monotonic()
    store = open_writer(str(tmp_path), Disk(), sync="os")
    fill(store, 1_000_000, 30)
    idle.set()
    fill(store, 2_000_000, 30)
    assert time.monotonic() - started < 10
    child.kill()
    child.join()
    fill(store, 3_000_000, 30)
    store.close()
    assert verify(tmp_path).ok


def test_who_joins_is_told_of_a_process_that_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped while it keeps the append lock it would keep everybody waiting for ever; one sentence names it."""

    def write() -> None:
        store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
        first = 0
        while True:
            fill(store, first, 30)
            first += 30

    child = FORK.Process(target=write)
    child.start()
    assert child.pid
    while not (tmp_path / "checkback" / "checkpoint").exists():
        time.sleep(0.01)
    time.sleep(0.3)
    monkeypatch.setattr("broker.store.writer.JOIN_S", 0.2)
    told = None
    for _ in range(20):  # it lets go now and then: stop it until it is inside
        os.kill(child.pid, signal.SIGSTOP)
        try:
            open_writer(str(tmp_path), Disk(), sync="os").close()
        except StoreLocked as error:
            told = error
        os.kill(child.pid, signal.SIGCONT)
        if told is not None:
            break
        time.sleep(0.01)
    child.kill()
    child.join()
    assert told is not None
    assert re.search(f"process {child.pid} (has held the append lock|is stopped while it flushes)", str(told))


def test_who_joins_is_told_of_a_process_that_is_stopped_in_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stored its message, and then waited for ever for the lock of the flush."""
    store = open_writer(str(tmp_path), Disk(), SMALL)
    holds = FORK.Event()

    def flush() -> None:
        with store.syncer.lock:
            holds.set()
            os.kill(os.getpid(), signal.SIGSTOP)

    child = FORK.Process(target=flush)
    child.start()
    assert holds.wait(10)
    assert child.pid
    os.waitpid(child.pid, os.WUNTRACED)  # until it is stopped
    monkeypatch.setattr("broker.store.writer.JOIN_S", 0.1)
    with pytest.raises(StoreLocked, match=f"process {child.pid} is stopped while it flushes the log: continue or end"):
        open_writer(str(tmp_path), Disk())
    child.kill()
    child.join()
    open_writer(str(tmp_path), Disk()).close()
    store.close()


def test_the_last_to_leave_may_be_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if its parent leaves before the child has a lock of its own."""
    after_fork = StoreLock.after_fork

    def late(lock: StoreLock) -> None:
        if str(tmp_path) in lock.path:  # not those that other tests have left
            time.sleep(0.5)
        after_fork(lock)

    monkeypatch.setattr(StoreLock, "after_fork", late)
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    gone = FORK.Event()

    def outlive() -> None:
        gone.wait()
        work(store, 100, 30)

    child = FORK.Process(target=outlive)
    child.start()
    fill(store, 0, 30)
    store.close()
    assert (tmp_path / "abort").exists()
    gone.set()
    child.join()
    assert not (tmp_path / "abort").exists()
    assert_right(tmp_path, 20, 20, 20)


def test_spawned_processes_open_their_own(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="group")
    others = [SPAWN.Process(target=work_spawned, args=(str(tmp_path), 1000 * n, 60)) for n in range(1, 3)]
    for other in others:
        other.start()
    fill(store, 0, 60)
    for other in others:
        other.join()
        assert other.exitcode == 0
    store.close()
    assert_right(tmp_path, 60, 60, 60)


def test_threads_share_forced_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen threads wait for the disk; most records become durable by a write that another thread waited for."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="group")
    forced: list[int] = []
    slow = threading.Event()

    def force(descriptor: int) -> None:
        forced.append(store.control[Word.TAIL])
        slow.wait(0.005)  # as a disk takes its time; the others go on appending

    store.append([half(0)])
    monkeypatch.setattr(maps, "force", force)

    def send(first: int) -> None:
        for number in range(first, first + 20):
            placed = store.append_one(half(number))
            assert store.control[Word.DURABLE] >= placed.end

    threads = [threading.Thread(target=send, args=(1000 * n,)) for n in range(1, 17)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.control[Word.SLOTS] == 321
    assert len(forced) < 320 / 4
    monkeypatch.undo()
    store.close()


def test_a_failed_sync_stops_every_process_until_the_store_was_recovered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What another process appended and what was acknowledged is there afterwards."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="group")
    fill(store, 0, 31)  # so that no file is due: what fails is the fsync of the log
    asked, answers = FORK.Event(), FORK.SimpleQueue()

    def other() -> None:
        theirs = open_writer(str(tmp_path), Disk(), sync="os")
        fill(theirs, 100, 30)
        answers.put("ready")
        asked.wait(60)  # a test that fails before it asks leaves no process behind
        try:
            theirs.append([half(500)])
            answers.put("appended")
        except StoreError as error:
            answers.put(str(error))
        theirs.close()

    child = FORK.Process(target=other)
    child.start()
    assert answers.get() == "ready"

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(maps, "force", fail)
    with pytest.raises(SyncFailed):
        store.append([half(200)])
    monkeypatch.undo()
    with pytest.raises(StoreError, match="failed"):
        store.append([half(201)])
    asked.set()
    assert "failed" in answers.get()
    with pytest.raises(StoreError, match="failed"):
        open_writer(str(tmp_path), Disk(), sync="os")
    child.join()
    store.close()
    again = open_writer(str(tmp_path), Disk(), sync="group")
    fill(again, 300, 30)
    again.close()
    report = verify(tmp_path)
    assert report.ok, [str(finding) for finding in report.findings][:4]
    assert report.transactions["committed"] == 31


@pytest.mark.parametrize("known", ["neither", "the first", "the second"])
def test_without_the_id_of_the_boot_a_second_process_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: str
) -> None:
    """In a container without /proc; it was said to be of another version."""
    boot_id = platform_info.boot_id
    monkeypatch.setattr(platform_info, "boot_id", boot_id if known == "the first" else lambda: "")
    store = open_writer(str(tmp_path), Disk(), SMALL)
    monkeypatch.setattr(platform_info, "boot_id", boot_id if known == "the second" else lambda: "")
    with pytest.raises(StoreLocked, match="is open in another process, and one of the two cannot read the id of this"):
        open_writer(str(tmp_path), Disk())
    store.close()
    open_writer(str(tmp_path), Disk()).close()


def test_a_process_of_another_version_is_kept_out(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL)
    store.control[Word.VERSION] = 99
    with pytest.raises(StoreLocked, match="another version"):
        open_writer(str(tmp_path), Disk())
    store.control[Word.VERSION] = 1
    store.close()


def test_the_files_of_another_version_are_left_alone(tmp_path: Path) -> None:
    open_writer(str(tmp_path), Disk(), SMALL).close()
    said = tmp_path / "checkback" / "store.json"
    said.write_text(said.read_text().replace('"version": 1', '"version": 9'))
    with pytest.raises(StoreError, match="update it"):
        open_writer(str(tmp_path), Disk())


def test_a_foreign_writer_is_noticed(tmp_path: Path) -> None:
    """A broker of 3.x, which knows no lock, appended to our log since we closed it: its record is at our tail."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 3)
    tail = store.control[Word.TAIL]
    store.close()
    copy = tmp_path.parent / "copy"
    theirs = open_writer(str(copy), Disk(), SMALL, sync="os")
    fill(theirs, 0, 3)
    theirs.append([half(3)])
    end = theirs.control[Word.TAIL]
    theirs.close()
    raw = (copy / "commitlog" / f"{0:020}").read_bytes()[tail:end]
    with (tmp_path / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(tail)
        segment.write(raw)
    with pytest.raises(StoreError):
        open_writer(str(tmp_path), Disk())


def test_a_process_killed_in_the_index_loses_no_chain(tmp_path: Path) -> None:
    """A slot that names an item which was never counted: the next record goes behind what the item follows."""
    layout = type(SMALL)(1 << 18, 6000, 2400, 2000, 1, 400)  # one slot: all keys are in one chain
    store = open_writer(str(tmp_path), Disk(), layout, sync="os")
    fill(store, 0, 3)
    index = store.dispatcher.index
    view = index._newest().view
    counted = bytes(view[:40])
    end, dispatched = store.append_one(half(3)), store.control[Word.TAIL]
    view[:40] = counted  # items and slot are written, their count is not
    store.control[Word.DISPATCHED] = end.commitlog_offset
    assert dispatched == end.end
    fill(store, 4, 3)
    store.close()
    assert_right(tmp_path, 2, 2, 3)


def test_an_end_from_the_log_is_the_end_from_the_draft(tmp_path: Path) -> None:
    """What this process remembers of a half is what the log holds of it."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    placed = store.append_one(half(1))
    known: Any = store.appender.cached_half(placed.commitlog_offset, placed.queue_offset)
    assert end_draft(known, 0, 0, TransactionType.COMMIT) == end_draft(half(1), 0, 0, TransactionType.COMMIT)
    assert store.appender.cached_half(placed.commitlog_offset + 1, placed.queue_offset) is None
    store.close()
