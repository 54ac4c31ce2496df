"""However a log is split, its splits hold the records and the damage that one reader of the whole finds."""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.errors import StoreError
from recovery.pipeline.splits import Reading, plan
from recovery.pipeline.store_location import LogManifest, PackedLog, SegmentEntry, StoreLocation, filesystem_of
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.spark.following import FollowingReader
from recovery.spark.options import settings_of
from recovery.spark.readers import FindingsReader, RecordsReader
from tests.scan.logs import Chunk, Log, Wanted, logs, truths_and_lies

split_sizes = st.integers(1024, 4096) | st.just(1 << 30)


def _whole(path: Path) -> tuple[list[tuple[int, int]], list[object]]:
    scan = Scan(StoreLocation(str(path)).log().listing())
    found = [(int(at), int(size)) for one in scan for at, size in zip(one.offsets, one.sizes, strict=True)]
    return found, sorted(map(repr, scan.damages))


def _split(path: Path, size: int) -> tuple[list[tuple[int, int]], list[object]]:
    log = StoreLocation(str(path)).log()
    found, damages = [], []
    for split in plan(log, size):
        reading = Reading(log, split)
        found += [(int(at), int(size)) for one in reading for at, size in zip(one.offsets, one.sizes, strict=True)]
        damages += reading.damages
    return found, sorted(map(repr, damages))


def _deceived() -> Log:
    """A body that holds a record with its own true place, behind where a split begins."""
    log = Log(4096)
    log.append(Wanted(chunks=(Chunk("bytes", bytes(1200)), Chunk("record", b"x" * 9, 0))))
    return log


@given(logs(deltas=truths_and_lies, min_size=3), split_sizes)
@example(_deceived(), 1024)
def test_splits_hold_what_the_whole_log_holds(log: Log, size: int) -> None:
    """No record twice, none left out, none that lies in a body."""
    with tempfile.TemporaryDirectory() as directory:
        path = log.write(Path(directory))
        assert _split(path, size) == _whole(path)
        assert _whole(path)[0] == [(at, len(raw)) for at, raw in log.records.items()]


@given(logs(deltas=truths_and_lies, min_size=3), split_sizes, st.data())
def test_splits_find_the_damage_of_the_whole_log(log: Log, size: int, data: st.DataObject) -> None:
    """Bytes overwritten anywhere: the same records are left, the same regions are lost, torn is torn."""
    for _ in range(data.draw(st.integers(1, 3))):
        segment = log.segments[data.draw(st.sampled_from(sorted(log.segments)))]
        at = data.draw(st.integers(0, len(segment) - 1))
        raw = data.draw(st.sampled_from((b"\0" * 8, b"\xff" * 90, b"\0" * 2000, b"\x01")))
        segment[at : at + len(raw)] = raw[: len(segment) - at]
    with tempfile.TemporaryDirectory() as directory:
        path = log.write(Path(directory))
        assert _split(path, size) == _whole(path)


def test_a_segment_that_is_missing_or_cut_leaves_the_others(tmp_path: Path) -> None:
    """What is left is read, by whatever splits."""
    log = Log(4096)
    for _ in range(40):
        log.append(Wanted(chunks=(Chunk("bytes", b"x" * 300),)))
    path = log.write(tmp_path)
    segments = sorted((path / "commitlog").iterdir())
    segments[1].unlink()
    whole, begin = segments[2].read_bytes(), 2 * log.segment_size
    behind = next(at + len(raw) for at, raw in log.records.items() if at > begin) - begin
    for cut in (1700, behind):  # in a record, and behind one
        segments[2].write_bytes(whole[:cut])
        for size in (1024, 1500, 1 << 20):
            assert _split(path, size) == _whole(path)


def test_of_two_segments_that_overlap_the_later_holds_what_begins_in_both(tmp_path: Path) -> None:
    """Findings of one record named another file than those of the local engine."""
    log = Log(4096)
    for _ in range(40):
        log.append(Wanted(chunks=(Chunk("bytes", b"x" * 300),)))
    path = log.write(tmp_path)
    (path / "commitlog" / f"{0:020}").rename(path / "commitlog" / f"{2048:020}")
    manifest, files = StoreLocation(str(path)).log(), StoreFiles.open(path)
    for place in (2048, 4096, 6000, 8192):
        assert manifest.file_at(place) == files.commitlog_file(place)


def test_a_split_has_a_least_size(tmp_path: Path) -> None:
    """A split of a few bytes would be a task for each record."""
    with pytest.raises(ValueError, match="at least 1024"):
        plan(StoreLocation(str(Log(4096).write(tmp_path))).log(), 1000)


def test_a_relative_path_leads_where_the_process_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of directory a job read the store that had the name in the one before, and reported on that."""
    for name in ("before", "after"):
        Log(4096).write(tmp_path / name / "store")
        monkeypatch.chdir(tmp_path / name)
        assert StoreLocation("store").files().path == str(tmp_path / name / "store")
        assert StoreLocation("store").inside == str(tmp_path / name / "store")


def test_a_split_travels_in_few_bytes_however_many_segments_a_log_has(tmp_path: Path) -> None:
    """Each had the names of all: 50 GB in segments of 16 MiB were 790 MB in the driver, which has 1 GiB."""
    log = Log(4096)
    for _ in range(200):
        log.append(Wanted(chunks=(Chunk("bytes", bytes(3000)),)))
    settings = settings_of({"path": str(log.write(tmp_path))})
    following = FollowingReader(settings, ["topic"])
    for parts in (
        RecordsReader(settings, ["topic"]).partitions(),
        FindingsReader(settings).partitions(),
        following.partitions({"commitlog_offset": 0}, {"commitlog_offset": log.end}),
    ):
        assert len(parts) >= 200
        assert max(len(pickle.dumps(part)) for part in parts) < 2000


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_packed_log_is_unpacked_as_it_was(suffix: str) -> None:
    """Also where one segment has another size, lies in another directory, or is missing."""
    place, size = StoreLocation("/data/shop.store"), 4096
    paths = [f"/data/shop.store/commitlog/{base:020}{suffix}" for base in range(0, 20 * size, size)]
    files = [SegmentEntry(number * size, size, path) for number, path in enumerate(paths)]
    odd = [replace(files[7], size=size - 1), replace(files[8], path=f"/other/{8 * size:020}{suffix}")]
    for kept in ((), tuple(files), (*files[:5], *odd, *files[9:])):
        log = LogManifest(place, kept, size)
        assert PackedLog.of(log).unpacked() == log


@pytest.mark.parametrize(
    ("options", "limit_s"),
    [("", 30), ("?scheme=http", 30), ("?retry_limit_seconds=900", 900), ("?retry_limit_seconds=1", 1)],
)
@pytest.mark.parametrize("scheme", ["gs", "gcs"])
def test_google_is_not_asked_for_a_quarter_of_an_hour(scheme: str, options: str, limit_s: int) -> None:
    """Without credentials a command stood still for 15 minutes, and took neither Ctrl-C nor SIGTERM."""
    filesystem, _ = filesystem_of(f"{scheme}://anonymous@archive/shop.store{options}")
    assert filesystem.__reduce__()[1][0]["retry_time_limit"].total_seconds() == limit_s


def test_a_file_system_that_gives_no_answer_is_named() -> None:
    """The sentence was the client's own, and did not say what was asked for."""
    uri = "gs://anonymous@archive/shop.store?endpoint_override=127.0.0.1:9&scheme=http&retry_limit_seconds=0.2"
    with pytest.raises(StoreError, match=r"^gs://.*: its file system gives no answer: [^{]*\. See that it runs"):
        StoreLocation(uri).files()
