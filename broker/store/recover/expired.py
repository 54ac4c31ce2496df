"""Queues all of whose records have expired: only their units say which number their next message gets.

A recovery that makes every queue again from the log would begin them at 0, below the positions of their groups, and
nobody would receive what comes until it reaches these.
"""

from __future__ import annotations

import contextlib
import os

from broker.errors import CorruptStore
from broker.format.consumequeue import FILLER_SIZE, UNIT_SIZE
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths
from broker.store.read.consumequeue import ConsumeQueues
from broker.store.read.directory import StoreDirectory
from broker.store.write.parts import StoreParts

Ends = dict[tuple[str, int], int]


def expired_ends(disk: Disk, path: str, begin: int) -> Ends:
    """The ends of the queues below `path` whose last unit names a record below `begin`, where the log begins."""
    ends: Ends = {}
    queues = ConsumeQueues(StoreDirectory(path, disk))
    for topic in queues.topics():
        for queue_id in queues.queue_ids(topic):
            with contextlib.suppress(CorruptStore, Missing):
                queue = queues.queue(topic, queue_id)
                end = queue.max_offset if queue is not None else 0
                last = queue.units.get(end - 1) if queue is not None and end else None
                if last is not None and last.commitlog_offset < begin:
                    ends[topic, queue_id] = end
    return ends


def ends_of_broker(disk: Disk, paths: Paths, begin: int) -> Ends:
    """The same of the queues that were kept aside when the store was taken over, and by rebuilds since."""
    ends: Ends = {}
    with contextlib.suppress(Missing):
        for entry in disk.entries(paths.replaced):
            if entry.is_directory:
                for queue, end in expired_ends(disk, os.path.join(paths.replaced, entry.name), begin).items():
                    ends[queue] = max(end, ends.get(queue, 0))
    return ends


def go_on_at(parts: StoreParts, ends: Ends) -> None:
    """Let queues without records go on at these numbers; one that is not there gets fillers below it, as brokers do."""
    for (topic, queue_id), end in ends.items():
        cell = parts.cells.of(topic, queue_id)
        if not parts.cells[cell]:
            if parts.disk.entry(parts.paths.queue(topic, queue_id)) is None:
                parts.dispatcher.queue(cell).put((end - 1) * UNIT_SIZE, 0, FILLER_SIZE, 0)
            parts.cells[cell] = end
