"""Parked transactions: half messages that check-back leaves alone until a person decides.

One small record in TRANS_CHECK_MAX_TIME_TOPIC parks a half message, another takes it back; the last one counts while
the half is in doubt. The name of the topic is RocketMQ's, which moves the whole message there (4.5.2 and later).
"""

from __future__ import annotations

import threading

from broker.format import properties as names
from broker.format.topics import PARK_TOPIC
from broker.message import ReceivedMessage
from broker.store.read.store import Store
from broker.store.write.pending_record import PendingRecord, draft
from broker.transaction.events import BY, PARKED, PARKED_OFFSET, WHY
from broker.transaction.service import Half

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


class ParkTopic:
    """What the park topic says, read on from where it was read before. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._parked_by: dict[int, int] = {}
        self._next = 0

    def offsets(self) -> dict[int, int]:
        """CommitLog offset of each half that was parked and not taken back, and of the record that parks it."""
        with self._lock:
            if not self._next:  # retention may have removed the first ones
                self._next = self._store.queue_range(PARK_TOPIC, _QUEUE)[0]
            while (message := self._store.message(PARK_TOPIC, _QUEUE, self._next)) is not None:
                self._note(message)
                self._next += 1
            return dict(self._parked_by)

    def _note(self, message: ReceivedMessage) -> None:
        number = message.properties.get(PARKED_OFFSET, "")
        if not (number.isascii() and number.isdigit()):
            return  # RocketMQ's own, of another generation
        if message.properties.get(PARKED) == _FALSE:
            self._parked_by.pop(int(number), None)
        else:
            self._parked_by[int(number)] = message.commitlog_offset
