"""The records that end one transaction: found by the redo log, or, where halves are moved aside, by the index."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np

from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.consumequeue import Unit
from broker.format.sysflag import TRANSACTION_MASK, TransactionType
from broker.format.topics import HALF_TOPIC, HALF_TOPIC_OF_ROCKSDB, SCHEDULE_TOPIC
from broker.store.read.store import Store
from broker.transaction.events import target_topic
from recovery.scan.scanner import Scan
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import UnitFile

_UNIT = np.dtype(Unit.DTYPE)
_AT_ONCE = 1 << 16
_ENDS = (TransactionType.COMMIT, TransactionType.ROLLBACK)


def ends_of(path: str, store: Store, commitlog_offset: int) -> Iterator[Record]:
    """The ends of the half message at a CommitLog offset, in the order in which they were stored.

    The unit of an end in the redo log carries the CommitLog offset of its half message as its tag; without a redo log
    the CommitLog is read. RocketMQ 4.3 and later has none: there a delivery has the unique key of its half message; a
    rollback is an op message, which this does not look for. Raises StoreError, CorruptRecord.
    """
    half = store.record(commitlog_offset)
    if half is not None and half.topic in (HALF_TOPIC, HALF_TOPIC_OF_ROCKSDB):
        yield from _deliveries_of(store, half)
        return
    topic = "" if half is None else target_topic(half.topic, half.property_map)
    units, is_empty = UnitFile(StoreFiles.open(path).redo_log, _UNIT), True
    for first in range(units.begin, units.end, _AT_ONCE):
        rows = units.read(first, min(_AT_ONCE, units.end - first))
        is_used = rows["size"] > 0
        if not is_used.any():
            break
        is_empty = False
        for place in rows["commitlog_offset"][(rows["tags_code"] == commitlog_offset) & is_used].tolist():
            end = store.record(place)
            if end is not None and _ends(end, commitlog_offset, topic):
                yield end
    if is_empty and half is not None:
        yield from (end for end in store.records(commitlog_offset) if _ends(end, commitlog_offset, topic))


def commits_between(store: Store, halves: Collection[int], start: int, stop: int) -> Iterator[Record]:
    """The records of a part of the log that state that they commit one of some half messages, in log order.

    Read in bulk: the op message of a rollback may be hours behind its half message. Raises CorruptRecord and
    CorruptStore where the log is damaged, as `Store.records` does.
    """
    scan, places = Scan(StoreFiles.open(store.path).commitlog, start, stop), list[int]()
    for records in scan:
        is_commit = records.sys_flags & TRANSACTION_MASK == TransactionType.COMMIT
        is_named = np.isin(records.field("prepared_transaction_offset"), list(halves))
        places += records.offsets[is_commit & is_named].tolist()
    if scan.damages:  # read one by one, which says where, if it is in this part
        yield from store.records(start, stop)
    else:
        yield from (record for at in places if (record := store.record(at)) is not None)


def _ends(end: Record, half_offset: int, topic: str) -> bool:
    """Whether a record ends a half message for a topic, which is empty where the half message has expired.

    What a consumer sent back names offset 0, too, but is for its retry topic.
    """
    named = end.transaction_type in _ENDS and end.prepared_transaction_offset == half_offset
    return named and topic in ("", target_topic(end.topic, end.property_map))


def _deliveries_of(store: Store, half: Record) -> Iterator[Record]:
    properties = half.property_map
    unique_key = properties.get(names.UNIQ_KEY, "")
    for topic in (target_topic(half.topic, properties), SCHEDULE_TOPIC):  # at once, or after a delay
        for message in store.by_unique_key(topic, unique_key):
            record = store.record(message.commitlog_offset)
            if record is not None and record.prepared_transaction_offset == half.commitlog_offset:
                yield record
