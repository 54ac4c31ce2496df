"""BatchConsumeQueues, made again: a unit for each record, one after another.

Units are not numbered by queue offsets, so the number of the first unit comes from the live queue where retention took
records, and is 0 elsewhere. RocketMQ: BatchConsumeQueue.putBatchMessagePositionInfo (5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from broker.format.consumequeue import BATCH_FILE_SIZE, BatchUnit
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.write.mapped import OpenMaps
from recovery.rebuild.entries import QueueLives
from recovery.rebuild.file_writers import UnitFiles
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Rows, UnitFile
from recovery.verify.kinds.batch_queues import BATCH_UNIT, BatchQueueName, BatchRun


def batch_file_bytes(files: StoreFiles) -> int:
    """The size of the files of BatchConsumeQueues: as the live ones are, else RocketMQ's."""
    sizes = [files.batch_units(*name).listing.segment_size for name in files.batch_queues()]
    return max(sizes, key=sizes.count, default=0) or BATCH_FILE_SIZE


def first_units(files: StoreFiles) -> dict[BatchQueueName, int]:
    """The number of the first unit that a rebuild makes, for the queues in which that is not 0."""
    begin = files.commitlog.begin
    names = files.batch_queues() if begin else ()
    return {name: first_kept(files.batch_units(*name), begin) for name in names}


def first_kept(live: UnitFile, begin: int) -> int:
    """The number of the first unit that is about the kept part of the log; 0 for a whole log."""
    for number, rows in live.filled(live.begin, live.end) if begin else ():
        kept = np.flatnonzero((rows["commitlog_offset"] >= begin) & (rows["size"] > 0))
        if len(kept):
            return number + int(kept[0])
    return 0


def as_on_disk(run: BatchRun) -> Rows:
    """The units of some records as files hold them."""
    return run.units.astype(BATCH_UNIT)


@dataclass
class _Built:
    files: UnitFiles
    next: int


class BatchQueueFiles:
    """Takes the records of a store in log order and writes their units."""

    def __init__(self, files: StoreFiles, disk: Disk, paths: Paths, lives: QueueLives) -> None:
        self._files, self._disk, self._paths, self._lives = files, disk, paths, lives
        self._first, self.file_bytes = first_units(files), batch_file_bytes(files)
        self.queues: dict[BatchQueueName, _Built] = {}
        self._open_maps = OpenMaps()

    def add(self, records: Records, kinds: Kinds) -> None:
        """Take some records."""
        for run in self._lives.batch_runs(records, kinds):
            built = self.queue(run.topic, run.queue_id)
            built.files.write(built.next + np.arange(len(run.units)), as_on_disk(run))
            built.next += len(run.units)

    def queue(self, topic: str, queue_id: int) -> _Built:
        """A queue, which is made where it is not there yet."""
        name = (topic, queue_id)
        if name not in self.queues:
            directory = self._paths.batch_queue(topic, queue_id)
            made = UnitFiles(self._disk, directory, self.file_bytes, BATCH_UNIT, self._open_maps)
            self.queues[name] = _Built(made, self._first.get(name, 0))
        return self.queues[name]

    def holds(self, topic: str, queue_id: int, begin: int, end: int) -> None:
        """That units begin … end - 1 of a queue were written by others."""
        built = self.queue(topic, queue_id)
        built.files.holds(begin, end)
        built.next = end

    def leave_out_earlier_lives(self) -> None:
        """Queues that are not there, of a topic that was made again behind all of their records."""
        for name, built in list(self.queues.items()):
            again, units = self._lives.again.get(name[0], 0), built.files
            if units.begin < 0 or not again or self._files.batch_units(*name).end:
                continue
            if units.read(units.begin, units.end - units.begin)["commitlog_offset"].max() < again:
                del self.queues[name]
                units.close()
                self._disk.remove_tree(self._paths.batch_queue(*name))

    def pairs(self) -> Iterator[tuple[UnitFiles, UnitFile]]:
        """What was made of each queue, and its live files."""
        for name, built in self.queues.items():
            yield built.files, self._files.batch_units(*name)

    def written(self) -> Iterator[UnitFiles]:
        """The files of every queue."""
        for built in self.queues.values():
            yield built.files


def in_order(units: UnitFile, kept: tuple[int, int]) -> Iterator[Rows]:
    """The units about records between two CommitLog offsets, without those that a recovery wrote once more.

    Shape (n, bytes of a unit), so that two queues can be compared whatever the numbers of their units are.
    """
    newest = -1
    for _, rows in units.filled(units.begin, units.end):
        at = rows["commitlog_offset"].astype(np.int64)
        before = np.maximum.accumulate(np.concatenate(([newest], at[:-1])))
        wanted = (rows["size"] > 0) & (at >= kept[0]) & (at < kept[1]) & (at > before)
        newest = max(newest, int(at.max()))
        if wanted.any():
            yield np.ascontiguousarray(rows[wanted]).view(np.uint8).reshape(-1, BatchUnit.SIZE)
