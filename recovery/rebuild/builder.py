"""What the derived files should hold, made from the records of a scan: ConsumeQueues, redo log, state table, index.

    build = Build(files, sizes, directory, disk)
    for records in scan: build.add(records)
    build.finish()
    build.flush()      # where the files are to stay

Slots are kept: slot n belongs to the prepared record whose queueOffset is n, settled or not. Of two that claim one slot
the later owns it. What the live files hold about records below the log's beginning is carried over, for no record says
it any more. RocketMQ: DefaultMessageStore.doDispatch (3.1.4), whose own rebuild renumbers slots.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np

from broker.format.consumequeue import FILLER
from broker.format.index import file_size as index_file_size
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.directory import StoreDirectory
from broker.store.read.inventory import Misfit
from broker.store.read.layout import StoreLayout
from broker.store.read.segments import Listing
from broker.store.write.mapped import OpenMaps
from broker.transaction.events import Generation
from recovery.findings import Findings
from recovery.rebuild.batch_queues import BatchQueueFiles, first_kept
from recovery.rebuild.entries import (
    SLOT,
    UNIT,
    Claim,
    QueueLives,
    claim_of,
    keep_live_tags,
    owners,
    queue_runs,
    redo_units,
    slots_of,
)
from recovery.rebuild.file_writers import IndexFiles, UnitFiles, filled_units
from recovery.rebuild.misfits import misfits_of_queue, misfits_of_records
from recovery.rebuild.unfit_log import refuse_numbers
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Ints, Rows, UnitFile
from recovery.transactions.tracker import TransactionTracker
from recovery.verify.index_files import open_index
from recovery.verify.index_items import IndexingRule, expected_items

_COPY_BYTES = 1 << 20


class Build:
    """Takes the records of a store in log order and writes its derived files into a directory."""

    def __init__(
        self, files: StoreFiles, sizes: StoreLayout, directory: str, disk: Disk, rule: IndexingRule, *, ours: bool
    ) -> None:
        self.files, self.paths, self.rule = files, Paths(directory), rule
        self._sizes, self._disk = sizes, disk
        self.tracker = TransactionTracker(files)
        self.queues: dict[tuple[str, int], UnitFiles] = {}
        self._open_maps = OpenMaps()
        self.lives = QueueLives(files)
        self.redo_log = UnitFiles(disk, self.paths.redo_log, sizes.redo_log_bytes, UNIT)
        self.table = UnitFiles(disk, self.paths.state_table, sizes.state_table_bytes, SLOT)
        self.batches = BatchQueueFiles(files, disk, self.paths, self.lives)
        known = sorted(segment.base for segment in files.index)
        self.index = IndexFiles(
            disk, self.paths.index, sizes.index_slots, sizes.index_items, rule, names=known, whole_records=ours
        )
        self.read_to = 0  # the CommitLog offset behind the last record that was taken
        self._live_redo = files.redo_units()
        self.redo_units = first_kept(self._live_redo, files.commitlog.begin)
        self.claims: list[Claim] = []
        self.misfits: list[Misfit] = []  # of records, and of live queues
        self.ours = ours
        paths = self.paths
        parts = [paths.consumequeue, paths.index, paths.state_table, paths.redo_log]
        for part in [*parts, paths.batchconsumequeue] if files.batch_topics else parts:
            disk.create_directory(part)

    @property
    def generation(self) -> Generation:
        """How the store says what became of its transactions, as far as its records were taken."""
        return self.tracker.generation

    def add(self, records: Records) -> None:
        """Take some records."""
        kinds = Kinds(records)
        if not self.misfits:
            self.misfits += misfits_of_records(records, kinds, self.files)
        self._judge(records, kinds)
        self._add_to_queues(records, kinds)
        self.batches.add(records, kinds)
        self._add_to_redo_log(records, kinds)
        self.index.add(expected_items(records, kinds, self.rule))

    def _judge(self, records: Records, kinds: Kinds) -> None:
        self.tracker.add(records, kinds)

    def _add_to_queues(self, records: Records, kinds: Kinds) -> None:
        for run in map(self.lives.present, queue_runs(records, kinds)):
            queue = self._queue(run.topic, run.queue_id)
            if queue is not None:
                refuse_numbers(self.files, messages_of(run.topic, run.queue_id), int(run.numbers.min(initial=0)), 0)
                keep_live_tags(run, self.files)
                queue.write(run.numbers, run.units)

    def _queue(self, topic: str, queue_id: int) -> UnitFiles | None:
        found = self.queues.get((topic, queue_id))
        if found is None and self.files.expects_queue(topic, queue_id):
            directory = self.paths.queue(topic, queue_id)
            found = UnitFiles(self._disk, directory, self._sizes.consume_queue_bytes, UNIT, self._open_maps)
            self.queues[topic, queue_id] = found
        return found

    def _add_to_redo_log(self, records: Records, kinds: Kinds) -> None:
        units = redo_units(records, kinds)
        self.redo_log.write(self.redo_units + np.arange(len(units)), units)
        self.redo_units += len(units)

    def finish(self) -> None:
        """Compute the outcomes, write the state table, and carry over what lies below the log."""
        for outcomes in self.tracker.outcomes():
            self._add_to_table(outcomes.slots(self.files.table_generation))
        self._refuse_numbers()
        self._leave_out_earlier_lives()
        self._look_at_live_queues()
        first_made = [(queue, queue.begin) for queue in self.queues.values()]
        self._carry_over()
        for queue, first in first_made:  # readers take an empty unit for the end of the queue
            queue.fill_front(first, FILLER.pack())
        self.index.finish()
        for files in self._unit_files():
            files.fill_gaps()

    def flush(self) -> None:
        """Flush all that `finish` made. Where it is only compared, thousands of queues would wait for the disk."""
        for files in self._unit_files():
            files.force()

    def _leave_out_earlier_lives(self) -> None:
        """Queues that are not there, of a topic that was made again behind all of their records."""
        self.batches.leave_out_earlier_lives()
        for (topic, queue_id), queue in list(self.queues.items()):
            again = self.lives.again.get(topic, 0)
            if queue.begin < 0 or not again or self.files.queue(topic, queue_id).segments:
                continue
            if queue.read(queue.begin, queue.end - queue.begin)["commitlog_offset"].max() < again:
                del self.queues[topic, queue_id]
                queue.close()
                self._disk.remove_tree(self.paths.queue(topic, queue_id))

    def _refuse_numbers(self) -> None:
        """Before the files between the first number and the last are made."""
        for (topic, queue_id), queue in self.queues.items():
            if queue.end:
                refuse_numbers(self.files, messages_of(topic, queue_id), queue.begin, queue.end)
        if self.table.end:
            refuse_numbers(self.files, "the slots", self.table.begin, self.table.end)

    def _unit_files(self) -> Iterator[UnitFiles]:
        yield from (*self.queues.values(), *self.batches.written(), self.redo_log, self.table)

    def _add_to_table(self, outcomes: Rows) -> None:
        """The slots of some transactions; the later of two halves with one slot owns it."""
        self._write_slots(*owners(*slots_of(outcomes, self.tracker.names), self.claims))

    def _write_slots(self, numbers: Ints, slots: Rows) -> None:
        """Write slots that other partitions may have written to before."""
        refuse_numbers(self.files, "the slots", int(numbers.min(initial=0)), 0)
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

    def _look_at_live_queues(self) -> None:
        """Nothing of a live queue may be lost: its units are known, or it is kept as it is."""
        begin, path = self.files.commitlog.begin, self.files.path
        read = range(begin, max(begin, self.read_to))
        for topic, queue_id in StoreFiles.open(path).queues():
            live = self.files.queue_units(topic, queue_id)
            built = self.queues.get((topic, queue_id))
            is_built = built is not None and built.begin >= 0
            misfits = misfits_of_queue(self.files, topic, queue_id, live, read=read, is_built=is_built)
            if misfits:
                self.misfits += misfits
            elif not is_built and live.end:  # else nothing was dispatched to it when the watermark was read
                self._keep(Paths(self.files.path).queue(topic, queue_id), self.paths.queue(topic, queue_id))
        for name in self.files.batch_queues():
            if name not in self.batches.queues:
                self._keep(Paths(path).batch_queue(*name), self.paths.batch_queue(*name))

    def _keep(self, live: str, directory: str) -> None:
        """The files of a queue all of whose records are gone: they say which number its next message gets."""
        self._disk.create_directory(directory)
        for entry in self._disk.entries(live):
            if entry.is_file and entry.size:
                copy_file(self._disk, entry.path, os.path.join(directory, entry.name), entry.size)

    def _carry_over(self) -> None:
        begin = self.files.commitlog.begin
        if not begin:
            return
        parts = [(self.redo_log, self._live_redo), (self.table, self.files.slot_units()), *self.batches.pairs()]
        for (topic, queue_id), built in self.queues.items():
            parts.append((built, self.files.queue_units(topic, queue_id)))
        for built, live in parts:
            stop = built.begin if built.begin >= 0 else live.end
            first = built.first_of_file() if built.begin >= 0 else live.begin
            for number, rows in live.filled(first, stop):
                stale = filled_units(rows) & (rows["commitlog_offset"] < begin) & (rows["size"] > 0)
                which = np.flatnonzero(stale)
                built.write(number + which, rows[which])

    def file_sizes(self, part: str) -> set[int]:
        """The sizes that files of a part have."""
        sizes = self._sizes
        return {
            "consumequeue": {sizes.consume_queue_bytes},
            "batchconsumequeue": {self.batches.file_bytes},
            "index": {index_file_size(sizes.index_slots, sizes.index_items)},
            "statetable": {sizes.state_table_bytes},
            "redolog": {sizes.redo_log_bytes},
        }[part]

    def guessed_sizes(self) -> Iterator[str]:
        """Of which files no live one shows the size that their broker is set to, so that RocketMQ's was taken."""
        if self.ours:
            return
        live, sizes, parts = self.files, self._sizes, {name for name, _, _ in self.parts()}
        queues = any(live.queue(*name).segments for name in live.queues())
        maped = "maped" if self.generation in (Generation.STATE_TABLE, Generation.GAP) else "mapped"  # its spelling
        for part, made, is_known, setting, size in (
            ("consumequeue", any(one.end for one in self.queues.values()), queues, f"{maped}FileSizeConsumeQueue",
             sizes.consume_queue_bytes),
            ("statetable", self.table.end, live.state_table.segments, "tranStateTableMapedFileSize",
             sizes.state_table_bytes),
            ("redolog", self.redo_log.end, live.redo_log.segments, "tranRedoLogMapedFileSize", sizes.redo_log_bytes),
        ):  # fmt: skip
            if made and part in parts and not is_known:
                text = f"{part}: no file shows how large its broker makes them, so each has RocketMQ's {size:,} bytes"
                yield f"{text}. A broker does not start with others than its {setting} says: set it to {size}"
        if self.index.numbers and not open_index(live.index, Findings()):
            slots, items = sizes.index_slots, sizes.index_items
            text = (
                f"index: no file shows how many slots and items each has, so it has RocketMQ's {slots:,} and {items:,}"
            )
            text = f"{text}. A broker that is set otherwise finds no key in them: set its maxHashSlotNum to {slots}"
            yield f"{text} and its maxIndexNum to {items}"

    def close(self) -> None:
        """Release all files."""
        self.tracker.close()
        for files in self._unit_files():
            files.close()

    def parts(self) -> Iterator[tuple[str, str, str]]:
        """The name, the live directory and the built directory of each part that this generation has."""
        live = Paths(self.files.path)
        yield "consumequeue", live.consumequeue, self.paths.consumequeue
        if self.files.batch_topics:
            yield "batchconsumequeue", live.batchconsumequeue, self.paths.batchconsumequeue
        yield "index", live.index, self.paths.index
        if self.files.table_generation is Generation.HALF_OP:
            if self.generation is Generation.HALF_OP:
                yield "statetable", self.files.table, self.paths.state_table
        elif self.generation is Generation.STATE_TABLE:
            yield "statetable", live.state_table, self.paths.state_table
            yield "redolog", live.redo_log, self.paths.redo_log


def messages_of(topic: str, queue_id: int) -> str:
    """A queue's messages, as a sentence names them."""
    return f"the messages in queue {queue_id} of {topic}"


def copy_file(disk: Disk, source: str, target: str, size: int) -> None:
    """Copy the bytes of a file that may have holes, and flush them to disk."""
    file = disk.open_read(source)
    disk.allocate(target, size)
    copy = disk.open_map(target, size)
    try:
        for start, stop in file.filled(0):
            for at in range(start, stop, _COPY_BYTES):
                raw = file.pread(min(_COPY_BYTES, stop - at), at)
                copy.view[at : at + len(raw)] = raw
        copy.sync()
    finally:
        copy.close()


def listing_of(disk: Disk, directory: str) -> Listing:
    """The files of a queue in any directory, as they are now."""
    return StoreDirectory(directory, disk).segments(directory).listing(fresh=True)
