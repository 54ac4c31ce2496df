"""Salvage: what was whole is kept at its offset, what was lost is bridged so that everybody reads on."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.errors import StoreError
from broker.format import config
from broker.format.commitlog import Record, decode, encode, read_blank
from broker.format.topics import HALF_TOPIC
from broker.store.disk import files as disk
from recovery.repair.queue_gaps import Gap, lowered
from recovery.repair.salvage import SalvageReport, salvage
from recovery.repair.salvage_log import FILLER_SIZE_MIN, TOPIC, NewLog, filler
from recovery.verify.verifier import verify
from tests.cli.command import command
from tests.scan.small_broker import V3, V5, V5_CRC, Generation, SmallBroker
from tests.scan.small_stores import build

GENERATIONS = pytest.mark.parametrize("kind", [V3, V5, V5_CRC], ids=lambda kind: kind.name)


def walk_as_rocketmq(store: Path, segment_size: int) -> list[Record]:
    """What a RocketMQ broker would keep: records and blanks in a chain, ended by the first that is neither."""
    found: list[Record] = []
    for path in sorted((store / "commitlog").iterdir()):
        raw, at = path.read_bytes(), 0
        assert len(raw) == segment_size
        while not read_blank(raw, at, len(raw) - at):
            try:
                record = decode(raw, at, commitlog_offset=int(path.name) + at)
            except broker.CorruptRecord:
                return found
            found.append(record)
            at += int.from_bytes(raw[at : at + 4], "big")
    return found


def own(records: list[Record]) -> list[int]:
    return [one.commitlog_offset for one in records if one.topic != TOPIC]


def flip(store: Path, position: int, segment_size: int, value: int = 0xFF) -> None:
    path = store / "commitlog" / f"{position // segment_size * segment_size:020}"
    raw = bytearray(path.read_bytes())
    raw[position % segment_size] ^= value
    path.write_bytes(raw)


def long_store(kind: Generation, directory: Path, segments: int = 4) -> SmallBroker:
    """A store of several segments."""
    made = build(kind, directory.parent / f"{directory.name}.short")
    while len(made.log) < (segments - 1) * kind.segment_size + 700:
        made.append("plain", "Orders", b"more" * 30, {"KEYS": f"m-{len(made.records)}"})
    directory.mkdir()
    made.write(directory)
    return made


def checked(store: Path, out: Path, made: SmallBroker, lost: set[int]) -> SalvageReport:
    """Salvage, and ask what must hold whatever was lost."""
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    report = salvage(store, out)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before
    kept = [one.commitlog_offset for one in made.records if one.commitlog_offset not in lost]
    found = walk_as_rocketmq(out, made.kind.segment_size)
    assert own(found) == kept
    assert report.records == len(kept)
    assert report.fillers == len(found) - len(kept)
    for one in found:
        if one.topic != TOPIC:
            raw = encode(one)
            assert raw == made.log[one.commitlog_offset : one.commitlog_offset + len(raw)]
    with broker.open(out, read_only=True) as opened:
        assert own(list(opened.records())) == kept
    said = verify(out)
    assert said.records == len(found)
    assert not {"corrupt-region", "torn-tail", "crc-mismatch", "segment-missing", "segment-size"} & set(
        said.findings.counts
    )
    assert json.loads((out / "checkback" / "salvage.json").read_text())["records"] == len(kept)
    assert (out / "abort").read_bytes() == b""
    return report


@GENERATIONS
def test_a_sound_store_loses_nothing(kind: Generation, tmp_path: Path) -> None:
    """All records, all configs, the same transactions; nothing that is derived."""
    made = long_store(kind, tmp_path / "store")
    report = checked(tmp_path / "store", tmp_path / "out", made, set())
    assert (report.lost, report.lost_bytes, report.queues, report.fillers) == ([], 0, [], 0)
    assert verify(tmp_path / "out").digest == verify(tmp_path / "store").digest
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["abort", "checkback", "commitlog", "config"]
    for name in report.config:
        assert (tmp_path / "out" / "config" / name).read_bytes() == (tmp_path / "store" / "config" / name).read_bytes()


@GENERATIONS
def test_any_one_record_can_be_lost(kind: Generation, tmp_path: Path) -> None:
    """A record that is none any more is bridged, wherever it stands: first, last in its segment, last of all."""
    made = long_store(kind, tmp_path / "store", segments=3)
    numbers = [one.commitlog_offset // kind.segment_size for one in made.records]
    edges = [n for n in range(1, len(numbers)) if numbers[n] != numbers[n - 1]]
    for number in sorted({0, 1, len(numbers) - 1, *edges, *(n - 1 for n in edges), *range(0, len(numbers), 9)}):
        one = made.records[number]
        flip(tmp_path / "store", one.commitlog_offset + 4, kind.segment_size)
        report = checked(tmp_path / "store", tmp_path / f"out{number}", made, {one.commitlog_offset})
        assert [loss.commitlog_offset for loss in report.lost] == [one.commitlog_offset]
        assert report.not_bridged == 0
        flip(tmp_path / "store", one.commitlog_offset + 4, kind.segment_size)


def test_a_wrong_crc_is_lost_and_named(tmp_path: Path) -> None:
    """RocketMQ would cut the log there; what its head says stands in the report."""
    made = long_store(V5, tmp_path / "store")
    one = next(one for one in made.records if one.topic == "Orders" and one.body)
    flip(tmp_path / "store", one.commitlog_offset + 90, V5.segment_size)
    report = checked(tmp_path / "store", tmp_path / "out", made, {one.commitlog_offset})
    (loss,) = report.lost
    assert (loss.kind, loss.bridge) == ("crc-mismatch", "filler record")
    assert loss.record
    assert (loss.record["topic"], loss.record["queue_offset"]) == ("Orders", one.queue_offset)


@GENERATIONS
def test_a_missing_segment_becomes_a_blank(kind: Generation, tmp_path: Path) -> None:
    """Eight bytes and a hole, and RocketMQ goes on in the next one."""
    made = long_store(kind, tmp_path / "store")
    size = kind.segment_size
    (tmp_path / "store" / "commitlog" / f"{size:020}").unlink()
    lost = {one.commitlog_offset for one in made.records if one.commitlog_offset // size == 1}
    report = checked(tmp_path / "store", tmp_path / "out", made, lost)
    assert [(loss.kind, loss.bridge) for loss in report.lost] == [("segment-missing", "blank")]
    assert (report.fillers, report.lost_bytes) == (0, size)


def test_a_torn_tail_is_left_out(tmp_path: Path) -> None:
    """The new log ends where the last whole record ends."""
    made = long_store(V5, tmp_path / "store")
    last = made.records[-1].commitlog_offset
    path = tmp_path / "store" / "commitlog" / f"{last // 4096 * 4096:020}"
    raw = path.read_bytes()
    path.write_bytes(raw[: last % 4096 + 40].ljust(4096, b"\0"))
    report = checked(tmp_path / "store", tmp_path / "out", made, {last})
    assert [(loss.kind, loss.bridge) for loss in report.lost] == [("torn-tail", "nothing")]
    assert report.end_offset == last


def test_positions_skip_nothing(tmp_path: Path) -> None:
    """RocketMQ closes the gap of a lost message when it rebuilds a queue: what was not consumed is still to come."""
    made = build(V5, tmp_path / "short")
    plain = [made.append("plain", "Orders", b"x", {"KEYS": f"p-{n}"}, queue_id=3) for n in range(10)]
    made.configure({"Orders": 4}, ["shop"], {"Orders@shop": {3: 8, 0: 1}, "Other@shop": {3: 8}})
    (tmp_path / "store").mkdir()
    made.write(tmp_path / "store")
    for lost in (plain[4], plain[5]):
        flip(tmp_path / "store", lost.commitlog_offset + 4, V5.segment_size)
    report = salvage(tmp_path / "store", tmp_path / "out")
    assert report.queues == [Gap("Orders", 3, 4, 2)]
    assert report.positions_lowered == 1
    said = config.decode_consumer_offsets((tmp_path / "out" / "config" / "consumerOffset.json").read_bytes())
    assert said.positions["Orders", "shop"] == {3: 6, 0: 1}
    assert said.positions["Other", "shop"] == {3: 8}


def test_lowered_positions() -> None:
    gaps = [Gap("t", 0, 4, 2), Gap("t", 0, 9, 1)]
    assert [lowered({0: position}, gaps)[0] for position in (0, 4, 5, 6, 9, 10, 20)] == [0, 4, 4, 4, 7, 7, 17]
    assert lowered({1: 20}, gaps) == {1: 20}


def test_transactions_that_a_loss_may_touch(tmp_path: Path) -> None:
    """An end that was lost leaves its transaction in doubt; a lost half leaves an end that names nothing."""
    made = build(V3, tmp_path / "store")
    rollback = next(one for one in made.records if made.roles[one.commitlog_offset] == "rollback")
    flip(tmp_path / "store", rollback.commitlog_offset + 4, V3.segment_size)
    report = salvage(tmp_path / "store", tmp_path / "out")
    assert report.in_doubt == verify(tmp_path / "out").transactions["in_doubt"]
    assert 1 <= report.in_doubt_before_loss <= report.in_doubt
    half = next(one for one in made.records if one.commitlog_offset == rollback.prepared_transaction_offset)
    flip(tmp_path / "store", rollback.commitlog_offset + 4, V3.segment_size)
    flip(tmp_path / "store", half.commitlog_offset + 4, V3.segment_size)
    report = salvage(tmp_path / "store", tmp_path / "again")
    assert report.ends_without_half == verify(tmp_path / "again").findings.counts["end-without-half"] == 1


def test_a_salvaged_store_can_be_salvaged(tmp_path: Path) -> None:
    """The fillers of each salvage have a queue of their own, numbered from 0."""
    made = long_store(V5, tmp_path / "store")
    first, second = made.records[2], made.records[8]
    flip(tmp_path / "store", first.commitlog_offset + 4, V5.segment_size)
    salvage(tmp_path / "store", tmp_path / "one")
    flip(tmp_path / "one", second.commitlog_offset + 4, V5.segment_size)
    assert salvage(tmp_path / "one", tmp_path / "two").fillers == 1
    fillers = [one for one in walk_as_rocketmq(tmp_path / "two", V5.segment_size) if one.topic == TOPIC]
    assert [(one.queue_id, one.queue_offset) for one in fillers] == [(0, 0), (1, 0)]
    assert f"at CommitLog offset {first.commitlog_offset} could not be read" in fillers[0].body.decode()


def test_what_the_disk_cannot_read_is_lost_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad block counts as zeros; all other records are kept."""
    big = Generation("5.3.3", segment_size=1 << 16)
    made = SmallBroker(big)
    for number in range(200):
        made.append("plain", "Orders", b"more" * 30, {"KEYS": f"m-{number}"})
    (tmp_path / "store").mkdir()
    made.write(tmp_path / "store")
    read, bad = os.preadv, range(8192, 12288)

    def failing(descriptor: int, buffers: list[Any], at: int) -> int:
        if (
            at < bad.stop
            and at + len(buffers[0]) > bad.start
            and "commitlog" in os.readlink(f"/proc/self/fd/{descriptor}")
        ):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(descriptor, buffers, at)

    monkeypatch.setattr(disk.os, "preadv", failing)
    report = salvage(tmp_path / "store", tmp_path / "out")
    monkeypatch.undo()
    sizes = {one.commitlog_offset: len(encode(one)) for one in made.records}
    whole = [at for at, size in sizes.items() if at + size <= bad.start or at >= bad.stop]
    assert own(walk_as_rocketmq(tmp_path / "out", big.segment_size)) == whole
    assert report.records == len(whole)


def test_a_single_segment_that_was_cut(tmp_path: Path) -> None:
    """Its true size is RocketMQ's default, or what the caller says."""
    made = build(V5, tmp_path / "store")
    os.truncate(tmp_path / "store" / "commitlog" / ("0" * 20), 3000)
    for path in sorted((tmp_path / "store" / "commitlog").iterdir())[1:]:
        path.unlink()
    assert salvage(tmp_path / "store", tmp_path / "default").segment_size == 1 << 30
    report = salvage(tmp_path / "store", tmp_path / "given", segment_size=4096)
    kinds = {"segment-size", "torn-tail", "log-short"}  # the queues name records in the segments behind it, too
    assert (report.segment_size, {loss.kind for loss in report.lost}) == (4096, kinds)
    ends = [one.commitlog_offset + len(encode(one)) for one in made.records]
    assert report.records == sum(end <= 3000 for end in ends)
    assert len(own(walk_as_rocketmq(tmp_path / "given", 4096))) == report.records
    with pytest.raises(StoreError, match="give a --segment-size that is not smaller"):
        salvage(tmp_path / "store", tmp_path / "small", segment_size=2048)


@pytest.mark.parametrize("size", [*range(FILLER_SIZE_MIN, 135), 4096, 1 << 20])
def test_fillers_of_every_size(size: int) -> None:
    """Exactly as many bytes as asked for, a plain record, sound to every reader."""
    raw = filler(4711, size, "what stood here", 3, 1, 1_700_000_000_000)
    record = decode(raw, commitlog_offset=4711)
    assert len(raw) == size
    assert TOPIC.startswith(record.topic)
    assert record.topic
    assert (record.transaction_type, record.queue_id, record.queue_offset) == (0, 1, 3)


@pytest.mark.parametrize("lost", [1, 91, 92, 5 << 20])
def test_bridges_over_small_and_large_losses(lost: int, tmp_path: Path) -> None:
    """Less than a record cannot be bridged and is said; more than one record can hold takes several."""
    (tmp_path / "commitlog").mkdir()
    log = NewLog(str(tmp_path / "commitlog"), 0, 8 << 20)
    (bridge,) = log.bridge(1000, 1000 + lost, 1, 0)
    log.close()
    assert bridge.how == ("nothing" if lost < FILLER_SIZE_MIN else "filler record")
    raw, at = (tmp_path / "commitlog" / ("0" * 20)).read_bytes() if log.fillers else b"", 1000
    for number in range(log.fillers):
        assert decode(raw, at, commitlog_offset=at).queue_offset == number
        at += int.from_bytes(raw[at : at + 4], "big")
    assert at == 1000 + lost * (log.fillers > 0)


def test_never_in_place_and_never_half(
    golden_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OUT must be new; when something fails nothing is left of it."""
    store, out = golden_copy("rocketmq-3.1.5-clean"), tmp_path / "out"
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(StoreError, match="holds something"):
        salvage(store, out)
    assert [path.name for path in out.iterdir()] == ["mine"]
    (out / "mine").unlink()
    with pytest.raises(StoreError, match=f"there is no directory {tmp_path / 'volume'}"):  # that is not mounted
        salvage(store, tmp_path / "volume" / "out")
    assert not (tmp_path / "volume").exists()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(StoreError, match="No space left"):
            salvage(store, out)
    assert list(out.iterdir()) == []
    assert not (tmp_path / "out.unfinished").exists()
    (tmp_path / "out.unfinished").mkdir()
    assert salvage(store, out).records == 2130  # an empty directory that somebody made is no salvage
    other = tmp_path / "other.unfinished" / "commitlog"
    other.mkdir(parents=True)
    with pytest.raises(StoreError, match="left of a killed salvage"):
        salvage(store, tmp_path / "other")


def test_a_place_that_no_rename_replaces_is_refused_before_anything_is_read(
    golden_copy: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty directory behind a link, and a disk of its own: the finished salvage could not become it."""
    store, out, link = golden_copy("rocketmq-3.1.5-clean"), tmp_path / "out", tmp_path / "link"
    out.mkdir()
    link.symlink_to(out)
    with pytest.raises(StoreError, match=rf"link is a symbolic link.*Give {link / store.name}$"):
        salvage(store, link)
    with monkeypatch.context() as patch:
        patch.setattr(os.path, "ismount", lambda path: path == str(out))
        with pytest.raises(StoreError, match=rf"out is where a disk is mounted.*Give {out / store.name}$"):
            salvage(store, out)
    assert [*out.iterdir(), *tmp_path.glob("*.unfinished")] == []
    assert salvage(store, link / store.name).records == 2130


def test_the_screen_says_what_was_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each loss in a line, then what follows from it."""
    made = build(V3, tmp_path / "store")
    rollback = next(one for one in made.records if made.roles[one.commitlog_offset] == "rollback")
    flip(tmp_path / "store", rollback.commitlog_offset + 4, V3.segment_size)
    ran = command(capsys, "salvage", tmp_path / "store", tmp_path / "out")
    assert (ran.code, ran.err) == (0, "")
    assert f"corrupt-region: {tmp_path}/store/commitlog/" in ran.out
    assert f"at {rollback.commitlog_offset}: " in ran.out
    assert "in its place: filler record" in ran.out
    assert "their ends may be in it" in ran.out


def test_a_lost_half_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Op messages name half messages by their number in the half queue, and that number is gone."""
    made = build(V5, tmp_path / "store")
    half = [one for one in made.records if one.topic == HALF_TOPIC][1]
    flip(tmp_path / "store", half.commitlog_offset + 4, V5.segment_size)
    ran = command(capsys, "salvage", tmp_path / "store", tmp_path / "out")
    assert "1 half message of these: a 5.x broker" in ran.out


def test_a_table_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Topics and positions are in no record: without them something was lost."""
    made = build(V5, tmp_path / "store")
    made.configure({"Orders": 4}, ["shop"], {"Orders@shop": {0: 1}})
    store = made.write(tmp_path / "other")
    for name in ("topics.json", "consumerOffset.json"):
        (store / "config" / name).write_bytes(b"\xa5 encrypted")
        (store / "config" / f"{name}.bak").unlink(missing_ok=True)
    (store / "config" / "empty.json").touch()  # RocketMQ takes it for one that is not there
    ran = command(capsys, "salvage", store, tmp_path / "out")
    assert (ran.code, ran.err) == (1, "")
    for name in ("topics.json", "consumerOffset.json"):
        assert f"config/{name} cannot be read, and was NOT copied" in ran.out
    assert "empty.json" not in ran.out
    assert "Nothing was lost" not in ran.out
