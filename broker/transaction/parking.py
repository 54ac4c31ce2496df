"""Parked transactions: half messages that check-back leaves alone until a person decides.

One small record in TRANS_CHECK_MAX_TIME_TOPIC parks a half message, another takes it back; the last one counts while
the half is in doubt. The name of the topic is RocketMQ's, which moves the whole message there (4.5.2 and later).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from broker.errors import MessageRejected, shown
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.topics import PARK_TOPIC
from broker.message import ReceivedMessage
from broker.store.disk.thread_lock import ThreadLock
from broker.store.read.store import Store
from broker.store.write.pending_record import PendingRecord, draft
from broker.transaction.events import BY, PARKED, PARKED_OFFSET, WHY
from broker.transaction.service import Half, ParkNote

GIVEN_UP = "RocketMQ gave up asking"  # the reason of a note that its broker wrote
_QUEUE = 0
_TRUE, _FALSE = "true", "false"


def park_draft(half: Half, why: str, unique_key: str, now_ms: int, *, parks: bool) -> PendingRecord:
    """The record that parks a half message, or takes it back. It has no body to speak of: the half message has it."""
    if not isinstance(why, str):
        raise MessageRejected(f"the reason for which something is parked is text, not {shown(why)}")
    properties = {
        names.UNIQ_KEY: unique_key,
        names.PGROUP: half.producer_group,
        names.REAL_TOPIC: half.topic,
        names.REAL_QID: str(half.queue_id),
        PARKED_OFFSET: str(half.commitlog_offset),
        PARKED: _TRUE if parks else _FALSE,
    }
    properties |= {WHY: why} if why else {}
    for name, value in properties.items():
        names.check(name, value)
    body = b"parked" if parks else b"unparked"
    return draft(PARK_TOPIC, body, properties, queue_id=_QUEUE, born_timestamp_ms=now_ms)


def park_copy(record: Record, half: Half, why: str) -> PendingRecord:
    """The record that parks a half message of the half topic: a copy, as a broker writes it, that names its half.

    RocketMQ: AbstractTransactionalMessageCheckListener.toMessageExtBrokerInner (5.3.3).
    """
    properties = record.property_map
    properties.pop(names.CRC32, None)
    properties |= {PARKED_OFFSET: str(half.commitlog_offset), PARKED: _TRUE}
    if why:
        names.check(WHY, why)
        properties[WHY] = why
    return draft(
        PARK_TOPIC, record.body, properties, queue_id=_QUEUE, born_timestamp_ms=record.born_timestamp_ms,
        flag=record.flag, sys_flag=record.sys_flag, reconsume_times=record.reconsume_times,
    )  # fmt: skip


def park_notes(store: Store) -> Iterator[ParkNote]:
    """What checkback wrote to the park topic, in order."""
    for message in _messages_from(store, store.queue_range(PARK_TOPIC, _QUEUE)[0]):
        note = _note_in(message)
        if note.half_offset >= 0:
            yield note


def _messages_from(store: Store, queue_offset: int) -> Iterator[ReceivedMessage]:
    while (message := store.message(PARK_TOPIC, _QUEUE, queue_offset)) is not None:
        yield message
        queue_offset += 1


def _note_in(message: ReceivedMessage) -> ParkNote:
    """What a record of the park topic says; a copy that RocketMQ wrote does not name its half message: -1."""
    properties = message.properties
    number = names.decimal(properties.get(PARKED_OFFSET, ""))
    return ParkNote(
        half_offset=-1 if number is None else number,
        parks=number is None or properties.get(PARKED) != _FALSE,
        why=properties.get(WHY, "") if number is not None else GIVEN_UP,
        by=properties.get(BY, ""),
        commitlog_offset=message.commitlog_offset,
        stored_ms=message.store_timestamp_ms,
        queue_offset=message.queue_offset,
    )


class ParkTopic:
    """Which half messages are parked: the one place that decides it. Threads may share it.

    It reads on from where it ended before; the last note about a half message counts.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = ThreadLock()
        self._parked: dict[int, ParkNote] = {}
        self._next = 0
        self._begin = -1  # the CommitLog offset where the log began then
        self._by_key: dict[tuple[str, str], ParkNote] = {}  # RocketMQ's, by unique key and producer group
        self._taken_back: dict[int, int] = {}  # by half message, where the last record lies that takes it back

    def notes(self) -> dict[int, ParkNote]:
        """The note that parks it of each half message that was parked and not taken back, by CommitLog offset."""
        with self._lock:
            self._read_on()
            return dict(self._parked)

    def is_parked(self, commitlog_offset: int) -> bool:
        """Whether `notes` has the half message, at a cost that does not grow with them."""
        with self._lock:
            self._read_on()
            return commitlog_offset in self._parked

    def forget(self, ended: Iterable[int]) -> None:
        """Release the notes about half messages that were ended: no note counts any more, and they would add up."""
        with self._lock:
            for commitlog_offset in ended:
                self._parked.pop(commitlog_offset, None)

    def _read_on(self) -> None:
        """Take what was written to the topic since the last time; call under the lock.

        Where the log begins elsewhere by now, retention may have removed the next ones: their half messages were ended.
        """
        if (begin := self._store.begin_offset) != self._begin:
            self._next = max(self._next, self._store.queue_range(PARK_TOPIC, _QUEUE)[0])
            self._begin = begin
        for message in _messages_from(self._store, self._next):
            self._take(message, _note_in(message))
            self._next = message.queue_offset + 1

    def _take(self, message: ReceivedMessage, note: ParkNote) -> None:
        if note.half_offset < 0:
            if message.unique_key:
                self._by_key[message.unique_key, message.properties.get(names.PGROUP, "")] = note
        elif note.parks:
            self._parked[note.half_offset] = note
        else:
            self._parked.pop(note.half_offset, None)
            self._taken_back[note.half_offset] = note.commitlog_offset

    @property
    def has_copies(self) -> bool:
        """Whether a RocketMQ broker parked any half message, as of the last call of `notes`."""
        return bool(self._by_key)

    def copy_of(self, commitlog_offset: int, unique_key: str, producer_group: str) -> ParkNote | None:
        """The note by which a RocketMQ broker parked a half message, unless it was taken back since.

        A broker's record names no half message: it is a copy, with the same unique key and group. Call `notes` first.
        """
        note = self._by_key.get((unique_key, producer_group))
        if note is None or note.commitlog_offset < self._taken_back.get(commitlog_offset, -1):
            return None
        return note._replace(half_offset=commitlog_offset)
