"""What derived files hold for some records, as rows: units of ConsumeQueues and redo log, slots of the state table.

Pure but for one look: a record that waits for a delay level keeps the due time of its live unit. Where the rows end up
is not known here; the local engine and Spark both ask these functions. The items of the index:
`recovery.verify.index_items`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from broker.format import properties as names
from broker.format.consumequeue import Unit
from broker.format.java import string_hash
from broker.format.redolog import PREPARED_TAG
from broker.format.statetable import Slot
from broker.format.sysflag import INNER_BATCH, TransactionType
from broker.format.topics import deliver_time_ms
from broker.transaction.events import TopicKind, TransactionState
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.store_files import StoreFiles
from recovery.scan.strings import java_hashes
from recovery.scan.units import Ints, Rows
from recovery.transactions.events import Names
from recovery.verify.consume_queues import delays_of, possible_due_times
from recovery.verify.kinds.batch_queues import BatchQueueName, BatchRun, batch_runs
from recovery.verify.kinds.light_queues import further_queues
from recovery.verify.kinds.queue_ext import queue_ext_of
from recovery.verify.kinds.queue_lives import batch_begun_at, begun_at

UNIT = np.dtype(Unit.DTYPE)
SLOT = np.dtype(Slot.DTYPE)
_PREPARED = int(TransactionState.PREPARED)


@dataclass(frozen=True, slots=True)
class Claim:
    """Two halves that claim one slot: the later owns it."""

    slot: int
    lost_offset: int
    lost_in_doubt: bool
    owner_offset: int
    owner_in_doubt: bool

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class QueueRun:
    """The units of some records in one queue, and their numbers in it."""

    topic: str
    queue_id: int
    numbers: Ints
    units: Rows
    records: Records
    scheduled: bool  # a unit of the schedule topic may hold a due time: `keep_live_tags`


def queue_runs(records: Records, kinds: Kinds) -> Iterator[QueueRun]:
    """The units of all records that consumers get, queue by queue, each in log order; further queues come last.

    RocketMQ: CommitLogDispatcherBuildConsumeQueue (5.3.3).
    """
    types = kinds.types << 2
    delivered = (types == TransactionType.NONE) | (types == TransactionType.COMMIT)
    which = np.flatnonzero(delivered & ((records.sys_flags & INNER_BATCH) == 0))
    if not len(which):
        return
    part = records.take(which)
    units = np.zeros(len(which), UNIT)
    units["commitlog_offset"], units["size"] = part.offsets, part.sizes
    units["tags_code"] = java_hashes(part.values(names.TAGS))
    numbers, queue_ids = part.field("queue_offset"), part.field("queue_id")
    group = (kinds.codes[which].astype(np.int64) << 32) | (queue_ids & 0xFFFFFFFF)
    order = np.argsort(group, kind="stable")
    scheduled = kinds.topic_kinds[which] == TopicKind.SCHEDULE
    for run in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        topic = kinds.topics[kinds.codes[which[run[0]]]].decode("utf-8", "replace")
        yield QueueRun(
            topic, int(queue_ids[run[0]]), numbers[run], units[run], part.take(run), bool(scheduled[run[0]])
        )  # fmt: skip
    for further in further_queues(part, Kinds(part)):
        topic, run = further.topic.decode("utf-8", "replace"), further.which
        yield QueueRun(topic, further.queue_id, further.queue_offsets, units[run], part.take(run), scheduled=False)


class QueueLives:
    """Which records a queue had before its topic was deleted and made again: `recovery.verify.kinds.queue_lives`."""

    def __init__(self, files: StoreFiles) -> None:
        self._files = files
        self._begun: dict[tuple[str, int], int] = {}
        self._batches_begun: dict[BatchQueueName, int] = {}
        self.again: dict[str, int] = {}  # by topic: where the first of its queues was begun again

    def present(self, run: QueueRun) -> QueueRun:
        """The units of a run without those of an earlier life of its queue."""
        name = run.topic, run.queue_id
        if name not in self._begun:
            self._begun[name] = begun_at(self._files.queue_units(*name), self._files.commitlog, *name)
        begun, at = self._begun[name], run.units["commitlog_offset"]
        if not at.min(initial=begun) < begun:
            return run
        self.note({run.topic: begun})
        which = np.flatnonzero(at >= begun)
        return replace(run, numbers=run.numbers[which], units=run.units[which], records=run.records.take(which))

    def batch_runs(self, records: Records, kinds: Kinds) -> Iterator[BatchRun]:
        """The units that BatchConsumeQueues have of these records, without those of an earlier life of their queue."""
        for run in batch_runs(records, kinds, self._files.batch_topics):
            name, at = (run.topic, run.queue_id), run.units["commitlog_offset"]
            if name not in self._batches_begun:
                units = self._files.batch_units(*name)
                self._batches_begun[name] = batch_begun_at(units, self._files.commitlog, *name)
            begun = self._batches_begun[name]
            if at.min(initial=begun) < begun:
                self.note({run.topic: begun})
                run = run._replace(units=run.units[at >= begun])
            yield run

    def note(self, again: Mapping[str, int]) -> None:
        """Queues of these topics were begun again at these CommitLog offsets."""
        self.again |= {topic: min(at, self.again.get(topic, at)) for topic, at in again.items()}


def keep_live_tags(run: QueueRun, files: StoreFiles) -> None:
    """Take over what only live units say of these records: when they are due, and their place in the ConsumeQueueExt.

    A place is kept where it says what the unit would say without it.
    """
    ext = queue_ext_of(files, run.topic, run.queue_id)
    if not run.scheduled and ext is None:
        return
    live = files.queue_units(run.topic, run.queue_id).take(run.numbers)
    resolved = live if ext is None else ext.resolve(live, run.records.field("store_timestamp_ms"))
    if run.scheduled:
        _set_due_times(run, resolved)
    rows = run.units
    same = np.ones(len(rows), np.bool_)
    for name in ("commitlog_offset", "size", "tags_code"):
        same &= resolved[name] == rows[name]
    rows["tags_code"] = np.where(same, live["tags_code"], rows["tags_code"])


def _set_due_times(run: QueueRun, live: Rows) -> None:
    """A message that waits for a delay level has the time at which it is due in place of a tags code.

    What the live unit says is kept where it is about this record, which may be due then. Elsewhere, and where it names
    a place in the ConsumeQueueExt that says nothing, the queue's usual delay is taken, or RocketMQ's.
    RocketMQ: CommitLog.checkMessageAndReturnSize (5.3.3).
    """
    rows, delays = run.units, delays_of(run.records)
    waits, stored_ms = delays.waits, delays.stored_ms
    is_same = (live["commitlog_offset"] == rows["commitlog_offset"]) & (live["size"] == rows["size"]) & waits
    is_same &= possible_due_times(live["tags_code"], delays)
    waited_ms = deliver_time_ms(run.queue_id + 1, 0)
    if is_same.any():
        waited_ms = int(np.median((live["tags_code"] - stored_ms)[is_same]))
    due = np.where(is_same, live["tags_code"], stored_ms + waited_ms)
    rows["tags_code"] = np.where(waits, due, rows["tags_code"])


def redo_units(records: Records, kinds: Kinds) -> Rows:
    """The units of the redo log that these records have, in order."""
    which = np.flatnonzero(kinds.types)
    units = np.zeros(len(which), UNIT)
    if len(which):
        part = records.take(which)
        units["commitlog_offset"], units["size"] = part.offsets, part.sizes
        prepared = kinds.types[which] << 2 == TransactionType.PREPARED
        units["tags_code"] = np.where(prepared, PREPARED_TAG, part.field("prepared_transaction_offset"))
    return units


def slots_of(outcomes: Rows, group_names: Names) -> tuple[Ints, Rows]:
    """The slots of transactions of the state table and their numbers, sorted by these, then by the half's place."""
    outcomes = outcomes[np.lexsort((outcomes["half"], outcomes["queue_offset"]))]
    slots = np.zeros(len(outcomes), SLOT)
    slots["commitlog_offset"], slots["size"] = outcomes["half"], outcomes["size"]
    slots["store_time_s"] = (outcomes["store_ms"] // 1000).astype(np.int32)
    groups, inverse = np.unique(outcomes["group"], return_inverse=True)
    hashes = [string_hash(group_names[int(group)]) for group in groups]
    slots["group_hash"] = np.array(hashes, np.int32)[inverse] if len(groups) else 0
    state = outcomes["state"].astype(np.int64)
    slots["state"] = np.where(state == TransactionState.PARKED, _PREPARED, state)
    return outcomes["queue_offset"].astype(np.int64), slots


def owners(numbers: Ints, slots: Rows, claims: list[Claim]) -> tuple[Ints, Rows]:
    """Of slots sorted by number and place, the last of each number; each pair with one number is noted in `claims`."""
    again = np.flatnonzero(numbers[1:] == numbers[:-1])
    claims += [claim_of(int(numbers[at]), slots[at], slots[at + 1]) for at in again.tolist()]
    keep = np.ones(len(numbers), np.bool_)
    keep[again] = False
    return numbers[keep], slots[keep]


def claim_of(slot: int, lost: Any, owner: Any) -> Claim:
    """That two slots claim one number."""
    doubts = [int(one["state"]) == _PREPARED for one in (lost, owner)]
    return Claim(slot, int(lost["commitlog_offset"]), doubts[0], int(owner["commitlog_offset"]), doubts[1])
