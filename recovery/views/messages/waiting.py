"""What waits in a store: messages with a timer, and messages that consumers popped and have not acknowledged.

    for message in timers("shop.store"): message.due_ms, message.topic, message.keys
    for batch in popped("shop.store"): batch.group, batch.queue_offsets

RocketMQ: TimerMessageStore, PopReviveService.consumeReviveMessage (5.3.3); PopConsumerRocksdbStore (5.5.0).
"""

from __future__ import annotations

import contextlib
import heapq
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from operator import attrgetter
from typing import Any, NamedTuple

import broker
from broker.errors import CorruptRecord, CorruptStore
from broker.format import config
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.topics import (
    RETRY_PREFIX,
    REVIVE_GROUP,
    REVIVE_PREFIX,
    TIMER_TOPIC,
    pop_retry_topics,
    retry_topic,
)
from broker.store.disk.files import Disk, Entry
from broker.store.read.directory import StoreDirectory
from broker.store.read.kinds.rocksdb import is_rocksdb, open_rocksdb
from broker.store.read.kinds.timers import Timers, read_timers
from recovery.views.lookup import sound_record

_CHECKPOINT, _ACKNOWLEDGED, _SEVERAL = "ck", "ack", "bAck"
_KEY_VALUE_SERVICE, _POPPED = "kvStore", "popState"  # a RocksDB, and its column family
_BITS = {"so": 64, "pt": 64, "it": 64, "ao": 64, "q": 32, "bm": 32, "n": 8}  # of a note's numbers, as in Java
_LISTS, _TEXTS = ("d", "aol"), ("t", "c")
_QUEUE = 0
_HELD = 100_000  # listed in order of time; more are counted, and the earliest of them listed


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message in the timer wheel, or on its way into it."""

    due_ms: int
    topic: str  # where it goes
    queue_id: int
    unique_key: str
    keys: str
    tag: str
    commitlog_offset: int
    is_rolled: bool  # it is put into the wheel again before it is due

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class TimerCounts(NamedTuple):
    """How many messages wait in the wheel, and when; times in milliseconds since 1970, 0 for none."""

    waiting: int
    first_due_ms: int
    last_due_ms: int  # of those that are not rolled
    rolled: int  # of those that wait: the wheel is too short for them, and names another time than theirs
    not_in_wheel: int  # records of the timer topic that the broker has yet to put into the wheel


@dataclass(frozen=True, slots=True)
class PoppedMessages:
    """Messages of one pop that were not acknowledged: they are delivered again when `visible_ms` has come."""

    topic: str
    queue_id: int
    group: str
    popped_ms: int
    visible_ms: int
    queue_offsets: tuple[int, ...]
    commitlog_offset: int | None  # of the checkpoint; None of a pop that the key-value service knows

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def timers(path: str, limit: int | None = None) -> list[WaitingMessage]:
    """The messages with a timer that are not delivered, the earliest first, at most `limit`. Raises NotAStore."""
    with broker.open(path, read_only=True) as store:
        found = (one for one in _timed(store) if one is not None)
        return heapq.nsmallest(_HELD if limit is None else min(limit, _HELD), found, key=attrgetter("due_ms"))


def count_timers(path: str, queue_offsets: tuple[int, int]) -> TimerCounts:
    """What waits, without a look at the messages; `queue_offsets` are those of the timer topic, first and next.

    What takes a message back is due when that is.
    """
    wheel = _wheel(path)
    if wheel is None:
        return TimerCounts(0, 0, 0, 0, 0)
    due: Counter[int] = Counter()
    rolled = 0
    for entry in wheel.waiting():
        number = -1 if entry.takes_back else 1
        if entry.is_rolled:
            rolled += number
        else:
            due[entry.due_ms] += number
    due, rolled = +due, max(rolled, 0)  # what takes a message back may be rolled where that is not any more
    first, end = queue_offsets
    behind = max(0, end - max(first, wheel.check.queue_offset))
    return TimerCounts(due.total() + rolled, min(due, default=0), max(due, default=0), rolled, behind)


def popped(path: str) -> list[PoppedMessages]:
    """What consumers popped and did not acknowledge, by when it is visible again. Raises NotAStore.

    A broker keeps the newest checkpoints and acknowledgements in memory. Those of its key-value service are in a
    RocksDB: raises NoRocksDB without the extra, CorruptStore for one that cannot be read.
    """
    with broker.open(path, read_only=True) as store:
        positions = store.consumer_offsets().positions
        notes: list[Record] = []
        for topic in store.topics():
            if topic.startswith(REVIVE_PREFIX):
                for queue_id in store.queues(topic):
                    # Quirk: the position is that of the last checkpoint that was dealt with, not the next one.
                    done = positions.get((topic, REVIVE_GROUP), {}).get(queue_id, -1)
                    notes += _from_queue(store, topic, queue_id, done + 1)
        notes += [record for _, record in _timed_records(store) if _real_topic(record).startswith(REVIVE_PREFIX)]
    return sorted([*_unacknowledged(notes), *_in_key_value_service(path)], key=attrgetter("visible_ms"))


def popped_again(path: str) -> dict[tuple[str, str], int]:
    """How many messages wait in the retry topics of POP, by topic and group: consumers of other kinds do not read them.

    A group that has the name of the rest of such a topic may read it as its own retry topic. Raises NotAStore.
    """
    counts: dict[tuple[str, str], int] = {}
    with broker.open(path, read_only=True) as store:
        positions, topics = store.consumer_offsets().positions, set(store.topics())
        groups = {group for _, group in positions}
        others = {one for one in topics if one.startswith(RETRY_PREFIX)} - {retry_topic(group) for group in groups}
        for topic, group in product(others, groups):
            of = topic[len(retry_topic(group)) + 1 :]
            if of in topics and topic in pop_retry_topics(group, of):
                next_offsets = positions.get((topic, group), {})
                ranges = ((store.queue_range(topic, one), next_offsets.get(one, 0)) for one in store.queues(topic))
                counts[topic, group] = sum(max(0, end - max(low, position)) for (low, end), position in ranges)
    return {name: count for name, count in counts.items() if count}


def _in_key_value_service(path: str) -> list[PoppedMessages]:
    """What the service of 5.4 and later has rows of: a row for each message, removed when it is acknowledged."""
    directory, disk = os.path.join(path, _KEY_VALUE_SERVICE), Disk()
    if not is_rocksdb(directory, disk) or not any(map(_may_hold_rows, disk.entries(directory))):
        return []
    batches: defaultdict[tuple[str, int, str, int, int], list[int]] = defaultdict(list)
    with open_rocksdb(directory, disk) as database:
        for _, value in database.items(_POPPED):
            try:
                row = config.loads(value)
                popped_ms, place = int(row["popTime"]), (str(row["topicId"]), int(row["queueId"]), str(row["groupId"]))
                batches[*place, popped_ms, popped_ms + int(row["invisibleTime"])].append(int(row["offset"]))
            except (CorruptRecord, KeyError, TypeError, ValueError) as error:
                text = f"{directory}: a row of {_POPPED} is not what RocketMQ 5.4 and 5.5 write: {value[:80]!r}"
                raise CorruptStore(text, path=directory) from error
    return [PoppedMessages(*pop, tuple(offsets), None) for pop, offsets in batches.items()]


def _may_hold_rows(entry: Entry) -> bool:
    return entry.size > 0 and entry.name.endswith((".sst", ".log"))


def _unacknowledged(notes: list[Record]) -> list[PoppedMessages]:
    checkpoints: dict[tuple[Any, ...], PoppedMessages] = {}
    for record in _tagged(notes, _CHECKPOINT):
        body = _body(record)
        first, bits = body.get("so", 0), body.get("bm", 0)
        apart = body.get("d") or range(body.get("n", 0))
        offsets = tuple(first + step for number, step in enumerate(apart) if not bits >> number & 1)
        popped_ms = body.get("pt", 0)
        checkpoints[_pop_of(body)] = PoppedMessages(
            body.get("t", ""), body.get("q", 0), body.get("c", ""), popped_ms, popped_ms + body.get("it", 0), offsets,
            record.commitlog_offset,
        )  # fmt: skip
    for record in (*_tagged(notes, _ACKNOWLEDGED), *_tagged(notes, _SEVERAL)):
        body = _body(record)
        acknowledged = {*body.get("aol", []), *([body["ao"]] if "ao" in body and "aol" not in body else [])}
        known = checkpoints.get(_pop_of(body))
        if known is not None:
            left = tuple(one for one in known.queue_offsets if one not in acknowledged)
            checkpoints[_pop_of(body)] = replace(known, queue_offsets=left)
    return [one for one in checkpoints.values() if one.queue_offsets]


def _pop_of(body: dict[str, Any]) -> tuple[Any, ...]:
    """What a checkpoint and its acknowledgements have in common."""
    return tuple(body.get(name) for name in ("t", "c", "q", "so", "pt"))


def _tagged(notes: list[Record], tag: str) -> Iterator[Record]:
    return (record for record in notes if record.property_map.get(names.TAGS) == tag)


def _body(record: Record) -> dict[str, Any]:
    """What a note says; nothing where it is none that a broker writes: clients may send to its topic, too.

    RocketMQ: PopCheckPoint, AckMsg, BatchAckMsg (5.3.3).
    """
    with contextlib.suppress(CorruptRecord):
        body = config.loads(record.plain_body)
        if isinstance(body, dict):
            said = {name: value for name, value in body.items() if value is not None}
            return said if _is_note(said) else {}
    return {}


def _is_note(body: Mapping[str, Any]) -> bool:
    return (
        all(_is_whole(body[name], bits) for name, bits in _BITS.items() if name in body)
        and all(isinstance(body[name], str) for name in _TEXTS if name in body)
        and all(isinstance(body[name], list) and all(_is_whole(one, 64) for one in body[name])
                for name in _LISTS if name in body)
    )  # fmt: skip


def _is_whole(value: object, bits: int) -> bool:
    return type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1


def _wheel(path: str) -> Timers | None:
    try:
        return read_timers(StoreDirectory(path, Disk()))
    except CorruptRecord:
        return None


def _timed(store: broker.Store) -> Iterator[WaitingMessage | None]:
    for is_rolled, record in _timed_records(store):
        properties = record.property_map
        due, queue_id = properties.get(names.TIMER_OUT_MS, ""), properties.get(names.REAL_QID, "")
        yield WaitingMessage(
            names.decimal(due) or 0, _real_topic(record), names.decimal(queue_id) or 0,
            properties.get(names.UNIQ_KEY, ""), properties.get(names.KEYS, ""), properties.get(names.TAGS, ""),
            record.commitlog_offset, is_rolled,
        )  # fmt: skip


def _timed_records(store: broker.Store) -> Iterator[tuple[bool, Record]]:
    """The records that wait: those in the wheel, and those of the timer topic that are not in it yet."""
    wheel = _wheel(store.path)
    if wheel is None:
        return
    recalled = _recalled(store, wheel)
    for entry in wheel.waiting():
        record = None if entry.takes_back else sound_record(store, entry.commitlog_offset)
        if record is not None and not recalled & _recall_keys(record):
            yield entry.is_rolled, record
    for record in _from_queue(store, TIMER_TOPIC, _QUEUE, wheel.check.queue_offset):
        if names.TIMER_DEL_UNIQKEY not in record.property_map and not recalled & _recall_keys(record):
            yield False, record


def _recalled(store: broker.Store, wheel: Timers) -> set[str]:
    """What the records name that take a message back. RocketMQ: RecallMessageProcessor (5.4.0)."""
    entries = (sound_record(store, entry.commitlog_offset) for entry in wheel.waiting() if entry.takes_back)
    behind = _from_queue(store, TIMER_TOPIC, _QUEUE, wheel.check.queue_offset)
    said = (record.property_map.get(names.TIMER_DEL_UNIQKEY) for record in (*entries, *behind) if record is not None)
    return {key for key in said if key}


def _recall_keys(record: Record) -> set[str]:
    """By which of two names a message is taken back: a broker is set to one (appendTopicForTimerDeleteKey)."""
    key = record.property_map.get(names.UNIQ_KEY, "")
    return {key, f"{_real_topic(record)}+{key}"}


def _from_queue(store: broker.Store, topic: str, queue_id: int, first: int) -> Iterator[Record]:
    low, end = store.queue_range(topic, queue_id)
    for queue_offset in range(max(first, low), end):
        message = store.message(topic, queue_id, queue_offset)
        record = sound_record(store, message.commitlog_offset) if message is not None else None
        if record is not None:
            yield record


def _real_topic(record: Record) -> str:
    return record.property_map.get(names.REAL_TOPIC, "")
