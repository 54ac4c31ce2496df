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
from dataclasses import dataclass
from typing import Any

import numpy as np

from broker.format import properties as names
from broker.format.java import string_hash
from broker.format.redolog import PREPARED_TAG
from broker.format.sysflag import INNER_BATCH, TransactionType
from broker.format.topics import deliver_time_ms
from broker.store.disk import Disk
from broker.store.folder import Folder
from broker.store.layout import StoreLayout
from broker.store.paths import Paths
from broker.store.segments import Listing
from broker.transaction.events import Generation, TopicKind, TransactionState
from recovery.columns import java_hashes
from recovery.extract import Kinds
from recovery.judgement import Judgement
from recovery.keys import Rule, expected_items
from recovery.rebuild_files import SLOT, UNIT, IndexFiles, UnitFiles, filled_units
from recovery.records import Records
from recovery.store_files import StoreFiles
from recovery.units import Ints, Rows, Units

_PREPARED = int(TransactionState.PREPARED)
_UNIT_NAMES = ("commitlog_offset", "size", "tags_code")


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
        return {
            "slot": self.slot,
            "lost_offset": self.lost_offset,
            "lost_in_doubt": self.lost_in_doubt,
            "owner_offset": self.owner_offset,
            "owner_in_doubt": self.owner_in_doubt,
        }


class Build:
    """Takes the records of a store in log order and writes its derived files into a folder."""

    def __init__(
        self, files: StoreFiles, sizes: StoreLayout, folder: str, disk: Disk, rule: Rule, *, ours: bool
    ) -> None:
        self.files, self.paths, self.rule = files, Paths(folder), rule
        self._sizes, self._disk = sizes, disk
        self.judgement = Judgement(files)
        self.queues: dict[tuple[str, int], UnitFiles] = {}
        self.redo_log = UnitFiles(disk, self.paths.redo_log, sizes.redo_log_bytes, UNIT)
        self.table = UnitFiles(disk, self.paths.state_table, sizes.state_table_bytes, SLOT)
        known = [segment.base for segment in files.index]
        self.index = IndexFiles(
            disk, self.paths.index, sizes.index_slots, sizes.index_items, rule, names=known, whole_records=ours
        )
        self._live_redo = Units(files.redo_log, UNIT)
        self.redo_units = _first_kept(self._live_redo, files.commitlog.begin)
        self.claims: list[Claim] = []
        self._slots_of_lost: dict[int, int] = {}
        for part in (self.paths.consumequeue, self.paths.index, self.paths.state_table, self.paths.redo_log):
            disk.create_folder(part)

    @property
    def generation(self) -> Generation:
        """How the store says what became of its transactions, as far as its records were taken."""
        return self.judgement.generation

    def add(self, records: Records) -> None:
        """Take some records."""
        kinds = Kinds(records)
        self.judgement.add(records, kinds)
        self._add_to_queues(records, kinds)
        self._add_to_redo_log(records, kinds)
        self.index.add(expected_items(records, kinds, self.rule))

    def _add_to_queues(self, records: Records, kinds: Kinds) -> None:
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
            topic, queue_id = (
                kinds.topics[kinds.codes[which[run[0]]]].decode("utf-8", "replace"),
                int(queue_ids[run[0]]),
            )
            queue = self._queue(topic, queue_id)
            if queue is not None:
                rows = units[run]
                if scheduled[run[0]]:
                    self._set_due_times(topic, queue_id, part.take(run), numbers[run], rows)
                queue.write(numbers[run], rows)

    def _queue(self, topic: str, queue_id: int) -> UnitFiles | None:
        found = self.queues.get((topic, queue_id))
        if found is None and self.files.expects_queue(topic, queue_id):
            folder = self.paths.queue(topic, queue_id)
            found = UnitFiles(self._disk, folder, self._sizes.consume_queue_bytes, UNIT)
            self.queues[topic, queue_id] = found
        return found

    def _set_due_times(self, topic: str, queue_id: int, records: Records, numbers: Ints, rows: Rows) -> None:
        """A message that waits for a delay level has the time at which it is due in place of a tags code.

        What the live unit says is kept where it is about this record; elsewhere the queue's usual delay is taken, or
        RocketMQ's. RocketMQ: CommitLog.checkMessageAndReturnSize (5.3.3).
        """
        levels = records.property(names.DELAY).to_pylist()
        waits = np.array([level is not None and level.isdigit() for level in levels], np.bool_)
        live = Units(self.files.queue(topic, queue_id), UNIT).take(numbers)
        said = (live["commitlog_offset"] == rows["commitlog_offset"]) & (live["size"] == rows["size"]) & waits
        stored_ms = records.field("store_timestamp_ms")
        waited_ms = deliver_time_ms(queue_id + 1, 0)
        if said.any():
            waited_ms = int(np.median((live["tags_code"] - stored_ms)[said]))
        due = np.where(said, live["tags_code"], stored_ms + waited_ms)
        rows["tags_code"] = np.where(waits, due, rows["tags_code"])

    def _add_to_redo_log(self, records: Records, kinds: Kinds) -> None:
        which = np.flatnonzero(kinds.types)
        if not len(which):
            return
        part = records.take(which)
        units = np.zeros(len(which), UNIT)
        units["commitlog_offset"], units["size"] = part.offsets, part.sizes
        prepared = kinds.types[which] << 2 == TransactionType.PREPARED
        units["tags_code"] = np.where(prepared, PREPARED_TAG, part.field("prepared_transaction_offset"))
        self.redo_log.write(self.redo_units + np.arange(len(units)), units)
        self.redo_units += len(units)

    def finish(self) -> None:
        """Judge the transactions, write the state table, carry over what lies below the log, and force everything."""
        for verdicts in self.judgement.verdicts():
            rows = verdicts.rows
            self._add_to_table(rows[rows["generation"] == Generation.STATE_TABLE])
        self._carry_over()
        self.index.finish()
        for files in (*self.queues.values(), self.redo_log, self.table):
            files.force()

    def _add_to_table(self, verdicts: Rows) -> None:
        """The slots of some transactions, sorted by slot; the later of two halves with one slot owns it."""
        verdicts = verdicts[np.lexsort((verdicts["half"], verdicts["queue_offset"]))]
        slots = np.zeros(len(verdicts), SLOT)
        slots["commitlog_offset"], slots["size"] = verdicts["half"], verdicts["size"]
        slots["store_time_s"] = (verdicts["store_ms"] // 1000).astype(np.int32)
        groups, inverse = np.unique(verdicts["group"], return_inverse=True)
        hashes = [string_hash(self.judgement.names[int(group)]) for group in groups]
        slots["group_hash"] = np.array(hashes, np.int32)[inverse] if len(groups) else 0
        state = verdicts["state"].astype(np.int64)
        slots["state"] = np.where(state == TransactionState.PARKED, _PREPARED, state)
        numbers = verdicts["queue_offset"].astype(np.int64)
        keep = np.ones(len(numbers), np.bool_)
        for at in np.flatnonzero(numbers[1:] == numbers[:-1]).tolist():
            self._claim(int(numbers[at]), slots[at], slots[at + 1])
            keep[at] = False
        self._write_slots(numbers[keep], slots[keep])

    def _write_slots(self, numbers: Ints, slots: Rows) -> None:
        """Write slots that other partitions may have written to before."""
        if len(numbers) and self.table.end > int(numbers.min()):
            before = Units(listing_of(self._disk, self.paths.state_table), SLOT).take(numbers)
            taken = before["size"] > 0
            for at in np.flatnonzero(taken).tolist():
                pair = sorted((before[at], slots[at]), key=lambda slot: int(slot["commitlog_offset"]))
                self._claim(int(numbers[at]), pair[0], pair[1])
            later = ~taken | (slots["commitlog_offset"] > before["commitlog_offset"])
            numbers, slots = numbers[later], slots[later]
        self.table.write(numbers, slots)

    def _claim(self, slot: int, lost: Any, owner: Any) -> None:
        doubts = [int(one["state"]) == _PREPARED for one in (lost, owner)]
        self.claims.append(
            Claim(slot, int(lost["commitlog_offset"]), doubts[0], int(owner["commitlog_offset"]), doubts[1])
        )

    # What no record says any more

    def _carry_over(self) -> None:
        begin = self.files.commitlog.begin
        if not begin:
            return
        parts = [(self.redo_log, self._live_redo), (self.table, Units(self.files.state_table, SLOT))]
        for topic, queue_id in self.files.queues():
            live = Units(self.files.queue(topic, queue_id), UNIT)
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
        self.judgement.close()
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


def _first_kept(live: Units, begin: int) -> int:
    """The number of the first unit of the redo log that is about the kept part of the log; 0 for a whole log."""
    for number, rows in live.filled(live.begin, live.end) if begin else ():
        kept = np.flatnonzero((rows["commitlog_offset"] >= begin) & (rows["size"] > 0))
        if len(kept):
            return number + int(kept[0])
    return 0
