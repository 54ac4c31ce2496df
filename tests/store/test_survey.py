"""What a survey makes of a store that was not closed: which control page it trusts, and where the log ends."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import broker
from broker.format.commitlog import RECORD_CRC_SIZE, encode
from broker.format.sysflag import TransactionType
from broker.store.disk.files import Disk
from broker.store.read.log_reader import LogReader
from broker.store.recover import steps
from broker.store.recover.load import RecoveryPlan, plan
from broker.store.recover.survey import Owner, survey
from broker.store.recover.tail import TailKind, find_tail
from broker.store.shared.control import Word
from broker.store.write.pending_record import draft
from broker.store.writer import StoreWriter, open_writer
from recovery.verify.verifier import verify
from tests.store.crashed import abandoned, left, offsets, write_at
from tests.store.filled import SMALL, assert_right, fill, reopened


def planned(path: Path) -> RecoveryPlan:
    return plan(survey(str(path), Disk()))


def killed(path: Path, last: Callable[[StoreWriter], object] = lambda _: None) -> None:
    """A store as a process leaves it that is killed after what it did `last`; the machine runs on."""
    pid = os.fork()
    if pid == 0:
        store = open_writer(str(path), Disk(), SMALL, sync="os")
        fill(store, 0, 15)
        store.close()
        store = open_writer(str(path), Disk(), sync="os")
        fill(store, 15, 15)
        last(store)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


# Which page is trusted


@pytest.mark.parametrize(("word", "least"), [(Word.DISPATCHED, Word.TAIL), (Word.TAIL, Word.INTENT)])
def test_a_page_whose_numbers_contradict_each_other_is_not_trusted(tmp_path: Path, word: Word, least: Word) -> None:
    killed(tmp_path)
    assert planned(tmp_path).survey.facts.page_trusted
    with open(tmp_path / "checkback" / "control", "r+b") as file:
        words = memoryview(bytearray(file.read())).cast("Q")
        words[word] = words[least] + 8
        file.seek(0)
        file.write(words)
    assert not planned(tmp_path).survey.facts.page_trusted
    reopened(tmp_path)
    assert_right(tmp_path, 10, 10, 10)


def test_a_page_that_counts_units_of_a_file_that_is_gone_is_not_trusted(tmp_path: Path) -> None:
    """The plan that is shown is the one that an opening carries out."""
    killed(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "Orders" / "0")
    assert planned(tmp_path).case.label == "no checkpoint"
    reopened(tmp_path)
    assert_right(tmp_path, 10, 10, 10)


def test_a_recovery_that_was_cut_off_leaves_no_page_that_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the page counts no derived file, so that none would be missed; nor is there a checkpoint of them."""

    class CutOff(steps.Replay):
        def run(self, *_: object, **__: object) -> None:
            raise InterruptedError

    killed(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / "Orders" / "0")
    with monkeypatch.context() as patch:
        patch.setattr(steps, "Replay", CutOff)
        with pytest.raises(InterruptedError):
            open_writer(str(tmp_path), Disk(), sync="os")
    assert not planned(tmp_path).survey.facts.page_trusted
    assert not (tmp_path / "checkback" / "checkpoint").exists()
    reopened(tmp_path)
    assert_right(tmp_path, 10, 10, 10)


@pytest.mark.parametrize(("behind", "case", "kept"), [(0, "same boot", 50), (1, "crashed", 52)])
def test_a_record_that_was_stored_and_not_published_is_nobodys(
    tmp_path: Path, behind: int, case: str, kept: int
) -> None:
    """Its process was killed between the bytes and the tail. It is ours, so no other program went on with the store.

    One behind what was begun is of a broker, which writes the same CRC where it has enabledAppendPropCRC.
    """

    def stored(store: StoreWriter) -> None:
        before = store.control.words[Word.TAIL : Word.INDEX + 1].tolist()
        kind = TransactionType.PREPARED
        store.append([draft("Orders", b"x", {"PGROUP": "shop"}, queue_id=0, born_timestamp_ms=1, kind=kind)])
        intent = store.control[Word.INTENT]
        for _ in range(behind):
            store.append([draft("Orders", b"x", {"PGROUP": "shop"}, queue_id=0, born_timestamp_ms=1, kind=kind)])
        for word, value in enumerate(before, Word.TAIL):
            store.control.words[word] = value
        store.control[Word.INTENT] = intent

    killed(tmp_path, stored)
    assert planned(tmp_path).case.label == case
    reopened(tmp_path)
    assert len(offsets(tmp_path)) == kept


# Where the log ends


def test_bytes_behind_the_end_of_a_store_that_was_closed_are_found(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 30)
    end = store.control[Word.TAIL]
    store.close()
    (tmp_path / "checkback" / "control").unlink()
    write_at(tmp_path, end, b"\x01" * 10)
    assert planned(tmp_path).case.label == "clean shutdown, torn tail"
    reopened(tmp_path)
    assert (tmp_path / "checkback" / "torn" / f"{end:020}").read_bytes() == b"\x01" * 10
    assert_right(tmp_path, 10, 10, 10)


def test_a_record_of_ours_whose_last_block_is_not_there_is_torn(tmp_path: Path) -> None:
    """Its lengths and its body are whole: it is neither another program's, nor a whole one behind a hole."""
    abandoned(tmp_path, 30, 30)
    begin, size = next(one for one in reversed(offsets(tmp_path)) if RECORD_CRC_SIZE <= sum(one) % 512 < 80)
    block = (begin + size) // 512 * 512
    write_at(tmp_path, block, bytes(SMALL.segment_bytes - block))
    found = planned(tmp_path).survey
    assert (found.facts.owner, found.tail.kind, found.tail.end) == (Owner.US, TailKind.TORN, begin)
    assert found.tail.reason == "the log ends in half a record"
    reopened(tmp_path)
    assert [one.name for one in (tmp_path / "checkback" / "torn").iterdir()] == [f"{begin:020}"]
    assert verify(tmp_path).ok


def test_zeros_in_a_property_tear_no_record(tmp_path: Path) -> None:
    """Whole records behind a flipped bit were taken for torn ones, if their properties hold a zero, and cut off."""
    open_writer(str(tmp_path), Disk(), SMALL, sync="os").close()
    store = open_writer(str(tmp_path), Disk(), sync="os")
    for number in range(4):
        properties = {"UNIQ_KEY": f"K{number}", "raw": "a\0b"}
        store.append_one(draft("orders", b"lamp", properties, queue_id=0, born_timestamp_ms=1))
    left(store, tmp_path)
    (_, second, third, _) = offsets(tmp_path)
    write_at(tmp_path, second[0] + 90, b"?")
    found = planned(tmp_path).survey
    assert (found.tail.kind, found.tail.end) == (TailKind.CORRUPT, second[0])
    assert found.tail.reason.endswith(f"and a whole one follows at {third[0]}")


def test_zeros_in_a_property_of_another_program_end_no_log(tmp_path: Path) -> None:
    """Its records have no CRC. A take-over was refused at such a message, or cut it off where it was the last one."""
    open_writer(str(tmp_path), Disk(), SMALL, sync="os").close()
    store, raw = open_writer(str(tmp_path), Disk(), sync="os"), b""
    store.append_one(draft("orders", b"lamp", {"UNIQ_KEY": "K"}, queue_id=0, born_timestamp_ms=1))
    left(store, tmp_path)
    with broker.open(tmp_path, read_only=True) as opened:
        (record,) = opened.records()
    for properties in (b"a\x01b\x02", b"a\x01x\0y\x02", b"a\x01b\x02", b"a\x01x\0y\x02"):
        raw += encode(replace(record, properties=properties, commitlog_offset=len(raw)))
    write_at(tmp_path, 0, raw)
    tail = find_tail(LogReader(Disk(), str(tmp_path / "commitlog"), SMALL.segment_bytes), 0, 0, adopted=len(raw))
    assert (tail.kind, tail.end, tail.records) == (TailKind.WHOLE, len(raw), 4)


# What the last one leaves


def test_who_closes_last_writes_a_checkpoint_if_none_is_there(tmp_path: Path) -> None:
    """Retention removes it on a full disk, though nothing was appended since: else the next boot replays the log."""
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 30)
    store.close()
    store = open_writer(str(tmp_path), Disk(), sync="os")
    (tmp_path / "checkback" / "checkpoint").unlink()
    store.close()
    (tmp_path / "checkback" / "control").unlink()
    assert planned(tmp_path).case.label == "clean shutdown"
