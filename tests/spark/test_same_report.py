"""A verification that is cut into splits and partitions says what the local engine says, damage included.

The tasks run here without Spark, which is fast enough for many examples; `test_jobs` runs some through Spark itself.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import broker
from broker.format.consumequeue import UNIT_SIZE
from broker.live import LiveStore, open_live
from broker.store.read.layout import StoreLayout
from broker.store.shared.control import Word
from recovery.pipeline import splits
from recovery.pipeline.in_memory import InMemoryExecutor
from recovery.pipeline.inspection import InspectionTask
from recovery.pipeline.store_location import StoreLocation, manifest_of
from recovery.pipeline.verification import comparing, verify_in_stages
from recovery.scan import scanner
from recovery.scan.store_files import StoreFiles
from recovery.verify.conclusion import Conclusion
from recovery.verify.verifier import Verification, verify
from tests.scan import small_stores
from tests.scan.effort import tries
from tests.scan.logs import Chunk, Log, Wanted, logs, truths_and_lies
from tests.scan.small_broker import GENERATIONS
from tests.spark.inline import ShuffledExecutor, comparable, verify_inline

GOLDEN = ("rocketmq-3.1.5-killed", "rocketmq-3.1.5-recovered", "rocketmq-5.3.3-killed", "rocketmq-5.3.3-clean")


@pytest.fixture(scope="module", params=GENERATIONS, ids=lambda kind: kind.name)
def small(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small store of each generation."""
    path = tmp_path_factory.mktemp("small") / "store"
    small_stores.build(request.param, path)
    return path


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("split_bytes", [1 << 30, 70_000])
def test_golden_stores(golden: Callable[[str], Path], name: str, split_bytes: int) -> None:
    """The stores of real brokers: killed ones, and one whose table the broker broke."""
    path = str(golden(name))
    assert comparable(verify_inline(path, split_bytes)) == comparable(verify(path))


def test_a_relative_path_is_that_of_the_driver(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor has a current directory of its own, and found no store there."""

    def elsewhere(function: Callable[..., Any], *arguments: Iterable[Any]) -> list[Any]:
        with contextlib.chdir("/"):
            return list(map(function, *arguments))

    monkeypatch.chdir(small.parent)
    location = StoreLocation(small.name)
    files = location.files()
    report = verify_in_stages(InMemoryExecutor(elsewhere), files, manifest_of(location, files), split_bytes=2000)
    assert comparable(report) == comparable(verify(str(small)))


@tries(20)
@given(seed=st.integers(0, 1 << 30), split_bytes=st.integers(1024, 3000) | st.just(1 << 30))
def test_flipped_bits(small: Path, seed: int, split_bytes: int) -> None:
    """Bits flipped anywhere in the store, derived files included: finding for finding the same."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"
        shutil.copytree(small, path)
        files = [one for one in sorted(path.rglob("*")) if one.is_file() and one.stat().st_size]
        for _ in range(dice.randint(1, 4)):
            file = dice.choice(files)
            raw = bytearray(file.read_bytes())
            filled = [at for at, byte in enumerate(raw) if byte] or [0]
            raw[dice.choice(filled)] ^= 1 << dice.randrange(8)
            file.write_bytes(raw)
        assert comparable(verify_inline(str(path), split_bytes)) == comparable(verify(path))


@pytest.mark.parametrize("split_bytes", [1 << 30, 1024])
@pytest.mark.parametrize(
    "missing", ["index", "index/*", "consumequeue", "transaction/redolog", "transaction/statetable"]
)
def test_derived_files_that_are_not_there(small: Path, tmp_path: Path, missing: str, split_bytes: int) -> None:
    """A store without an index was in order, said Spark."""
    path = tmp_path / "store"
    shutil.copytree(small, path)
    for one in list(path.glob(missing)):
        shutil.rmtree(one) if one.is_dir() else one.unlink()
    found = comparable(verify(path))
    assert not missing.startswith("index") or "there is no index" in str(found["findings"])
    assert comparable(verify_inline(str(path), split_bytes)) == found


@pytest.mark.parametrize("behind", [1, 2])
@pytest.mark.parametrize("split_bytes", [1 << 30, 1024])
def test_the_last_units_of_a_redo_log(tmp_path: Path, behind: int, split_bytes: int) -> None:
    """One of them names another place: where the units of each segment end can no longer be told from them alone."""
    path = tmp_path / "store"
    small_stores.build(GENERATIONS[0], path)
    log = max((path / "transaction" / "redolog").rglob("0*"))
    raw = bytearray(log.read_bytes())
    units = [at for at in range(0, len(raw), 20) if any(raw[at : at + 20])]
    at = units[-behind]
    raw[at : at + 8] = (344).to_bytes(8, "big")
    log.write_bytes(raw)
    found = verify(path)
    assert found.as_json()["counts"] == {"redo-missing": 1, "redo-orphan": 1}
    assert comparable(verify_inline(str(path), split_bytes)) == comparable(found)


@pytest.mark.parametrize("split_bytes", [1 << 30, 1024])
@pytest.mark.parametrize(("copied", "base"), [(0, 1), (0, 1500), (4096, 5000)])
def test_a_segment_that_lies_in_another(tmp_path: Path, copied: int, base: int, split_bytes: int) -> None:
    """What was wrong in the second one was listed twice, from where the first ended, too."""
    small_stores.build(GENERATIONS[1], tmp_path / "store")
    log = tmp_path / "store" / "commitlog"
    shutil.copy(log / f"{copied:020}", log / f"{base:020}")
    found = verify(tmp_path / "store")
    assert "segment-overlap" in found.as_json()["counts"]
    assert comparable(verify_inline(str(tmp_path / "store"), split_bytes)) == comparable(found)


@pytest.mark.parametrize("split_bytes", [1 << 30, 1024, 2000])
@pytest.mark.parametrize(("name", "size"), [("0" * 20, 2108), ("0" * 20, 3048), ("00000000000000004096", 4100)])
def test_a_segment_that_is_too_large(tmp_path: Path, name: str, size: int, split_bytes: int) -> None:
    """What lies behind its end belongs to no split; neither do segments that a wrong size lets overlap."""
    path = tmp_path / "store"
    small_stores.build(GENERATIONS[0 if size < 4096 else 1], path)
    with (path / "commitlog" / name).open("r+b") as file:
        file.truncate(size)
    if size > 4096:
        with (path / "commitlog" / ("0" * 20)).open("r+b") as file:
            file.truncate(1938)  # then no size is more frequent than another
    found = verify(path)
    assert "segment-size" in found.as_json()["counts"]
    assert comparable(verify_inline(str(path), split_bytes)) == comparable(found)


@pytest.mark.parametrize("split_bytes", [1 << 30, 1024])
def test_a_unit_that_moved_is_no_orphan(tmp_path: Path, split_bytes: int) -> None:
    """Its place is zeroed: a hole belongs to nobody, and does not hide the unit of the record at offset 0."""
    path = tmp_path / "store"
    small_stores.build(GENERATIONS[0], path)
    log = min(one for one in (path / "transaction" / "redolog").rglob("0*") if one.is_file())
    raw = bytearray(log.read_bytes())
    raw[:20], raw[20:40], raw[140:160] = raw[140:160], bytes(20), raw[:20]
    log.write_bytes(raw)
    found = verify(path)
    assert found.as_json()["counts"] == {"redo-missing": 1}
    assert comparable(verify_inline(str(path), split_bytes)) == comparable(found)


@tries(12)
@given(seed=st.integers(0, 1 << 30), split_bytes=st.integers(1024, 3000))
@example(seed=1289, split_bytes=2000)  # of 5.3.3: index items in another split's part, which count for no rule
@example(seed=3802, split_bytes=3000)  # of 5.3.3 with record CRC: the same
@example(seed=2444, split_bytes=1500)  # of 3.1.4: zeroed redo units among others
@example(seed=17060, split_bytes=1500)  # of 3.1.4: one of them in the place of a unit that moved
def test_units_and_items_that_changed_places(small: Path, seed: int, split_bytes: int) -> None:
    """Runs of units in a derived file swapped, doubled or zeroed, across the borders of splits."""
    dice = random.Random(seed)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store"
        shutil.copytree(small, path)
        files = [one for one in sorted(path.rglob("*")) if one.is_file() and one.name.isdecimal()]
        file = dice.choice([one for one in files if "commitlog" not in one.parts])
        raw = bytearray(file.read_bytes())
        last = max((at for at, byte in enumerate(raw) if byte), default=0)
        width = 24 if "statetable" in file.parts else 20
        for _ in range(dice.randint(1, 3)):
            first, second = (dice.randrange(last // width + 1) * width for _ in range(2))
            here, there = raw[first : first + width], raw[second : second + width]
            if len(here) == len(there) == width:
                raw[first : first + width] = dice.choice((there, bytes(width)))
                raw[second : second + width] = here
        file.write_bytes(raw)
        assert comparable(verify_inline(str(path), split_bytes)) == comparable(verify(path))


@tries(60)
@given(logs(deltas=truths_and_lies), st.integers(1024, 4096))
def test_bodies_that_deceive(log: object, split_bytes: int) -> None:
    """Whole fake records, blanks and magic codes in bodies: no split falls for them."""
    with tempfile.TemporaryDirectory() as directory:
        path = str(log.write(Path(directory)))  # type: ignore[attr-defined]
        assert comparable(verify_inline(path, split_bytes)) == comparable(verify(path))


def test_a_body_larger_than_what_is_looked_back_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split that begins with a record in a body is found out by the chain of records, and its segment read whole."""
    log = Log(8192)
    log.append(Wanted(chunks=(Chunk("bytes", bytes(1500)), Chunk("record", b"x" * 9, 0), Chunk("bytes", bytes(900)))))
    log.append(Wanted(chunks=(Chunk("bytes", bytes(300)),)))
    path = str(log.write(tmp_path))
    monkeypatch.setattr(scanner, "LOOK_BACK_BYTES", 0)
    fooled = [
        split
        for split in splits.plan(StoreLocation(path).log(), 1024)
        if _first(path, split) not in (None, *log.records)
    ]
    assert fooled, "without looking back a split takes the record in the body for one"
    assert comparable(verify_inline(path, 1024)) == comparable(verify(path))


@pytest.mark.parametrize(
    ("change", "kinds"),
    [("missing", {"segment-missing": 1}), ("cut", {"segment-size": 1, "corrupt-region": 1}), ("appended", {})],
    ids=["missing", "cut", "appended"],
)
def test_a_segment_that_changes_after_the_splits_were_planned(
    tmp_path: Path, change: str, kinds: dict[str, int]
) -> None:
    """It expires, is cut, is written to: the job goes on, and what it cannot tell is a finding."""
    log = Log(8192)
    offsets = [log.append(Wanted(chunks=(Chunk("bytes", b"x" * 700),))) for _ in range(40)]
    path = log.write(tmp_path)
    segments = sorted((path / "commitlog").iterdir())
    whole = segments[-1].read_bytes()
    if change == "appended":
        last = offsets[-1] % 8192
        segments[-1].write_bytes(whole[: last + 40] + bytes(len(whole) - last - 40))

    def changed() -> None:
        if change == "missing":
            segments[1].unlink()
        elif change == "cut":
            segments[1].write_bytes(segments[1].read_bytes()[:3000])
        else:
            segments[-1].write_bytes(whole)

    report = verify_inline(str(path), 3000, before=changed)
    assert dict(report.findings.counts) == kinds
    assert report.records == {"missing": 30, "cut": 33, "appended": 40}[change]


@pytest.mark.sample("False-1048576-5000", "True-65536-1073741824")
@pytest.mark.parametrize("split_bytes", [1 << 30, 20_000, 5000])
@pytest.mark.parametrize("segment_bytes", [1 << 20, 1 << 16])
@pytest.mark.parametrize("closes", [True, False])
def test_a_store_that_is_written_to_meanwhile(
    tmp_path: Path, segment_bytes: int, split_bytes: int, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the plan and the reading come more transactions than there were; they are no findings."""
    monkeypatch.setattr(
        "recovery.verify.conclusion.LAG_MS", 0
    )  # what came long before the last record is not excused by its age
    layout = StoreLayout(segment_bytes, 20 * 400, 24 * 400, 20 * 400, 100, 400)
    with open_live(tmp_path / "store", layout=layout) as store:
        _traffic(store, 100)
        log_files = store.writer.appender.log
        log_files.allocate(store.writer.control[Word.TAIL] // segment_bytes * segment_bytes + segment_bytes)  # ahead
        place = StoreLocation(str(tmp_path / "store"))
        files = place.files()
        log = manifest_of(place, files)

        def meanwhile(planned: tuple[splits.Split, ...]) -> InspectionTask:
            task = comparing(files, log)(planned)
            _traffic(store, 400)
            if closes:
                store.close()
            return task

        report = verify_in_stages(ShuffledExecutor(), files, log, split_bytes=split_bytes, prepare=meanwhile)
    assert report.live
    assert dict(report.findings.counts) == {}
    assert report.transactions["total"] > 150  # what lies behind a small segment was not planned


@pytest.mark.parametrize("closes", [True, False])
def test_the_local_engine_on_such_a_store(tmp_path: Path, closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.verify.conclusion.LAG_MS", 0)
    layout = StoreLayout(1 << 20, 20 * 400, 24 * 400, 20 * 400, 100, 400)
    with open_live(tmp_path / "store", layout=layout) as store:
        _traffic(store, 100)
        verification = Verification(StoreFiles.open(tmp_path / "store"), lambda *_: None)
        _traffic(store, 400)
        if closes:
            store.close()
        report = verification.run()
    assert report.live
    assert dict(report.findings.counts) == {}
    assert report.transactions["total"] == 500


def test_a_unit_that_is_written_after_its_record_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live broker dispatches a moment after it appends."""
    with open_live(tmp_path / "store") as store:
        _traffic(store, 10)
        verification = Verification(StoreFiles.open(tmp_path / "store"), lambda *_: None)
        log = max((tmp_path / "store" / "transaction" / "redolog").rglob("0*"))
        last = 19 * UNIT_SIZE  # a half and an end each
        whole = log.read_bytes()[last : last + UNIT_SIZE]
        assert any(whole)
        finish = Conclusion._finish

        def write(raw: bytes) -> None:
            with log.open("r+b") as file:
                file.seek(last)
                file.write(raw)

        def dispatched(one: Conclusion) -> None:
            write(whole)
            finish(one)

        monkeypatch.setattr(Conclusion, "_finish", dispatched)
        write(bytes(UNIT_SIZE))
        report = verification.run()
    assert dict(report.findings.counts) == {}


def _traffic(store: LiveStore, count: int) -> None:
    for number in range(count):
        message = broker.Message("orders", b"x", keys=[str(number)])
        half = store.transactions.prepare(message, "shop", queue_id=number % 4)
        (store.transactions.commit if number % 3 else store.transactions.rollback)(half)
    store.sync_now()


def _first(path: str, split: splits.Split) -> int | None:
    reading = splits.Reading(StoreLocation(path).log(), split)
    for _ in reading:
        pass
    return reading.first
