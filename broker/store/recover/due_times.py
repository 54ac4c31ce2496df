"""When a message is due that waited for a delay level while its store was taken over.

How long a level waits is in the configuration of its broker alone (messageDelayLevel). It shows in the units of the
schedule topic, which were kept aside; those that are made again would have the delays of checkback.
"""

from __future__ import annotations

import contextlib
import json
import os

from broker.errors import CorruptStore, StoreError
from broker.format.topics import LONGEST_DELAY_MS, SCHEDULE_TOPIC
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths
from broker.store.read.consumequeue import ConsumeQueues
from broker.store.read.directory import StoreDirectory


class BrokerDueTimes:
    """Looks into what was kept aside when the store was taken over.

    Not into what a rebuild kept: that differed from the log, and may have been exchanged for these very units.
    """

    def __init__(self, disk: Disk, paths: Paths) -> None:
        self._kept: list[ConsumeQueues] = []
        with contextlib.suppress(Missing):
            kept = [entry.path for entry in disk.entries(paths.replaced) if entry.is_directory]
            self._kept = [ConsumeQueues(StoreDirectory(path, disk)) for path in kept if _is_of_take_over(disk, path)]
        self._delays_ms: dict[int, int] = {}  # by queue: of the last unit that was found

    def due_ms(self, queue_id: int, queue_offset: int, commitlog_offset: int, stored_ms: int) -> int | None:
        """When the record of a unit is due; behind the last unit the delay of that one counts. None: unknown."""
        for queues in self._kept:
            with contextlib.suppress(CorruptStore, Missing):
                queue = queues.queue(SCHEDULE_TOPIC, queue_id)
                unit = queue.get(queue_offset) if queue is not None else None
                if unit is not None and unit.commitlog_offset == commitlog_offset:
                    delay_ms = unit.tags_code - stored_ms
                    if 0 <= delay_ms <= LONGEST_DELAY_MS:
                        self._delays_ms[queue_id] = delay_ms
                        return unit.tags_code
        delay_ms = self._delays_ms.get(queue_id, -1)
        return stored_ms + delay_ms if delay_ms >= 0 else None


def _is_of_take_over(disk: Disk, directory: str) -> bool:
    """What its manifest says: `recovery.rebuild.replaced` writes it."""
    try:
        manifest = json.loads(disk.read(os.path.join(directory, "manifest.json")))
    except (Missing, StoreError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("state") in ("taking over", "taken over")
