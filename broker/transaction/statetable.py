"""Transactions by state table and redo log: RocketMQ 3.0's, with the checks that it lacked.

A prepared record's queueOffset is its slot. An end is one compare-and-set on that slot under the append lock: it is
written only while the slot says prepared, so the first decision wins, whichever thread or process made it.

RocketMQ: EndTransactionProcessor, TransactionStateService (3.1.4).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from itertools import islice
from shlex import quote

from broker.errors import CorruptRecord, CorruptStore, TransactionError
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.statetable import SLOT_SIZE, Slot
from broker.format.sysflag import TransactionType
from broker.format.topics import SCHEDULE_TOPIC
from broker.message import Message, ReceivedMessage
from broker.store.shared.control import Word
from broker.store.write.compose import Origin
from broker.store.write.dispatch import slots_in_state
from broker.store.write.pending_record import PendingRecord, check_size
from broker.store.write.uniquekey import new_unique_key
from broker.transaction.durability import Waiting
from broker.transaction.ends import (
    STATES,
    add_extra,
    check_bounds,
    check_reference,
    ended_before,
    group_item,
    held_state,
    new_ended,
    wrong_half,
)
from broker.transaction.events import TransactionState
from broker.transaction.parking import ParkTopic, park_draft
from broker.transaction.preparing import HalfWriter
from broker.transaction.rounds import Rounds
from broker.transaction.service import (
    CheckListener,
    Ended,
    Half,
    ParkNote,
    Reference,
    TransactionalMessageBridge,
    TransactionalMessageService,
)

_COMMIT, _ROLLBACK = TransactionType.COMMIT, TransactionType.ROLLBACK
_PREPARED, _GROUP_MAX = int(TransactionType.PREPARED), 255  # a longer one is not kept
_TAIL, _DISPATCHED, _SLOTS, _GENERATION = map(int, (Word.TAIL, Word.DISPATCHED, Word.SLOTS, Word.GENERATION))
_unpack_slot = Slot.STRUCT.unpack_from


class StateTableService(TransactionalMessageService):
    """The first implementation, and the default: entry point `state-table`."""

    def __init__(self, bridge: TransactionalMessageBridge) -> None:
        self._store, self._writer, self._admission = bridge
        self._appender, self._dispatcher = self._writer.appender, self._writer.dispatcher
        self._engine = self._dispatcher.engine
        self._record_bytes_max = self._writer.layout.record_bytes_max
        self._waiting = Waiting(self._writer.settle)
        self._park_topic = ParkTopic(self._store)
        self._rounds = Rounds()
        self._halves = HalfWriter(self._writer, self._admission)
        self._writes_op = self._engine.op_model is not None  # only an op message says when it was born
        self._sync_each, self._sync_os = self._writer.sync == "each", self._writer.sync == "os"

    def open(self) -> None:
        """Nothing to get ready: the table was brought in order when the store was opened."""

    def close(self) -> None:
        """Wait for the futures that are not done yet."""
        self._waiting.close()

    # Prepare

    def prepare(
        self,
        message: Message,
        producer_group: str,
        *,
        queue_id: int = 0,
        extra_properties: Mapping[str, str] | None = None,
        wait: bool = True,
        origin: Origin | None = None,
    ) -> Half:
        """See TransactionalMessageService. In mode `each` it is always waited for."""
        self._admission.check_transactions()
        half = self._halves.store(message, producer_group, queue_id, extra_properties, origin)
        if not self._sync_os:
            if wait or (origin is None and not self._writer.syncer.expects_begin()):  # else `begin_flush` will, or
                self._writer.syncer.start_write(half.commitlog_offset, half.end)  # a server's one flush for many
            if wait or self._sync_each:
                self._writer.settle(half.end)
        return half

    def prepare_async(
        self,
        message: Message,
        producer_group: str,
        *,
        queue_id: int = 0,
        extra_properties: Mapping[str, str] | None = None,
    ) -> Future[Half]:
        """See TransactionalMessageService."""
        self._admission.check_transactions()
        half = self._halves.store(message, producer_group, queue_id, extra_properties, None)
        return self._waiting.future(half.end, half)

    def begin_flush(self, half: Half) -> bool:
        """See TransactionalMessageService."""
        return self._writer.begin_flush(half.end)

    def wait_durable(self, half: Half) -> None:
        """See TransactionalMessageService."""
        self._writer.settle(half.end)

    def prepare_at_once(
        self, message: Message, producer_group: str, *, queue_id: int, extra_properties: Mapping[str, str],
        origin: Origin,
    ) -> Half | None:  # fmt: skip
        """See TransactionalMessageService."""
        if not self._admission.check_transactions(at_once=True):
            return None
        return self._halves.store_at_once(message, producer_group, queue_id, extra_properties, origin)

    # End

    def commit(self, half: Reference, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """See TransactionalMessageService."""
        return self._end(half, _COMMIT, extra_properties)

    def rollback(self, half: Reference, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """See TransactionalMessageService."""
        return self._end(half, _ROLLBACK, extra_properties)

    def end_at_once(self, half: Reference, kind: TransactionType) -> Ended | None:
        """See TransactionalMessageService."""
        if self._admission.is_slave or self._sync_each or not self._writer.upkeep.runs[0]:
            return None
        now_ms = time.time_ns() // 1_000_000 if self._writes_op else 0
        end, state = self._appender.compiled_end_kept, STATES[kind]
        ended: Ended | None = end(half.commitlog_offset, half.slot, half.producer_group, kind, now_ms, Ended, state)
        return ended

    def _end(self, half: Reference, kind: TransactionType, extra: Mapping[str, str] | None) -> Ended:
        if self._admission.is_slave:
            self._admission.check_role()
        if type(half) is not Half:
            check_reference(half)
        writer, offset, slot = self._writer, half.commitlog_offset, half.slot
        now_ms = time.time_ns() // 1_000_000 if self._writes_op else 0
        if not writer.upkeep.runs[0]:  # it flushes the end soon, for which nobody waits
            writer.upkeep.start()
        group, state, appender = half.producer_group, STATES[kind], self._appender
        if not extra and (ended := appender.compiled_end_kept(offset, slot, group, kind, now_ms, Ended, state)):
            return self._settled(ended) if self._sync_each else ended
        known = self._known(half)
        if not extra and (ended := appender.compiled_end(known, offset, slot, kind, now_ms, Ended, state)):
            return self._settled(ended)
        ends = self._engine.ends(known, offset, slot, kind, now_ms)
        if extra:
            add_extra(ends[0], extra, self._record_bytes_max - sum(len(end.raw) for end in ends))
        size = sum(len(end.raw) for end in ends)
        if size > self._record_bytes_max:
            check_size(size, self._record_bytes_max)
        with writer.append_lock:
            appender.heal()
            held = self._slot_state(half)
            placed = appender.append_as_one_locked(ends) if held == _PREPARED else None
        if placed is None:
            return self._ended_before(half, kind, held, extra)
        if self._sync_each:
            writer.settle(placed.commitlog_offset + size)
        is_found = kind is _COMMIT and ends[0].topic != SCHEDULE_TOPIC
        return new_ended(kind, placed.commitlog_offset, placed.queue_offset if is_found else None)

    def _settled(self, ended: Ended) -> Ended:
        """An end that the C module stored, as durable as the sync mode says."""
        if self._sync_each:
            self._writer.settle(self._writer.control.words[_TAIL])
        return ended

    def _known(self, half: Reference) -> PendingRecord:
        """The half message that a reference names, once it is sure that it names this one.

        RocketMQ: EndTransactionProcessor.checkPrepareMessage (5.3.3), and that it is a prepared one at all.
        """
        check_reference(half)
        known, group = self._appender.cached_half(half.commitlog_offset, half.slot), half.producer_group
        if known is not None and len(group) <= _GROUP_MAX and known.raw.rfind(group_item(group)) > 0:
            return known
        known, slot, group = self._read_known(half.commitlog_offset)
        if group != half.producer_group:
            raise wrong_half(half, f"the producer group is {group}, not {half.producer_group:.255}")
        if slot != half.slot:
            raise wrong_half(half, f"the slot is {slot}, not {half.slot}")
        return known

    def _read_known(self, commitlog_offset: int) -> tuple[PendingRecord, int, str]:
        """A half message from the log: its draft, its slot, its group. Raises TransactionError."""
        there_is_none = f"there is no half message at CommitLog offset {commitlog_offset}"
        if not self._store.begin_offset <= commitlog_offset < self._writer.control.words[_TAIL]:
            raise TransactionError(f"{there_is_none}: nothing is there")
        try:
            found, record = self._engine.read_half(self._appender.read(commitlog_offset))
        except CorruptRecord as error:
            raise TransactionError(f"{there_is_none}: {error}") from None
        return found, record.queue_offset, record.property_map.get(names.PGROUP, "")

    def _slot_state(self, half: Reference) -> int:
        """The state that a half message's slot holds; call when the dispatch is complete. Raises TransactionError."""
        slot = half.slot
        if 0 <= slot < self._writer.control.words[_SLOTS]:
            view, at = self._dispatcher.table.at(slot * SLOT_SIZE)
            commitlog_offset, _, _, _, state = _unpack_slot(view, at)
            if commitlog_offset == half.commitlog_offset:
                return int(state)
        reason = f"slot {slot} of the state table is not its own: run checkback verify {quote(self._writer.path)}"
        raise wrong_half(half, reason)

    def _ended_before(
        self, half: Reference, kind: TransactionType, state: int, _extra: Mapping[str, str] | None
    ) -> Ended:  # fmt: skip
        return ended_before(half, kind, held_state(half, state, self._writer.path))

    def delete_prepare(self, half: Reference) -> bool:
        """See TransactionalMessageService. An end that is written has settled the slot with it."""
        self._known(half)
        self._catch_up()
        return self._slot_state(half) != _PREPARED

    # Ask

    def state(self, half: Reference) -> TransactionState:
        """See TransactionalMessageService."""
        self._known(half)
        self._catch_up()
        held = held_state(half, self._slot_state(half), self._writer.path)
        return TransactionState.PARKED if held is TransactionState.PREPARED and self._is_parked(half) else held

    def _is_parked(self, half: Reference) -> bool:
        return self._park_topic.is_parked(half.commitlog_offset)

    def half(self, commitlog_offset: int) -> Half:
        """See TransactionalMessageService."""
        return Half.of(self._record(commitlog_offset))

    def message(self, half: Half) -> ReceivedMessage:
        """See TransactionalMessageService."""
        check_reference(half)
        return self._engine.received(self._record(half.commitlog_offset))

    def _record(self, commitlog_offset: int) -> Record:
        found = None
        if hasattr(commitlog_offset, "__index__") and commitlog_offset < self._writer.control[Word.TAIL]:
            found = self._store.commitlog.at(commitlog_offset)
        if found is None or not self._engine.is_half(found):
            raise TransactionError(f"there is no half message at CommitLog offset {commitlog_offset!r:.60}")
        return found

    def in_doubt(
        self, *, after_slot: int = -1, limit: int | None = None, damaged: list[CorruptStore] | None = None
    ) -> Iterator[Half]:
        """See TransactionalMessageService."""
        check_bounds(after_slot, limit)
        return islice(self._in_doubt(after_slot, damaged), limit)

    def _in_doubt(self, after_slot: int, damaged: list[CorruptStore] | None) -> Iterator[Half]:
        slots = [slot for slot in self.in_doubt_slots() if slot > after_slot]
        self._writer.settle(self._writer.control.words[_TAIL])
        for found in map(self._dispatcher.slot, slots):
            try:
                record = None if found.state != _PREPARED else self._store.record(found.commitlog_offset)
                half = None if record is None else Half.of(record)  # none where it was settled meanwhile
            except CorruptStore as error:
                if damaged is None:
                    raise
                damaged.append(error)
                half = None
            if half is not None:
                yield half

    def in_doubt_slots(self) -> list[int]:
        """See TransactionalMessageService."""
        words, dispatcher = self._writer.control.words, self._dispatcher
        while True:
            self._catch_up()
            generation = dispatcher.generation
            found = list(slots_in_state(dispatcher.table, _PREPARED, 0, words[_SLOTS]))
            if words[_GENERATION] == generation:  # else the table is being, or was, replaced since: see directory_swap
                return found

    def _catch_up(self) -> None:
        """Finish what a killed process published, and release a table that was swapped: no answer rests on either."""
        words = self._writer.control.words
        if words[_DISPATCHED] != words[_TAIL] or words[_GENERATION] != self._dispatcher.generation:
            with self._writer.append_lock:
                self._appender.heal()

    # Park

    def parked(self) -> dict[int, ParkNote]:
        """See TransactionalMessageService."""
        self._catch_up()
        notes = self._park_topic.notes()
        if not notes:
            return notes
        in_doubt = {self._dispatcher.slot(slot).commitlog_offset for slot in self.in_doubt_slots()}
        self._park_topic.forget(notes.keys() - in_doubt)
        return {half: note for half, note in notes.items() if half in in_doubt}

    def park(self, half: Half, why: str) -> bool:
        """See TransactionalMessageService."""
        return self._park(half, why, parks=True)

    def unpark(self, half: Half, why: str) -> bool:
        """See TransactionalMessageService."""
        return self._park(half, why, parks=False)

    def _park(self, half: Half, why: str, *, parks: bool) -> bool:
        """Write a park record if it changes something. Two processes that park one half at once write two: no harm."""
        self._admission.check_role()
        if (self.state(half) is TransactionState.PREPARED) is not parks:
            return False
        now_ms = time.time_ns() // 1_000_000
        made = self._park_record(half, why, now_ms, parks=parks)
        self._admission.admit(made.topic, {}, made.queue_id, now_ms, system=True)
        check_size(made.size, self._record_bytes_max)
        with self._writer.append_lock:
            self._appender.heal()
            if self._slot_state(half) != _PREPARED:
                return False
            placed = self._appender.append_one_locked(made)
        self._writer.upkeep.start()
        self._writer.settle(placed.end)
        return True

    def _park_record(self, half: Half, why: str, now_ms: int, *, parks: bool) -> PendingRecord:
        return park_draft(half, why, new_unique_key(now_ms), now_ms, parks=parks)

    # Check back

    def check(self, timeout_ms: int, check_max: int, listener: CheckListener) -> int:
        """See TransactionalMessageService."""
        return self._rounds.run(self, timeout_ms, check_max, listener, self._writer.clock.now_ms())
