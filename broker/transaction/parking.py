"""Parked transactions: half messages that check-back leaves alone until a person decides.

One small record in TRANS_CHECK_MAX_TIME_TOPIC parks a half message, another takes it back; the last one counts while
the half is in doubt. The name of the topic is RocketMQ's, which moves the whole message there (4.5.2 and later).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

from broker.format import properties as names
from broker.format.topics import PARK_TOPIC
from broker.store.read.store import Store
from broker.store.write.pending_record import PendingRecord, draft
from broker.transaction.events import BY, PARKED, PARKED_OFFSET, WHY
from broker.transaction.service import Half, ParkNote

_QUEUE = 0
_TRUE, _FALSE = "true", "false"


def park_draft(half: Half, why: str, unique_key: str, now_ms: int, *, parks: bool, by: str = "") -> PendingRecord:
    """The record that parks a half message, or takes it back. It has no body to speak of: the half message has it."""
    properties = {
        names.UNIQ_KEY: unique_key,
        names.PGROUP: half.producer_group,
        names.REAL_TOPIC: half.topic,
        names.REAL_QID: str(half.queue_id),
        PARKED_OFFSET: str(half.commitlog_offset),
        PARKED: _TRUE if parks else _FALSE,
    }
    properties |= {name: value for name, value in ((WHY, why), (BY, by)) if value}
    for name, value in properties.items():
        names.check(name, value)
    body = b"parked" if parks else b"unparked"
    return draft(PARK_TOPIC, body, properties, queue_id=_QUEUE, born_timestamp_ms=now_ms)


def park_notes(store: Store) -> Iterator[ParkNote]:
    """What checkback wrote to the park topic, in order; RocketMQ's own records there are of another generation."""
    return _notes_from(store, store.queue_range(PARK_TOPIC, _QUEUE)[0])


def _notes_from(store: Store, queue_offset: int) -> Iterator[ParkNote]:
    while (message := store.message(PARK_TOPIC, _QUEUE, queue_offset)) is not None:
        queue_offset += 1
        properties = message.properties
        number = properties.get(PARKED_OFFSET, "")
        if number.isascii() and number.isdigit():
            yield ParkNote(
                half_offset=int(number),
                parks=properties.get(PARKED) != _FALSE,
                why=properties.get(WHY, ""),
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
        self._lock = threading.Lock()
        self._parked: dict[int, ParkNote] = {}
        self._next = 0

    def notes(self) -> dict[int, ParkNote]:
        """The note that parks it of each half message that was parked and not taken back, by CommitLog offset."""
        with self._lock:
            if not self._next:  # retention may have removed the first ones
                self._next = self._store.queue_range(PARK_TOPIC, _QUEUE)[0]
            for note in _notes_from(self._store, self._next):
                if note.parks:
                    self._parked[note.half_offset] = note
                else:
                    self._parked.pop(note.half_offset, None)
                self._next = note.queue_offset + 1
            return dict(self._parked)
