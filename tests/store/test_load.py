"""Load and recover: what a crash left is put in order, what no crash explains is refused, being killed does no harm."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from broker.errors import CorruptStore, StoreError, SyncFailed
from broker.format.commitlog import encode
from broker.format.sysflag import TransactionType
from broker.store.disk.files import Disk, ReadFile
from broker.store.read.layout import StoreLayout
from broker.store.recover.load import RecoveryPlan, plan
from broker.store.recover.survey import Owner, Point, Survey, survey
from broker.store.recover.tail import TailKind
from broker.store.recover.watermark import read_watermark
from broker.store.shared.checkpoint_file import seal
from broker.store.shared.control import Word
from broker.store.write.pending_record import draft, end_draft
from broker.store.writer import open_writer
from broker.testing.crash_disk import CrashDisk
from recovery.verify.verifier import verify
from tests.store.build import record
from tests.store.crashed import abandoned, left, offsets, write_at
from tests.store.filled import SMALL, TINY, assert_right, fill, half, reopened


def seen(path: Path) -> Survey:
    return survey(str(path), Disk())


def planned(path: Path) -> RecoveryPlan:
    return plan(seen(path))


# Cases


def test_a_closed_store_needs_no_more_than_belief(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 30)
    store.close()
    (tmp_path / "checkback" / "control").unlink()
    made = planned(tmp_path)
    assert made.case.label == "clean shutdown"
    assert not made.is_needed
    reopened(tmp_path)
    assert_right(tmp_path, 10, 10, 10)


def test_after_a_crash_only_what_follows_the_checkpoint_is_replayed(tmp_path: Path) -> None:
    end = abandoned(tmp_path, 300, 60)
    made = planned(tmp_path)
    assert made.case.label == "crashed"
    assert made.survey.point is not None
    assert 0 < made.survey.point.commitlog_offset == made.survey.tail.begin < made.survey.tail.end == end
    reopened(tmp_path)
    assert_right(tmp_path, 120, 120, 120)


def contents(path: Path) -> dict[str, bytes]:
    """The derived files that hold anything; index files by their order."""
    files = [file for part in ("consumequeue", "index", "transaction") for file in sorted((path / part).rglob("*"))]
    held = {file: file.read_bytes() for file in files if file.is_file()}
    return {file.parts[-2] + str(n) if file.parts[-2] == "index" else str(file.relative_to(path)): raw
            for n, (file, raw) in enumerate(held.items()) if any(raw)}  # fmt: skip


@pytest.mark.parametrize("point", ["a checkpoint", "no checkpoint"])
def test_what_is_made_again_is_what_was_there_byte_for_byte(tmp_path: Path, point: str) -> None:
    abandoned(tmp_path, 200, 150)
    if point == "no checkpoint":
        (tmp_path / "checkback" / "checkpoint").unlink()
    before = contents(tmp_path)
    reopened(tmp_path)
    assert contents(tmp_path) == before


def test_a_slot_whose_end_record_was_lost_is_in_doubt_again(tmp_path: Path) -> None:
    """The page with the slot reached the disk as committed, the commit record did not."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    one = half(2)
    (placed,) = store.append([one])
    store.close()
    store = open_writer(str(tmp_path), Disk(), sync="os")
    (end,) = store.append([end_draft(one, placed.commitlog_offset, placed.queue_offset, TransactionType.COMMIT)])
    assert store.dispatcher.slot(0).state == TransactionType.COMMIT
    left(store, tmp_path)
    write_at(tmp_path, end.commitlog_offset, bytes(end.size))
    reopened(tmp_path)
    assert_right(tmp_path, 0, 0, 1)


@pytest.mark.parametrize("lost", ["consumequeue", "index", "transaction/statetable", "transaction/redolog"])
def test_a_checkpoint_does_not_speak_of_files_that_are_gone(tmp_path: Path, lost: str) -> None:
    abandoned(tmp_path, 60, 30)
    shutil.rmtree(tmp_path / lost)
    assert planned(tmp_path).case.label == "no checkpoint"
    reopened(tmp_path)
    assert_right(tmp_path, 30, 30, 30)


def test_a_derived_directory_that_is_a_link_is_one_after_a_recovery(tmp_path: Path) -> None:
    """As one where a disk is mounted, which cannot be removed: what is in it goes."""
    path = tmp_path / "store"
    abandoned(path, 60, 20)
    (path / "checkback" / "checkpoint").unlink()
    (path / "index").rename(tmp_path / "elsewhere")
    (path / "index").symlink_to("../elsewhere")
    before = {file.name for file in (tmp_path / "elsewhere").iterdir()}
    assert planned(path).case.label == "no checkpoint"
    reopened(path)
    assert (path / "index").is_symlink()
    assert {file.name for file in (tmp_path / "elsewhere").iterdir()}.isdisjoint(before)
    assert verify(path).ok


def test_a_recovery_flushes_the_names_of_all_queues_together(tmp_path: Path) -> None:
    """It flushed five times for each file of a queue: with 6,000 queues a take-over waited minutes for the disk."""

    class Counting(Disk):
        """Notes which directories are flushed."""

        def __init__(self) -> None:
            super().__init__()
            self.flushed: list[str] = []

        def _force_directory(self, path: str) -> None:
            self.flushed.append(os.path.relpath(path, tmp_path))
            super()._force_directory(path)

    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    store.append([draft("orders", b"body", {}, queue_id=number, born_timestamp_ms=0) for number in range(40)])
    store.close()
    for name in ("control", "checkpoint"):
        (tmp_path / "checkback" / name).unlink()
    assert planned(tmp_path).case.label == "no checkpoint"
    disk = Counting()
    open_writer(str(tmp_path), disk, sync="os").close()
    queues = [f"consumequeue/orders/{number}" for number in range(40)]
    assert [disk.flushed.count(path) for path in ("consumequeue/orders", *queues)] == [1] * 41
    assert verify(tmp_path).ok


def test_opening_a_closed_store_reads_as_much_whatever_its_size(tmp_path: Path) -> None:
    class Counting(Disk):
        """Notes how many bytes are read from files."""

        read_bytes = 0

        def open_read(self, path: str) -> ReadFile:
            disk, file = self, super().open_read(path)

            class Counted(ReadFile):
                def __del__(self) -> None:
                    pass

                def pread(self, size: int, at: int) -> bytes:
                    data = file.pread(size, at)
                    disk.read_bytes += len(data)
                    return data

                def next_data(self, at: int) -> int:
                    return file.next_data(at)

            return Counted(path, -1)

    sizes, layout = [], StoreLayout(1 << 18, 60_000, 240_000, 200_000, 100, 40_000)
    for name, count in (("small", 40), ("large", 4000)):
        store = open_writer(str(tmp_path / name), Disk(), layout, sync="os")
        fill(store, 0, count)
        for slot in range(2, count, 3):  # a checkpoint lists what is in doubt: here nothing is, in either store
            held = store.dispatcher.slot(slot)
            end = end_draft(half(slot), held.commitlog_offset, slot, TransactionType.ROLLBACK)
            store.append([end])
        store.close()
        (tmp_path / name / "checkback" / "control").unlink()
        disk = Counting()
        open_writer(str(tmp_path / name), disk, sync="os").close()
        sizes.append(disk.read_bytes)
    assert sizes[1] < sizes[0] + 4096


# Torn and corrupt


def test_a_hole_that_the_disk_left_is_cut_and_whole_records_behind_it_are_listed(tmp_path: Path) -> None:
    """In mode `os` any block may be lost, whatever reached the disk after it."""
    abandoned(tmp_path, 30, 30)
    point = seen(tmp_path).point
    assert point is not None
    behind = [one for one in offsets(tmp_path) if one[0] >= point.commitlog_offset]
    lost = behind[6][0]
    hole = lost + 100 - (lost + 100) % 512
    write_at(tmp_path, hole, bytes(512))
    cut = next(at for at, size in behind if at + size > hole)
    found = seen(tmp_path)
    assert (found.tail.kind, found.tail.end) == (TailKind.TORN, cut)
    reopened(tmp_path)
    listed = (tmp_path / "checkback" / "torn" / f"{cut:020}.jsonl").read_text().splitlines()
    expected = [at for at, size in behind if at >= hole + 512]
    assert [json.loads(line)["commitlog_offset"] for line in listed] == expected
    assert offsets(tmp_path)[-1][0] + offsets(tmp_path)[-1][1] == cut
    assert verify(tmp_path).ok


@pytest.mark.parametrize("which", [0, 6])
def test_a_changed_byte_before_whole_records_is_refused(tmp_path: Path, which: int) -> None:
    abandoned(tmp_path, 30, 30)
    point = seen(tmp_path).point
    assert point is not None
    at = [one for one in offsets(tmp_path) if one[0] >= point.commitlog_offset][which][0]
    write_at(tmp_path, at + 60, b"\x77")
    before = min((tmp_path / "commitlog").iterdir()).read_bytes()
    with pytest.raises(CorruptStore, match=rf"commitlog/0+.*{at}.*checkback salvage"):
        open_writer(str(tmp_path), Disk(), sync="os")
    assert min((tmp_path / "commitlog").iterdir()).read_bytes() == before
    assert not (tmp_path / "checkback" / "torn").exists()


def test_zeros_where_the_log_was_durable_are_no_torn_tail(tmp_path: Path) -> None:
    end = abandoned(tmp_path, 30, 30)
    (tmp_path / "checkback" / "durable").write_bytes(seal(b"%d" % end))
    last, size = offsets(tmp_path)[-1]
    write_at(tmp_path, last, bytes(size))
    with pytest.raises(CorruptStore, match=rf"{last}.*durable up to {end}"):
        open_writer(str(tmp_path), Disk(), sync="os")


def test_the_same_zeros_above_that_are_lost_records_that_nobody_was_promised(tmp_path: Path) -> None:
    abandoned(tmp_path, 30, 30)
    last, size = offsets(tmp_path)[-1]
    write_at(tmp_path, last, bytes(size))
    reopened(tmp_path)
    assert verify(tmp_path).ok
    assert offsets(tmp_path)[-1][0] < last


@pytest.mark.parametrize("which", ["all", "the last"])
def test_segments_that_are_gone_are_no_empty_log(tmp_path: Path, which: str) -> None:
    store = open_writer(str(tmp_path), Disk(), TINY, sync="os")
    fill(store, 0, 60)
    store.close()
    (tmp_path / "checkback" / "control").unlink()
    segments = sorted((tmp_path / "commitlog").iterdir())
    used = [one for one in segments if any(one.read_bytes())]
    for segment in used[-1:] if which == "the last" else segments:
        segment.unlink()
    table = next((tmp_path / "transaction" / "statetable").iterdir())
    before = table.read_bytes()
    with pytest.raises(CorruptStore, match="not there"):
        open_writer(str(tmp_path), Disk(), sync="os")
    assert table.read_bytes() == before


# Others


def test_records_of_another_program_are_not_taken_over_without_a_word(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 30)
    end = store.control[Word.TAIL]
    queue_end = 0
    store.close()
    write_at(tmp_path, end, encode(record(queue_end, end, topic="Strange")))
    found = seen(tmp_path)
    assert found.facts.owner is Owner.FOREIGN_SINCE
    with pytest.raises(StoreError, match="--broker-is-stopped"):
        open_writer(str(tmp_path), Disk(), sync="os")
    (tmp_path / "checkback" / "adopted").write_bytes(seal(b"%d" % found.tail.end))
    store = open_writer(str(tmp_path), Disk(), sync="os")
    fill(store, 30, 3)
    store.close()
    assert_right(tmp_path, 11, 11, 11)
    assert seen(tmp_path).facts.owner is Owner.US


@pytest.mark.parametrize("begun", [0, 1, 400, 5000])
def test_a_broker_goes_on_in_the_middle_of_what_a_killed_process_had_begun(tmp_path: Path, begun: int) -> None:
    """It begins behind the last whole record, so its records may lie across the end of our unfinished append."""
    pid = os.fork()
    if pid == 0:
        store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
        fill(store, 0, 30)
        store.control[Word.INTENT] = store.control[Word.TAIL] + begun
        os._exit(0)  # as one that is killed in an append: neither closed nor finished
    assert os.waitpid(pid, 0)[1] == 0
    end = sum(offsets(tmp_path)[-1])
    assert seen(tmp_path).facts.page_trusted
    at = end
    for number in range(3):
        raw = encode(record(number, at, topic="Strange"))
        write_at(tmp_path, at, raw)
        at += len(raw)
    log = contents(tmp_path / "commitlog")
    found = seen(tmp_path)
    assert (found.facts.owner, found.tail.end) == (Owner.FOREIGN_SINCE, at)
    assert read_watermark(str(tmp_path), Disk()) is None
    with pytest.raises(StoreError, match="--broker-is-stopped"):
        open_writer(str(tmp_path), Disk(), sync="os")
    assert contents(tmp_path / "commitlog") == log


def test_a_broker_that_appended_nothing_has_changed_what_is_derived(tmp_path: Path) -> None:
    """One that finds `abort` removes young files of the index and truncates queues. It writes to the lock file."""
    pid = os.fork()
    if pid == 0:
        store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
        fill(store, 0, 30)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert seen(tmp_path).facts.page_trusted
    before = contents(tmp_path / "consumequeue")
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    for file in (tmp_path / "consumequeue").rglob("0" * 20):
        file.write_bytes(bytes(file.stat().st_size))
    (tmp_path / "lock").write_bytes(b"lock")
    assert (seen(tmp_path).facts.page_trusted, seen(tmp_path).facts.point) == (False, Point.NONE)
    store = open_writer(str(tmp_path), Disk(), sync="os")
    assert contents(tmp_path / "consumequeue") == before
    fill(store, 30, 3)
    store.close()
    assert_right(tmp_path, 11, 11, 11)


# A failed forced write


def test_what_a_failed_forced_write_may_have_lost_is_written_again(tmp_path: Path) -> None:
    """After the recovery a power cut takes nothing that was there; before it, the store refuses in every process."""
    disk = CrashDisk(tmp_path / "disk")
    path = str(tmp_path / "disk" / "store")
    store = open_writer(path, disk, TINY, sync="each")
    fill(store, 0, 6)
    disk.fail_next_sync("store/commitlog/*")
    with pytest.raises(SyncFailed):
        store.append([half(6)])
    with pytest.raises(StoreError, match="fsync failed"):
        store.append([half(7)])
    store.close()
    assert seen(Path(path)).facts.poisoned
    again = open_writer(path, disk, sync="each")
    again.append([half(8)])
    for seed in range(6):
        image = disk.survivors(seed) / "store"
        reopened(image)
        assert verify(image).ok
        assert offsets(image) == offsets(Path(path))
    assert not (Path(path) / "checkback" / "poisoned").exists()
