"""Which records an identifier means: a CommitLog offset, an offset message id, or a unique key.

    with broker.open("shop.store", read_only=True) as store:
        records_of(store, "C0A80164000018B4AAC26F5AD0C60000")
        trace(path, "12345")["steps"]

An offset message id and a unique key look alike. The first counts only where a record begins at the offset that it
states and names the same broker; the second is looked for through the index, in each topic of the store.
RocketMQ: MessageDecoder.createMessageId, MessageClientIDSetter.createUniqID (5.3.3).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import broker
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.java import decode_message_id
from broker.format.topics import DLQ_PREFIX, HALF_TOPIC, PARK_TOPIC, RETRY_PREFIX
from broker.transaction.events import EventKind, kind_of
from recovery.views.history_half_op import when, with_unique_key
from recovery.views.overview import story

_SHOWN_APART = ("what", "commitlog_offset", "stored_ms")


def records_of(store: broker.Store, identifier: str) -> list[Record]:
    """All records that an identifier means, in log order; none where nothing is found."""
    if (commitlog_offset := names.decimal(identifier, 19)) is not None:
        record = sound_record(store, commitlog_offset)
        return [record] if record is not None else []
    record = _by_message_id(store, identifier)
    return [record] if record is not None else by_unique_key(store, identifier)


def by_unique_key(store: broker.Store, unique_key: str) -> list[Record]:
    """The records with a unique key in every topic, half messages included, in log order."""
    return with_unique_key(store, unique_key, (HALF_TOPIC, PARK_TOPIC, *store.topics()))


def sound_record(store: broker.Store, commitlog_offset: int) -> Record | None:
    """The record at a CommitLog offset; None where none begins, and where it is damaged."""
    with contextlib.suppress(broker.CorruptRecord, broker.CorruptStore):
        return store.record(commitlog_offset)
    return None


def _by_message_id(store: broker.Store, identifier: str) -> Record | None:
    try:
        host, offset = decode_message_id(identifier)
    except (ValueError, broker.BrokerError):
        return None
    if not store.begin_offset <= offset < store.end_offset:
        return None
    record = sound_record(store, offset)
    return record if record is not None and record.store_host == host else None


def trace(path: str, identifier: str) -> dict[str, Any]:
    """One transaction on one page: half, checks, end, delivery, what consumers sent back, in the order of the log.

    `steps` is empty where the identifier means no transaction; `text` then says what it means. Raises NotAStore.
    """
    with broker.open(path, read_only=True) as store:
        found = records_of(store, identifier)
        half = next((offset for record in found if (offset := _half_of(record)) is not None), None)
        if half is None:
            return {"path": path, "id": identifier, "half_offset": None, "steps": [], "text": _other(found)}
        record = sound_record(store, half)
        unique_key = record.property_map.get(names.UNIQ_KEY, "") if record is not None else ""
        again = by_unique_key(store, unique_key) if unique_key else []
        retried = [one for one in again if one.topic.startswith((RETRY_PREFIX, DLQ_PREFIX))]
    steps = story(path, half)
    steps += [{"what": _sent_back(one), **when(one), "topic": one.topic} for one in retried]
    steps.sort(key=lambda step: int(step.get("commitlog_offset", 1 << 62)))
    return {"path": path, "id": identifier, "half_offset": half, "unique_key": unique_key, "steps": steps, "text": ""}


def details_of(step: Mapping[str, Any]) -> str:
    """What a step of a trace says besides its place and time, in one line."""
    fields = {name: value for name, value in step.items() if name not in _SHOWN_APART and value not in ("", None, [])}
    texts = {name: ", ".join(value) if isinstance(value, list) else value for name, value in fields.items()}
    return "; ".join(f"{name.replace('_', ' ')} {text}" for name, text in texts.items())


def _half_of(record: Record) -> int | None:
    """The CommitLog offset of the half message that a record is, or ends."""
    kind = kind_of(record.topic, record.transaction_type)
    if kind in (EventKind.HALF, EventKind.PREPARED):
        return record.commitlog_offset
    is_end = kind in (EventKind.COMMITTED, EventKind.ROLLED_BACK) and not record.topic.startswith(RETRY_PREFIX)
    return record.prepared_transaction_offset if is_end else None


def _sent_back(record: Record) -> str:
    return "dead letter" if record.topic.startswith(DLQ_PREFIX) else f"sent back, {record.reconsume_times} times"


def _other(found: list[Record]) -> str:
    if not found:
        return "no record of the log has this id"
    one = found[0]
    return f"a message of {one.topic} at CommitLog offset {one.commitlog_offset}, which belongs to no transaction"
