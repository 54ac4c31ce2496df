"""Rebuild: derived files made from the CommitLog alone, compared, and exchanged while the store is in use."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.errors import StoreError, StoreLocked
from broker.format.commitlog import encode, make_record
from broker.format.index import item_at
from broker.format.properties import encode as encode_properties
from broker.format.statetable import Slot
from broker.store.disk.files import Disk, Missing
from broker.store.read.layout import StoreLayout
from broker.store.recover.watermark import Watermark
from broker.store.writer import StoreWriter, open_writer
from broker.testing.crash_disk import CrashDisk, Crashed
from recovery.findings import Report
from recovery.rebuild import rebuilder
from recovery.rebuild.builder import Build
from recovery.rebuild.diff import DIFFERENCES, Difference
from recovery.rebuild.file_writers import IndexFiles
from recovery.rebuild.quiescence import check_still
from recovery.rebuild.rebuilder import Rebuilding, rebuild
from recovery.rebuild.report import RebuildReport
from recovery.scan.store_files import StoreFiles
from recovery.verify.verifier import verify, verify_by
from tests.rebuild.derived_files import derived, prepared, store_of
from tests.rebuild.dying import Deaf, Killed, dying
from tests.store.build import HOST, Log
from tests.store.filled import SMALL, assert_right, fill

TINY = StoreLayout(8192, 400, 240, 200, 16, 24)


# Equality


@pytest.mark.parametrize("seed", range(4))
def test_the_rebuild_of_our_store_is_the_live_one_byte_for_byte(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    layout = StoreLayout(
        chance.choice([8192, 1 << 18]), 20 * chance.randint(20, 300), 24 * chance.randint(10, 100),
        20 * chance.randint(10, 100), chance.choice([16, 100]), chance.choice([24, 400]),
    )  # fmt: skip
    path = store_of(tmp_path / "store", chance.randint(50, 300), layout)
    before = derived(path)
    assert rebuild(path).as_json()["counts"] == {}
    report = rebuild(path, apply=True)
    assert report.applied
    assert derived(path) == before
    assert verify(path).ok


@pytest.mark.parametrize("name", ["rocketmq-3.1.5-clean", "rocketmq-5.3.3-clean"])
def test_the_rebuild_of_a_real_clean_store_is_the_live_one(golden: Callable[[str], Path], name: str) -> None:
    report = rebuild(golden(name))
    assert report.ok
    assert report.as_json()["counts"] == {}
    state_table = name.startswith("rocketmq-3")
    assert ("statetable" in report.parts) == ("redolog" in report.parts) == state_table


def test_to_compare_changes_nothing(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("rocketmq-3.1.5-recovered")
    before = {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.rglob("*") if file.is_file()}
    report = rebuild(path)
    assert not report.ok
    assert {file: (file.stat().st_mtime_ns, file.read_bytes()) for file in path.rglob("*") if file.is_file()} == before
    assert {one.kind for one in report.differences} <= DIFFERENCES.keys()


# Damage


def flip(path: Path, chance: random.Random) -> None:
    """One byte that is not zero becomes another."""
    raw = bytearray(path.read_bytes())
    at = chance.choice([number for number, value in enumerate(raw) if value])
    raw[at] ^= chance.randint(1, 255)
    path.write_bytes(raw)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_done_to_derived_files_a_rebuild_puts_right(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    path = store_of(tmp_path / "store", 120)
    good = derived(path)
    files = [file for file in path.rglob("*") if file.is_file() and file.parts[-2] not in ("checkback", "commitlog")]
    held = [file for file in files if any(file.read_bytes()) and file.name not in ("checkpoint", "abort")]
    for _ in range(chance.randint(1, 4)):
        file = chance.choice(held)
        if not file.exists():
            continue
        damage = chance.choice(["flip", "truncate", "remove", "remove directory"])
        if damage == "flip":
            flip(file, chance)
        elif damage == "truncate":
            os.truncate(file, chance.randrange(file.stat().st_size))
        elif damage == "remove":
            file.unlink()
        else:
            shutil.rmtree(path / file.relative_to(path).parts[0])
        held = [one for one in held if one.exists() and any(one.read_bytes())]
        if not held:
            break
    (path / "checkback" / "control").unlink()
    rebuild(path, apply=True)
    assert verify(path).ok
    assert derived(path) == good


@pytest.mark.parametrize("at", [item_at(3, SMALL.index_slots) + 15, 15])  # the seconds of an item, the file's end
def test_a_wrong_time_in_the_index_is_put_right(tmp_path: Path, at: int) -> None:
    path = store_of(tmp_path / "store", 20)
    before, file = derived(path), min((path / "index").iterdir())
    raw = bytearray(file.read_bytes())
    raw[at] ^= 1
    file.write_bytes(raw)
    assert verify(path).findings.counts == {"index-orphan": 1}
    assert rebuild(path, apply=True).as_json()["counts"] == {"index-different": 1}
    assert derived(path) == before


def test_what_lies_below_a_shortened_log_is_carried_over(tmp_path: Path) -> None:
    """Retention took the first segments: no record says their units, yet queues and slots go on behind them."""
    path = store_of(tmp_path / "store", 200, TINY)
    for segment in sorted((path / "commitlog").iterdir())[:3]:
        segment.unlink()
    begin = int(min(file.name for file in (path / "commitlog").iterdir()))
    assert begin
    assert verify(path).ok
    before = derived(path)
    assert rebuild(path).as_json()["counts"] == {}
    rebuild(path, apply=True)
    assert verify(path).ok
    after = derived(path)
    units = {name for name in before if not name.startswith("index")}
    assert {name for name in after if not name.startswith("index")} <= units
    whole = [name for name in units if name in after and before[name] == after[name]]
    assert len(whole) == len([name for name in units if name in after])
    store = open_writer(str(path), Disk(), sync="os")
    fill(store, 200, 3)
    store.close()
    assert verify(path).ok
    for name in ("control", "checkpoint"):
        (path / "checkback" / name).unlink()
    open_writer(str(path), Disk(), sync="os").close()
    assert verify(path).ok


# The exchange


def all_differ(build: Build, *_: object) -> list[Difference]:
    """A difference in each part."""
    return [Difference(part, "different", 1, live, 0) for part, live, _ in build.parts()]


@pytest.fixture
def _all_differ() -> Iterator[None]:
    """Directories are exchanged though they are equal, so that nothing else changes with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rebuilder, "differences", all_differ)
        yield


@pytest.mark.usefixtures("_all_differ")
def test_applications_go_on_while_files_are_exchanged(tmp_path: Path) -> None:
    store = open_writer(str(tmp_path), Disk(), SMALL, sync="os")
    fill(store, 0, 90)
    stop, done = threading.Event(), [90]

    def work() -> None:
        while not stop.is_set():
            fill(store, done[0], 3)
            done[0] += 3

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(4):
            assert rebuild(tmp_path, apply=True).applied
    finally:
        stop.set()
        worker.join()
    fill(store, done[0], 3)
    store.close()
    third = done[0] // 3 + 1
    assert_right(tmp_path, third, third, third)
    assert not (tmp_path / "checkback" / "rebuild").exists()


def test_of_two_rebuilds_at_once_one_is_refused(tmp_path: Path) -> None:
    path = store_of(tmp_path / "store", 50, TINY)
    shutil.rmtree(path / "index")

    def another(_report: RebuildReport) -> None:
        with pytest.raises(StoreLocked, match="another rebuild is running"):
            rebuild(path, apply=True)

    assert rebuild(path, apply=True, accept=another).applied
    assert rebuild(path, apply=True).ok
    assert verify(path).ok


def test_an_index_that_stays_keeps_the_names_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An application began some meanwhile: it names them by the clock, a rebuild by their first records."""
    named = IndexFiles.name
    monkeypatch.setattr(IndexFiles, "name", lambda self, moment_ms: named(self, moment_ms) + 7)
    monkeypatch.setattr(Rebuilding, "_differs", lambda _self, _build, _report, part, _live: part == "consumequeue")
    store, sold = open_writer(str(tmp_path), Disk(), TINY, sync="os"), [90]
    fill(store, 0, 90)

    def sell(_done: int, _total: int) -> None:
        if sold == [90]:
            fill(store, 90, 60)
            sold[0] = 150

    assert rebuild(tmp_path, apply=True, progress=sell).replacement
    assert sold == [150]
    fill(store, 150, 30)
    store.close()
    assert_right(tmp_path, 60, 60, 60)


def test_files_that_went_after_they_were_listed_are_listed_again(tmp_path: Path) -> None:
    """A writer goes on with the exchange of a rebuild that was killed, while the next one compares."""
    path, gone = store_of(tmp_path / "store", 200, TINY), Missing("index/1: there is no such file")
    faults: list[Missing | None] = [gone, None]

    class Exchanged(Rebuilding):
        def compare_only(self, files: StoreFiles, directory: str, started: float) -> RebuildReport:
            if fault := faults.pop(0):
                raise fault
            return super().compare_only(files, directory, started)

    assert rebuild(path, kind=Exchanged).ok
    assert not faults
    faults += [gone] * 3
    with pytest.raises(Missing):  # gone for good
        rebuild(path, kind=Exchanged)
    assert not faults
    reports = iter((gone, gone, verify(path)))

    def verify_up_to(_mark: Watermark | None) -> Report:
        found = next(reports)
        if isinstance(found, Missing):
            raise found
        return found

    assert verify_by(str(path), Disk(), verify_up_to).ok


def test_without_an_atomic_exchange_it_takes_two_steps(tmp_path: Path) -> None:
    path = store_of(tmp_path / "store", 60)
    good = derived(path)
    shutil.rmtree(path / "consumequeue")
    rebuild(path, apply=True, disk=Deaf())
    assert derived(path) == good
    assert verify(path).ok


@pytest.mark.usefixtures("_all_differ")
@pytest.mark.sample("_rename-Disk", "_exchange-Disk")
@pytest.mark.parametrize("base", [Disk, Deaf])
@pytest.mark.parametrize("name", ["_exchange", "_rename", "_force_directory", "_write"])
def test_whoever_is_killed_in_an_exchange_is_followed_by_another(
    tmp_path: Path, base: type[Disk], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A keeper has the store open throughout: the next append finds the swap half done, and goes on with it."""
    kills = 0
    for call in range(1, 40, 2):
        path = tmp_path / f"{name}-{call}"
        keeper = open_writer(str(path), Disk(), SMALL, sync="os")
        fill(keeper, 0, 30)
        disk = dying(base, name, call)
        monkeypatch.setattr(StoreWriter, "close", lambda self: self.lock.release())  # who is killed closes nothing
        try:
            rebuild(path, apply=True, disk=disk)
        except Killed:
            kills += 1
        monkeypatch.undo()
        fill(keeper, 30, 3)
        assert_right(path, 11, 11, 11)
        assert rebuild(path, apply=True).applied
        fill(keeper, 33, 3)
        keeper.close()
        assert_right(path, 12, 12, 12)
        if name == "_exchange" and call > 7:
            break
    assert kills or (base is Deaf and name == "_exchange")


@pytest.mark.usefixtures("_all_differ")
@pytest.mark.sample("0")
@pytest.mark.parametrize("part", range(6))
def test_a_power_cut_in_an_exchange(tmp_path: Path, part: int) -> None:
    """Whichever files survive, the store is right when it is open again. Every second step, from the journal on."""
    source = CrashDisk(tmp_path / "source")
    store = open_writer(str(source.root / "store"), source, TINY, sync="os")
    fill(store, 0, 12)
    store.close()
    dry = CrashDisk(shutil.copytree(source.root, tmp_path / "dry"))
    rebuild(dry.root / "store", apply=True, disk=dry)
    begun = next(number for number, step in enumerate(dry.trace, 1) if "checkback/swap" in step)
    steps = [*range(1, begun, 43), *range(begun - 2, dry.steps + 1, 2)]
    for step in steps[part::6]:
        disk = CrashDisk(shutil.copytree(source.root, tmp_path / f"cut-{step}"), crash_at=step)
        with pytest.raises(Crashed):
            rebuild(disk.root / "store", apply=True, disk=disk)
        for seed in (0, 2 + step):
            image = disk.survivors(seed) / "store"
            open_writer(str(image), Disk(), sync="os").close()
            report = verify(image)
            assert report.ok, (step, seed, [str(finding) for finding in report.findings][:4])
            assert report.transactions["total"] == 12


# Stores of others


def test_a_recovered_store_of_rocketmq_is_right_afterwards_and_looks_closed(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("rocketmq-3.1.5-recovered")
    (path / "abort").touch()
    before = verify(path)
    assert not before.ok
    report = rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
    assert report.applied
    after = verify(path)
    assert after.ok, [str(finding) for finding in after.findings][:4]
    assert (after.digest, after.transactions) == (before.digest, before.transactions)
    assert not (path / "abort").exists()
    assert [entry.name for entry in (path / "checkback").iterdir()] == ["replaced"]


def test_nobody_else_may_be_at_work_on_it(golden_copy: Callable[[str], Path], tmp_path: Path) -> None:
    path = golden_copy("rocketmq-3.1.5-clean")
    with pytest.raises(StoreError, match="--broker-is-stopped"):
        rebuild(path, apply=True)
    mapping = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); print(flush=True); input()"
    words = [sys.executable, "-c", mapping, str(path / "commitlog" / f"{0:020}")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(StoreLocked, match=f"process {other.pid} maps the CommitLog"):
            rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
        other.communicate(b"\n")

    def grow(_: float) -> None:
        with open(path / "commitlog" / f"{0:020}", "r+b") as file:
            file.write(file.read(8)[:0] + b"\0")
            os.utime(file.name)

    with pytest.raises(StoreLocked, match="a broker, or another command, is at work on it"):
        check_still(str(path), Disk(), broker_is_stopped=True, wait=grow)


def test_prepared_records_without_slots_have_no_table(tmp_path: Path) -> None:
    """The generation of 3.1.5 to 4.2: ConsumeQueues and index only, and the reason is said."""
    log = Log(segment_size=1 << 16)
    raw = bytearray()
    for number in range(4):
        text = encode_properties({"PGROUP": "shop", "TRAN_MSG": "true", "UNIQ_KEY": f"U{number}"})
        raw += encode(
            make_record("orders", b"body", text, born_host=HOST, store_host=HOST, born_timestamp_ms=1,
                        store_timestamp_ms=1_700_000_000_000, queue_offset=0, commitlog_offset=len(raw), sys_flag=4)
        )  # fmt: skip
    log.data += raw
    log.write(tmp_path)
    report = rebuild(tmp_path)
    assert (report.generation, report.parts) == ("gap", ("consumequeue", "index"))
    assert "no slots" in report.left_out


def test_two_halves_with_one_slot_are_not_put_in_place_while_one_is_in_doubt(tmp_path: Path) -> None:
    log = Log(segment_size=1 << 16)
    places = []
    for number, slot in enumerate((0, 1, 2, 1)):
        places.append(len(log.data))
        log.data += prepared(number, slot, len(log.data))
    log.write(tmp_path)
    with pytest.raises(StoreError, match=r"slot 1 .*in doubt|in doubt: slot 1"):
        rebuild(tmp_path, apply=True, broker_is_stopped=True, still_s=0)
    for number, slot in ((1, 1), (3, 1)):
        log.data += prepared(number, slot, len(log.data), kind=12, half=places[number])
    log.write(tmp_path)
    report = rebuild(tmp_path, apply=True, broker_is_stopped=True, still_s=0)
    assert [(one.slot, one.lost_offset, one.owner_offset) for one in report.claims] == [(1, places[1], places[3])]
    table = next((tmp_path / "transaction" / "statetable").iterdir()).read_bytes()
    assert Slot.unpack_from(table, Slot.SIZE).commitlog_offset == places[3]
