"""Dispatch a stretch of the log again: after a crash, and after a process was killed between append and dispatch.

After a crash this is what takes the time, so the usual record (V1, IPv4) is read by its fixed places, and an end takes
from its half what both have in common. There is one rule for which slot an end settles, `Replay._slot_of`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from shlex import quote

from broker.errors import CorruptRecord, CorruptStore
from broker.format import properties as names
from broker.format.commitlog import BODY_AT, MAGIC_BLANK, MAGIC_V1, OFFSET_IPV4, RecordHead, RecordMiddle
from broker.format.record.recordcrc import RECORD_CRC_MARK
from broker.format.sysflag import BORN_IPV6, STORE_IPV6, TransactionType
from broker.store.read.log_reader import WINDOW_BYTES, LogReader
from broker.store.shared.control import ControlPage, Word
from broker.store.write.dispatch import Dispatcher
from broker.store.write.pending_record import PendingRecord, draft_of, group_hash, index_code, tag_hash, target_topic

_HEAD, _MIDDLE = RecordHead.STRUCT, RecordMiddle.STRUCT
_BODY_AT = BODY_AT[False, False]
_MIDDLE_AT, _STORE_TIME_AT = OFFSET_IPV4["reconsume_times"], OFFSET_IPV4["store_timestamp_ms"]
_ODD = BORN_IPV6 | STORE_IPV6
_KINDS = {int(kind): kind for kind in TransactionType}
_NONE, _PREPARED, _COMMIT, _ROLLBACK = (
    TransactionType.NONE, TransactionType.PREPARED, TransactionType.COMMIT, TransactionType.ROLLBACK,
)  # fmt: skip
_HALVES = 1 << 16  # that are remembered for the ends to come

# Of a half: its slot, the topic it is meant for, properties, what of them is derived, CRC of its body, born time.
_Half = tuple[int, bytes, bytes, PendingRecord, int, int]


class Replay:
    """Dispatches the records of a log again. The derived files must be cut at where it begins.

    With `again`, where the derived files may hold parts of the first record: what is there already is left as it is,
    and `dispatched` is raised after each record, so that no record is begun twice.
    """

    def __init__(self, log: LogReader, control: ControlPage, dispatcher: Dispatcher, *, again: bool = False) -> None:
        self._log, self._control, self._dispatcher, self._again = log, control, dispatcher, again
        self._engine = dispatcher.engine
        self.after: Callable[[PendingRecord, int, int], None] | None = None  # hears what was dispatched, and where
        self._halves: dict[int, _Half] = {}
        self._topics: dict[bytes, str] = {}
        self._slots = control[Word.SLOTS]
        self.records = 0

    def run(self, start: int, end: int, progress: Callable[[int], None] = lambda _: None) -> None:
        """Dispatch all of [start, end); after each window, call `progress` with the offset reached.

        Raises CorruptStore where no record begins, StoreFull.
        """
        control, at = self._control, start
        while at < end:
            window, base = self._log.read(at, min(WINDOW_BYTES, end - at)), at
            at = self._window(window, base)
            if at == base:
                size = int.from_bytes(window[:4], "big", signed=True)
                at = self._window(self._log.read(base, max(size, 0)), base)
            if at == base:
                raise self._no_record(at)
            control[Word.DISPATCHED] = min(at, end)
            progress(min(at, end))

    def _window(self, window: bytes, base: int) -> int:
        """Dispatch the records that lie whole in a window; returns the offset behind the last of them."""
        unpack, dispatch, reserve = _HEAD.unpack_from, self._dispatcher.dispatch, self._dispatcher.index.reserve
        again, words, opens_slot, after = self._again, self._control.words, self._engine.opens_slot, self.after
        at, size_all = 0, len(window)
        while at + 8 <= size_all:
            size = int.from_bytes(window[at : at + 4], "big", signed=True)
            magic = int.from_bytes(window[at + 4 : at + 8], "big", signed=True)
            if magic == MAGIC_BLANK:
                return base + at + size
            if at + size > size_all or size <= RecordHead.SIZE:
                break
            _, _, body_crc, queue_id, _, queue_offset, place, sys_flag, born_ms = unpack(window, at)
            if magic != MAGIC_V1 or sys_flag & _ODD or place != base + at:
                draft, store_ms, queue_offset = self._slowly(window[at : at + size], base + at)
            else:
                draft = self._draft(window, at, size, place, sys_flag & 0xC, queue_id, queue_offset, body_crc, born_ms)
                store_ms = int.from_bytes(window[at + _STORE_TIME_AT : at + _STORE_TIME_AT + 8], "big")
            if draft.index_codes and not again:  # else the process that appended it has reserved the room
                reserve(len(draft.index_codes))
            dispatch(draft, base + at, queue_offset, store_ms, again=again)
            if opens_slot(draft):
                self._keep_slots(queue_offset + 1)
            if after is not None and (draft.kind or draft.ended or draft.target is not None):
                after(draft, base + at, queue_offset)
            if store_ms > words[_STORE_MS]:
                words[_STORE_MS] = store_ms
            at += size
            if again:
                words[_DISPATCHED] = base + at
            self.records += 1
        return base + at

    def _no_record(self, at: int) -> CorruptStore:
        path, store = self._log.path_of(at), quote(os.path.dirname(self._log.directory))
        text = f"{path}: no record begins at CommitLog offset {at}, where one was published"
        return CorruptStore(f"{text}. Run: checkback verify {store}, then checkback salvage {store} OUT", path=path)

    def _keep_slots(self, following: int) -> None:
        """Once RocketMQ 3.x compacted a table it counts from a lower slot on: the table ends behind the highest."""
        if following < self._slots:
            self._control.words[_SLOTS] = self._slots
        else:
            self._slots = following

    def _draft(
        self, window: bytes, at: int, size: int, place: int, kind: int, queue_id: int, queue_offset: int, body_crc: int,
        born_ms: int,
    ) -> PendingRecord:  # fmt: skip
        """The draft of a record by its fixed places."""
        _, prepared_offset, body_length = _MIDDLE.unpack_from(window, at + _MIDDLE_AT)
        topic_at = at + _BODY_AT + body_length + 1
        properties_at = topic_at + window[topic_at - 1] + 2
        raw_topic, raw_properties = window[topic_at : properties_at - 2], window[properties_at : at + size]
        raw, kind_name = window[at : at + size], _KINDS[kind]
        half = self._halves.get(prepared_offset) if kind > _PREPARED else None
        if half is not None and half[1] == raw_topic:
            slot, _, half_properties, known, crc, born = half
            same = kind == _ROLLBACK or (crc == body_crc and born == born_ms)
            if _alike(half_properties, raw_properties):
                codes = () if kind == _ROLLBACK else (known.target or known).index_codes
                return PendingRecord(raw, self._engine.target(known), queue_id, kind_name, known.tags_code,
                             known.group_hash, codes, prepared_offset, slot if same and slot >= 0 else -1)  # fmt: skip
        made = self._parsed(raw, raw_topic, raw_properties, queue_id, kind_name)
        made.prepared_offset = prepared_offset
        if self._engine.opens_slot(made):
            if len(self._halves) >= _HALVES:
                self._halves.clear()
            target = self._engine.target(made).encode()
            self._halves[place] = (queue_offset, target, raw_properties, made, body_crc, born_ms)
        elif kind:
            made.slot = self._slot_of(made, prepared_offset, body_crc, born_ms)
        return made

    def _parsed(
        self, raw: bytes, raw_topic: bytes, raw_properties: bytes, queue_id: int, kind: TransactionType
    ) -> PendingRecord:
        topic = self._topics.get(raw_topic)
        if topic is None:
            topic = self._topics[raw_topic] = raw_topic.decode()
        properties = names.decode(raw_properties)
        codes: tuple[int, ...] = ()
        if kind is not _ROLLBACK:
            keys = names.keys(properties)
            unique_key = properties.get(names.UNIQ_KEY)
            codes = tuple([index_code(topic, key) for key in ([unique_key, *keys] if unique_key else keys)])
        tags, group = tag_hash(properties.get(names.TAGS, "")), group_hash(properties.get(names.PGROUP, ""))
        made = PendingRecord(raw, topic, queue_id, kind, tags, group, codes)
        self._engine.recognise(made, properties)
        return made

    def _slowly(self, raw: bytes, commitlog_offset: int) -> tuple[PendingRecord, int, int]:
        """Any record: its draft, store time and queue offset. Raises CorruptStore for what is none."""
        try:
            draft, record = draft_of(raw)
        except CorruptRecord as error:
            raise self._no_record(commitlog_offset) from error
        self._engine.recognise(draft, record.property_map)
        if draft.kind in (_COMMIT, _ROLLBACK):
            draft.slot = self._slot_of(draft, draft.prepared_offset, record.body_crc, record.born_timestamp_ms)
        return draft, record.store_timestamp_ms, record.queue_offset

    def _slot_of(self, end: PendingRecord, half_offset: int, body_crc: int, born_ms: int) -> int:
        """The slot that an end settles; -1 when it names no half of its own. `events.names_half` says the rule."""
        if not self._log.begin <= half_offset < self._control[Word.TAIL]:
            return -1
        head = self._log.read(half_offset, 4)
        try:
            half, record = draft_of(self._log.read(half_offset, int.from_bytes(head, "big", signed=True)))
        except (CorruptRecord, ValueError):
            return -1
        self._engine.recognise(half, record.property_map)
        names_it = (half.group_hash, self._engine.target(half)) == (end.group_hash, target_topic(end))
        own = self._engine.opens_slot(half) and names_it
        same = end.kind is _ROLLBACK or (record.body_crc, record.born_timestamp_ms) == (body_crc, born_ms)
        return record.queue_offset if own and same else -1


_STORE_MS, _SLOTS, _DISPATCHED = int(Word.STORE_MS), int(Word.SLOTS), int(Word.DISPATCHED)


def _alike(half: bytes, end: bytes) -> bool:
    """Whether two records have the same properties, their own CRCs left out."""
    mark = half.rfind(RECORD_CRC_MARK)
    return half == end or (mark >= 0 and end.rfind(RECORD_CRC_MARK) == mark and half[:mark] == end[:mark])
