"""A store that another process writes, cuts and expires while we read."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import broker
from broker.format.commitlog import encode
from broker.store.disk.files import ReadFile
from tests.store.build import SEGMENT_SIZE, Log, units_of, write_index, write_queue


def test_what_is_appended_is_seen(tmp_path: Path) -> None:
    """Across segments, into a new file, with one file allocated ahead."""
    log = Log()
    with broker.open(log.write(tmp_path, spare=True), read_only=True) as store:
        assert (list(store.records()), store.begin_offset, store.end_offset) == ([], 0, 0)
        for count in (1, 5, 40, 1, 60):
            position = store.end_offset
            made = log.append(count)
            log.write(tmp_path, spare=count % 2 == 0)
            assert [record.commitlog_offset for record in store.records(position)] == [r.commitlog_offset for r in made]
            assert list(store.records()) == log.records
            assert store.end_offset == log.end
            assert store.record(made[-1].commitlog_offset) == made[-1]
            assert store.record(log.end) is None


@pytest.mark.parametrize("kept", [1, 7, 8, 50, 91, 2000, -20, -1])
def test_half_a_record_at_the_tail_is_no_damage(tmp_path: Path, kept: int) -> None:
    """It ends the log, whether its writer lives or not."""
    log = Log()
    log.append(3)
    end = log.end
    (torn,) = log.append(1, body=b"long" * 700)
    whole = encode(torn)
    log.data[end:] = whole[:kept] + bytes(len(whole[kept:]))
    with broker.open(log.write(tmp_path), read_only=True) as store:
        if kept == -20 or kept == -1:  # RocketMQ takes what only lacks the end of its properties, and so do we
            assert [record.commitlog_offset for record in store.records()] == [r.commitlog_offset for r in log.records]
            return
        assert list(store.records()) == log.records[:-1]
        assert store.end_offset == end
        assert store.record(end) is None


def test_half_a_record_is_waited_for(tmp_path: Path) -> None:
    """A reader that comes while a record is being copied gets it when it is whole."""
    log = Log()
    log.append(2)
    (late,) = log.append(1, body=b"x" * 1000)
    whole = bytes(log.data)
    log.data[late.commitlog_offset + 100 :] = b""
    path = log.write(tmp_path)
    segment = path / "commitlog" / f"{0:020}"
    with broker.open(path, read_only=True) as store:
        records = store.records()
        assert [next(records), next(records)] == log.records[:2]
        writer = threading.Timer(0.003, segment.write_bytes, [whole.ljust(SEGMENT_SIZE, b"\0")])
        writer.start()
        found = [record for record in records if record is not None]
        writer.join()
        assert found in ([late], [])  # on a slow machine it may come too late for this walk
        assert list(store.records()) == log.records


def test_segments_expire(tmp_path: Path) -> None:
    """What is gone is None, not an error; a walk goes on where the log now begins."""
    log = Log()
    log.append(120)
    path = log.write(tmp_path)
    write_queue(path, units_of(log.records))
    write_index(path, log.records, slots=10, items=200)
    with broker.open(path, read_only=True) as store:
        records = store.records()
        assert next(records) == log.records[0]
        assert store.queue_range("orders", 0) == (0, 120)
        (path / "commitlog" / f"{0:020}").unlink()
        begin = SEGMENT_SIZE
        kept = [record for record in log.records if record.commitlog_offset >= begin]
        assert store.begin_offset == begin
        assert store.record(0) is None
        assert store.message("orders", 0, 0) is None
        assert store.by_key("orders", "key-0") == []
        assert store.queue_range("orders", 0) == (120 - len(kept), 120)
        assert list(store.records(0)) == kept
        assert store.offset_at_time("orders", 0, 0) == 120 - len(kept)
        assert list(records)[-len(kept) :] == kept


def test_segments_are_cut_under_us(tmp_path: Path) -> None:
    """Never a signal: a short read, and a sentence where a file in the middle lost its end."""
    log = Log()
    log.append(120)
    path = log.write(tmp_path)
    with broker.open(path, read_only=True) as store:
        assert list(store.records()) == log.records
        first, second = (path / "commitlog" / f"{base:020}" for base in (0, SEGMENT_SIZE))
        with first.open("r+b") as file:
            file.truncate(1000)
        records = store.records()
        with pytest.raises(
            broker.CorruptStore, match=r"the segment has 1000 bytes, the others have 4096\. Run: checkback"
        ):
            list(records)
        assert [damage.kind for damage in store.damages] == ["segment-size"]
        assert list(store.records(SEGMENT_SIZE)) == [r for r in log.records if r.commitlog_offset >= SEGMENT_SIZE]
        second.unlink()
        assert {damage.kind for damage in store.damages} == {"segment-size", "segment-missing"}
        with pytest.raises(broker.CorruptStore, match="is missing, 4096 bytes in the middle"):
            list(store.records(SEGMENT_SIZE))


def test_everything_is_deleted_under_us(tmp_path: Path) -> None:
    log = Log()
    log.append(50)
    path = log.write(tmp_path)
    with broker.open(path, read_only=True) as store:
        for segment in (path / "commitlog").iterdir():
            segment.unlink()
        assert list(store.records()) == []
        assert (store.begin_offset, store.end_offset, store.segments) == (0, 0, ())


def test_files_replaced_under_us(tmp_path: Path) -> None:
    """The 3.x broker deletes and rebuilds its state table: names come again with other contents."""
    log, other = Log(), Log()
    log.append(5)
    other.append(5, topic="others")
    path = log.write(tmp_path)
    with broker.open(path, read_only=True) as store:
        assert list(store.records()) == log.records
        (path / "commitlog" / f"{0:020}").unlink()
        other.write(tmp_path)
        assert list(store.records()) == other.records


def test_threads_share_a_store(tmp_path: Path) -> None:
    """With more files than are kept open, and a writer that goes on."""
    log = Log()
    log.append(400)
    path = log.write(tmp_path)
    write_queue(path, units_of(log.records))
    faults: list[BaseException] = []
    with broker.open(path, read_only=True) as store:
        store._directory.files._limit = 2

        def read(shift: int) -> None:
            try:
                for number in range(400):
                    message = store.message("orders", 0, (number * 7 + shift) % 400)
                    assert message is not None
                    assert message.queue_offset == (number * 7 + shift) % 400
                assert len(list(store.records())) >= 400
            except BaseException as fault:  # noqa: BLE001
                faults.append(fault)

        threads = [threading.Thread(target=read, args=(shift,)) for shift in range(6)]
        for thread in threads:
            thread.start()
        log.append(200)
        log.write(tmp_path)
        for thread in threads:
            thread.join()
    assert faults == []


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = broker.open(Log().write(tmp_path), read_only=True)
    store.close()
    store.close()
    with pytest.raises(broker.StoreError, match=r"was closed: open it again with broker\.open"):
        list(store.records())


def test_opening_and_the_end_are_cheap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening reads no file. The end is looked for in the last segment in use, and then from the last record on."""
    log = Log(segment_size=1 << 16)
    log.append(4000)
    path = log.write(tmp_path, spare=True)
    read: dict[str, int] = {}
    pread = ReadFile.pread

    def counted(file: ReadFile, size: int, at: int) -> bytes:
        data = pread(file, size, at)
        name = Path(file.path).name
        read[name] = read.get(name, 0) + len(data)
        return data

    monkeypatch.setattr(ReadFile, "pread", counted)
    with broker.open(path, read_only=True) as store:
        assert read == {}
        assert store.end_offset == log.end
        last = [segment.name for segment in store.segments][-2:]
        assert sorted(read) == last
        assert read[last[1]] < 100  # the one allocated ahead
        read.clear()
        assert store.end_offset == log.end
        assert sum(read.values()) < 2 * (log.end % (1 << 16)) + (1 << 17)
