"""The derived files that Spark makes are the live ones, byte for byte; and they repair what a real broker broke."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

import broker
from broker.errors import CorruptStore, StoreError
from broker.format.commitlog import RecordHead
from broker.format.sysflag import TransactionType
from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout
from broker.store.write.pending_record import end_draft
from broker.store.writer import open_writer
from broker.transaction.events import Generation
from recovery.pipeline.blocks import each_of, values_of
from recovery.pipeline.split_builder import (
    INDEX,
    ITEM,
    QUEUE,
    UNIT,
    WRITTEN,
    FileChunk,
    OutputFile,
    RebuildPlan,
    SplitBuilder,
    chunk_rows,
    file_writer,
)
from recovery.pipeline.stages import InspectedLog, inspect_log
from recovery.pipeline.store_location import StoreLocation
from recovery.rebuild.rebuilder import rebuild as local_rebuild
from recovery.rebuild.rebuilder import sizes_of
from recovery.scan.kinds import Kinds
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.spark import rebuild
from recovery.transactions.in_doubt import Pending
from recovery.verify.index_items import IndexingRule
from recovery.verify.verifier import verify
from tests.rebuild.derived_files import derived, store_of, store_with_a_wrong_queue_id
from tests.scan import small_stores
from tests.scan.small_broker import V5
from tests.store.filled import fill, half

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize("seed", [1])
def test_the_rebuild_of_our_store_is_the_live_one_byte_for_byte(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """Files of any size, splits that end anywhere: state table, redo log, queues, index with its chains and headers."""
    chance = random.Random(seed)
    layout = StoreLayout(
        8192, 20 * chance.randint(20, 300), 24 * chance.randint(10, 100), 20 * chance.randint(10, 100),
        chance.choice([16, 100]), chance.choice([80, 150]),
    )  # fmt: skip
    path = store_of(tmp_path / "store", 150, layout)
    before = derived(path)
    for file in before:
        if not file.startswith("index"):
            (path / file).write_bytes(bytes((path / file).stat().st_size))
    shutil.rmtree(path / "index")
    report = rebuild(spark, str(path), apply=True, split_bytes=5000)
    assert report.applied
    assert derived(path) == before
    assert verify(path).ok


def test_a_relative_path_is_that_of_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks, whose current directory is another, found neither the store nor the place for its files."""
    path = store_of(tmp_path / "store", 20)
    before = derived(path)
    next(file for file in (path / "consumequeue").rglob("*") if file.is_file()).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert rebuild(spark, "store", apply=True).applied
    assert derived(path) == before


def test_it_repairs_what_the_real_broker_broke(spark: SparkSession, golden_copy: Callable[[str], Path]) -> None:
    """RocketMQ 3.1.5 renumbered the slots; the report is the local engine's, and afterwards the store is well."""
    path = golden_copy("rocketmq-3.1.5-recovered")
    expected = local_rebuild(path).as_json()
    compared = rebuild(spark, str(path), split_bytes=100_000).as_json()
    assert {**compared, "seconds": 0} == {**expected, "seconds": 0}
    assert not compared["ok"]
    twin = shutil.copytree(path, path.with_name("twin"))
    local_rebuild(twin, apply=True, broker_is_stopped=True, still_s=0.1)
    rebuild(spark, str(path), apply=True, broker_is_stopped=True)
    assert derived(path) == derived(twin)
    assert verify(path).ok


def test_the_rebuild_of_a_5x_store_is_the_live_one(spark: SparkSession, golden: Callable[[str], Path]) -> None:
    """A generation without a state table; the log is read as far as the broker wrote it."""
    path = golden("rocketmq-5.3.3-clean")
    report = rebuild(spark, str(path), split_bytes=200_000)
    assert report.ok
    assert report.as_json()["counts"] == {}
    assert report.parts == ("consumequeue", "index")


def test_batch_queues_are_built_as_the_local_engine_builds_them(
    spark: SparkSession, golden_copy: Callable[[str], Path], tmp_path: Path
) -> None:
    (tmp_path / "kinds").mkdir()
    path = golden_copy("kinds/rocketmq-5.3.3-batches")
    queues = sorted((path / "batchconsumequeue").rglob("0" * 20))
    before = [file.read_bytes() for file in queues]
    assert rebuild(spark, str(path), split_bytes=4000).ok
    for file in queues:
        file.write_bytes(bytes(file.stat().st_size))
    rebuild(spark, str(path), apply=True, broker_is_stopped=True, split_bytes=4000)
    assert [file.read_bytes() for file in queues] == before
    assert local_rebuild(path).ok


def test_the_table_of_the_half_op_engine_is_built(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots of Spark's part, and of transactions that are settled, either way, and begun while it reads."""
    path = tmp_path / "store"
    with broker.open(path, transactions="half-op") as store:
        halves = [store.transactions.prepare(broker.Message("orders", b"x"), "shop") for _ in range(40)]
        for number, one in enumerate(halves[:20]):
            (store.transactions.commit if number % 2 else store.transactions.rollback)(one)
    table = min((path / "checkback" / "halfstates").iterdir())

    def inspect_and_append(*arguments: Any, **options: Any) -> InspectedLog:
        inspected = inspect_log(*arguments, **options)
        with broker.open(path) as store:
            store.transactions.rollback(halves[30])
            store.transactions.commit(halves[31])
            store.transactions.prepare(broker.Message("orders", b"y"), "shop")
        whole.append(table.read_bytes())
        table.write_bytes(bytes(table.stat().st_size))
        return inspected

    whole: list[bytes] = []
    monkeypatch.setattr("recovery.spark.rebuilding.inspect_log", inspect_and_append)
    report = rebuild(spark, str(path), apply=True, split_bytes=3000)
    assert "statetable" in report.parts
    assert table.read_bytes() == whole[0]
    assert verify(path).ok
    assert local_rebuild(path).ok


def test_what_is_appended_while_spark_reads_is_in_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New messages, and ends of what was in doubt: slots, queues and index go on where Spark's part ends."""
    layout = StoreLayout(8192, 400, 240, 200, 16, 60)
    path = store_of(tmp_path / "store", 90, layout)
    halves = {half.slot: half.commitlog_offset for half in Pending(str(path), 0)}
    assert set(range(2, 90, 3)) == set(halves)

    def inspect_and_append(*arguments: Any, **options: Any) -> InspectedLog:
        inspected = inspect_log(*arguments, **options)
        store = open_writer(str(path), Disk(), layout, sync="os")
        store.append([end_draft(half(2), halves[2], 2, TransactionType.COMMIT)])
        fill(store, 90, 60)
        store.append([end_draft(half(5), halves[5], 5, TransactionType.ROLLBACK)])
        store.close()
        return inspected

    monkeypatch.setattr("recovery.spark.rebuilding.inspect_log", inspect_and_append)
    report = rebuild(spark, str(path), apply=True, split_bytes=5000)
    assert report.applied
    assert report.differences == ()
    assert not {2, 5} & {one.slot for one in Pending(str(path), 0)}
    after = derived(path)
    assert local_rebuild(path, apply=True).differences == ()
    assert derived(path) == after
    assert verify(path).ok


def test_a_number_that_no_message_has_is_damage(spark: SparkSession, tmp_path: Path) -> None:
    """It was left out in silence, and the queue put in place without the message."""
    path = tmp_path / "store"
    written = small_stores.build(V5, path)
    plain = next(one for one in written.records if written.roles[one.commitlog_offset] == "plain")
    with (path / "commitlog" / f"{0:020}").open("r+b") as segment:
        segment.seek(plain.commitlog_offset + RecordHead.OFFSET["queue_offset"])
        segment.write((-1).to_bytes(8, "big", signed=True))
    for engine in (local_rebuild, partial(rebuild, spark)):
        with pytest.raises(CorruptStore, match="have the numbers -1 to -1: a record is damaged"):
            engine(str(path))


def test_a_damaged_log_is_no_ground_to_build_on(spark: SparkSession, golden_copy: Callable[[str], Path]) -> None:
    """As the local engine says it; a store that is no directory of this machine is refused before anything is read."""
    path = golden_copy("rocketmq-3.1.5-killed")
    segment = min((path / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(100_000)
        file.write(b"\xff" * 5000)
    with pytest.raises(CorruptStore, match="checkback salvage"):
        rebuild(spark, str(path), split_bytes=50_000)
    with pytest.raises(StoreError, match="mounted"):
        rebuild(spark, "s3://bucket/store")


def test_a_record_that_fails_its_crc_changes_no_file(spark: SparkSession, tmp_path: Path) -> None:
    damaged_at = store_with_a_wrong_queue_id(tmp_path / "store")
    before = derived(tmp_path / "store")
    with pytest.raises(CorruptStore, match=f"{damaged_at}: the record does not have the CRC"):
        rebuild(spark, str(tmp_path / "store"), apply=True)
    assert derived(tmp_path / "store") == before


@pytest.mark.parametrize(("name", "what"), [("batchcq", "a record that holds a batch"), ("lmq", ""), ("plain", "")])
def test_a_task_notes_records_that_nothing_is_built_for(
    golden_copy: Callable[[str], Path], tmp_path: Path, name: str, what: str
) -> None:
    """A split counts them, and the driver refuses before anything is exchanged."""
    (tmp_path / "kinds").mkdir()
    path = golden_copy(f"kinds/rocketmq-5.3.3-{name}")
    if what:
        shutil.rmtree(path / "batchconsumequeue")
        shutil.rmtree(path / "config")
    files = StoreFiles.open(path)
    plan = RebuildPlan(
        StoreLocation(str(path)), "", sizes_of(files, Disk()), IndexingRule.V5, whole_records=False,
        batch_queue_bytes=4600, table_generation=Generation.STATE_TABLE,
    )  # fmt: skip
    builder = SplitBuilder(plan)
    for records in Scan(files.commitlog):
        builder.add(records, Kinds(records))
    assert [misfit.what[: len(what)] for misfit in builder.counts().misfits] == [what] * bool(what)


def test_a_task_that_goes_on_after_spark_gave_it_up_changes_no_file(tmp_path: Path) -> None:
    """It took away what the driver had added to the file meanwhile."""
    files = StoreFiles.open(store_of(tmp_path / "store", 4))
    plan = RebuildPlan(
        StoreLocation(files.path), str(tmp_path / "new"), sizes_of(files, Disk()), IndexingRule.V5, whole_records=True,
        batch_queue_bytes=4600, table_generation=Generation.STATE_TABLE,
    )  # fmt: skip
    (tmp_path / "new").mkdir()
    queue, index = OutputFile(QUEUE, 0, "orders", 0), OutputFile(INDEX, 20260101000000000)
    chunks = [
        FileChunk(queue, 0, np.arange(2), np.ones(2, UNIT)),
        FileChunk(index, 0, np.arange(2), np.ones(2, ITEM)),
    ]
    pieces = list(chunk_rows(sorted(chunks, key=lambda chunk: chunk.target.part)))
    run = file_writer(plan)
    written = list(values_of(pa.Table.from_batches(run(pieces)), WRITTEN))
    for one in written:
        one.put_in_place(Disk(), plan)
        Path(one.target.path(plan)).write_bytes(b"with what was added")
    assert [one.target for one in written] == [chunk.target for batch in pieces for _, _, chunk in each_of(batch)]
    assert list(run(pieces))
    assert {Path(target.path(plan)).read_bytes() for target in (queue, index)} == {b"with what was added"}
