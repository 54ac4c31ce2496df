"""Messages by what operators know of them: an id, a unique key, a key, a topic, when they were stored.

    for record in find("shop.store", Query(key="4711", since_ms=...)): ...

Ids and keys go through the index; what has none of them, and a store without an index, is read from the moment on at
which the query begins. RocketMQ: MQAdminImpl.queryMessage, viewMessage (5.3.3).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from shlex import quote
from typing import Any

import broker
from broker.errors import CorruptRecord, CorruptStore
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.record.innerbatch import inner_records
from broker.format.sysflag import INNER_BATCH, TransactionType
from broker.format.topics import (
    HALF_TOPIC,
    HALF_TOPIC_OF_ROCKSDB,
    PARK_TOPIC,
    SEND_REFUSED_TOPICS,
    SYSTEM_PREFIX,
)
from broker.message import ReceivedMessage
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.verify.causes.log_short import short_log
from recovery.views.history_half_op import unindexed
from recovery.views.lookup import records_of

Progress = Callable[[int, int], None]  # bytes done, bytes in all
_TIME_MAX_MS = (1 << 63) - 1
_FAR_MS = 1 << 60
_DELIVERED = (TransactionType.NONE, TransactionType.COMMIT)


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked for; all that is given must hold."""

    identifier: str = ""  # a CommitLog offset or an offset message id
    unique_key: str = ""
    key: str = ""
    topic: str = ""
    since_ms: int = 0
    until_ms: int = _TIME_MAX_MS  # exclusive
    is_delivered_only: bool = False  # without half messages, their ends, and what RocketMQ writes for itself

    def holds(self, record: Record) -> bool:
        """Whether a record is asked for."""
        properties = record.property_map
        return (
            self.since_ms <= record.store_timestamp_ms < self.until_ms
            and (not self.topic or self.topic in (record.topic, properties.get(names.REAL_TOPIC)))
            and (not self.unique_key or properties.get(names.UNIQ_KEY) == self.unique_key)
            and (not self.key or self.key in names.keys(properties))
            and (not self.is_delivered_only or is_delivered(record))
        )


def is_delivered(record: Record) -> bool:
    """Whether a record is a message that consumers of an application's topic get; one that waits for a delay is not."""
    own = record.topic.startswith((SYSTEM_PREFIX, SYSTEM_PREFIX.upper())) or record.topic in SEND_REFUSED_TOPICS
    return record.transaction_type in _DELIVERED and not own


def find(
    path: str, query: Query, limit: int | None = None, progress: Progress | None = None
) -> Iterator[ReceivedMessage]:
    """The messages that a query means, in log order, each message of a batch by itself.

    Raises NotAStore; CorruptStore where the log is damaged, or lacks its end, before all are found: behind the others.
    """
    count = 0
    with broker.open(path, read_only=True) as store:
        found = (message for record in _records(store, query, progress) for message in _messages(record, query))
        for message in islice(found, limit):
            yield message
            count += 1
        if count == limit or (query.identifier and count):
            return  # all are found; to find the end of the log is a walk over its last segment
        end_offset = store.end_offset
    _check_not_short(path, end_offset)


def _check_not_short(path: str, end_offset: int) -> None:
    """Raises CorruptStore where a log lacks its end; it ends at `end_offset`, or goes on there behind a damage."""
    files = StoreFiles.open(path)
    scan = Scan(files.commitlog, end_offset)
    for _ in scan:
        pass
    damages = [one for one in scan.damages if one.kind != "torn-tail"]
    if (short := short_log(files, scan.end_offset, damages)) is not None:
        text = f"{short.file}: {short.text}. What it held is not found. Run: checkback verify {quote(path)}"
        raise CorruptStore(text, path=short.file)


def _records(store: broker.Store, query: Query, progress: Progress | None) -> Iterator[Record]:
    if query.identifier:
        yield from filter(query.holds, records_of(store, query.identifier))
    elif (query.unique_key or query.key) and store.index.files():
        yield from filter(query.holds, _watched(_indexed(store, query), store, progress))
    else:
        until = min(query.until_ms, _FAR_MS)
        in_time = query.since_ms or query.until_ms != _TIME_MAX_MS
        candidates = store.records_between(query.since_ms, until) if in_time else store.records()
        candidates = _watched(candidates, store, progress)
        yield from (record for record in candidates if record.sys_flag & INNER_BATCH or query.holds(record))


def _watched(records: Iterator[Record], store: broker.Store, progress: Progress | None) -> Iterator[Record]:
    """The same records; `progress` gets how far they are from the first one to the end of the log."""
    begin, end = None, store.end_offset
    for record in records:
        begin = record.commitlog_offset if begin is None else begin
        if progress is not None:
            progress(record.commitlog_offset - begin, end - begin)
        yield record


def _indexed(store: broker.Store, query: Query) -> Iterator[Record]:
    """The records that the index names, or does not reach, in log order; a million may have one key.

    Half messages are indexed by the topic that they are for, or by their own.
    """
    topics = [query.topic] if query.topic else store.topics()
    key, since_ms, until_ms = query.unique_key or query.key, query.since_ms, query.until_ms
    offsets: set[int] = set()
    for topic in dict.fromkeys((*topics, HALF_TOPIC, PARK_TOPIC)):
        offsets.update(store.index.find(topic, key, since_ms, until_ms))
    named = (record for offset in sorted(offsets) if (record := store.record(offset)) is not None)
    behind = (record for record in unindexed(store) if record.commitlog_offset not in offsets)
    return heapq.merge(named, behind, key=lambda record: record.commitlog_offset)


def _messages(record: Record, query: Query) -> Iterator[ReceivedMessage]:
    inside = _inside(record) if record.sys_flag & INNER_BATCH else [record]
    yield from (ReceivedMessage.of(one) for one in inside if query.identifier or query.holds(one))


def _inside(batch: Record) -> list[Record]:
    """The messages of a batch. One that cannot be taken apart, as where no CRC covers its sys_flag, is one message."""
    try:
        return list(inner_records(batch))
    except CorruptRecord:
        return [batch]


def found_json(message: ReceivedMessage) -> dict[str, Any]:
    """What `find` prints of a message besides the message itself."""
    state = {TransactionType.PREPARED: "half message", TransactionType.ROLLBACK: "rollback"}
    own = "half message" if message.topic in (HALF_TOPIC, HALF_TOPIC_OF_ROCKSDB) else "message"
    return {"what": state.get(message.transaction_type, own), "message_id": message.message_id}
