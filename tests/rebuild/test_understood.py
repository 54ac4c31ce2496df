"""Nothing is replaced that is not understood: stores that real brokers wrote in settings that we only partly read."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import broker
from broker.errors import NotUnderstood, StoreError
from broker.format.consumequeue import Unit
from broker.store.disk.files import Disk
from broker.store.read.inventory import KINDS, Handling, inventory, kind_of
from broker.store.writer import open_writer
from recovery.rebuild.rebuilder import rebuild
from recovery.rebuild.undo import undo
from recovery.repair import crash
from recovery.repair.salvage import salvage
from recovery.verify.verifier import verify
from tests.cli.command import command
from tests.rebuild.derived_files import on_disk, store_with_a_topic_made_again
from tests.scan.logs import Log, Wanted
from tests.store.crashed import abandoned

pytestmark = pytest.mark.usefixtures("is_still")

# A store of each kind, and what its refusal names: a path below the store, and words of what it is.
REFUSED = {
    "rocketmq-5.3.3-rocksdb": ("consumequeue", "RocksDB of queues"),
    "rocketmq-5.3.3-double": ("consumequeue", "RocksDB of queues"),
}
each_kind = pytest.mark.parametrize("name", REFUSED)


# Refusals


@each_kind
def test_no_verb_replaces_what_it_cannot_make(
    kind_store: Callable[[str], Path], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    path, (entry, what) = kind_store(name), REFUSED[name]
    before = on_disk(path)
    for verb in ("rebuild", "recover"):
        ran = command(capsys, verb, path, "--apply", "--broker-is-stopped")
        assert (ran.code, on_disk(path)) == (2, before), ran.err
        assert f"{path}/{entry} is " in ran.err
        assert what in ran.err
        assert "Nothing was replaced" in ran.err
    ran = command(capsys, "rebuild", path)
    assert (ran.code, on_disk(path)) == (1, before)
    assert f"not understood: {path}/{entry} is " in ran.out
    assert "checkback rebuild" not in ran.out, "no advice to put anything in place"


@pytest.mark.parametrize("ending", [".gz", ".zst", ".old"])
def test_a_segment_in_an_archive_has_not_expired(kind_store: Callable[[str], Path], ending: str) -> None:
    """A rebuild made an index without the keys in it, and a verification was content: what is there was compared."""
    path = kind_store("rocketmq-5.5.0-segments")
    segment = path / "commitlog" / f"{0:020}"
    beside = segment.with_suffix(".bak")
    beside.touch()
    assert rebuild(path).as_json()["not_understood"] == []
    beside.unlink()
    segment.rename(segment.with_suffix(ending))
    shutil.rmtree(path / "index")
    before = on_disk(path)
    with pytest.raises(NotUnderstood, match=f"{ending} is named after a segment that is not there"):
        rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
    assert on_disk(path) == before


@pytest.mark.parametrize(
    ("name", "gone", "what"),
    [
        ("rocketmq-5.3.3-batchcq", ("batchconsumequeue", "config"), "a batch of messages"),
        ("rocketmq-5.3.3-ext", ("consumequeue_ext",), "names a place in the ConsumeQueueExt"),
    ],
)
def test_records_and_units_speak_where_directories_are_gone(
    kind_store: Callable[[str], Path], name: str, gone: tuple[str, ...], what: str
) -> None:
    """What stands in the log and in the queues is seen before anything is exchanged."""
    path = kind_store(name)
    for one in gone:
        shutil.rmtree(path / one)
    before = on_disk(path)
    assert not inventory(str(path), Disk()).misfits()
    with pytest.raises(NotUnderstood, match=what):
        rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
    assert on_disk(path) == before


@pytest.mark.parametrize("topic", ["{}/elsewhere", "../../elsewhere", "..", "Or/ers", "Or\0ers", "T" * 300])
def test_a_topic_that_is_a_path_leads_nowhere(topic: str, tmp_path: Path) -> None:
    """A rebuild once wrote the queue of such a record outside of the store, even without --apply."""
    log = Log(4096)
    for name in ("Orders", topic.format(tmp_path)):
        log.append(Wanted(topic=name))
    path = log.write(tmp_path / "store")
    assert "cannot name a directory" in str(rebuild(path).misfits[0])
    with pytest.raises(NotUnderstood, match=f"at CommitLog offset {list(log.records)[1]} is a record whose topic"):
        rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
    assert {one.relative_to(tmp_path).parts[0] for one in tmp_path.rglob("*")} == {"store"}
    assert {one.name for one in path.iterdir()} <= {"commitlog", "lock"}


def test_a_store_of_which_only_the_checkpoint_is_written(
    kind_store: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing that was built stays behind; what is said to be in place, and removed, is."""
    path = kind_store("rocketmq-5.5.0-segments")
    (path / "checkpoint").unlink()
    (path / "abort").touch()
    for removed in (True, False):
        ran = command(capsys, "rebuild", path, "--apply", "--broker-is-stopped")
        assert (ran.code, "Put in place" in ran.out, "Removed: abort" in ran.out) == (0, removed, removed)
        assert [one.name for one in (path / "checkback").iterdir()] == ["replaced"]
        assert (path / "checkpoint").exists()


@pytest.mark.parametrize("directory", ["consumequeue", "batchconsumequeue"])
def test_messages_of_before_a_topic_was_made_again_do_not_come_back(tmp_path: Path, directory: str) -> None:
    """Consumers got them again, behind the newer ones: in queue 0, and in queue 1, which had none since."""
    path = tmp_path / "store"
    store_with_a_topic_made_again(path, directory=directory)
    live = path / directory / "OrderTopic" / "0" / f"{0:020}"
    right = live.read_bytes()
    assert not [one for one in rebuild(path).differences if "consumequeue" in one.path]
    live.write_bytes(right[: len(right) // 10].ljust(len(right), b"\0"))
    rebuild(path, apply=True, broker_is_stopped=True)
    assert live.read_bytes() == right
    assert not (path / directory / "OrderTopic" / "1").exists()


UNDERSTOOD = (
    "rocketmq-5.3.3-batches",
    "rocketmq-5.3.3-plain",
    "rocketmq-5.5.0-default",
    "rocketmq-5.3.3-lmq",
    "rocketmq-5.3.3-ext",
)


@pytest.mark.parametrize("name", UNDERSTOOD)
def test_what_is_understood_is_built(kind_store: Callable[[str], Path], name: str) -> None:
    path = kind_store(name)
    assert rebuild(path).ok
    shutil.rmtree(path / "index")
    assert rebuild(path, apply=True, broker_is_stopped=True, still_s=0).applied
    assert rebuild(path).ok


def test_batch_queues_are_built_byte_for_byte(kind_store: Callable[[str], Path]) -> None:
    """Units that were lost, changed, or all of them; a unit that a recovery wrote twice is no difference."""
    path = kind_store("rocketmq-5.3.3-batches")
    queues = path / "batchconsumequeue"
    before = on_disk(queues)
    first, second = sorted(queues.rglob("0" * 20))
    for file, at in ((first, 0), (second, 46 * 4)):
        raw = bytearray(file.read_bytes())
        raw[at : at + 46] = bytes(46)
        file.write_bytes(raw)
    assert {one.part for one in rebuild(path).differences} == {"batchconsumequeue"}
    assert rebuild(path, apply=True, broker_is_stopped=True, still_s=0).replacement is not None
    assert on_disk(queues) == before
    raw = bytearray(first.read_bytes())
    used = max(at for at in range(0, len(raw), 46) if any(raw[at : at + 46])) + 46
    raw[used : used + 46] = raw[used - 46 : used]
    first.write_bytes(raw)
    assert rebuild(path).ok
    assert not verify(path).findings.counts["queue-orphan"]


def test_a_recovery_leaves_batch_queues_to_a_rebuild(kind_store: Callable[[str], Path]) -> None:
    path = kind_store("rocketmq-5.3.3-batches")
    before = on_disk(path)
    with pytest.raises(NotUnderstood, match=r"batchconsumequeue is a BatchConsumeQueue .* checkback rebuild does"):
        crash.apply(crash.plan(crash.survey(path)), broker_is_stopped=True)
    assert on_disk(path) == before


@pytest.mark.parametrize(
    "entry",
    ["newdirectory/", "newfile", "consumequeue/notes", "consumequeue/Plain/notes", "consumequeue/Plain/0/notes",
     "consumequeue/Plain/half/", "consumequeue/Plain/00/", "batchconsumequeue/Plain/00/", "index/notes",
     "transaction/notes", "commitlog2/", "dledger-0/", "tieredStore/"],
)  # fmt: skip
def test_an_unknown_entry_is_named(kind_store: Callable[[str], Path], entry: str) -> None:
    path = kind_store("rocketmq-5.3.3-plain")
    shutil.rmtree(path / "index")
    (path / entry).parent.mkdir(exist_ok=True, parents=True)
    (path / entry).mkdir() if entry.endswith("/") else (path / entry).write_bytes(b"x")
    before = on_disk(path)
    with pytest.raises(NotUnderstood, match=f"{path}/{entry.rstrip('/')} is "):
        rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
    assert on_disk(path) == before


def test_a_topic_type_that_only_the_backup_knows(kind_store: Callable[[str], Path]) -> None:
    path = kind_store("rocketmq-5.3.3-plain")
    topics = path / "config" / "topics.json"
    text = topics.read_text().replace('"attributes":{}', '"attributes":{"queue.type":"BatchCQ"}', 1)
    (path / "config" / "topics.json.bak").write_text(text)
    topics.unlink()
    with pytest.raises(NotUnderstood, match=r"topics\.json is the table that gives topic \w+ the queue type BatchCQ"):
        rebuild(path, apply=True, broker_is_stopped=True, still_s=0)


def test_every_row_of_the_table_is_met() -> None:
    """A pattern that nothing fits, or that another row hides, is a mistake."""
    examples = [
        "lost+found/", "consumequeue/", "consumequeue/%LMQ%a/", "consumequeue/CURRENT", "timerlog/0", "consumequeue/T/",
        "compaction/position-checkpoint", "compaction/T/0/0",
        "consumequeue/T/0/", f"consumequeue/T/0/{0:020}", "index/", "index/20261122023312343", "transaction/",
        "transaction/statetable/", "transaction/redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0/",
        f"transaction/statetable/{0:020}", "abort", "commitlog/", "checkback/", "config/", "timerwheel",
        "kvStore/", "epochFileCheckpoint", "lock", "batchconsumequeue/", "consumequeue_ext/", "consumequeue_r/",
        "batchconsumequeue/T/", "batchconsumequeue/T/0/", f"batchconsumequeue/T/0/{0:020}",
        "rocksdbstore/000012.sst", "rocksdbstore/", "dledger-n0/", "tiered_index_file/",
    ]  # fmt: skip
    assert {kind_of(path) for path in examples} == set(KINDS)
    assert all(bool(kind.why) == (kind.handling in (Handling.REFUSED, Handling.REBUILT)) for kind in KINDS)
    assert kind_of("consumequeue/T/0/notes") is kind_of("storage/") is None


# Stores of ours


def test_a_recovery_removes_nothing_that_another_program_put_there(tmp_path: Path) -> None:
    """The machine stopped, and there is no checkpoint: everything derived would be made again from the log."""
    abandoned(tmp_path, 30, 30)
    (tmp_path / "checkback" / "checkpoint").unlink()
    (tmp_path / "consumequeue" / "%LMQ%qa" / "0").mkdir(parents=True)
    before = on_disk(tmp_path)
    with pytest.raises(NotUnderstood, match="%LMQ%qa"):
        crash.apply(crash.plan(crash.survey(tmp_path)))
    with pytest.raises(NotUnderstood, match="%LMQ%qa"):
        open_writer(str(tmp_path), Disk(), sync="os")
    assert {
        name: digest for name, digest in on_disk(tmp_path).items() if name in before and "checkback" not in name
    } == {name: digest for name, digest in before.items() if "checkback" not in name}
    shutil.rmtree(tmp_path / "consumequeue" / "%LMQ%qa")
    open_writer(str(tmp_path), Disk(), sync="os").close()


def test_a_queue_whose_records_are_gone_is_kept_as_it_is(kind_store: Callable[[str], Path]) -> None:
    """Its last file says which number its next message gets: without it a consumer would miss the first ones."""
    path = kind_store("rocketmq-5.3.3-plain")
    idle = path / "consumequeue" / "Idle" / "3"
    idle.mkdir(parents=True)
    (idle / f"{6000:020}").write_bytes(bytes(6000))
    shutil.rmtree(path / "index")
    (path / "consumequeue" / "Plain" / "0" / f"{0:020}").write_bytes(bytes(6000))
    report = rebuild(path, apply=True, broker_is_stopped=True, still_s=0)
    assert report.replacement is not None
    assert {part.name for part in report.replacement.parts} == {"consumequeue", "index"}
    assert (idle / f"{6000:020}").read_bytes() == bytes(6000)


def test_a_store_that_is_taken_over_keeps_what_its_broker_had_derived(golden_copy: Callable[[str], Path]) -> None:
    path = golden_copy("rocketmq-3.1.5-clean")
    before = on_disk(path)
    report = crash.apply(crash.plan(crash.survey(path)), broker_is_stopped=True, still_s=0)
    (kept,) = (path / "checkback" / "replaced").iterdir()
    assert str(kept) in report.kept
    after = on_disk(kept)
    derived = ("consumequeue", "index", "transaction", "checkpoint")
    assert {name: digest for name, digest in before.items() if name.split(os.sep)[0] in derived} == {
        name: digest for name, digest in after.items() if name != "manifest.json"
    }
    assert rebuild(path).ok
    with pytest.raises(StoreError, match="nothing to undo"):
        undo(path)


# Salvage


def test_salvage_says_what_it_leaves_behind(
    kind_store: Callable[[str], Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "rocksdict", None)
    path, out = kind_store("rocketmq-5.3.3-rocksdb"), tmp_path / "out"
    ran = command(capsys, "salvage", path, out)
    assert ran.code == 2
    assert f"{path}/config/topics is a RocksDB that holds the topics, the groups, the consumers' positions" in ran.err
    assert "Install checkback with its extra 'rocksdb'" in ran.err
    assert "--without-config" in ran.err
    assert not out.exists()
    ran = command(capsys, "salvage", path, out, "--without-config")
    assert ran.code == 1
    assert "RocksDB and were NOT copied" in ran.out
    assert "Nothing was lost" not in ran.out
    assert json.loads((out / "checkback" / "salvage.json").read_text())["left_behind"]


def test_salvage_names_what_only_a_broker_can_read(kind_store: Callable[[str], Path], tmp_path: Path) -> None:
    path = kind_store("rocketmq-5.3.3-plain")
    assert salvage(path, tmp_path / "first").left_behind == []
    for name in ("kvStore", "rocksdbstore", "compaction/compactionLog", "timerlog", "another"):
        (path / name).mkdir(parents=True)
        (path / name / "000012.sst").write_bytes(b"x")
    sentences = salvage(path, tmp_path / "second").left_behind
    assert [sentence.split()[0] for sentence in sentences] == [
        "kvStore", "rocksdbstore", "compaction", "timerlog", "another",
    ]  # fmt: skip


def test_light_queues_that_were_lost_are_built_again(kind_store: Callable[[str], Path]) -> None:
    path = kind_store("rocketmq-5.3.3-lmq")
    queue = path / "consumequeue" / "%LMQ%qa" / "0" / f"{0:020}"
    held = queue.read_bytes()
    assert any(held)
    shutil.rmtree(queue.parents[1])
    assert rebuild(path, apply=True, broker_is_stopped=True, still_s=0).applied
    assert queue.read_bytes() == held


def test_units_keep_their_places_in_the_queue_ext(kind_store: Callable[[str], Path]) -> None:
    path = kind_store("rocketmq-5.3.3-ext")
    queues = {file: file.read_bytes() for file in (path / "consumequeue").rglob("0" * 20)}
    assert all(raw[Unit.OFFSET["tags_code"]] == 0x80 for raw in queues.values()), "an address: the highest bit is set"
    wrong, held = min(queues.items())
    wrong.write_bytes(held[:19] + bytes([held[19] ^ 1]) + held[20:])
    assert rebuild(path, apply=True, broker_is_stopped=True, still_s=0).applied
    for file, before in queues.items():
        assert file.read_bytes()[20 * (file == wrong) :] == before[20 * (file == wrong) :]
    unit = Unit.unpack_from(wrong.read_bytes())
    assert unit.tags_code > -(1 << 31), "a place that does not belong to the record gives way to the hash"


def test_nothing_to_do_where_no_message_was_ever_stored(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    assert rebuild(tmp_path / "store").ok
    assert rebuild(tmp_path / "store", apply=True, broker_is_stopped=True, still_s=0).ok


@pytest.mark.parametrize("queue", ["0", "1"])
def test_a_queue_file_that_was_cut_gets_its_size_back(queue: str, kind_store: Callable[[str], Path]) -> None:
    """Its units are right, but no broker starts with it; the whole file beside it is not made as short."""
    path = kind_store("rocketmq-5.5.0-default")
    files = sorted(path.glob("consumequeue/Plain/*/0*"))
    before = [file.read_bytes() for file in files]
    cut = path / "consumequeue" / "Plain" / queue / files[0].name
    os.truncate(cut, len(before[0]) // 2)
    assert [one.kind for one in verify(path).findings] == ["segment-size"]
    assert [(one.kind, one.directory) for one in rebuild(path).differences] == [("size", str(cut.parent))]
    rebuild(path, apply=True, broker_is_stopped=True)
    assert [file.read_bytes() for file in files] == before
    assert verify(path).ok


def test_a_queue_of_a_log_that_its_broker_cleaned_is_not_empty(kind_store: Callable[[str], Path]) -> None:
    """Fillers stand before its first unit, as in a broker's. Zeros are found, since readers end at the first."""
    path = kind_store("rocketmq-5.5.0-segments")
    min((path / "commitlog").iterdir()).unlink()
    directory = path / "consumequeue" / "Plain" / "0"
    with broker.open(path, read_only=True) as store:
        before = store.queue_range("Plain", 0)
    shutil.rmtree(directory)
    rebuild(path, apply=True, broker_is_stopped=True)
    with broker.open(path, read_only=True) as store:
        assert store.queue_range("Plain", 0) == before == (41, 243)
    assert verify(path).ok
    for expired in (0, 7):
        with min(directory.iterdir()).open("r+b") as file:
            file.write(Unit(0, 100, 0).pack() * expired + bytes((41 - expired) * Unit.SIZE))
        (found,) = verify(path).findings
        assert found.kind == "queue-missing"
        assert f"unit {expired} of queue 0 of Plain is empty" in found.text
        assert [(one.kind, one.count) for one in rebuild(path).differences] == [("missing", 41 - expired)]
    rebuild(path, apply=True, broker_is_stopped=True)
    with broker.open(path, read_only=True) as store:
        assert store.queue_range("Plain", 0) == before
    assert verify(path).ok


@pytest.mark.parametrize("damage", [b"", b"\xff" * 4096, b"\0" * 2040], ids=["empty", "ones", "short"])
def test_a_damaged_checkpoint_is_written_again(damage: bytes, kind_store: Callable[[str], Path]) -> None:
    """As verify advises."""
    path = kind_store("rocketmq-5.5.0-default")
    (path / "checkpoint").write_bytes(damage)
    assert rebuild(path, apply=True, broker_is_stopped=True).applied
    assert verify(path).ok
