"""What the derived files should hold, made from the records of a scan: ConsumeQueues, redo log, state table, index.

    build = Build(files, sizes, folder, disk)
    for records in scan: build.add(records)
    build.finish()

Slots are kept: slot n belongs to the prepared record whose queueOffset is n, settled or not. Of two that claim one slot
the later owns it. What the live files hold about records below the log's beginning is carried over, for no record says
it any more. RocketMQ: DefaultMessageStore.doDispatch (3.1.4), whose own rebuild renumbers slots.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.directory import Folder
from broker.store.read.segments import Listing
from broker.store.write.layout import StoreLayout
from broker.transaction.events import Generation
from recovery.rebuild.entries import Claim, claim_of, owners, queue_runs, redo_units, set_due_times, slots_of
from recovery.rebuild.file_writers import SLOT, UNIT, IndexFiles, UnitFiles, filled_units
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Ints, Rows, UnitFile
from recovery.transactions.tracker import TransactionTracker
from recovery.verify.index_items import IndexingRule, expected_items


class Build:
    """Takes the records of a store in log order and writes its derived files into a folder."""

    def __init__(
        self, files: StoreFiles, sizes: StoreLayout, folder: str, disk: Disk, rule: IndexingRule, *, ours: bool
    ) -> None:
        self.files, self.paths, self.rule = files, Paths(folder), rule
        self._sizes, self._disk = sizes, disk
        self.tracker = TransactionTracker(files)
        self.queues: dict[tuple[str, int], UnitFiles] = {}
        self.redo_log = UnitFiles(disk, self.paths.redo_log, sizes.redo_log_bytes, UNIT)
        self.table = UnitFiles(disk, self.paths.state_table, sizes.state_table_bytes, SLOT)
        known = [segment.base for segment in files.index]
        self.index = IndexFiles(
            disk, self.paths.index, sizes.index_slots, sizes.index_items, rule, names=known, whole_records=ours
        )
        self._live_redo = UnitFile(files.redo_log, UNIT)
        self.redo_units = _first_kept(self._live_redo, files.commitlog.begin)
        self.claims: list[Claim] = []
        self._slots_of_lost: dict[int, int] = {}
        for part in (self.paths.consumequeue, self.paths.index, self.paths.state_table, self.paths.redo_log):
            disk.create_folder(part)

    @property
    def generation(self) -> Generation:
        """How the store says what became of its transactions, as far as its records were taken."""
        return self.tracker.generation

    def add(self, records: Records) -> None:
        """Take some records."""
        kinds = Kinds(records)
        self._judge(records, kinds)
        self._add_to_queues(records, kinds)
        self._add_to_redo_log(records, kinds)
        self.index.add(expected_items(records, kinds, self.rule))

    def _judge(self, records: Records, kinds: Kinds) -> None:
        self.tracker.add(records, kinds)

    def _add_to_queues(self, records: Records, kinds: Kinds) -> None:
        for run in queue_runs(records, kinds):
            queue = self._queue(run.topic, run.queue_id)
            if queue is not None:
                if run.scheduled:
                    set_due_times(run, UnitFile(self.files.queue(run.topic, run.queue_id), UNIT))
                queue.write(run.numbers, run.units)

    def _queue(self, topic: str, queue_id: int) -> UnitFiles | None:
        found = self.queues.get((topic, queue_id))
        if found is None and self.files.expects_queue(topic, queue_id):
            folder = self.paths.queue(topic, queue_id)
            found = UnitFiles(self._disk, folder, self._sizes.consume_queue_bytes, UNIT)
            self.queues[topic, queue_id] = found
        return found

    def _add_to_redo_log(self, records: Records, kinds: Kinds) -> None:
        units = redo_units(records, kinds)
        self.redo_log.write(self.redo_units + np.arange(len(units)), units)
        self.redo_units += len(units)

    def finish(self) -> None:
        """Judge the transactions, write the state table, carry over what lies below the log, and force everything."""
        for outcomes in self.tracker.outcomes():
            rows = outcomes.rows
            self._add_to_table(rows[rows["generation"] == Generation.STATE_TABLE])
        self._carry_over()
        self.index.finish()
        for files in (*self.queues.values(), self.redo_log, self.table):
            files.force()

    def _add_to_table(self, outcomes: Rows) -> None:
        """The slots of some transactions; the later of two halves with one slot owns it."""
        self._write_slots(*owners(*slots_of(outcomes, self.tracker.names), self.claims))

    def _write_slots(self, numbers: Ints, slots: Rows) -> None:
        """Write slots that other partitions may have written to before."""
        if len(numbers) and self.table.end > int(numbers.min()):
            before = self._built_slots(numbers)
            taken = before["size"] > 0
            for at in np.flatnonzero(taken).tolist():
                pair = sorted((before[at], slots[at]), key=lambda slot: int(slot["commitlog_offset"]))
                self.claims.append(claim_of(int(numbers[at]), pair[0], pair[1]))
            later = ~taken | (slots["commitlog_offset"] > before["commitlog_offset"])
            numbers, slots = numbers[later], slots[later]
        self.table.write(numbers, slots)

    def _built_slots(self, numbers: Ints) -> Rows:
        return UnitFile(listing_of(self._disk, self.paths.state_table), SLOT).take(numbers)

    # What no record says any more

    def _carry_over(self) -> None:
        begin = self.files.commitlog.begin
        if not begin:
            return
        parts = [(self.redo_log, self._live_redo), (self.table, UnitFile(self.files.state_table, SLOT))]
        for topic, queue_id in self.files.queues():
            live = UnitFile(self.files.queue(topic, queue_id), UNIT)
            built = self._queue(topic, queue_id)
            if built is not None:
                parts.append((built, live))
        for built, live in parts:
            stop = built.begin if built.begin >= 0 else live.end
            first = built.first_of_file() if built.begin >= 0 else live.begin
            for number, rows in live.filled(first, stop):
                stale = filled_units(rows) & (rows["commitlog_offset"] < begin) & (rows["size"] > 0)
                which = np.flatnonzero(stale)
                built.write(number + which, rows[which])

    def close(self) -> None:
        """Let go of all files."""
        self.tracker.close()
        for files in (*self.queues.values(), self.redo_log, self.table):
            files.close()

    def parts(self) -> Iterator[tuple[str, str, str]]:
        """The name, the live folder and the built folder of each part that this generation has."""
        live = Paths(self.files.path)
        yield "consumequeue", live.consumequeue, self.paths.consumequeue
        yield "index", live.index, self.paths.index
        if self.generation is Generation.STATE_TABLE:
            yield "statetable", live.state_table, self.paths.state_table
            yield "redolog", live.redo_log, self.paths.redo_log


def listing_of(disk: Disk, folder: str) -> Listing:
    """The files of a queue in any folder, as they are now."""
    return Folder(folder, disk).segments(folder).listing(fresh=True)


def _first_kept(live: UnitFile, begin: int) -> int:
    """The number of the first unit of the redo log that is about the kept part of the log; 0 for a whole log."""
    for number, rows in live.filled(live.begin, live.end) if begin else ():
        kept = np.flatnonzero((rows["commitlog_offset"] >= begin) & (rows["size"] > 0))
        if len(kept):
            return number + int(kept[0])
    return 0
