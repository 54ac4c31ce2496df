"""What a replay of a half-op log must see besides single records: halves that were stored again, ends without an op.

A broker that checks a half message stores it again at the end of the half topic, and the later one counts: its earlier
slots become RENEWED. An end of an earlier one, as slow producers send it, ends them all. A broker writes op messages in
batches, and loses them when it is killed; a power cut can take the op message after its commit. RocketMQ checks such a
half message again and delivers it twice: the op messages that are missing are appended after the replay.

RocketMQ: TransactionalMessageServiceImpl.check, TransactionalOpBatchService (5.3.3).
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from broker.errors import CorruptRecord
from broker.format import properties as names
from broker.format.statetable import RENEWED, SLOT_SIZE, STATE_AT
from broker.format.sysflag import TransactionType
from broker.format.topics import CHECK_GROUP, HALF_TOPIC
from broker.store.engines.half_op import QUEUE, op_record
from broker.store.read.config import read_consumer_offsets
from broker.store.read.directory import StoreDirectory
from broker.store.read.index import Index
from broker.store.write.parts import StoreParts
from broker.store.write.pending_record import PendingRecord, draft_of, index_code

_PREPARED, _COMMIT, _ROLLBACK = (
    int(TransactionType.PREPARED), int(TransactionType.COMMIT), int(TransactionType.ROLLBACK),
)  # fmt: skip
_ASKED = names.TRANSACTION_CHECK_TIMES.encode()  # every half message that was stored again says it
_AT_ONCE = 256  # op messages that are appended together
_KEPT = 1 << 18  # half messages that are remembered: a broker stores one again at each check, mostly soon
_TIME_MAX_MS = (1 << 63) - 1


class ReplayWatch:
    """Hears each record that a recovery dispatches again, in log order."""

    def __init__(self, parts: StoreParts) -> None:
        self._parts, self._table = parts, parts.dispatcher.table
        self._directory = StoreDirectory(parts.path, parts.disk)
        self._index = Index(self._directory)
        self._progress = self._half_progress()
        # By the index's hash of the unique key, the CommitLog offset of the last half message with it, and the slots
        # of those that count: more than one, where a client sent one again.
        self._recent: dict[int, tuple[int, tuple[int, ...]]] = {}
        self.without_op: set[int] = set()  # slots that ended, and of which no op message says so yet

    def _half_progress(self) -> int:
        """The half queue offset up to which the broker's check loop looks at none any more."""
        try:
            positions = read_consumer_offsets(self._directory).positions
        except CorruptRecord:
            return 0
        return max(0, positions.get((HALF_TOPIC, CHECK_GROUP), {}).get(QUEUE, 0))

    def on_dispatched(self, record: PendingRecord, commitlog_offset: int, queue_offset: int) -> None:
        """Take note of one record."""
        if record.ended:
            self.without_op.difference_update(record.ended)
        elif record.target is not None:
            beside: tuple[int, ...] = ()
            if _is_renewed(record.raw):
                self._on_renewed(record, commitlog_offset, queue_offset)
            elif record.index_codes and record.index_codes[0] in self._recent:
                beside = self._recent_slots(draft_key(record.raw))
            self._remember(record, commitlog_offset, (*beside, queue_offset))
        elif record.kind == _COMMIT and record.slot >= 0:
            self._on_commit(record)

    def _on_commit(self, record: PendingRecord) -> None:
        """A delivery outweighs an op message before it, which carries no verdict."""
        state = self._state(record.slot)
        if state == _ROLLBACK:
            self._set_state(record.slot, _COMMIT)
            return
        self.without_op.add(record.slot)
        if state == RENEWED:
            key = draft_key(record.raw)
            *_, last = self._recent_slots(key) or (slot for _, slot in self._same_message(*key))
            self._set_state(last, _COMMIT)
            self.without_op.add(last)

    def _on_renewed(self, record: PendingRecord, commitlog_offset: int, slot: int) -> None:
        """A copy takes over from the one before it; those before that one were taken over already."""
        key = draft_key(record.raw)
        earlier = self._recent_slots(key) or self._before(key, commitlog_offset)
        states = {one: self._state(one) for one in earlier}
        for one, state in states.items():
            if state == _PREPARED and one >= self._progress:
                self.without_op.add(one)
            self._set_state(one, RENEWED)
        if _COMMIT in states.values():
            self._set_state(slot, _COMMIT)
            self.without_op.add(slot)

    def _remember(self, record: PendingRecord, commitlog_offset: int, slots: tuple[int, ...]) -> None:
        if record.index_codes:
            code = record.index_codes[0]
            self._recent.pop(code, None)
            self._recent[code] = (commitlog_offset, slots)
            if len(self._recent) > _KEPT:
                del self._recent[next(iter(self._recent))]  # the oldest

    def _recent_slots(self, key: tuple[str, str]) -> tuple[int, ...]:
        """The slots of a transaction's half messages that count; none when they are not among the recent ones."""
        found = self._recent.get(index_code(HALF_TOPIC, key[0])) if key[0] else None
        if found is None or draft_key(self._parts.appender.read(found[0])) != key:  # another with the same hash
            return ()
        return found[1]

    def _before(self, key: tuple[str, str], commitlog_offset: int) -> list[int]:
        """The slots of the copies before one, by the index, all of whose files are looked at."""
        return [one for at, one in self._same_message(*key) if at < commitlog_offset]

    def _same_message(self, unique_key: str, group: str) -> Iterator[tuple[int, int]]:
        """CommitLog offset and slot of each half message of one transaction, in log order."""
        found = sorted(set(self._index.find(HALF_TOPIC, unique_key, 0, _TIME_MAX_MS))) if unique_key else []
        for commitlog_offset in found:
            raw = self._parts.appender.read(commitlog_offset)
            if draft_key(raw) == (unique_key, group):
                _, half = draft_of(raw)
                if half.topic == HALF_TOPIC and half.queue_id == QUEUE:
                    yield commitlog_offset, half.queue_offset

    def _state(self, slot: int) -> int:
        view, at = self._table.at(slot * SLOT_SIZE)
        return int.from_bytes(view[at + STATE_AT : at + SLOT_SIZE], "big")

    def _set_state(self, slot: int, state: int) -> None:
        view, at = self._table.at(slot * SLOT_SIZE)
        view[at + STATE_AT : at + SLOT_SIZE] = state.to_bytes(SLOT_SIZE - STATE_AT, "big")

    def finish(self) -> None:
        """Append the op messages that are missing. Raises StoreFull."""
        slots, now_ms = sorted(self.without_op), time.time_ns() // 1_000_000
        for first in range(0, len(slots), _AT_ONCE):
            self._parts.appender.append([op_record(slot, now_ms) for slot in slots[first : first + _AT_ONCE]])
        self.without_op.clear()


def _is_renewed(raw: bytes) -> bool:
    """Whether a half message was stored again. A body or a value that has the same text in it says nothing."""
    return _ASKED in raw and names.TRANSACTION_CHECK_TIMES in draft_of(raw)[1].property_map


def draft_key(raw: bytes) -> tuple[str, str]:
    """What half messages of one transaction have in common: the unique key and the producer group."""
    said = draft_of(raw)[1].property_map
    return said.get(names.UNIQ_KEY, ""), said.get(names.PGROUP, "")
