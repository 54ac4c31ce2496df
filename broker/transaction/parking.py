"""Parked transactions: half messages that nobody is asked about until a person decides.

One small record in TRANS_CHECK_MAX_TIME_TOPIC parks a half message, another takes it back; the last one counts while
the half is in doubt. The name of the topic is RocketMQ's, which moves the whole message there (4.5.2 and later).
"""

from __future__ import annotations

import threading

from broker.format import properties as names
from broker.format.commitlog import Record
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


def park_copy(record: Record, half: Half, why: str) -> PendingRecord:
    """The record that parks a half message of the half topic: a copy, as a broker writes it, that names its half.

    RocketMQ: AbstractTransactionalMessageCheckListener.toMessageExtBrokerInner (5.3.3).
    """
    said = record.property_map
    said.pop(names.CRC32, None)
    said |= {PARKED_OFFSET: str(half.commitlog_offset), PARKED: _TRUE}
    if why:
        names.check(WHY, why)
        said[WHY] = why
    return draft(
        PARK_TOPIC, record.body, said, queue_id=_QUEUE, born_timestamp_ms=record.born_timestamp_ms, flag=record.flag,
        sys_flag=record.sys_flag, reconsume_times=record.reconsume_times,
    )  # fmt: skip


class Parked:
    """What the park topic says, read on from where it was read before. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._said: dict[int, int] = {}
        self._next = 0
        # As of the last call of `offsets`: where the last park record of RocketMQ lies, by unique key and producer
        # group of the half message, and where the last of ours lies that takes a half message back, by its offset.
        self.by_key: dict[tuple[str, str], int] = {}
        self.taken_back: dict[int, int] = {}

    def offsets(self) -> dict[int, int]:
        """CommitLog offset of each half that was parked and not taken back, and of the record that parks it."""
        with self._lock:
            if not self._next:  # retention may have removed the first ones
                self._next = self._store.queue_range(PARK_TOPIC, _QUEUE)[0]
            while (message := self._store.message(PARK_TOPIC, _QUEUE, self._next)) is not None:
                self._note(message)
                self._next += 1
            return dict(self._said)

    def _note(self, message: ReceivedMessage) -> None:
        number = message.properties.get(PARKED_OFFSET, "")
        if not (number.isascii() and number.isdigit()):
            if message.unique_key:  # RocketMQ's own: a copy of the half message
                group = message.properties.get(names.PGROUP, "")
                self.by_key[message.unique_key, group] = message.commitlog_offset
        elif message.properties.get(PARKED) == _FALSE:
            self._said.pop(int(number), None)
            self.taken_back[int(number)] = message.commitlog_offset
        else:
            self._said[int(number)] = message.commitlog_offset
