"""Stores of which a part is as no broker leaves it, or as only some do: one clear finding each, never a traceback."""

from __future__ import annotations

import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from broker.format.consumequeue import Unit
from broker.format.index import SLOT_SIZE, IndexHeader, IndexItem, file_size, item_at, slot_at
from broker.store.disk.files import Disk, Missing
from recovery.findings import Finding, Findings
from recovery.rebuild.rebuilder import rebuild
from recovery.scan.store_files import StoreFiles
from recovery.verify.consume_queues import Delays, possible_due_times
from recovery.verify.index_files import open_index
from recovery.verify.verifier import verify
from tests.rebuild.derived_files import store_with_a_topic_made_again
from tests.scan.logs import Chunk, Log, Wanted
from tests.scan.small_broker import GENERATIONS, V3, V5, Generation
from tests.scan.small_stores import build
from tests.spark.inline import comparable, verify_inline

FIRST = f"{0:020}"
each = pytest.mark.parametrize("generation", GENERATIONS, ids=lambda generation: generation.name)


def findings_of(store: Path) -> list[Finding]:
    return list(verify(store).findings)


@each
@pytest.mark.parametrize("what", ["no directory", "an empty directory"])
def test_a_store_without_an_index_has_one_finding(generation: Generation, what: str, tmp_path: Path) -> None:
    """Not one for each key: a broker may run with its index switched off, and the sentence says so."""
    build(generation, tmp_path / "store")
    index = tmp_path / "store" / "index"
    shutil.rmtree(index)
    if what == "an empty directory":
        index.mkdir()
    (found,) = findings_of(tmp_path / "store")
    assert (found.kind, found.file) == ("files-missing", str(index))
    assert "messageIndexEnable=false" in found.text
    assert "(indexFileWriteEnable=false)" in found.text


@pytest.mark.parametrize("name", ["99999999999999999999", "09223372036854775807"])
def test_a_file_whose_name_is_no_position_is_no_segment(name: str, tmp_path: Path) -> None:
    """Its end does not fit into 8 bytes: `verify` ended in an OverflowError, and called all before it missing."""
    build(GENERATIONS[0], tmp_path / "store")
    (tmp_path / "store/commitlog" / name).touch()
    report = verify(tmp_path / "store")
    assert report.ok
    assert [one.path for one in report.not_judged] == [str(tmp_path / "store/commitlog" / name)]


@pytest.mark.parametrize("record_crc", [False, True])
def test_records_without_a_key_need_no_index(record_crc: bool, tmp_path: Path) -> None:
    log = Log(4096)
    log.append(Wanted(chunks=(Chunk("bytes", b"body"),), record_crc=record_crc))
    store = log.write(tmp_path / "store")
    (store / "consumequeue").mkdir()
    assert [finding.kind for finding in findings_of(store)] == ["queue-missing"]


@pytest.mark.parametrize("topic", ["Or\0ers", "T" * 300, "/", "..", "Or/ers", ""])
def test_a_topic_that_no_directory_can_have(topic: str, tmp_path: Path) -> None:
    """A damaged topic names a queue that cannot be there; nor is one looked for elsewhere."""
    (tmp_path / "store" / "0").mkdir(parents=True)  # where queue 0 of the topic `..` would be
    log = Log(4096)
    for name in ("Orders", topic):
        log.append(Wanted(topic=name))
    store = log.write(tmp_path / "store")
    (store / "consumequeue").mkdir()
    assert [(found.kind, found.commitlog_offset) for found in findings_of(store)] == list(
        zip(("queue-missing", "record-implausible"), log.records, strict=True)
    )


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_no_file_has_such_a_name(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / name)
    assert Disk().entry(path) is None
    for look in (Disk().entries, Disk().open_read, Disk().read, Disk().inode):
        with pytest.raises(Missing):
            look(path)


@each
def test_an_index_of_an_unusual_size_is_not_read_into_memory(generation: Generation, tmp_path: Path) -> None:
    """Its numbers of slots and items are worked out from where what is used ends, holes left out."""
    store = tmp_path / "store"
    build(generation, store)
    (first, *_) = sorted((store / "index").iterdir())
    header = replace(IndexHeader.unpack_from(first.read_bytes()), used_slots=1, item_count=2)
    item = IndexItem(7, header.begin_commitlog_offset, 0, 0)
    slots, items = 1_000_003, 30_000_000
    with first.open("wb") as file:
        file.truncate(file_size(slots, items))
        file.write(header.pack())
        file.seek(slot_at(7))
        file.write((1).to_bytes(SLOT_SIZE, "big"))
        file.seek(item_at(1, slots))
        file.write(item.pack())
    segments, findings = StoreFiles.open(store).index_now(), Findings()
    tracemalloc.start()
    opened = open_index(segments, findings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (opened[0].slots, opened[0].items) == (slots, items)
    assert list(findings) == []
    assert peak < 8 << 20


@pytest.mark.parametrize("generation", [V3, V5], ids=lambda generation: generation.name)
def test_lookups_and_verification_work_out_the_same_numbers(generation: Generation, tmp_path: Path) -> None:
    import broker

    store = tmp_path / "store"
    build(generation, store)
    with broker.open(store, read_only=True) as reader:
        looked_up = {file.file.path: (file.slots, file.items) for file in reader.index.files()}
    opened = open_index(StoreFiles.open(store).index_now(), Findings())
    assert looked_up == {file.segment.path: (file.slots, file.items) for file in opened}
    assert looked_up


# Topics that were deleted and made again


@pytest.mark.parametrize("directory", ["consumequeue", "batchconsumequeue"])
def test_messages_of_before_a_topic_was_made_again_are_no_findings(tmp_path: Path, directory: str) -> None:
    """They are in no queue, those of queue 1 too, which has no message since; the report says that it left them out."""
    places = store_with_a_topic_made_again(tmp_path / "store", directory=directory)
    report = verify(tmp_path / "store")
    assert report.findings.counts == {}
    (left,) = report.not_judged
    assert (left.path, left.what) == (
        str(tmp_path / "store" / directory / "OrderTopic"), f"5 records before CommitLog offset {places[5]}"
    )  # fmt: skip
    assert comparable(verify_inline(str(tmp_path / "store"), 4096)) == comparable(report)


def test_a_message_that_a_topic_got_since_it_was_made_again_is_missed(tmp_path: Path) -> None:
    places = store_with_a_topic_made_again(tmp_path / "store", units=[0])
    assert [(one.kind, one.commitlog_offset) for one in findings_of(tmp_path / "store")] == [
        ("queue-missing", places[6])
    ]


def test_a_queue_that_is_not_there_is_missed_where_no_other_began_again(tmp_path: Path) -> None:
    """The first message of queue 0 came later: that alone does not say that the topic was made again."""
    places = store_with_a_topic_made_again(tmp_path / "store")
    queue = tmp_path / "store/consumequeue/OrderTopic/0" / FIRST
    queue.write_bytes(Unit(places[0], places[1], 0).pack().ljust(200, b"\0"))
    assert {one.facts["queue_id"] for one in findings_of(tmp_path / "store")} == {0, 1}


# Settings of a broker that were changed


def test_delay_levels_that_were_set_otherwise(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    """verify said of the units from before that they state another time, and rebuild kept a damaged time."""
    (tmp_path / "kinds").mkdir()
    path = golden_copy("kinds/rocketmq-5.5.0-clean")
    queue = path / "consumequeue" / "SCHEDULE_TOPIC_XXXX" / "0" / FIRST
    raw = bytearray(queue.read_bytes())
    unit = Unit.unpack_from(raw)
    for later_ms, found in ((280_000, 0), (1 << 20, 1)):
        raw[: Unit.SIZE] = replace(unit, tags_code=unit.tags_code + later_ms).pack()
        queue.write_bytes(raw)
        report = verify(path)
        assert report.findings.counts["queue-missing"] == found
        assert comparable(verify_inline(str(path), 4000)) == comparable(report)
        assert len(rebuild(path).differences) == found


@pytest.mark.parametrize("name", ["4.9.7-clean", "5.3.3-clean", "5.5.0-clean"])
def test_due_times_that_are_off_do_not_excuse_each_other(
    golden_copy: Callable[[str], Path], tmp_path: Path, name: str
) -> None:
    """A broker of 3.2.6 writes such times; one of 4.6 or later, whose messages name its cluster, does not."""
    (tmp_path / "kinds").mkdir()
    path = golden_copy(f"rocketmq-{name}" if name.startswith("5.3") else f"kinds/rocketmq-{name}")
    queue = max((path / "consumequeue" / "SCHEDULE_TOPIC_XXXX").glob(f"*/{FIRST}"), key=lambda one: one.read_bytes())
    raw = bytearray(queue.read_bytes())
    for number, later_ms in enumerate((4, 512, -16, 1, 1)):
        unit = Unit.unpack_from(raw, number * Unit.SIZE)
        later = replace(unit, tags_code=unit.tags_code + later_ms)
        raw[number * Unit.SIZE : (number + 1) * Unit.SIZE] = later.pack()
    queue.write_bytes(raw)
    report = verify(path)
    assert report.findings.counts["queue-missing"] == 5
    assert comparable(verify_inline(str(path), 4000)) == comparable(report)
    assert len(rebuild(path).differences) == 1


@pytest.mark.parametrize(
    ("off", "exact", "right"),
    [(7, 13, 20), (3, 20, 23), (1, 0, 1), (1, 19, 20), (2, 18, 20), (4, 36, 40), (1, 100, 100), (2, 100, 100)],
)
def test_due_times_that_are_off_are_of_3_2_6_where_many_are(off: int, exact: int, right: int) -> None:
    """Of a broker that does not name its cluster in keyed messages: 3.2.6 to 4.5.

    Where one in 8 was asked for, 7 to 10 % of the sound queues of 3.2.6 with 10 to 20 messages were called damaged.
    """
    waited = np.array([2003] * off + [2000] * exact)
    keyed = np.ones(len(waited), np.bool_)
    delays = Delays(keyed, np.full(len(waited), 10**12), ~keyed, keyed)
    assert possible_due_times(delays.stored_ms + waited, delays).sum() == right
