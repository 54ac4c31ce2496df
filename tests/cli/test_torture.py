"""`checkback torture`: an honest disk passes and is left as it was; each disk that lies is found, by its lie."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from broker.errors import BrokerError
from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout
from recovery.torture import disk_verdict, kit
from recovery.torture.disk import DiskFacts, Latency, Mount, PageCounts, Reread
from recovery.torture.kills import KillPlan, kill_and_reconcile, reconcile
from recovery.torture.notes import Notes, read_notes
from recovery.torture.power_cuts import WatchedDisk
from recovery.torture.promises import PromiseBroken, PromiseState
from tests.cli.command import command, process

HERE = Path(__file__).parent
QUICK = kit.Limits(seconds=1, seed=3)
IN_MEMORY = disk_verdict.IN_MEMORY


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    """A directory that is not in memory: there no fsync means anything."""
    if Disk().file_system(str(tmp_path)) in IN_MEMORY:
        pytest.skip("the temporary directory is in memory")
    return tmp_path


@pytest.fixture(scope="module")
def liar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library of lying_disk.c."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    library = tmp_path_factory.mktemp("liar") / "lying_disk.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "lying_disk.c"), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


@pytest.mark.sample("half-op-each")
@pytest.mark.parametrize(("engine", "sync"), [("state-table", "group"), ("half-op", "each"), ("half-op", "os")])
def test_an_honest_disk_passes_and_nothing_is_left(on_disk: Path, engine: str, sync: str) -> None:
    words = ["torture", on_disk, "--layout", "small", "--engine", engine, "--sync", sync, "--seconds", 2, "--json"]
    ran = process(*words)
    assert ran.code == 0, (ran.out, ran.err)
    report = json.loads(ran.out)
    assert report["holds"]
    assert (report["engine"], report["sync"], report["layout"], report["kept"]) == (engine, sync, "small", None)
    outcomes = {verdict["promise"]: verdict for verdict in report["verdicts"]}
    assert outcomes["kills"]["figures"]["kills"] > 0
    assert sum(outcomes["kills"]["figures"]["acknowledged"].values()) > 0
    assert outcomes["power cuts"]["figures"]["cut"] >= 4
    assert outcomes["full disk"]["figures"]["refused"] > 0
    assert "power cuts" in ran.err or "kills" in ran.err  # progress
    assert list(on_disk.iterdir()) == []


@pytest.mark.parametrize(
    ("lie", "promise", "sentence"),
    [
        ("drop", "fsync of an append", "pages of the file were not on disk"),
        ("lose", "an append that was flushed", "this disk loses acknowledged bytes"),
    ],
)
def test_a_disk_that_lies_is_found(on_disk: Path, liar: Path, lie: str, promise: str, sentence: str) -> None:
    where = on_disk / "shop"
    where.mkdir()
    ran = process("torture", where, "--seconds", 2, "--json", LD_PRELOAD=str(liar), LIE=lie)
    assert ran.code == 1, (ran.out, ran.err)
    report = json.loads(ran.out)
    broken = [verdict for verdict in report["verdicts"] if verdict["outcome"] == "broken"]
    assert broken[0]["promise"] == promise
    last = ran.err.strip().splitlines()[-1]
    assert sentence in last
    assert promise in last
    assert [path.name for path in where.iterdir()] == [Path(report["kept"]).name]
    assert "kills" not in {verdict["promise"] for verdict in report["verdicts"]}  # they would prove nothing


class DiskWithoutFlush(WatchedDisk):
    """It acknowledges each flush of a file, and keeps nothing."""

    def force_range(self, path: str, start: int, stop: int) -> None:
        with self._lock:
            self._step("force", path, f"{start}-{stop}")


@pytest.mark.parametrize("engine", ["state-table", "half-op"])
def test_a_drive_that_drops_its_cache_is_found_by_the_power_cuts(on_disk: Path, engine: str) -> None:
    subject = kit.Subject("small", engine, "each")
    task = kit._Task(on_disk, QUICK, subject, StoreLayout.small(), print, DiskWithoutFlush, float("inf"))
    with pytest.raises(PromiseBroken, match=r"taken back|took back|cannot be used|finds|not the one|begins"):
        kit._power_cuts(task)


def test_what_was_found_is_kept_and_named(on_disk: Path) -> None:
    report = kit.prove(str(on_disk), QUICK, kit.Subject("small", "state-table", "each"), print, DiskWithoutFlush)
    assert not report.holds
    (broken,) = [verdict for verdict in report.verdicts if verdict.outcome is PromiseState.BROKEN]
    assert broken.promise == "power cuts"
    assert report.kept is not None
    assert Path(report.kept).parent == on_disk
    assert any(Path(report.kept).iterdir())


def test_an_acknowledgement_without_its_record_is_found(tmp_path: Path) -> None:
    """The reconciliation can fail: a note of something that the log does not hold."""
    plan = KillPlan(str(tmp_path / "store"), str(tmp_path / "notes"), 5, "state-table", kills=3)
    kill_and_reconcile(plan)
    with open(plan.notes, "a") as notes:
        notes.write(
            json.dumps({"event": "half", "key": "5-never-c", "topic": "Topic0", "queue_id": 0, "crc": 0}) + "\n"
        )
    with pytest.raises(PromiseBroken, match="5-never-c was acknowledged and is in the log 0 times"):
        reconcile(Path(plan.store), Path(plan.notes))


def test_what_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, exit code 2, and nothing was written."""
    store = tmp_path / "shop.store"
    (store / "commitlog").mkdir(parents=True)
    cases = [
        ([tmp_path / "nowhere"], "is not a directory"),
        ([store], "is a store: name the directory above it"),
        ([tmp_path, "--layout", "rocketmq"], "--bytes allows 512 MiB"),
        ([tmp_path, "--bytes", "900000GiB"], "free some, or name fewer with --bytes"),
        ([tmp_path, "--bytes", "many"], "--bytes"),
        ([tmp_path, "--sync", "never"], "never"),
    ]
    for words, sentence in cases:
        ran = command(capsys, "torture", *words)
        assert ran.code == 2, words
        assert sentence in " ".join(ran.err.split()), ran.err
        assert ran.out == ""
    assert [path.name for path in tmp_path.iterdir()] == ["shop.store"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_may_not_be_written_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BrokerError, match="may not be written"):
        kit.prove(str(tmp_path), QUICK, kit.Subject("small"), print)


HONEST = DiskFacts(
    mount=Mount("ext4", frozenset({"rw"}), "write back"),
    is_local=True,
    append_sync=Latency(400, 450.0, 2000.0),
    after_append=PageCounts(256, 0),
    after_map=PageCounts(16, 0),
    appended=Reread(dropped=True, left_cached=0, direct=True),
    mapped=Reread(dropped=True, left_cached=0, direct=None),
    directory_sync=Latency(16, 400.0, 500.0),
    rename_kept=True,
    exchanges=True,
    allocated_bytes=1 << 20,
    sparse=True,
    shares_maps=True,
    locks=True,
    has_boot_id=True,
)


def test_what_an_honest_disk_shows_holds() -> None:
    assert {verdict.outcome for verdict in disk_verdict.verdicts(HONEST, "each")} == {PromiseState.HOLDS}


@pytest.mark.parametrize(
    ("changed", "sync", "promise", "outcome"),
    [
        ({"mount": Mount("tmpfs", frozenset(), "")}, "group", "file system", PromiseState.BROKEN),
        ({"mount": Mount("tmpfs", frozenset(), "")}, "os", "file system", PromiseState.WARNING),
        ({"mount": Mount("overlay", frozenset({"volatile"}), "")}, "each", "file system", PromiseState.BROKEN),
        ({"mount": Mount("overlay", frozenset(), "")}, "each", "file system", PromiseState.WARNING),
        ({"mount": Mount("ext4", frozenset({"nobarrier"}), "")}, "each", "file system", PromiseState.WARNING),
        ({"mount": Mount("btrfs", frozenset(), "")}, "each", "file system", PromiseState.WARNING),
        ({"mount": Mount("nfs4", frozenset(), ""), "is_local": False}, "each", "file system", PromiseState.BROKEN),
        ({"append_sync": Latency(400, 0.4, 10.0)}, "each", "speed of fsync", PromiseState.WARNING),
        ({"append_sync": Latency(400, 0.4, 10.0)}, "os", "speed of fsync", PromiseState.HOLDS),
        ({"after_append": PageCounts(9, 1)}, "each", "fsync of an append", PromiseState.BROKEN),
        ({"after_map": None}, "each", "fsync of a shared map", PromiseState.UNKNOWN),
        ({"appended": Reread(True, 0, False)}, "each", "an append that was flushed", PromiseState.BROKEN),
        ({"mapped": Reread(False, 0, True)}, "each", "a shared map that was flushed", PromiseState.BROKEN),
        ({"mapped": Reread(True, 4, None)}, "each", "a shared map that was flushed", PromiseState.UNKNOWN),
        ({"rename_kept": False}, "each", "rename", PromiseState.BROKEN),
        ({"exchanges": False}, "each", "exchange of two names", PromiseState.WARNING),
        ({"allocated_bytes": 0}, "each", "allocation", PromiseState.WARNING),
        ({"sparse": False}, "each", "sparse files", PromiseState.WARNING),
        ({"shares_maps": False}, "each", "maps shared by processes", PromiseState.BROKEN),
        ({"locks": False}, "each", "locks", PromiseState.BROKEN),
        ({"has_boot_id": False}, "each", "boot id", PromiseState.WARNING),
    ],
)
def test_what_a_measurement_means(changed: dict[str, object], sync: str, promise: str, outcome: PromiseState) -> None:
    from dataclasses import replace

    facts = replace(HONEST, **changed)  # type: ignore[arg-type]
    by_name = {verdict.promise: verdict for verdict in disk_verdict.verdicts(facts, sync)}
    assert by_name.pop(promise).outcome is outcome
    assert {verdict.outcome for verdict in by_name.values()} == {PromiseState.HOLDS}


def test_a_note_that_a_kill_cut_is_skipped_and_the_next_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    notes = Notes(str(path))
    notes.add(event="half", key="1-c")
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        notes.add(event="half", key="2-c")
        read = [note["key"] for note in read_notes(path)]
        assert read[-1] == "2-c"
        assert read[:-1] == (["1-c"] if cut >= len(whole) - 1 else [])
