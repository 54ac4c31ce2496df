"""Send, read on, and end: what the verbs `send`, `tail`, `topic` and `end` do. Nothing here prints."""

from __future__ import annotations

import heapq
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from shlex import quote
from typing import Any

import broker
from broker.enlisting.ledger_key import LEDGER_KEY
from broker.errors import CorruptRecord, CorruptStore, TransactionError
from broker.format.config import DEFAULT_QUEUES, MESSAGE_TYPE_ATTRIBUTE, TopicConfig
from broker.format.java import decode_message_id
from broker.format.properties import decimal
from broker.format.sysflag import TransactionType
from broker.message import ReceivedMessage
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.consumequeue import queue_ids_in
from broker.store.read.kinds.rocksdb_queues import queue_database
from broker.transaction.events import BY, WHY, TransactionState
from recovery.humanize import moment, printable, who

_NAP_S = 0.2  # between two looks at a store that others write to
_BODY_SHOWN = 200


# send


@dataclass(frozen=True, slots=True)
class Sent:
    """Where a message went."""

    topic: str
    queue_id: int
    queue_offset: int
    commitlog_offset: int
    unique_key: str


def send(path: str, message: broker.Message, *, queue_id: int = 0, create: bool = False) -> Sent:
    """Append one message; durable when this returns. Raises NotAStore unless `create`, BrokerError."""
    with broker.open(path, create=create) as store:
        placed = store.append(message, queue_id=queue_id)
        record = store.record(placed.commitlog_offset)
        unique_key = "" if record is None else record.property_map["UNIQ_KEY"]
        return Sent(message.topic, queue_id, placed.queue_offset, placed.commitlog_offset, unique_key)


def properties_of(pairs: list[str]) -> dict[str, str]:
    """Properties from words like `colour=blue`. Raises ValueError for a word without a name or a value."""
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not (name and equals and value):
            raise ValueError(f"{pair!r} is not NAME=VALUE")
        found[name] = value
    return found


# tail


def tail(
    path: str, topic: str, begin: str, *, last: int, follow: bool = False, nap: Callable[[float], None] = time.sleep
) -> Iterator[ReceivedMessage]:
    """The messages of a topic in the order in which they were stored; with `follow`, those to come as well.

    `begin` is `first`, `last` (the last few, whose number is `last`) or a time (see `moment_of`). Raises NotAStore,
    ValueError, CorruptStore.
    """
    with broker.open(path, read_only=True) as store:
        positions = _positions(store, topic, begin, last)
        found = heapq.merge(
            *(_read(store, topic, queue_id, positions) for queue_id in list(positions)),
            key=lambda message: message.commitlog_offset,
        )
        yield from _last(found, last) if begin == "last" else found
        while follow:
            for queue_id in store.queues(topic):
                positions.setdefault(queue_id, 0)
            fresh = [message for queue_id in positions for message in _read(store, topic, queue_id, positions)]
            yield from sorted(fresh, key=lambda message: message.commitlog_offset)
            if not fresh:
                nap(_NAP_S)
                store.every_queue.close()  # queues in a RocksDB are those of the moment at which it was opened


def has_topic(path: str, topic: str) -> bool:
    """Whether a store has a queue of a topic, or its settings. Raises NotAStore."""
    with broker.open(path, read_only=True) as store:
        try:
            return bool(store.queues(topic)) or topic in store.topic_configs().topics
        except CorruptStore:  # of the settings: nobody knows
            return True


def queues_up_to(path: str, topic: str) -> int | None:
    """The CommitLog offset up to which the queues of a topic are on disk for certain; None where they are in files.

    Raises NotAStore, CorruptStore; NoRocksDB for queues that only the extra can read.
    """
    paths, disk = Paths(path), Disk()
    above = (paths.consumequeue, paths.batchconsumequeue)
    if queue_database(paths, disk) is None or any(queue_ids_in(disk, os.path.join(one, topic)) for one in above):
        return None
    from recovery.scan.store_files import StoreFiles  # with NumPy, which nothing else here needs

    return StoreFiles.open(path).rocksdb_up_to


def _positions(store: broker.Store, topic: str, begin: str, last: int) -> dict[int, int]:
    """Where to begin in each queue: for the last few of the topic, with as many of each."""
    if begin in ("first", "last"):
        ranges = {queue_id: store.queue_range(topic, queue_id) for queue_id in store.queues(topic)}
        return {
            queue_id: least if begin == "first" else max(least, end - last) for queue_id, (least, end) in ranges.items()
        }
    begin_ms = moment_of(begin)
    return {queue_id: store.offset_at_time(topic, queue_id, begin_ms) for queue_id in store.queues(topic)}


def _read(store: broker.Store, topic: str, queue_id: int, positions: dict[int, int]) -> Iterator[ReceivedMessage]:
    """The messages of a queue from its position on, which moves with them, and past what retention removed."""
    while True:
        message = store.message(topic, queue_id, positions[queue_id])
        if message is not None:
            positions[queue_id] += 1
            yield message
        elif (least := store.queue_range(topic, queue_id)[0]) > positions[queue_id]:
            positions[queue_id] = least
        else:
            return


def _last(found: Iterator[ReceivedMessage], count: int) -> list[ReceivedMessage]:
    kept: list[ReceivedMessage] = []
    for message in found:
        kept.append(message)
        if len(kept) > 2 * count:
            del kept[:-count]
    return kept[-count:] if count else []


def moment_of(text: str, others: str = "") -> int:
    """The milliseconds since 1970 of a time: such a number, or ISO 8601, which means UTC where it names no zone.

    Raises ValueError, whose sentence begins with the `others` that the option takes, as in "first, last, ".
    """
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text)
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither {others}a time like 2026-11-21T10:00, nor milliseconds") from None
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


def message_json(message: ReceivedMessage) -> dict[str, Any]:
    """A message as JSON: the body as text where it is UTF-8, else in hexadecimal."""
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"body_hex": message.body.hex()}
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "commitlog_offset": message.commitlog_offset,
        "store_timestamp_ms": message.store_timestamp_ms,
        "unique_key": message.unique_key,
        "tag": message.tag,
        "keys": list(message.keys),
        "properties": dict(message.properties),
        **body,
    }


def message_line(message: ReceivedMessage) -> str:
    """A message in a line: when, where, tag and keys, and the beginning of the body."""
    marks = " ".join([message.tag, *message.keys]).strip()
    body = message.body[:_BODY_SHOWN].decode("utf-8", "backslashreplace")
    more = " …" if len(message.body) > _BODY_SHOWN else ""
    where = f"{moment(message.store_timestamp_ms)}  {message.queue_id}/{message.queue_offset}"
    return printable(f"{where}  [{marks}]  {body}{more}" if marks else f"{where}  {body}{more}")


# topic


def topics(path: str) -> list[TopicConfig]:
    """The topics of a store, by name. Raises NotAStore, CorruptRecord."""
    with broker.open(path, read_only=True) as store:
        found = store.topic_configs().topics
        return [found[name] for name in sorted(found)]


def create_topic(
    path: str, name: str, *, queues: int | None, message_type: str | None, perm: int | None
) -> TopicConfig:
    """Create a topic, or change what is not None; a store that is not there is made with it. Raises BrokerError."""
    with broker.open(path) as store:
        now, write_queues = store.topic_configs().topics.get(name), None
        if now is not None:
            write_queues = now.write_queue_count if queues is None else None
            queues = max(now.read_queue_count, now.write_queue_count) if queues is None else queues
            message_type = now.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "") if message_type is None else message_type
            perm = now.perm if perm is None else perm
        return store.create_topic(
            name,
            queues=DEFAULT_QUEUES if queues is None else queues,
            message_type="NORMAL" if message_type is None else message_type,
            perm=6 if perm is None else perm,
            write_queues=write_queues,
        )


def topic_json(topic: TopicConfig) -> dict[str, Any]:
    """A topic as JSON."""
    return {
        "topic": topic.name,
        "message_type": topic.attributes.get("message.type"),
        "read_queues": topic.read_queue_count,
        "write_queues": topic.write_queue_count,
        "perm": topic.perm,
    }


# end


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of a transaction."""

    state: str  # committed or rolled_back
    again: bool  # it had been decided so before: nothing was written
    topic: str
    producer_group: str
    half_offset: int
    unique_key: str | None
    commitlog_offset: int | None  # of the end record
    queue_offset: int | None  # of a committed message: where consumers find it

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def end(path: str, name: str, *, commit: bool, why: str, by: str = "") -> Decided:
    """Commit or roll back a half message; the end record says why, and who did it.

    `name` is a CommitLog offset, a unique key, or an offset message id. Raises AlreadyEnded when it was decided the
    other way, TransactionError when nothing has that name, and for one in doubt whose outcome is in a ledger.
    """
    with broker.open(path, create=False) as store:
        half = find_half(store, name)
        _check_no_ledger(store, half, "commit" if commit else "rollback")
        decide = store.transactions.commit if commit else store.transactions.rollback
        ended = decide(half, extra_properties={WHY: why, BY: by or who()})
        store.sync_now()  # nobody would make a person's decision again
        return Decided(
            state=ended.state.name.lower(),
            again=ended.again,
            topic=half.topic,
            producer_group=half.producer_group,
            half_offset=half.commitlog_offset,
            unique_key=half.unique_key,
            commitlog_offset=ended.commitlog_offset,
            queue_offset=ended.queue_offset,
        )


def _check_no_ledger(store: broker.LiveStore, half: broker.Half, decision: str) -> None:
    """Raises TransactionError where a ledger has the say: nobody reads its row here, or puts a tombstone there."""
    in_doubt = (TransactionState.PREPARED, TransactionState.PARKED)
    if LEDGER_KEY in half.properties and store.transactions.state(half) in in_doubt:
        step = f"checkback resolve {quote(store.path)} {half.commitlog_offset} --{decision} --why TEXT --ledger URL"
        text = f"the outcome of the transaction at CommitLog offset {half.commitlog_offset} is in a ledger"
        raise TransactionError(f"{text}, which is asked first: {step}; or, if it is lost, --without-ledger")


def find_half(store: broker.LiveStore, name: str) -> broker.Half:
    """The half message of a CommitLog offset, a unique key, or an offset message id. Raises TransactionError."""
    if (offset := decimal(name, 19)) is not None:
        return store.transactions.half(offset)
    damaged: list[CorruptStore] = []  # the others can be ended all the same
    for half in store.transactions.in_doubt(damaged=damaged):
        if half.unique_key == name:
            return half
    for topic in store.topic_configs().topics:
        for message in store.by_unique_key(topic, name):
            if message.transaction_type is TransactionType.PREPARED:
                return store.transactions.half(message.commitlog_offset)
    try:
        _, commitlog_offset = decode_message_id(name)
    except CorruptRecord:
        if damaged:
            raise damaged[0] from None
        text = f"{name!r} is not a CommitLog offset, and no half message has it as unique key or message id"
        raise TransactionError(f"{text}. List what is in doubt: checkback pending {quote(store.path)}") from None
    return store.transactions.half(commitlog_offset)
