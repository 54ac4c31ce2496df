"""The stream follows a log that grows, record by record, whatever it holds of the next one."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pyspark.errors.exceptions.captured import CapturedException

import broker
from broker.errors import CorruptStore
from broker.store import writer
from broker.store.disk.files import Disk
from broker.store.recover import watermark
from broker.store.shared.control import Word
from broker.store.write import appender, fast_append
from recovery.scan import scan
from recovery.spark import following, stream
from recovery.spark.following import FollowingReader
from recovery.spark.options import settings_of
from tests.compiled_module import use
from tests.jobs.shops import in_child
from tests.scan.logs import Chunk, Log, Wanted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def _append(log: Log, count: int) -> None:
    for _ in range(count):
        log.append(Wanted(chunks=(Chunk("bytes", b"x" * 700),)))


def _write(log: Log, path: Path) -> None:
    home = path / "commitlog"
    home.mkdir(exist_ok=True)
    for base, held in log.segments.items():
        with (home / f"{base:020}").open("r+b" if (home / f"{base:020}").exists() else "wb") as file:
            file.write(held)


def _run_to_the_end(writer: Any) -> None:
    """Again where the source's Python did not start within Spark's own 10 s, as on a busy machine.

    Spark: PythonWorkerFactory.createSimpleWorker (4.3.0); no setting changes it.
    """
    for _ in range(5):
        try:
            assert writer.trigger(availableNow=True).start().awaitTermination(60)
            return
        except CapturedException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    pytest.fail("the source's Python did not start in five turns")


def test_a_stream_sees_each_record_once(spark: SparkSession, tmp_path: Path) -> None:
    """Appended between micro-batches, over the border of a segment; a query that is started again goes on."""
    log, seen = Log(8192), []
    _append(log, 3)
    store, checkpoint = tmp_path / "store", str(tmp_path / "checkpoint")
    store.mkdir()
    _write(log, store)

    def take(batch: Any, _number: int) -> None:
        seen.extend(row[0] for row in batch.collect())

    for more in (0, 30):
        _append(log, more)
        _write(log, store)
        frame = stream(spark, str(store), columns=["commitlog_offset"], splitBytes=2000)
        writer = frame.writeStream.option("checkpointLocation", checkpoint).foreachBatch(take)
        _run_to_the_end(writer)
        assert sorted(seen) == sorted(log.records)


def test_what_is_there_now_is_read_in_batches(spark: SparkSession, tmp_path: Path) -> None:
    """availableNow with maxBytes: as many micro-batches as it takes, each bounded, and all of what was there."""
    log, batches = Log(8192), []
    _append(log, 12)
    store = tmp_path / "store"
    store.mkdir()
    _write(log, store)

    def take(batch: Any, _number: int) -> None:
        batches.append([row[0] for row in batch.collect()])

    frame = stream(spark, str(store), columns=["commitlog_offset"], maxBytes=3000)
    writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).foreachBatch(take)
    _run_to_the_end(writer)
    assert [offset for batch in batches for offset in batch] == list(log.records)
    assert len(batches) >= 4
    assert all(len(batch) <= 3 for batch in batches)


def test_a_run_of_what_is_there_now_ends_although_the_log_grows(tmp_path: Path) -> None:
    log = Log(8192)
    _append(log, 4)
    tmp_path.joinpath("store").mkdir()
    _write(log, tmp_path / "store")
    there = log.end
    reader = FollowingReader(settings_of({"path": str(tmp_path / "store"), "maxBytes": "1000"}), ["commitlog_offset"])
    reader.prepareForTriggerAvailableNow()
    at, steps = reader.initialOffset(), []
    while (to := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        _append(log, 1)
        _write(log, tmp_path / "store")
        at = to
        steps.append(at["commitlog_offset"])
    assert steps[-1] == there
    assert len(steps) == 4


@pytest.mark.parametrize("noted", [0, 17, {"orders": {"0": 5}}, {"commitlog_offset": "5"}])
def test_the_checkpoint_of_another_source_is_refused(tmp_path: Path, noted: Any) -> None:
    """As of the source `rate`, or of Kafka: the stream ended with TypeError, or KeyError."""
    broker.open(tmp_path / "store").close()
    reader = FollowingReader(settings_of({"path": str(tmp_path / "store")}), ["commitlog_offset"])
    sentence = r"^the checkpoint says .*, which is of another source than rocketmq-commitlog\. Give "
    for plan in (reader.latestOffset, lambda start: reader.partitions(start, {"commitlog_offset": 9})):
        with pytest.raises(broker.BrokerError, match=sentence):
            plan(noted)


def test_half_a_record_waits(tmp_path: Path) -> None:
    """What is being written is left to the next batch; maxBytes bounds one."""
    log = Log(8192)
    _append(log, 4)
    offsets = list(log.records)
    whole = bytes(log.segments[0])
    log.segments[0][offsets[3] + 50 :] = bytes(8192 - offsets[3] - 50)
    tmp_path.joinpath("store").mkdir()
    _write(log, tmp_path / "store")
    path = str(tmp_path / "store")
    reader = FollowingReader(settings_of({"path": path}), ["commitlog_offset"])
    assert reader.initialOffset() == {"commitlog_offset": 0}
    assert reader.latestOffset({"commitlog_offset": 0}) == {"commitlog_offset": offsets[3]}
    (tmp_path / "store" / "commitlog" / f"{0:020}").write_bytes(whole)
    assert reader.latestOffset({"commitlog_offset": 0}) == {"commitlog_offset": log.end}
    slow = FollowingReader(settings_of({"path": path, "maxBytes": "1000"}), ["commitlog_offset"])
    assert slow.latestOffset({"commitlog_offset": 0}) == {"commitlog_offset": offsets[1]}
    assert slow.latestOffset({"commitlog_offset": log.end}) == {"commitlog_offset": log.end}
    assert slow.partitions({"commitlog_offset": 5}, {"commitlog_offset": 5}) == []


def test_a_stream_that_waits_does_not_search_the_rest_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker may fill a segment of 1 GiB with zeros: each trigger read all of them, 1.3 s of a processor."""
    log = Log(8192)
    _append(log, 4)
    tmp_path.joinpath("store").mkdir()
    _write(log, tmp_path / "store")
    reader = FollowingReader(settings_of({"path": str(tmp_path / "store")}), ["commitlog_offset"])
    end = reader.latestOffset({"commitlog_offset": 0})
    assert end == {"commitlog_offset": log.end}
    with monkeypatch.context() as patch:
        patch.setattr(following, "Scan", None)
        assert reader.latestOffset(end) == end
    for more in (1, 12):  # in the same segment, and into the next one
        _append(log, more)
        _write(log, tmp_path / "store")
        assert (end := reader.latestOffset(end)) == {"commitlog_offset": log.end}


def test_a_stream_goes_on_behind_a_hole_where_a_batch_ended(tmp_path: Path) -> None:
    """maxBytes ended a batch before it: what follows was not looked for, so the zeros say nothing."""
    log = Log(8192)
    _append(log, 6)
    offsets = sorted(log.records)
    log.segments[0][offsets[2] : offsets[4]] = bytes(offsets[4] - offsets[2])
    tmp_path.joinpath("store").mkdir()
    _write(log, tmp_path / "store")
    settings = settings_of({"path": str(tmp_path / "store"), "maxBytes": str(offsets[2])})
    reader = FollowingReader(settings, ["commitlog_offset"])
    first = reader.latestOffset({"commitlog_offset": 0})
    assert first == {"commitlog_offset": offsets[2]}
    assert reader.latestOffset(first)["commitlog_offset"] > offsets[4]


def test_a_stream_that_is_to_fail_at_damage_fails_where_a_part_of_the_log_is_gone(tmp_path: Path) -> None:
    """A segment in the middle, and what retention removed before the stream read it; other options read on."""
    log = Log(4096)
    _append(log, 24)
    (tmp_path / "store").mkdir()
    _write(log, tmp_path / "store")
    path, end = str(tmp_path / "store"), {"commitlog_offset": log.end}
    strict = FollowingReader(settings_of({"path": path, "onCorrupt": "fail"}), ["commitlog_offset"])
    lenient = FollowingReader(settings_of({"path": path}), ["commitlog_offset"])
    segments = sorted((tmp_path / "store" / "commitlog").iterdir())

    segments[2].rename(tmp_path / "aside")
    with pytest.raises(CorruptStore, match=f"segment {segments[2].name} is missing"):
        strict.partitions({"commitlog_offset": 0}, end)
    assert strict.partitions({"commitlog_offset": 0}, {"commitlog_offset": 4096})
    assert strict.partitions({"commitlog_offset": 3 * 4096}, end)
    assert lenient.partitions({"commitlog_offset": 0}, end)

    for segment in segments[:2]:
        segment.unlink()
    with pytest.raises(CorruptStore, match=f"stands at CommitLog offset 4096, and the log of .* begins at {3 * 4096}"):
        strict.partitions({"commitlog_offset": 4096}, end)
    assert strict.partitions(strict.initialOffset(), end)
    assert lenient.partitions({"commitlog_offset": 4096}, end)

    behind = {"commitlog_offset": 100 * 4096}
    with pytest.raises(CorruptStore, match=r"stands at CommitLog offset 409600, and the log of .* ends at"):
        strict.latestOffset(behind)
    assert lenient.latestOffset(behind) == behind
    assert strict.latestOffset(end) == end


def test_a_stream_that_is_to_fail_at_damage_fails_where_its_batch_begins_with_it(tmp_path: Path) -> None:
    """What was damaged before the stream got there belongs to no batch before: it was passed over in silence."""
    log = Log(8192)
    _append(log, 12)
    offsets = sorted(log.records)
    log.segments[0][offsets[4] + 4] ^= 0xFF
    (tmp_path / "store").mkdir()
    _write(log, tmp_path / "store")
    strict = FollowingReader(
        settings_of({"path": str(tmp_path / "store"), "onCorrupt": "fail", "splitBytes": "1024"}), ["commitlog_offset"]
    )
    end = {"commitlog_offset": log.end}

    def read(start: int) -> list[int]:
        parts = strict.partitions({"commitlog_offset": start}, end)
        return [at for part in parts for batch in strict.read(part) for at in batch.column(0).to_pylist()]

    for start in (offsets[4], offsets[4] + 50):
        with pytest.raises(CorruptStore, match=f"CommitLog offset {offsets[4]}: no record begins here"):
            read(start)
    assert read(offsets[5] + 1) == offsets[6:]
    assert read(log.end - 1) == []


def test_a_stream_that_is_to_fail_at_damage_fails_where_an_older_copy_took_the_place_of_its_store(
    tmp_path: Path,
) -> None:
    """What an application appended to the copy, up to where the stream stood, was in no batch."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    reader = FollowingReader(settings_of({"path": str(path), "onCorrupt": "fail"}), ["body"])
    with broker.open(path, layout=broker.StoreLayout.small(), sync="each") as store:
        store.append(broker.Message("orders", b"first"))
    shutil.copytree(path, copy)
    with broker.open(path, sync="each") as store:
        store.append(broker.Message("orders", b"lost with the disk"))
        place = reader.latestOffset(reader.initialOffset())
        assert reader.latestOffset(place) == place
    shutil.rmtree(path)
    copy.rename(path)
    with broker.open(path, sync="each") as store:
        with pytest.raises(CorruptStore, match=r"stands at .*, and the log of .* ends at .*: another store is in its"):
            reader.latestOffset(place)
        for _ in range(2):
            store.append(broker.Message("orders", b"of another length, behind the copy"))
        with pytest.raises(CorruptStore, match=r"a record of .* reaches over it: another store .* or an older copy"):
            reader.latestOffset(place)
        options = {"path": str(path), "onCorrupt": "fail", "startOffset": str(place["commitlog_offset"])}
        begun_there = FollowingReader(settings_of(options), ["body"])
        assert begun_there.latestOffset() == {"commitlog_offset": store.writer.control[Word.TAIL]}


class _Killed(BaseException):
    """Ends an append as SIGKILL does: nothing is undone."""


def test_a_record_that_was_never_published_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next append clears what a killed process left, and stores its own there: the stream had gone past that."""
    use(monkeypatch, None)
    with broker.open(tmp_path / "store", layout=broker.StoreLayout.small(), sync="each") as store:
        store.append(broker.Message("orders", b"first"))
        with monkeypatch.context() as patch:
            for module in (appender, fast_append):
                patch.setattr(module, "place", _dying(module.place))
            with pytest.raises(_Killed):
                store.append(broker.Message("orders", b"never" * 100))
        control = store.writer.control
        assert control[Word.INTENT] > control[Word.TAIL]
        reader = FollowingReader(settings_of({"path": str(tmp_path / "store")}), ["body"])

        def read(start: dict[str, int], end: dict[str, int]) -> list[bytes]:
            batches = (batch for part in reader.partitions(start, end) for batch in reader.read(part))
            return [body for batch in batches for body in batch.column(0).to_pylist()]

        begin = reader.initialOffset()
        before = reader.latestOffset(begin)
        assert read(begin, before) == [b"first"]
        for number in range(3):
            store.append(broker.Message("orders", b"%d" % number))
        assert read(before, reader.latestOffset(before)) == [b"0", b"1", b"2"]


def _dying(place: Any) -> Any:
    def placed(*arguments: Any) -> None:
        place(*arguments)
        raise _Killed

    return placed


def test_a_stream_ends_where_the_log_is_flushed(tmp_path: Path) -> None:
    """What a power cut takes back makes room for other records, which the stream would pass over."""
    with broker.open(tmp_path / "store", layout=broker.StoreLayout.small(), sync="os") as store:
        reader = FollowingReader(settings_of({"path": str(tmp_path / "store")}), ["body"])
        for number in range(50):
            store.append(broker.Message("orders", b"%d" % number))
            latest = reader.latestOffset({"commitlog_offset": 0})["commitlog_offset"]
            assert latest <= store.writer.control[Word.DURABLE]
        store.sync_now()
        assert reader.latestOffset({"commitlog_offset": 0}) == {"commitlog_offset": store.writer.control[Word.TAIL]}


def _with_power_cut(path: Path) -> tuple[int, int]:
    """A store after a power cut, with a page that was not written: where it is, and the offset before."""

    def work() -> None:
        store = broker.open(path, layout=broker.StoreLayout.small(), sync="os")
        for number in range(10):
            store.append(broker.Message("orders", b"%d" % number * 5000))

    in_child(work)
    page = np.fromfile(path / "checkback" / "control", "<u8")
    page[Word.BOOT_HIGH] ^= 1
    page.tofile(path / "checkback" / "control")
    (places,) = scan(path, columns=["commitlog_offset"])
    flushed, damaged = places.column(0).to_pylist()[4:6]
    with (path / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(damaged)
        segment.write(bytes(4096))
    return flushed, damaged


def test_a_stream_waits_for_the_recovery_after_a_power_cut(tmp_path: Path) -> None:
    """It had read behind a page that was not written: the recovery cut there, and what came there was in no batch."""
    path = tmp_path / "store"
    flushed, damaged = _with_power_cut(path)
    reader = FollowingReader(settings_of({"path": str(path), "onCorrupt": "fail"}), ["body"])

    def read(start: dict[str, int], end: dict[str, int]) -> list[bytes]:
        batches = (batch for part in reader.partitions(start, end) for batch in reader.read(part))
        return [body[:1] for batch in batches for body in batch.column(0).to_pylist()]

    begin = reader.initialOffset()
    before = reader.latestOffset(begin)
    assert before["commitlog_offset"] <= damaged
    planned = {"commitlog_offset": flushed}
    assert reader.latestOffset(planned) == planned, "one that stands behind the last checkpoint waits there"
    assert read(begin, planned) == [b"0", b"1", b"2", b"3"], "what was flushed and planned is read"
    with broker.open(path) as store:
        assert store.append(broker.Message("orders", b"new")).commitlog_offset == damaged
        store.sync_now()
    assert read(before, reader.latestOffset(before))[-1] == b"n"


def test_a_stream_waits_while_a_store_is_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the lock to the last step: the stream took the store for one that a broker has, which has no mark."""
    path, seen = tmp_path / "store", list[int]()
    _, damaged = _with_power_cut(path)
    reader = FollowingReader(settings_of({"path": str(path)}), ["body"])

    def look(*_: object) -> None:
        seen.append(reader.latestOffset({"commitlog_offset": 0})["commitlog_offset"])

    monkeypatch.setattr(writer, "survey", _after(look, writer.survey))
    held = writer.open_writer(str(path), Disk(), progress=look)
    look()
    held.close()
    assert len(seen) >= 3
    assert max(seen) <= damaged


def test_a_stream_meets_the_end_of_a_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its two looks at the page: it read what was not flushed yet."""
    path = tmp_path / "store"
    _with_power_cut(path)
    reader = FollowingReader(settings_of({"path": str(path)}), ["body"])
    opened = list[broker.LiveStore]()

    def recover(*_: object) -> None:
        if not opened:
            opened.append(broker.open(path, sync="os"))
            opened[0].append(broker.Message("orders", b"not flushed"))

    monkeypatch.setattr(watermark, "before_recovery", _after(recover, watermark.before_recovery))
    latest = reader.latestOffset({"commitlog_offset": 0})["commitlog_offset"]
    assert latest <= opened[0].writer.control[Word.DURABLE]
    opened[0].close()


def _after(first: Any, then: Any) -> Any:
    def both(*arguments: Any, **options: Any) -> Any:
        first()
        return then(*arguments, **options)

    return both
