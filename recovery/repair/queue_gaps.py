"""Which queue offsets no record has any more: gaps in the numbers of each queue, where records were lost."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from broker.format.sysflag import TransactionType
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records


@dataclass(frozen=True, slots=True)
class Gap:
    """Queue offsets first … first + count - 1 of a queue: between two records that are there, none has them."""

    topic: str
    queue_id: int
    first: int
    count: int


class Numbering:
    """Takes records in log order. `free_queue_id` is a queue of one topic that no record is in."""

    def __init__(self, topic: str) -> None:
        self._own = topic.encode()
        self._last: dict[tuple[bytes, int], tuple[int, int]] = {}  # queue offset and CommitLog offset
        self._jumps: list[tuple[int, int, Gap]] = []  # between which CommitLog offsets
        self.free_queue_id = 0

    def add(self, records: Records, kinds: Kinds) -> None:
        """Take some records; only those of type NONE and COMMIT are numbered."""
        types = kinds.types << 2
        which = np.flatnonzero((types == TransactionType.NONE) | (types == TransactionType.COMMIT))
        codes, queue_ids = kinds.codes[which], records.field("queue_id")[which]
        numbers, offsets = records.field("queue_offset")[which], records.offsets[which]
        order = np.lexsort((offsets, queue_ids, codes))
        changes = np.flatnonzero((np.diff(codes[order]) != 0) | (np.diff(queue_ids[order]) != 0)) + 1
        for part in np.split(order, changes) if len(order) else ():
            topic, queue_id = kinds.topics[int(codes[part[0]])], int(queue_ids[part[0]])
            if topic.startswith(self._own[:1]) and self._own.startswith(topic):  # fillers too small for the whole name
                self.free_queue_id = max(self.free_queue_id, queue_id + 1)
            before = self._last.get((topic, queue_id))
            self._jumps_in(topic, queue_id, before, numbers[part].tolist(), offsets[part].tolist())
            self._last[topic, queue_id] = int(numbers[part[-1]]), int(offsets[part[-1]])

    def _jumps_in(
        self,
        topic: bytes,
        queue_id: int,
        before: tuple[int, int] | None,
        numbers: Sequence[int],
        offsets: Sequence[int],
    ) -> None:
        for number, commitlog_offset in zip(numbers, offsets, strict=True):
            if before is not None and number > before[0] + 1:
                gap = Gap(topic.decode("utf-8", "replace"), queue_id, before[0] + 1, number - before[0] - 1)
                self._jumps.append((before[1], commitlog_offset, gap))
            before = number, commitlog_offset

    def gaps(self, losses: Sequence[tuple[int, int]]) -> list[Gap]:
        """The gaps that a loss explains; a broker leaves gaps of its own. `losses`: CommitLog offsets and sizes."""
        starts = [start for start, _ in losses]
        found = []
        for low, high, gap in self._jumps:
            at = bisect_left(starts, low)
            if at < len(starts) and starts[at] < high:
                found.append(gap)
        return found


def lowered(positions: Mapping[int, int], gaps: Sequence[Gap]) -> dict[int, int]:
    """Positions by queue id, each lowered by how many queue offsets below it are gone. `gaps` are of one topic."""
    found = {}
    for queue_id, position in positions.items():
        missing = [min(gap.first + gap.count, position) - gap.first for gap in gaps if gap.queue_id == queue_id]
        found[queue_id] = position - sum(max(0, count) for count in missing)
    return found
