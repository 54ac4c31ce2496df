"""What is done while nobody waits: the next segment, checkpoints, the durable bound, and what consumers may see."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broker.errors import BrokerError, StoreError, SyncFailed
from broker.format.sysflag import TransactionType
from broker.store.disk import maps
from broker.store.disk.files import Disk, ReadFile
from broker.store.maintain import background as upkeep
from broker.store.read.layout import StoreLayout
from broker.store.shared.checkpoint_file import OwnCheckpoint, read_number, read_point
from broker.store.shared.control import Word
from broker.store.write.mapped import MappedQueue
from broker.store.write.pending_record import draft, end_draft
from broker.store.writer import open_writer
from broker.testing.crash_disk import CrashDisk
from recovery.verify.verifier import verify
from tests.store.filled import SMALL, TINY, assert_right, fill, half, reopened


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """No threads: the test does what they would."""
    monkeypatch.setattr(upkeep.BackgroundTasks, "start", lambda self: None)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("reason", ["can't create new thread at interpreter shutdown", "can't start new thread"])
def test_threads_that_do_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    """A first append at exit does without, as Python 3.12 demands; if there are too many, the next one tries again."""
    start, left = threading.Thread.start, [1]

    def limited(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError(reason)
        left.pop()
        start(thread)

    store = open_writer(str(tmp_path), Disk(), SMALL, sync="group")
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        if "shutdown" in reason:
            fill(store, 0, 2)
        else:
            with pytest.raises(RuntimeError, match=reason):
                fill(store, 0, 1)
    fill(store, 2, 1)
    running = sorted(thread.name for thread in store.upkeep._threads)
    assert running == ["checkback_care", "checkback_share", "checkback_sync"][: 1 if "shutdown" in reason else 3]
    store.close()
    assert verify(tmp_path).ok


@pytest.mark.parametrize("is_started", [False, True])
def test_an_interrupt_while_threads_are_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_started: bool
) -> None:
    """The next append starts the others; `close` joins none that never began."""
    start, number = threading.Thread.start, itertools.count(1)

    def interrupted(thread: threading.Thread) -> None:
        which = next(number)
        if which != 2 or is_started:
            start(thread)
        if which == 2:
            raise KeyboardInterrupt

    store = open_writer(str(tmp_path), Disk(), SMALL, sync="group")
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(store, 0, 1)
    fill(store, 0, 1)
    assert [thread.name for thread in store.upkeep._threads] == ["checkback_care", "checkback_share", "checkback_sync"]
    store.close()
    assert verify(tmp_path).ok


@pytest.mark.parametrize("begins_late", [False, True])
def test_an_interrupt_within_the_start_of_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins_late: bool
) -> None:
    """Python lists a thread before it runs: one that never will was taken for started, and its work was never done."""
    function = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
    start, count, late = getattr(threading, function), itertools.count(1), list[Callable[[], object]]()

    def interrupted(*given: Any, **named: Any) -> object:
        if next(count) == 1:
            late.append(partial(start, *given, **named))
            raise KeyboardInterrupt
        return start(*given, **named)

    store = open_writer(str(tmp_path), Disk(), SMALL, sync="group")
    monkeypatch.setattr(threading, function, interrupted)
    with pytest.raises(KeyboardInterrupt):
        fill(store, 0, 1)
    noted = list(threading._limbo)  # type: ignore[attr-defined]
    fill(store, 0, 1)
    if begins_late:
        late[0]()
    until(lambda: len(store.upkeep._serving) == 3)
    for thread in noted if begins_late else []:
        until(lambda: thread.ident is not None and not thread.is_alive())  # noqa: B023 - used at once
    running = sorted(one.name for one in set(store.upkeep._serving.values()) if one.is_alive())
    assert running == ["checkback_care", "checkback_share", "checkback_sync"]
    store.close()
    for thread in noted:
        threading._limbo.pop(thread, None)  # type: ignore[attr-defined]
    assert verify(tmp_path).ok


@pytest.mark.usefixtures("still")
def test_the_next_segment_is_there_before_it_is_needed(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    directory = tmp_path / "commitlog"
    while store.control[Word.TAIL] < SMALL.segment_bytes * 3 // 4:
        store.upkeep.make_segment_ahead()
        assert len(list(directory.iterdir())) <= 1
        fill(store, 0, 10)
    store.upkeep.make_segment_ahead()
    made = directory / f"{SMALL.segment_bytes:020}"
    inode = made.stat().st_ino
    store.upkeep.make_segment_ahead()
    report = verify(tmp_path)
    assert report.ok, [str(finding) for finding in report.findings][:4]
    while store.control[Word.TAIL] < SMALL.segment_bytes:
        fill(store, 0, 10)
    assert made.stat().st_ino == inode
    store.close()
    assert verify(tmp_path).ok


@pytest.mark.usefixtures("still")
def test_the_log_is_read_ahead_of_one_who_appends_fast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece at a time, never beyond the segment, and what was read before not again."""
    monkeypatch.setattr(upkeep, "WARM_RATE", 1024)
    monkeypatch.setattr(upkeep, "WARM_BYTES", 65_536)
    read: list[tuple[int, int]] = []
    monkeypatch.setattr(ReadFile, "warm", lambda file, start, stop: read.append((start, stop)))
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    look = store.upkeep._share
    fill(store, 0, 1)
    look()
    assert read == []
    gone: list[tuple[int, int]] = []
    monkeypatch.setattr(MappedQueue, "unmap_pages", lambda queue, start, stop: gone.append((start, stop)))
    while store.control[Word.TAIL] < SMALL.segment_bytes // 2:
        fill(store, 0, 10)
        look()
    assert all(one[1] == following[0] for one, following in itertools.pairwise(gone))  # each page once, up to the tail
    assert gone[-1][1] == store.control[Word.TAIL]
    assert len(read) > 1
    assert all(stop - start >= 65_536 // 4 for start, stop in read)
    assert all(stop <= SMALL.segment_bytes for _, stop in read)
    assert all(one[1] <= following[0] for one, following in itertools.pairwise(read))
    look()
    assert store.upkeep._warmed is None
    store.close()


@pytest.mark.usefixtures("still")
def test_two_processes_do_not_read_ahead_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "WARM_RATE", 1024)
    monkeypatch.setattr(upkeep, "WARM_BYTES", 65_536)
    read: list[tuple[int, int]] = []
    monkeypatch.setattr(ReadFile, "warm", lambda file, start, stop: read.append((start, stop)))
    first, second = (open_writer(str(tmp_path), Disk(), SMALL, sync="os") for _ in range(2))
    fill(first, 0, 10)
    first.upkeep._share()
    second.upkeep._share()
    assert read == [(first.control[Word.TAIL], first.control[Word.WARM])]
    first.control[Word.WARM] = SMALL.segment_bytes * 9  # of another day: a hint that is wrong costs nothing
    fill(second, 10, 10)
    second.upkeep._share()
    assert read[1][0] == second.control[Word.TAIL] < second.control[Word.WARM] <= SMALL.segment_bytes
    second.close()
    first.close()


@pytest.mark.usefixtures("still")
def test_a_checkpoint_while_appends_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes while it forces is not in it; a recovery from it brings everything back."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    one = half(900)
    placed = store.append_one(one)
    fill(store, 0, 60)
    store.checkpoint()
    fill(store, 60, 60)
    real = Disk.sync_file
    busy = []

    def force(disk: Disk, path: str) -> None:
        if not busy:
            busy.append(path)
            store.append_one(end_draft(one, placed.commitlog_offset, placed.queue_offset, TransactionType.COMMIT))
            fill(store, 120, 30)
        real(disk, path)

    monkeypatch.setattr(Disk, "sync_file", force)
    store.checkpoint()
    monkeypatch.undo()
    found = read_point(store.disk, store.paths)
    assert found is not None
    assert found.commitlog_offset == store.control[Word.CHECKPOINTED] < store.control[Word.TAIL]
    assert found.slots == 121
    assert found.in_doubt[0] == placed.queue_offset
    assert len(found.in_doubt) == 41
    store.lock.release()
    (tmp_path / "checkback" / "control").unlink()
    open_writer(str(tmp_path), Disk(), sync="os").close()
    assert_right(tmp_path, 51, 50, 50)


@pytest.mark.usefixtures("still")
def test_a_checkpoint_across_a_swap_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 6)
    store.checkpoint()
    fill(store, 6, 6)
    before = store.disk.read(store.paths.own_checkpoint)
    real = Disk.sync_file

    def force(disk: Disk, path: str) -> None:
        store.control[Word.GENERATION] += 1
        real(disk, path)

    monkeypatch.setattr(Disk, "sync_file", force)
    store.checkpoint()
    monkeypatch.undo()
    assert store.disk.read(store.paths.own_checkpoint) == before
    store.close()


@pytest.mark.usefixtures("still")
def test_swapped_files_are_mapped_anew(tmp_path: Path) -> None:
    """Another process exchanged a directory for a copy of it, under the append lock, and raised `generation`."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 30)
    held = store.dispatcher.table.last[1]
    with store.append_lock:
        store.appender.heal()
        for directory in (store.paths.state_table, store.paths.consumequeue, store.paths.index):
            aside = tmp_path / "aside"
            store.disk.rename(directory, str(aside))
            _copy(aside, Path(directory))
            store.disk.remove_tree(str(aside))
        store.control[Word.GENERATION] += 1
    assert store.dispatcher.slot(0).state == TransactionType.COMMIT
    fill(store, 30, 30)
    assert bytes(held) != bytes(store.dispatcher.table.last[1])
    store.close()
    assert_right(tmp_path, 20, 20, 20)


def _copy(source: Path, target: Path) -> None:
    target.mkdir()
    for item in source.iterdir():
        if item.is_dir():
            _copy(item, target / item.name)
        else:
            (target / item.name).write_bytes(item.read_bytes())


def test_what_nobody_forces_becomes_visible(tmp_path: Path) -> None:
    """An end that its writer did not wait for: consumers see it a moment later."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="group")
    store.append_one(half(0))
    placed = store.appender.append_one(half(1))
    until(lambda: store.visible_end >= placed.end)
    assert store.visible_end <= store.control[Word.DURABLE]
    store.close()


def test_the_bound_of_what_is_durable_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "BOUND_EVERY_S", 0.0)
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="group")
    placed = store.append_one(half(0))
    until(lambda: read_number(store.disk, store.paths.durable) >= placed.end)
    assert read_number(store.disk, store.paths.durable) <= store.control[Word.DURABLE]
    store.close()


@pytest.mark.usefixtures("still")
@pytest.mark.parametrize("sync", ["os", "group", "each"])
def test_the_disk_begins_with_a_record_before_somebody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """Not where nobody will wait, and not while a crowd waits for each flush; the flush does what is left."""
    store, steps = open_writer(str(tmp_path), Disk(), SMALL, sync=sync), []
    store.append_one(half(0))
    monkeypatch.setattr(maps, "force", lambda _: steps.append("flush"))
    monkeypatch.setattr(maps, "_start_write", lambda _, start, size: steps.append((start, size)))
    placed = store.append_one(half(1))
    begun = (placed.commitlog_offset, placed.size)
    assert steps == ([] if sync == "os" else [begun, "flush"])
    steps.clear()
    store.append_one(half(2), wait=False)
    assert steps == []
    monkeypatch.setattr(store.syncer, "_waited", 16)
    store.append_one(half(3))
    assert steps == ([] if sync == "os" else ["flush"])
    monkeypatch.undo()
    store.close()
    assert_right(tmp_path, 0, 0, 4)


def test_checkpoints_come_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By growth; those of mode os force the log first."""
    monkeypatch.setattr(upkeep, "CHECKPOINT_BYTES", 5000)
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 60)
    until(lambda: store.control[Word.CHECKPOINTED] > 0)
    assert store.control[Word.DURABLE] >= store.control[Word.CHECKPOINTED]
    said = OwnCheckpoint.decode(store.disk.read(store.paths.own_checkpoint))
    assert said is not None
    store.close()


def test_what_consumers_see_depends_on_the_mode(tmp_path: Path) -> None:
    with_os = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    with_group = open_writer(str(tmp_path), Disk(), sync="group")
    placed = with_os.appender.append_one(half(0))
    assert with_os.visible_end == placed.end
    assert with_group.visible_end == 0
    with_os.sync_now()
    assert with_group.visible_end == placed.end
    with_os.append_one(draft("T", b"x", {}, queue_id=2, born_timestamp_ms=1))
    assert [with_group.queue_end("T", number) for number in range(4)] == [0, 0, 1, 0]
    with_os.close()
    with_group.close()


@pytest.mark.parametrize(
    "sizes",
    [{"segment_bytes": 100}, {"consume_queue_bytes": 30}, {"state_table_bytes": 25}, {"redo_log_bytes": 0},
     {"index_slots": 0}, {"index_items": 1}],
)  # fmt: skip
def test_sizes_that_no_store_can_have(sizes: dict[str, int]) -> None:
    with pytest.raises(BrokerError):
        StoreLayout(**sizes)


def test_a_derived_file_that_was_not_flushed_stops_all_appends(tmp_path: Path) -> None:
    """Nobody knows what of it is on disk: a checkpoint that succeeds later would speak of what may be lost."""
    disk = CrashDisk(tmp_path / "disk")
    store = open_writer(str(tmp_path / "disk" / "store"), disk, SMALL, sync="os")
    fill(store, 0, 3)
    disk.fail_next_sync("store/consumequeue/*")
    with pytest.raises(SyncFailed):
        store.checkpoint()
    with pytest.raises(StoreError, match="an fsync failed"):
        fill(store, 3, 1)
    assert (tmp_path / "disk" / "store" / "checkback" / "poisoned").exists()
    store.close()
    disk.close()


def test_a_slot_that_was_settled_since_the_last_checkpoint_is_on_disk_with_the_next(tmp_path: Path) -> None:
    """It lies in a file of the table that got nothing else. The next recovery takes it neither back nor in doubt."""
    disk = CrashDisk(tmp_path / "disk")
    store = open_writer(str(tmp_path / "disk" / "store"), disk, TINY, sync="os")
    one = half(2)
    placed = store.append_one(one)
    fill(store, 3, 15)
    store.checkpoint()
    store.append([end_draft(one, placed.commitlog_offset, placed.queue_offset, TransactionType.COMMIT)])
    store.checkpoint()
    for seed in range(3):
        image = disk.survivors(seed) / "store"
        reopened(image)
        assert_right(image, 6, 5, 5)
    disk.close()
