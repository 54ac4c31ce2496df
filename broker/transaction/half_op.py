"""Transactions by half topic and op topic: what the engine of RocketMQ 4.3 and later has besides its records.

The decisions are the state table's: one compare-and-set on a slot, see `broker.transaction.statetable`. Here is what
the check loop of a broker expects: the two topics, the half message that it stored last, and a parked one as a copy.

RocketMQ: TransactionalMessageServiceImpl, TransactionalMessageBridge (5.3.3).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from shlex import quote

from broker.errors import MessageRejected, TransactionError
from broker.format.statetable import RENEWED
from broker.format.sysflag import TransactionType
from broker.format.topics import HALF_TOPIC, OP_TOPIC
from broker.store.engines.half_op import QUEUE
from broker.store.write.pending_record import PendingRecord
from broker.transaction.events import TransactionState
from broker.transaction.parking import park_copy
from broker.transaction.service import Ended, Half, HalfReference, ParkNote, Reference
from broker.transaction.statetable import StateTableService


class HalfOpService(StateTableService):
    """The service of stores with the engine half-op: entry point `half-op`."""

    def open(self) -> None:
        """Make the two topics, which brokers before 5.0 make at their first check only."""
        if self._admission.is_slave:
            return
        now_ms = time.time_ns() // 1_000_000
        for topic in (HALF_TOPIC, OP_TOPIC):
            self._admission.admit(topic, {}, QUEUE, now_ms, system=True)
        self._park_topic.notes()  # and so `has_copies` is known

    def commit(self, half: Reference, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """See TransactionalMessageService. One that a broker gave up is taken back first: both would contradict."""
        if self._park_topic.has_copies and isinstance(half, (Half, HalfReference)):
            found = self.half(half.commitlog_offset)
            if self._parked_by_broker(found) is not None:
                self.unpark(found, "committed")
        return self._end(half, TransactionType.COMMIT, extra_properties)

    def end_at_once(self, half: Reference, kind: TransactionType) -> Ended | None:
        """See TransactionalMessageService."""
        return None if self._park_topic.has_copies else super().end_at_once(half, kind)

    # A half message that a broker stored again

    def state(self, half: Reference) -> TransactionState:
        """See TransactionalMessageService."""
        self._known(half)
        self._catch_up()
        return super().state(self._last(half) if self._slot_state(half) == RENEWED else half)

    def _ended_before(
        self, half: Reference, kind: TransactionType, state: int, extra: Mapping[str, str] | None
    ) -> Ended:  # fmt: skip
        if state == RENEWED:
            return self._end(self._last(half), kind, extra)
        return super()._ended_before(half, kind, state, extra)

    def _last(self, half: Reference) -> HalfReference:
        """The half message as it was stored last."""
        known = self.half(half.commitlog_offset)
        for one in self._store.by_unique_key(HALF_TOPIC, known.unique_key or ""):
            if one.commitlog_offset > known.commitlog_offset:
                found = self.half(one.commitlog_offset)
                if found.producer_group == known.producer_group:
                    return found.reference
        text = f"the half message at CommitLog offset {known.commitlog_offset} was stored again by its broker, and the"
        raise TransactionError(
            f"{text} index does not say where: run checkback rebuild {quote(self._store.path)} --apply"
        )

    # Park

    def parked(self) -> dict[int, ParkNote]:
        """See TransactionalMessageService. A broker's park record has the unique key of its half message."""
        parked = super().parked()
        if self._park_topic.has_copies:
            for slot in self.in_doubt_slots():
                half = self.half(self._dispatcher.slot(slot).commitlog_offset)
                note = self._parked_by_broker(half)
                if note is not None:
                    parked.setdefault(half.commitlog_offset, note)
        return parked

    def _is_parked(self, half: Reference) -> bool:
        if super()._is_parked(half):
            return True
        return self._park_topic.has_copies and self._parked_by_broker(self.half(half.commitlog_offset)) is not None

    def _parked_by_broker(self, half: Half) -> ParkNote | None:
        return self._park_topic.copy_of(half.commitlog_offset, half.unique_key or "", half.producer_group)

    def _park_record(self, half: Half, why: str, now_ms: int, *, parks: bool) -> PendingRecord:
        if parks:
            with suppress(MessageRejected):  # what is to be added does not fit: the small record does
                made = park_copy(self._record(half.commitlog_offset), half, why)
                if made.size <= self._record_bytes_max:
                    return made
        return super()._park_record(half, why, now_ms, parks=parks)
