"""ConsumeQueues against the CommitLog: each deliverable record has its unit, and each unit its record.

RocketMQ: CommitLogDispatcherBuildConsumeQueue, ConsumeQueue.putMessagePositionInfoWrapper (5.3.3).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from broker.format import properties as names
from broker.format.consumequeue import FILLER_SIZE
from broker.format.sysflag import INNER_BATCH, TransactionType
from broker.format.topics import LONGEST_DELAY_MS
from broker.transaction.events import TopicKind
from recovery.findings import Finding, Findings
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.spill import pick
from recovery.scan.strings import java_hashes
from recovery.scan.units import Interval, IntervalSet, Ints, NumberedUnits, Rows, UnitFile
from recovery.verify.comparison import FinishContext
from recovery.verify.kinds.light_queues import further_queues

_AT_ONCE = 1 << 16
_HELD = 100_000
_CLOCK_READINGS_APART_MS = 1000
_OFF_OF_3_2_6 = 32  # one in 32 due times that are off, at least: see possible_due_times

EXPECTED = np.dtype(
    [("queue_offset", "i8"), ("commitlog_offset", "i8"), ("size", "i4"), ("tags_code", "i8"), ("store_ms", "i8")]
)


@dataclass
class _Queue:
    topic: str
    queue_id: int
    units: NumberedUnits
    ext: UnitResolver | None = None
    claimed: IntervalSet = field(default_factory=IntervalSet)
    missing: list[Rows] = field(default_factory=list)


class UnitResolver(Protocol):
    """What stands between the units of a queue and what they state."""

    def resolve(self, units: Rows, store_ms: Ints) -> Rows:
        """The units as they are compared, given the store times of their records."""


class Delays(NamedTuple):
    """Of records in the schedule topic: which wait, since when, and what is known of the clock of their broker.

    `exact`: it reads the clock once. `keyed`: the client is of 4.0 or later, and the broker may be, too.
    """

    waits: npt.NDArray[np.bool_]
    stored_ms: Ints
    exact: npt.NDArray[np.bool_]
    keyed: npt.NDArray[np.bool_]

    def of(self, which: npt.NDArray[np.bool_]) -> Delays:
        """Those of some of the records."""
        return Delays(self.waits[which], self.stored_ms[which], self.exact[which], self.keyed[which])


class DelayedRecords(NamedTuple):
    """Records of one queue of the schedule topic that are still to be compared."""

    topic: str
    queue_id: int
    expected: Rows  # shape (n,), dtype EXPECTED
    delays: Delays


class QueueComparison:
    """Takes the records of a scan, compares as it goes, and reports at the end what stayed wrong.

    How long a delayed message waits shows in its neighbours. With `defers_delayed` those records are kept in `deferred`
    and not compared: a split of a log does not hold all neighbours.
    """

    def __init__(
        self,
        open_queue: Callable[[str, int], NumberedUnits | None],
        findings: Findings,
        *,
        open_ext: Callable[[str, int], UnitResolver | None] = lambda _topic, _queue_id: None,
        defers_delayed: bool = False,
    ) -> None:
        self._open, self._findings, self._defers_delayed = open_queue, findings, defers_delayed
        self.deferred: list[DelayedRecords] = []
        self._open_ext = open_ext
        self._queues: dict[tuple[bytes, int], _Queue | None] = {}
        self._held = 0

    def add(self, records: Records, kinds: Kinds) -> None:
        """Compare the units of all records that consumers can get."""
        types = kinds.types << 2
        delivered = (types != TransactionType.PREPARED) & (types != TransactionType.ROLLBACK)
        deliverable = delivered & ((records.sys_flags & INNER_BATCH) == 0)
        which = np.flatnonzero(deliverable)
        if not len(which):
            return
        part = records.take(which)
        expected = np.zeros(len(which), EXPECTED)
        expected["queue_offset"], expected["commitlog_offset"] = part.field("queue_offset"), part.offsets
        expected["size"], queue_ids = part.sizes, part.field("queue_id")
        expected["tags_code"] = java_hashes(part.values(names.TAGS))
        expected["store_ms"] = part.field("store_timestamp_ms")
        codes = kinds.codes[which].astype(np.int64)
        group = (codes << 32) | (queue_ids & 0xFFFFFFFF)
        if int(codes.max()) < 1 << 7 and int(queue_ids.min()) >= 0 and int(queue_ids.max()) < 1 << 8:
            group = (codes << 8 | queue_ids).astype(np.int16)  # NumPy sorts numbers of 16 bits in one pass
        order = np.argsort(group, kind="stable")
        cuts = np.flatnonzero(np.diff(group[order])) + 1
        scheduled = kinds.topic_kinds[which] == TopicKind.SCHEDULE
        for run in np.split(order, cuts):
            queue = self._queue(kinds.topics[codes[run[0]]], int(queue_ids[run[0]]))
            if queue is not None:
                delays = delays_of(part.take(run)) if scheduled[run[0]] else None
                if delays is not None and self._defers_delayed:
                    self.deferred.append(DelayedRecords(queue.topic, queue.queue_id, pick(expected, run), delays))
                else:
                    self._compare(queue, pick(expected, run), delays)
        if part.values(names.INNER_MULTI_QUEUE_OFFSET).lengths.any():
            self._add_further(part, expected)

    def _add_further(self, part: Records, expected: Rows) -> None:
        """Compare the units of the further queues that some records name."""
        for further in further_queues(part, Kinds(part)):
            queue = self._queue(further.topic, further.queue_id)
            if queue is not None:
                rows = expected[further.which]
                rows["queue_offset"] = further.queue_offsets
                self._compare(queue, rows, None)

    def claims(self) -> dict[tuple[str, int], list[Interval]]:
        """The units of each queue that records claimed; what stayed missing until now is reported."""
        self._recheck_missing()
        return {
            (queue.topic, queue.queue_id): queue.claimed.within(queue.units.begin, queue.units.end)
            for queue in self._queues.values()
            if queue is not None
        }

    def claim(self, topic: str, queue_id: int, intervals: list[Interval]) -> None:
        """Take over the claims of comparisons that each saw a part of the log."""
        queue = self._queue(topic.encode(), queue_id)
        if queue is not None:
            queue.claimed = IntervalSet(intervals)

    def compare_delayed(self, records: DelayedRecords) -> None:
        """Compare what other comparisons deferred, all neighbours of a segment together."""
        queue = self._queue(records.topic.encode(), records.queue_id)
        if queue is not None:
            self._compare(queue, records.expected, records.delays)

    def _queue(self, topic: bytes, queue_id: int) -> _Queue | None:
        key = (topic, queue_id)
        if key not in self._queues:
            name = topic.decode("utf-8", "replace")
            units = self._open(name, queue_id)
            opened = None if units is None else _Queue(name, queue_id, units, self._open_ext(name, queue_id))
            self._queues[key] = opened
        return self._queues[key]

    def _compare(self, queue: _Queue, expected: Rows, delays: Delays | None) -> None:
        held = queue.units.holds(expected)
        if held is not None:
            expected, delays = expected[held], None if delays is None else delays.of(held)
        units = self._units(queue, expected)
        queue.claimed.add(expected["queue_offset"])
        if delays is not None:
            _expect_due_times(expected, units, delays)
        wrong = ~self._same(units, expected)
        if wrong.any():
            queue.missing.append(expected[wrong])
            self._held += int(wrong.sum())
            if self._held > _HELD:
                self._recheck_missing()

    def _units(self, queue: _Queue, expected: Rows) -> Rows:
        """The units of the queue offsets of these records."""
        units = queue.units.take(expected["queue_offset"])
        return units if queue.ext is None else queue.ext.resolve(units, expected["store_ms"])

    def _recheck_missing(self) -> None:
        """Look again at what was missing: a live broker dispatches a moment after it appends."""
        for queue in self._queues.values():
            if queue is None or not queue.missing:
                continue
            expected = np.concatenate(queue.missing)
            queue.missing.clear()
            units = self._units(queue, expected)
            for record, unit in zip(expected, units, strict=True):
                if not self._same(unit, record):
                    self._report_missing(queue, record, unit)
        self._held = 0

    def _same(self, units: Any, expected: Any) -> npt.NDArray[np.bool_]:
        place = (units["commitlog_offset"] == expected["commitlog_offset"]) & (units["size"] == expected["size"])
        return np.asarray(place & (units["tags_code"] == expected["tags_code"]))

    def _report_missing(self, queue: _Queue, record: Any, unit: Any) -> None:
        where = f"queue {queue.queue_id} of {queue.topic}"
        if not unit["size"]:
            text = f"{where} has no unit {record['queue_offset']} for it: nobody will consume it"
        elif unit["commitlog_offset"] != record["commitlog_offset"]:
            text = (
                f"unit {record['queue_offset']} of {where} is its own, but names the record at "
                f"{unit['commitlog_offset']}: nobody will consume it"
            )
        else:
            text = f"unit {record['queue_offset']} of {where} states another size, tags code or time than its record"
        facts = {"found_commitlog_offset": int(unit["commitlog_offset"])} if unit["size"] else {}
        self._report("queue-missing", queue, int(record["queue_offset"]), int(record["commitlog_offset"]), text, facts)

    def finish(self, context: FinishContext) -> None:
        """Report what stayed missing, and the units that no record claims."""
        self._recheck_missing()
        for topic, queue_id, units in context.queues:
            known = self._queues.get((os.fsencode(topic), queue_id))
            claimed = known.claimed if known else IntervalSet()
            queue = known or _Queue(topic, queue_id, units)
            self._empty_front(queue, claimed)
            self._orphans(queue, claimed, context.begin_offset, context.ignore_from)

    def _empty_front(self, queue: _Queue, claimed: IntervalSet) -> None:
        """Nothing in front of the first record that is left: readers and brokers take it for the end of the queue.

        What expired stands there, or a filler.
        """
        units = queue.units
        first, stop = next(claimed.gaps(units.begin, units.end), (-1, -1))
        if not (isinstance(units, UnitFile) and first == units.begin and stop < units.end):
            return
        for start in range(first, stop, _AT_ONCE):
            empty = np.flatnonzero(units.read(start, min(_AT_ONCE, stop - start))["size"] == 0)
            if len(empty):
                text = f"unit {start + empty[0]} of queue {queue.queue_id} of {queue.topic} is empty"
                offset = int(units.read(stop, 1)["commitlog_offset"][0])
                text = f"{text}: nobody will consume what follows, from unit {stop} on"
                self._report("queue-missing", queue, start + int(empty[0]), offset, text, {})
                return

    def _orphans(self, queue: _Queue, claimed: IntervalSet, begin_offset: int, ignore_from: int | None) -> None:
        units = queue.units
        for first, stop in claimed.gaps(units.begin, units.end):
            for number, rows in units.filled(first, stop):
                empty = (rows["size"] == 0) & (rows["commitlog_offset"] == 0) & (rows["tags_code"] == 0)
                filler = (rows["size"] == FILLER_SIZE) & (rows["commitlog_offset"] == 0)
                orphan = ~empty & ~filler & ((rows["commitlog_offset"] >= begin_offset) | (rows["size"] <= 0))
                if ignore_from is not None:
                    orphan &= rows["commitlog_offset"] < ignore_from
                for index in np.flatnonzero(orphan):
                    unit = rows[index]
                    offset = int(unit["commitlog_offset"])
                    text = (
                        f"unit {number + index} of queue {queue.queue_id} of {queue.topic} names {unit['size']} bytes "
                        f"at {offset}, where no record of that queue offset is"
                    )
                    self._report("queue-orphan", queue, number + int(index), offset, text, {})

    def _report(
        self, kind: str, queue: _Queue, unit: int, commitlog_offset: int, text: str, facts: dict[str, Any]
    ) -> None:
        place = {"topic": queue.topic, "queue_id": queue.queue_id, "queue_offset": unit}
        file = queue.units.file_of(unit) or os.path.join("consumequeue", queue.topic, str(queue.queue_id))
        self._findings.add(Finding(kind, commitlog_offset, text, file, {**place, **facts}))


def delays_of(records: Records) -> Delays:
    """Which records of the schedule topic wait for a delay level: their unit holds when they are due, not a hash.

    Quirk (3.1.4, 3.2.6): the due time is reckoned from a clock reading a moment apart from the record's store time.
    Messages of their clients have no unique key. Brokers of 4.6 and later write their cluster into each message, and
    checkback a CRC. RocketMQ: CommitLog.putMessage (3.2.6), SendMessageProcessor.sendMessage (4.6.0).
    """
    waits = np.array([text is not None and text.isdigit() for text in records.property(names.DELAY).to_pylist()])
    cluster, crc, key = (records.values(name).lengths > 0 for name in (names.CLUSTER, names.CRC32, names.UNIQ_KEY))
    return Delays(waits, records.field("store_timestamp_ms"), cluster | crc, key)


def possible_due_times(tags_codes: Ints, delays: Delays) -> npt.NDArray[np.bool_]:
    """Which of these say a time at which their record may be due: a level waits for whole seconds, of any number.

    Levels are the broker's configuration (messageDelayLevel), which may have been another when a unit was written.
    Where the broker may read the clock twice, the delay must be that of most units of the queue. Of keyed messages
    3.2.6 writes a part with a time that is off: its second clock ticks once in a millisecond, and when in it differs
    from start to start. Of 44 starts of such a clock the least part was one in 7, and of 20 messages fewer may be.
    Brokers of 4.0 to 4.5 write none, so that fewer than one in 32 are damage. RocketMQ: SystemClock (3.2.6),
    CommitLog.checkMessageAndReturnSize, DefaultMessageStore.parseDelayLevel (5.3.3).
    """
    waited = tags_codes - delays.stored_ms
    possible = delays.waits & (waited >= -_CLOCK_READINGS_APART_MS) & (waited <= LONGEST_DELAY_MS)
    if not possible.any():
        return possible
    near = possible & (np.abs(waited - int(np.median(waited[possible]))) <= _CLOCK_READINGS_APART_MS)
    whole = possible & (waited >= 0) & (waited % 1000 == 0)
    unsure = near & delays.keyed & ~delays.exact
    apart = unsure & ~whole
    is_3_2_6 = int(apart.sum()) * _OFF_OF_3_2_6 >= int(unsure.sum())
    twice = near & ~delays.exact & (is_3_2_6 | ~delays.keyed)
    return np.asarray(twice | (whole & (delays.exact | delays.keyed)))


def _expect_due_times(expected: Rows, units: Rows, delays: Delays) -> None:
    """In the schedule topic, expect what the unit says where it may be due then, and nothing that it says elsewhere."""
    possible = possible_due_times(units["tags_code"], delays)
    due = np.where(possible, units["tags_code"], ~units["tags_code"])
    expected["tags_code"] = np.where(delays.waits, due, expected["tags_code"])
