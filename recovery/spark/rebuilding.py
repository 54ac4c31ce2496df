"""The derived files of a store made by Spark; compared and put in place by the local engine.

    report = rebuild(spark, "shop.store")                  compare only
    report = rebuild(spark, "shop.store", apply=True)      and exchange, while applications go on

The log is read once. What it says has a place, or gets one from the counts of all splits
(`recovery.pipeline.split_builder`); each file is written by one task. The driver sees counts. What applications append
meanwhile it takes itself, under the append lock, as `recovery.rebuild.rebuilder` does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from broker.errors import StoreError
from broker.format.sysflag import TransactionType
from broker.format.topics import HALF_TOPIC
from broker.store.disk.paths import given_path
from broker.transaction.events import Generation, TransactionState
from recovery.pipeline.blocks import SCHEMA_DDL, each_of, rows_of, values_of
from recovery.pipeline.inspection import InspectionTask
from recovery.pipeline.split_builder import (
    BATCH_QUEUE,
    BATCHES,
    CELLS,
    INDEX,
    ITEMS,
    QUEUE,
    REDO,
    REDO_LOG,
    SCRATCH,
    TABLE,
    WRITTEN,
    EntryCounts,
    Placement,
    RebuildPlan,
    WrittenFile,
    boundary,
    chunk_rows,
    file_writer,
    least_and_most,
    placed,
    prefix_sums,
)
from recovery.pipeline.splits import SPLIT_BYTES
from recovery.pipeline.stages import InspectedLog, inspect_log
from recovery.pipeline.store_location import LogManifest, StoreLocation, manifest_of
from recovery.rebuild.batch_queues import first_units
from recovery.rebuild.builder import Build, listing_of, messages_of
from recovery.rebuild.entries import UNIT
from recovery.rebuild.rebuilder import Progress, Rebuilding
from recovery.rebuild.rebuilder import rebuild as rebuild_by
from recovery.rebuild.report import RebuildReport
from recovery.rebuild.unfit_log import refuse_numbers
from recovery.scan.kinds import Kinds
from recovery.scan.record_at import record_at
from recovery.scan.records import Records
from recovery.scan.scanner import Damage, Scan
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Ints, Rows, UnitFile
from recovery.spark.executor import SparkExecutor
from recovery.spark.mapping import mapped
from recovery.spark.progress import watched
from recovery.spark.sessions import running
from recovery.spark.shipping import ship
from recovery.transactions.events import extract_ops
from recovery.verify.kinds.batch_queues import BatchQueueName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREPARED = int(TransactionState.PREPARED)


def _silent(_done: int, _total: int) -> None:
    """Nobody watches."""


def rebuild(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    apply: bool = False,
    broker_is_stopped: bool = False,
    progress: Progress = _silent,
    split_bytes: int = SPLIT_BYTES,
) -> RebuildReport:
    """Build on Spark, compare, and with `apply` put in place: the report, and the errors, of
    `recovery.rebuild.rebuilder`.

    `split_bytes` (1 KiB at least) of the CommitLog are one task. Without `apply` the files go to a temporary directory
    (TMPDIR), which all executors must see. Raises StoreError besides for a path that is not on a mounted file system,
    and when an executor cannot write; ValueError for smaller splits.
    """
    path = given_path(path)
    if not StoreLocation(path).is_local:
        text = f"{path}: a rebuild exchanges directories, so it needs a mounted file system. Give the path where it is"
        raise StoreError(f"{text} mounted", path=path)
    ship(spark)
    kind = partial(_OnSpark, spark, split_bytes)
    return rebuild_by(path, apply=apply, broker_is_stopped=broker_is_stopped, progress=progress, kind=kind)


def rebuild_with(
    master: str,
    path: str,
    *,
    apply: bool = False,
    broker_is_stopped: bool = False,
    progress: Progress = _silent,
) -> RebuildReport:
    """Rebuild on a session of its own: what `checkback rebuild --spark MASTER` does.

    Raises SparkNotReady, SparkJobFailed.
    """
    StoreFiles.open(path)  # a wrong path is reported before Spark starts
    with running(master) as spark:
        return rebuild(spark, path, apply=apply, broker_is_stopped=broker_is_stopped, progress=progress)


class _OnSpark(Rebuilding):
    """One rebuild whose first pass runs on Spark."""

    def __init__(self, spark: SparkSession, split_bytes: int, path: str, *args: Any, **options: Any) -> None:
        super().__init__(path, *args, **options)
        self.build_type = SparkBuild
        self._spark, self._split_bytes = spark, split_bytes

    def _read(self, build: Build, files: StoreFiles, end: int | None = None) -> None:
        assert isinstance(build, SparkBuild)
        log = _up_to(manifest_of(StoreLocation(self.path), files), end)
        with watched(self._spark, self._progress, log.bytes):
            executor = SparkExecutor(self._spark)
            try:
                inspected = inspect_log(
                    executor, log, split_bytes=self._split_bytes,
                    prepare=lambda _splits: InspectionTask(log, 1, rebuild_plan=build.rebuild_plan),
                )  # fmt: skip
                self._end = max(self._end, inspected.end_offset)
                self._refuse_damages([*_of_files(log), *inspected.damages])
                for summary in inspected.summaries:
                    wrong = (one for one in summary.findings if one.kind == "crc-mismatch")
                    self._note_wrong_crcs(wrong, files)
                build.take(self._spark, executor, inspected)
            finally:
                executor.close()


class SparkBuild(Build):
    """A build whose files Spark's tasks write; what is appended afterwards is taken as the local engine takes it."""

    @property
    def rebuild_plan(self) -> RebuildPlan:
        """What each task has to know."""
        whole_records = self.index.whole_records
        return RebuildPlan(
            StoreLocation(self.files.path).for_all(),
            os.path.abspath(self.paths.store),
            self._sizes,
            self.rule,
            whole_records,
            self.batches.file_bytes,
            self.files.table_generation,
        )

    def take(self, spark: SparkSession, executor: SparkExecutor, inspected: InspectedLog) -> None:
        """Have the files written, and know what they hold."""
        summaries, tracker = inspected.summaries, self.tracker
        self._read_to = max((one.end_offset for one in summaries if one.end_offset is not None), default=0)
        self._added_to, self._named, self._settled = self._read_to, set[int](), set[int]()
        tracker.evidence, tracker.records = inspected.evidence, inspected.records
        tracker.bytes, tracker.last_store_ms = inspected.bytes, inspected.last_store_ms
        counts = [summary.made for summary in summaries if summary.made is not None]
        self.misfits += [misfit for one in counts for misfit in one.misfits]
        for one in counts:
            self.lives.note(one.again)
        with_redo = self.generation is Generation.STATE_TABLE
        with_table = with_redo or self.files.table_generation is self.generation
        redo = prefix_sums([one.redo for one in counts], self.redo_units)
        items = prefix_sums([one.items for one in counts])
        index_starts, index_names = self._index_files(executor, items, sum(one.items for one in counts))
        layout = Placement(redo, items, index_starts, index_names, self._batch_places(counts), with_redo)
        written = self._written(spark, executor, inspected, layout, with_table=with_table)
        if with_redo:
            self.redo_units += sum(one.redo for one in counts)
        self._know(written, layout)

    def _batch_places(self, counts: list[EntryCounts]) -> list[dict[BatchQueueName, int]]:
        """The number of the first unit that each split has in each BatchConsumeQueue."""
        places, behind = list[dict[BatchQueueName, int]](), first_units(self.files)
        for one in counts:
            places.append({name: behind.get(name, 0) for name in one.batches})
            behind |= {name: behind.get(name, 0) + count for name, count in one.batches.items()}
        return places

    def _index_files(self, executor: SparkExecutor, items: list[int], total: int) -> tuple[list[int], list[int]]:
        """Where each index file begins, and its name: a file has room for one item less than it has."""
        starts: list[int] = []
        at, room = 0, self._sizes.index_items - 1
        while at < total:
            split = int(np.searchsorted(items, at, side="right")) - 1
            start, moment_ms = _boundary(executor, split, items[split], at, whole_records=self.index.whole_records)
            start = start if not starts or start > starts[-1] else at  # a record with more items than a file
            starts.append(start)
            self.index.numbers.append(self.index.name(moment_ms))
            at = start + room
        return starts, self.index.numbers

    def _written(
        self,
        spark: SparkSession,
        executor: SparkExecutor,
        inspected: InspectedLog,
        layout: Placement,
        *,
        with_table: bool,
    ) -> list[WrittenFile]:
        rebuild_plan = self.rebuild_plan
        blocks = executor.events
        if with_table:
            blocks = blocks.unionAll(executor.blocks(inspected.context(rebuild_plan=rebuild_plan), inspected))

        def place(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for tag, part, rows in each_of(batch):
                    yield from chunk_rows(placed(rebuild_plan, layout, tag, part, rows))

        found = mapped(blocks.where(f"tag in ('{CELLS}', '{BATCHES}', '{REDO}', '{ITEMS}')"), place, SCHEMA_DDL)
        tasks = executor.tasks(inspected.log.bytes // SPLIT_BYTES * 2 + spark.sparkContext.defaultParallelism)
        dealt = found.repartitionById(tasks, found["part"] % tasks).sortWithinPartitions("part", "tag")
        written = list(values_of(mapped(dealt, file_writer(rebuild_plan), SCHEMA_DDL).toArrow(), WRITTEN))
        for one in written:
            if one.error:
                raise StoreError(one.error, path=self.paths.store)
            kind, _, topic, queue_id = one.target
            what = messages_of(topic, queue_id) if kind == QUEUE else "the slots"
            refuse_numbers(self.files, what, one.begin, 0)
        for one in written:
            one.put_in_place(self._disk, rebuild_plan)
        for entry in self._disk.entries(rebuild_plan.directory):
            if entry.name.startswith(SCRATCH):  # of this run, and of one that does not count
                self._disk.remove_tree(entry.path)
        return written

    def _know(self, written: list[WrittenFile], layout: Placement) -> None:
        """What the files hold, so that more can be added."""
        for (kind, topic, queue_id), (begin, end) in least_and_most(written).items():
            if kind == BATCH_QUEUE:
                self.batches.holds(topic, queue_id, begin, end)
                continue
            files = {REDO_LOG: self.redo_log, TABLE: self.table}.get(kind)
            files = self._queue(topic, queue_id) if kind == QUEUE else files
            if files is not None:
                files.holds(begin, end)
        self.claims += sorted((claim for one in written for claim in one.claims), key=lambda one: one.slot)
        end_ms = {one.target.file: one.end_ms for one in written if one.target.kind == INDEX}
        names = list(layout.index_names)
        self.index.resume(names, end_ms[names[-2]] if len(names) > 1 else 0)

    # What is appended while the tasks run

    def _judge(self, records: Records, kinds: Kinds) -> None:
        """Verified when all are there (`finish`): the halves that ends name come first, as in the log."""
        ends = (kinds.types << 2 == TransactionType.COMMIT) | (kinds.types << 2 == TransactionType.ROLLBACK)
        self._named.update(records.field("prepared_transaction_offset")[ends].tolist())
        self._settled.update(extract_ops(records, kinds)["queue_offset"].tolist())
        self._added_to = int(records.offsets[-1] + records.sizes[-1])

    def finish(self) -> None:
        """Verify what was appended while the tasks ran, then do what is done after any scan."""
        tracker, read_to = self.tracker, self._read_to
        if self._added_to > read_to:
            counted = tracker.evidence, tracker.records, tracker.bytes, tracker.last_store_ms
            listing = StoreFiles.open(self.files.path).commitlog
            self._named.update(self._halves_of_ops())
            for place in sorted(place for place in self._named if 0 <= place < read_to):
                half = record_at(listing, place)
                if half is not None:
                    tracker.add(half)
            tracker.evidence, tracker.records, tracker.bytes, tracker.last_store_ms = counted
            for records in Scan(listing, read_to, self._added_to):
                tracker.add(records)
        super().finish()

    def _halves_of_ops(self) -> list[int]:
        """The halves that op messages name by their number in the half topic's queue, which is built by now."""
        numbers = np.array(sorted(self._settled), np.int64)
        units = UnitFile(listing_of(self._disk, self.paths.queue(HALF_TOPIC, 0)), UNIT).take(numbers)
        return [int(at) for at in units["commitlog_offset"][units["size"] > 0]]

    def _write_slots(self, numbers: Ints, slots: Rows) -> None:
        """A slot that Spark wrote is this half's already: what it decided stays."""
        if len(numbers) and self.table.end > int(numbers.min()):
            before = self._built_slots(numbers)
            own = (before["size"] > 0) & (before["commitlog_offset"] == slots["commitlog_offset"])
            open_still = own & (before["state"] == _PREPARED)
            self.table.write(numbers[open_still], slots[open_still])
            numbers, slots = numbers[~own], slots[~own]
        super()._write_slots(numbers, slots)


def _of_files(log: LogManifest) -> list[Damage]:
    """What is wrong with the segments as files."""
    return [Damage(one.kind, one.start, one.end - one.start, one.reason, one.path) for one in log.damages]


def _up_to(log: LogManifest, end: int | None) -> LogManifest:
    """The log without what lies from an offset on."""
    if end is None:
        return log
    files = [replace(file, size=min(file.size, end - file.base)) for file in log.files if file.base < end]
    return replace(log, files=tuple(files))


def _boundary(executor: SparkExecutor, split: int, first: int, wanted: int, *, whole_records: bool) -> tuple[int, int]:
    """Asked where the items are: two numbers come back."""

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for items in values_of(pa.Table.from_batches([batch]), ITEMS):
                yield from rows_of([(ITEMS, split, boundary(items, first, wanted, whole_records=whole_records))])

    asked = executor.events.where(f"tag = '{ITEMS}' and part = {split}")
    found: tuple[int, int] = next(iter(values_of(mapped(asked, ask, SCHEMA_DDL).toArrow(), ITEMS)))
    return found
