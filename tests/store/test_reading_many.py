"""Many records at once, as a pull reads them: the same bytes as one by one, whatever lies between them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import broker
from broker.errors import CorruptRecord
from broker.store.disk.files import Disk
from broker.store.read import commitlog

LAYOUT = broker.StoreLayout(segment_bytes=1 << 16)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with broker.open(tmp_path / "store", sync="os", layout=LAYOUT) as store:
        for number in range(300):
            store.append(broker.Message("orders", bytes(random.Random(number).randrange(1, 3000))))
    return tmp_path / "store"


@pytest.mark.parametrize("near_bytes", [1, 5000, 1 << 20])
@pytest.mark.parametrize("step", [1, 3, 40])
def test_they_are_those_that_are_read_one_by_one(
    path: Path, monkeypatch: pytest.MonkeyPatch, near_bytes: int, step: int
) -> None:
    monkeypatch.setattr(commitlog, "_NEAR_BYTES", near_bytes)
    with broker.open(path, read_only=True) as store:
        places = [(record.commitlog_offset, record.total_size) for record in store.records()][::step]
        raws = [store.commitlog.raw(*place) for place in places]
        assert store.commitlog.raws(places) == raws
        assert store.commitlog.raws(places[::-1]) == raws[::-1]
        assert store.commitlog.raws([]) == []


def test_what_expired_is_left_out_and_damage_is_said(path: Path) -> None:
    segments = sorted((path / "commitlog").iterdir())
    with broker.open(path, read_only=True) as store:
        places = [(record.commitlog_offset, record.total_size) for record in store.records()]
        segments[0].unlink()
        begin = int(segments[1].name)
        kept = [place for place in places if place[0] >= begin]
        assert len(kept) < len(places)
        assert len(store.commitlog.raws(places)) == len(kept)
        commitlog_offset, size = kept[3]
        with pytest.raises(CorruptRecord, match="no record of"):
            store.commitlog.raws([*kept[:3], (commitlog_offset, size - 1)])
        with segments[1].open("r+b") as file:
            file.seek(commitlog_offset - begin)
            file.write(bytes(8))
        with pytest.raises(CorruptRecord, match="checkback verify"):
            store.commitlog.raws(kept)


def test_one_that_somebody_named_is_read_after_one_look_at_the_directory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[str] = []
    with broker.open(path, read_only=True) as store:
        records = list(store.records())
        stamp = Disk.stamp
        monkeypatch.setattr(Disk, "stamp", lambda disk, path: looks.append(path) or stamp(disk, path))
        assert [store.commitlog.at(record.commitlog_offset) for record in records] == records
        assert len(looks) == len(records)


def test_one_that_somebody_named_is_found_in_a_segment_that_came_later(path: Path) -> None:
    with broker.open(path, read_only=True) as reader, broker.open(path, sync="os") as store:
        end = reader.commitlog.end_offset
        sent = [store.append(broker.Message("orders", bytes(3000))).commitlog_offset for _ in range(30)]
        assert sent[-1] // LAYOUT.segment_bytes > end // LAYOUT.segment_bytes
        found = [reader.commitlog.at(offset) for offset in reversed(sent)]
        assert [record and record.commitlog_offset for record in found] == sent[::-1]


def test_the_end_of_a_log_that_grows_is_not_searched_for_records(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that a reader came back to it 8 MiB of zeros were: that took 10 ms."""
    with broker.open(path, read_only=True) as store:
        end = store.end_offset
        monkeypatch.setattr(commitlog, "record_marks", None)
        assert list(store.records(end)) == []


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 10_000])
def test_what_is_zeros(size: int) -> None:
    assert commitlog._is_zeros(bytes(size))
    for at in {0, size // 2, size - 1} if size else ():
        assert not commitlog._is_zeros(bytes(at) + b"\1" + bytes(size - at - 1))
