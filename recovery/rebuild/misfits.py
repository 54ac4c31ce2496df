"""What a rebuild would destroy because it cannot make it: found in directories, records and units.

Each function looks at one of these and returns `Misfit`s. What directories say is known before anything is read; what
records say is noted by the scan that builds; what lies in live files that no record explains is known last, and still
before anything is exchanged.
"""

from __future__ import annotations

import os

import numpy as np

from broker.format.sysflag import INNER_BATCH
from broker.format.topics import SCHEDULE_TOPIC
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.inventory import Misfit, inventory
from broker.store.read.kinds.log_directories import with_log_directories
from broker.store.read.segments import is_base
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Ints, UnitFile

_INT_MIN = -(1 << 31)


def misfits_of_store(files: StoreFiles, disk: Disk) -> list[Misfit]:
    """What the directories and the table of topics say, before the log is read."""
    found = inventory(files.path, disk).misfits(of_rebuild=True)
    return [*with_log_directories(found, files.log_directories), *_packed_segments(files)]


def _packed_segments(files: StoreFiles) -> list[Misfit]:
    """Files that are named after a segment that is not there, as 00000000000000000000.gz: an archive in its place.

    The records in it would count as expired.
    """
    why = "a part of the log may be in it, and what is derived from that part would be lost. Unpack it"
    named = ((path, os.path.splitext(os.path.basename(path))[0]) for path in files.commitlog.others)
    packed = [path for path, name in named if is_base(name) and files.commitlog.based(int(name)) is None]
    return [Misfit(path, "named after a segment that is not there", why) for path in packed]


def misfits_of_records(records: Records, kinds: Kinds, files: StoreFiles) -> list[Misfit]:
    """The first record that has an entry in a queue that is not built: a batch in a topic of plain queues.

    Or one whose topic cannot name the directory of its queue. RocketMQ: BatchConsumeQueue (5.3.3).
    """
    without = np.flatnonzero(kinds.without_directory)
    if len(without):
        what = "a record whose topic cannot name a directory"
        return [Misfit(_place(files, records, without), what, "no broker can have written it")]
    known = np.array([topic.decode("utf-8", "replace") in files.batch_topics for topic in kinds.topics], np.bool_)
    batches = np.flatnonzero(records.sys_flags & INNER_BATCH)
    batches = batches[~known[kinds.codes[batches]]] if len(batches) else batches
    if not len(batches):
        return []
    why = "it is delivered from a BatchConsumeQueue, and nothing says that its topic has one"
    return [Misfit(_place(files, records, batches), "a record that holds a batch of messages", why)]


def _place(files: StoreFiles, records: Records, which: Ints) -> str:
    """Where the first of these records begins."""
    offset = int(records.offsets[which[0]])
    return f"{files.commitlog_file(offset)} at CommitLog offset {offset}"


def misfits_of_queue(
    files: StoreFiles, topic: str, queue_id: int, units: UnitFile, *, read: range, is_built: bool
) -> list[Misfit]:
    """Units of a live queue that a rebuild would lose; `read` are the CommitLog offsets of the records that were read.

    A tags code below the least 32-bit number is a place in the ConsumeQueueExt; where that is, units keep their places.
    Units about records that were read, in a queue in which no record belongs, were made by a rule that is not ours.
    RocketMQ: ConsumeQueue.isExtAddr (5.3.3).
    """
    directory, with_places = Paths(files.path).queue(topic, queue_id), topic == SCHEDULE_TOPIC or files.has_queue_ext
    for number, rows in units.filled(units.begin, units.end):
        held = rows["size"] > 0
        places = np.flatnonzero(held & (rows["tags_code"] < _INT_MIN) & (not with_places))
        if len(places):
            what = f"a queue whose unit {number + int(places[0])} names a place in the ConsumeQueueExt"
            return [Misfit(directory, what, "the bitmap of SQL92 filters there would be lost")]
        at = rows["commitlog_offset"]
        strays = np.flatnonzero(held & (at >= read.start) & (at < read.stop))
        if len(strays) and not is_built:
            what = f"a queue that names messages (unit {number + int(strays[0])}), though no record belongs in it"
            return [Misfit(directory, what, "checkback does not know what filled it")]
    return []
