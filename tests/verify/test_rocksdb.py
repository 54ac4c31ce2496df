"""Queues and configuration in RocksDBs, as brokers of 5.3.3 and 5.5.0 wrote them: read, judged, never written to."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

import broker
from broker.errors import CorruptStore
from broker.format.kinds import rocksdb_queue as layout
from broker.format.kinds.rocksdb_queue import OFFSETS, UNITS, OffsetValue, QueueValue
from broker.store.disk.files import Disk
from broker.store.read.kinds.rocksdb import open_rocksdb
from recovery.verify.verifier import verify
from recovery.views.info import look
from tests.cli.command import command
from tests.spark.inline import comparable, verify_inline

STORES = ("rocketmq-5.3.3-rocksdb", "rocketmq-5.5.0-rocksdb")
each_store = pytest.mark.parametrize("name", STORES)


@pytest.fixture
def store(golden_copy: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of the stores, for one test alone."""
    (tmp_path / "kinds").mkdir()
    return lambda name: golden_copy(f"kinds/{name}")


def on_disk(path: Path) -> dict[str, tuple[str, int]]:
    """Every entry with its digest and the time of its last change."""
    return {
        str(one.relative_to(path)): (
            hashlib.sha256(one.read_bytes()).hexdigest() if one.is_file() else "", one.stat().st_mtime_ns
        )
        for one in path.rglob("*")
    }  # fmt: skip


def edited(path: Path, edit: Callable[[Any, Any], None]) -> None:
    """Change the RocksDB of queues, as a faulty broker might have."""
    queues = path / "consumequeue"
    database = Rdict(
        str(queues), Options(raw_mode=True), {name: Options(raw_mode=True) for name in (UNITS, OFFSETS)}
    )  # fmt: skip
    edit(database.get_column_family(UNITS), database.get_column_family(OFFSETS))
    database.flush()
    database.close()
    (queues / "rocksdict-config.json").unlink()


@each_store
def test_nothing_is_written_and_no_lock_is_taken(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """A broker has the locks of its RocksDBs; every verb that looks reads past them and leaves every byte."""
    path = store(name)
    databases = [one.parent for one in path.rglob("CURRENT")]
    assert len(databases) >= 4
    before = on_disk(path)
    holder = (
        "import fcntl, sys\nheld = [open(path, 'r+') for path in sys.argv[1:]]\n"
        "for file in held: fcntl.lockf(file, fcntl.LOCK_EX)\nprint('held', flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, *(str(one / "LOCK") for one in databases)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as owner:  # fmt: skip
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        for words in (
            ("verify",), ("info",), ("tail", "Plain"), ("rebuild",),
            ("dump", "consumequeue", "Plain/0"), ("dump", "config", "topics"),
        ):  # fmt: skip
            ran = command(capsys, words[0], path, *words[1:])
            assert ran.code == (1 if words == ("rebuild",) else 0), ran.err
        with (databases[0] / "LOCK").open("r+") as lock, pytest.raises(OSError, match="temporarily unavailable"):
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert owner.stdin is not None
        owner.stdin.close()
    assert on_disk(path) == before


@each_store
def test_what_is_in_it_is_read(
    store: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:  # fmt: skip
    path = store(name)
    (tmp_path / "views").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "views"))
    queues = {(one.topic, one.queue_id): (one.min_offset, one.max_offset) for one in look(path).queues}
    assert queues["Plain", 0] == queues["Plain", 1] == (0, 13)
    assert [one.lag for one in look(path).groups] == [0, 0]
    with broker.open(path, read_only=True) as opened:
        assert "Plain" in opened.topic_configs().topics
        keys = [opened.message("Plain", 0, number).keys for number in range(13)]  # type: ignore[union-attr]
        assert opened.message("Plain", 0, 13) is None
        assert opened.offset_at_time("Plain", 0, 0) == 0
    assert len(set(keys)) == 13
    ran = command(capsys, "dump", path, "consumequeue", "Plain/0", "--json")
    assert ran.out.count('"store_timestamp_ms"') == 13
    gc.collect()  # what a command raised may hold its database
    assert not list((tmp_path / "views").iterdir()), "no directory of links stays"


def _units(change: Callable[[QueueValue], QueueValue | None]) -> Callable[[Any, Any], None]:
    key = layout.unit_key("Plain", 0, 5)

    def edit(units: Any, _offsets: Any) -> None:
        changed = change(QueueValue.unpack_from(units[key]))
        if changed is None:
            del units[key]
        else:
            units[key] = changed.pack()

    return edit


def _orphan(units: Any, offsets: Any) -> None:
    units[layout.unit_key("Plain", 0, 13)] = QueueValue(7, 100, 0, 0).pack()
    offsets[layout.offset_key("Plain", 0, is_max=True)] = OffsetValue(7, 13).pack()


def _short(_units: Any, offsets: Any) -> None:
    offsets[layout.offset_key("Plain", 0, is_max=True)] = OffsetValue(7, 11).pack()


DAMAGES: dict[str, tuple[Callable[[Any, Any], None], dict[str, int]]] = {
    "gone": (_units(lambda _unit: None), {"queue-missing": 1}),
    "size": (_units(lambda unit: QueueValue(unit.commitlog_offset, 1, unit.tags_code, unit.store_timestamp_ms)),
             {"queue-missing": 1}),
    "time": (_units(lambda unit: QueueValue(unit.commitlog_offset, unit.size, unit.tags_code, 1)),
             {"queue-missing": 1}),
    "orphan": (_orphan, {"queue-orphan": 1}),
    "end": (_short, {"queue-missing": 1, "rocksdb-end-wrong": 1}),
}  # fmt: skip


@pytest.mark.sample("gone", "size", "orphan")
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_by_both_engines(store: Callable[[str], Path], damage: str) -> None:
    path = store("rocketmq-5.5.0-rocksdb")
    edit, counts = DAMAGES[damage]
    edited(path, edit)
    report = verify(path)
    assert dict(report.findings.counts) == counts
    assert comparable(verify_inline(str(path), 4000)) == comparable(report)


def test_a_killed_broker_writes_the_rest_again(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its RocksDB has no log of its own writes: units behind the offset that was flushed are not missed."""
    path = store("rocketmq-5.5.0-rocksdb")

    def lose(units: Any, offsets: Any) -> None:
        last = QueueValue.unpack_from(units[layout.unit_key("Plain", 0, 9)]).commitlog_offset
        kept: dict[tuple[str, int], OffsetValue] = {}
        for key, value in list(units.items()):
            topic, queue_id, number = layout.decode_unit_key(key)
            at = QueueValue.unpack_from(value).commitlog_offset
            if at > last:
                del units[key]
            else:  # in the order of the keys: the last one stays
                kept[topic, queue_id] = OffsetValue(at, number)
        for key in [key for key, _ in offsets.items() if layout.decode_offset_key(key).is_max]:
            del offsets[key]
        for (topic, queue_id), end in kept.items():
            offsets[layout.offset_key(topic, queue_id, is_max=True)] = end.pack()
        offsets[layout.offset_key(layout.CHECKPOINT_TOPIC, 0, is_max=True)] = last.to_bytes(8, "big")

    edited(path, lose)
    assert verify(path).findings.counts["queue-missing"] > 5, "closed, so all should be there"
    (path / "abort").touch()
    report = verify(path)
    assert report.ok
    (entry,) = report.not_judged
    assert "units of records behind CommitLog offset" in entry.what
    up_to = look(path).queues_up_to
    assert up_to is not None
    place = f"CommitLog offset {up_to:,}"
    assert f"up to {place}: any newer units were in the memory of the broker" in command(capsys, "info", path).out
    ran = command(capsys, "tail", path, "Plain", "--lines", "100")
    assert len(ran.out.splitlines()) < 26
    assert f"anything behind {place} was in the memory of the broker" in ran.err
    assert len(command(capsys, "find", path, "--topic", "Plain", "--json").out.splitlines()) > 26
    assert comparable(verify_inline(str(path), 4000)) == comparable(report)


def test_without_the_extra_it_is_not_judged(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store("rocketmq-5.3.3-rocksdb")
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    ran = command(capsys, "verify", path)
    assert ran.code == 0
    assert f"{path}/consumequeue (a RocksDB of queues): reading it takes the package rocksdict" in ran.out
    assert ran.out.count("Install checkback with its extra 'rocksdb'") == 4
    assert command(capsys, "info", path).code == 0


def test_of_a_topic_in_files_nothing_is_missed(
    store: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker with double writes has it in a RocksDB, too: a lack there was named, and without the extra refused."""
    path = store("rocketmq-5.3.3-double")
    (path / "abort").touch()
    ran = command(capsys, "tail", path, "Plain", "--lines", "100")
    assert (ran.code, len(ran.out.splitlines()), ran.err) == (0, 20, "")
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    again = command(capsys, "tail", path, "Plain", "--lines", "100")
    assert (again.code, again.out, again.err) == (0, ran.out, "")


def test_a_damaged_table_is_a_finding(store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    path = store("rocketmq-5.5.0-rocksdb")
    table = min((path / "consumequeue").glob("*.sst"))
    raw = bytearray(table.read_bytes())
    raw[64] ^= 1
    table.write_bytes(raw)
    report = verify(path)
    assert report.findings.counts["file-damaged"] == 1
    assert comparable(verify_inline(str(path), 4000)) == comparable(report)
    (path / "consumequeue" / "CURRENT").write_text("MANIFEST-000099\n")
    assert verify(path).findings.counts == {"file-damaged": 1}
    assert command(capsys, "info", path).code == 0
    assert command(capsys, "tail", path, "Plain").code == 4
    with pytest.raises(CorruptStore, match="cannot be read as a RocksDB"):
        open_rocksdb(str(path / "consumequeue"), Disk())


def test_salvage_makes_json_of_the_configuration(
    store: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = store("rocketmq-5.5.0-rocksdb"), tmp_path / "out"
    ran = command(capsys, "salvage", path, out)
    assert ran.code == 0, ran.err
    with broker.open(path, read_only=True) as before, broker.open(out, read_only=True) as after:
        assert after.topic_configs() == before.topic_configs()
        assert after.consumer_offsets().positions == before.consumer_offsets().positions


def test_a_damaged_rocksdb_of_the_configuration_is_named(
    store: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a verification, and by a salvage, which copies what the other RocksDBs hold."""
    path = store("rocketmq-5.3.3-rocksdb")
    for table in (path / "config" / "topics").glob("*.sst"):
        os.truncate(table, 500)
    findings = verify(path).findings
    assert [(one.kind, one.file) for one in findings] == [("file-damaged", str(path / "config" / "topics"))]
    ran = command(capsys, "salvage", path, tmp_path / "out")
    assert (ran.code, "config/topics cannot be read, and was NOT copied" in ran.out) == (1, True)
    assert "No message was lost." in ran.out
    assert sorted(os.listdir(tmp_path / "out" / "config"))[1] == "consumerOffset.json"
