"""Logs that are no source: what would be derived from them is not better than the live files, which stay."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import broker
from broker.errors import CorruptStore
from recovery.rebuild.rebuilder import rebuild
from recovery.rebuild.unfit_log import refuse_numbers
from recovery.repair.taking_over import _check_segments
from recovery.scan.store_files import StoreFiles
from recovery.verify.verifier import verify
from tests.rebuild.derived_files import derived, store_of, store_with_a_wrong_queue_id


def test_a_damaged_log_is_no_source(tmp_path: Path) -> None:
    path = store_of(tmp_path / "store", 60)
    with open(path / "commitlog" / f"{0:020}", "r+b") as file:
        file.seek(1000)
        file.write(bytes(300))
    with pytest.raises(CorruptStore, match="checkback salvage"):
        rebuild(path)


@pytest.mark.parametrize("apply", [False, True])
def test_a_log_that_breaks_off_below_what_was_published_is_no_source(tmp_path: Path, apply: bool) -> None:
    """Zeros look like the end of the log; what its files name behind that was not passed over as right."""
    path = store_of(tmp_path / "store", 60)
    with open(path / "commitlog" / f"{0:020}", "r+b") as file:
        end = len(file.read().rstrip(b"\0"))
        file.seek(end - 300)
        file.write(bytes(300))
    with pytest.raises(CorruptStore, match=r"the log was published up to|the log ends at"):
        rebuild(path, apply=apply)


def test_a_copy_of_a_running_store_without_its_log_is_not_what_the_log_says(tmp_path: Path) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with broker.open(path, sync="os") as store:
        store.append(broker.Message("orders", b"body"))
        shutil.copytree(path, copy)
    (segment,) = (copy / "commitlog").iterdir()
    segment.write_bytes(bytes(segment.stat().st_size))
    assert not verify(copy).ok
    with pytest.raises(CorruptStore, match="the log ends at 0"):
        rebuild(copy)


def test_a_record_that_fails_its_crc_changes_no_file(tmp_path: Path) -> None:
    """Its queue is one bit off: the live files are right, and with its unit another message's would be gone."""
    path = tmp_path / "store"
    damaged_at = store_with_a_wrong_queue_id(path)
    before = derived(path)
    for apply in (False, True):
        with pytest.raises(CorruptStore, match=f"{damaged_at}: the record does not have the CRC.*checkback salvage"):
            rebuild(path, apply=apply)
    assert derived(path) == before


def test_a_record_that_fails_its_crc_is_no_difference_where_the_files_are_right(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with broker.open(path, sync="os") as store:
        store.append(broker.Message("orders", b"body"))
    segment = path / "commitlog" / f"{0:020}"
    segment.write_bytes(segment.read_bytes().replace(b"body", b"bodY"))
    assert verify(path).findings.counts == {"crc-mismatch": 1}
    assert rebuild(path, apply=True).differences == ()


@pytest.mark.parametrize("number", [-1, 1 << 40, (1 << 63) - 1])
@pytest.mark.parametrize(
    ("name", "kind", "what"), [("3.1.5-clean", 4, "the slots"), ("5.3.3-clean", 0, "the messages in queue")]
)
def test_a_number_that_is_far_from_the_others_makes_no_files(
    golden_copy: Callable[[str], Path], name: str, kind: int, what: str, number: int
) -> None:
    """One bit of a record's queueOffset: the files up to there would fill the disk."""
    path = golden_copy(f"rocketmq-{name}")
    with broker.open(path, read_only=True) as store:
        record = next(one for one in store.records() if one.sys_flag & 12 == kind)
    with open(path / "commitlog" / f"{0:020}", "r+b") as file:
        file.seek(record.commitlog_offset + 20)  # its queue_offset
        file.write(number.to_bytes(8, "big", signed=True))
    for apply in (False, True):
        with pytest.raises(CorruptStore, match=f"by its records {what}.*: a record is damaged"):
            rebuild(path, apply=apply, broker_is_stopped=True, still_s=0)


def test_a_live_file_with_a_far_name_is_compared(tmp_path: Path) -> None:
    path = store_of(tmp_path / "store", 4)
    queue = min((path / "consumequeue").rglob("0" * 20))
    queue.rename(queue.with_name("9" * 20))
    found = rebuild(path).as_json()["counts"]
    assert found["consumequeue-missing"]


def test_a_record_that_names_another_queue_leaves_no_hole_in_its_own(golden_copy: Callable[[str], Path]) -> None:
    """One bit that no CRC covers: with the hole in the middle of its queue nobody got what comes after it."""
    path = golden_copy("rocketmq-3.1.5-clean")
    with broker.open(path, read_only=True) as store:
        records = [one for one in store.records() if (one.topic, one.queue_id, one.sys_flag) == ("PayTopic", 0, 0)]
    damaged, before = records[len(records) // 2], derived(path)
    with open(path / "commitlog" / f"{0:020}", "r+b") as file:
        file.seek(damaged.commitlog_offset + 15)  # the last byte of its queue_id
        file.write(b"\x01")
    for apply in (False, True):
        with pytest.raises(CorruptStore, match=f"holds message {damaged.queue_offset}, and no record says"):
            rebuild(path, apply=apply, broker_is_stopped=True, still_s=0)
    assert derived(path) == before


def test_a_record_that_states_the_number_of_another_does_not_take_its_place(golden_copy: Callable[[str], Path]) -> None:
    """One bit of the last message of a queue: its place is empty, which is no hole, and an earlier message would go."""
    path = golden_copy("rocketmq-3.1.5-clean")
    with broker.open(path, read_only=True) as store:
        records = [one for one in store.records() if (one.topic, one.queue_id) == ("PayTopic", 0)]
    last = max((one for one in records if one.sys_flag & 12 in (0, 8)), key=lambda one: one.queue_offset)
    bit = last.queue_offset & -last.queue_offset
    with open(path / "commitlog" / f"{0:020}", "r+b") as file:
        file.seek(last.commitlog_offset + 20)  # its queue_offset
        file.write((last.queue_offset ^ bit).to_bytes(8, "big"))
    before = derived(path)
    for apply in (False, True):
        with pytest.raises(CorruptStore, match=f"message {last.queue_offset ^ bit} of queue 0 of PayTopic"):
            rebuild(path, apply=apply, broker_is_stopped=True, still_s=0)
    assert derived(path) == before


@pytest.mark.usefixtures("is_still")
def test_a_body_that_fails_its_crc_hinders_no_rebuild_where_no_crc_covers_the_rest(
    golden_copy: Callable[[str], Path],
) -> None:
    """As in a store of a broker by default: the topic, queue and type of that record are as good as those of others."""
    path = golden_copy("rocketmq-5.3.3-clean")
    segment = path / "commitlog" / f"{0:020}"
    with segment.open("r+b") as file:
        file.seek(88)  # of the first record, its body
        byte = file.read(1)
        file.seek(88)
        file.write(bytes([byte[0] ^ 1]))
    assert verify(path).findings.counts == {"crc-mismatch": 1}
    shutil.rmtree(path / "index")
    assert rebuild(path, apply=True, broker_is_stopped=True, still_s=0).differences
    assert (path / "index").is_dir()
    assert verify(path).findings.counts == {"crc-mismatch": 1}


def test_the_command_that_a_refusal_names_works_as_it_is_pasted(tmp_path: Path) -> None:
    """In a directory whose name has a space."""
    path = store_of(tmp_path / "a shop", 1)
    with pytest.raises(CorruptStore) as refused:
        refuse_numbers(StoreFiles.open(path), "slots", -1, 1)
    assert shlex.split(str(refused.value))[-3:] == ["checkback", "verify", str(path)]
    (path / "commitlog" / f"{0:020}").write_bytes(bytes(1001))
    with pytest.raises(CorruptStore) as refused:
        _check_segments(StoreFiles.open(path))
    assert shlex.split(str(refused.value).rpartition(": ")[2])[-1] == str(path / "commitlog" / f"{0:020}")
