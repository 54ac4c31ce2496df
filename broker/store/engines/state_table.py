"""The engine of RocketMQ 3.0: a half message of type PREPARED, whose queueOffset is its slot, and an end that names it.

RocketMQ: EndTransactionProcessor, TransactionStateService (3.1.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from broker.errors import TransactionError
from broker.format.commitlog import Record
from broker.format.record.recordcrc import stated_record_crc
from broker.format.sysflag import BORN_IPV6, STORE_IPV6, TransactionType
from broker.message import ReceivedMessage
from broker.store.disk.paths import STATE_TABLE as NAME
from broker.store.write.engine import TransactionEngine
from broker.store.write.pending_record import (
    PendingRecord,
    SenderFields,
    draft,
    draft_of,
    end_draft,
    fast_draft,
    with_texts,
)

_PREPARED = TransactionType.PREPARED


class StateTableEngine(TransactionEngine):
    """The default engine: state table and redo log, as 3.0.0 to 3.1.4 keep them."""

    name = NAME
    has_redo_log = True

    def half(
        self, topic: str, body: bytes, properties: dict[str, str], *, queue_id: int, **sender: Unpack[SenderFields]
    ) -> PendingRecord:
        """See TransactionEngine."""
        if fast_draft is not None and len(sender) == 1:  # `draft` would ask the C module as well, after a longer way
            born_ms = sender["born_timestamp_ms"]
            made = fast_draft(PendingRecord, topic, body, properties, queue_id, born_ms, _PREPARED, None, None)
            if made is not None:
                return made
        return draft(topic, body, properties, queue_id=queue_id, kind=_PREPARED, **sender)

    def ends(
        self, half: PendingRecord, half_offset: int, slot: int, kind: TransactionType, _now_ms: int
    ) -> tuple[PendingRecord, ...]:
        """See TransactionEngine. A commit repeats the half message, a rollback leaves the body out."""
        return (end_draft(half, half_offset, slot, kind),)

    def read_half(self, raw: bytes) -> tuple[PendingRecord, Record]:
        """See TransactionEngine."""
        found, record = draft_of(raw)
        if found.kind is not _PREPARED:
            raise TransactionError(f"the record at CommitLog offset {record.commitlog_offset} is not a half message")
        if record.version != 1 or record.sys_flag & (BORN_IPV6 | STORE_IPV6):
            reason = "was not written by RocketMQ 3.0–3.1.4 nor by checkback: only its own broker can end it"
            raise TransactionError(f"the half message at CommitLog offset {record.commitlog_offset} {reason}")
        if stated_record_crc(record.properties) is None:
            found.raw = with_texts(record, b"")
        return found, record

    def is_half(self, record: Record) -> bool:
        """See TransactionEngine."""
        return record.transaction_type is _PREPARED

    def recognise(self, record: PendingRecord, properties: Mapping[str, str]) -> None:
        """See TransactionEngine. The type of a record says it all."""

    def opens_slot(self, record: PendingRecord) -> bool:
        """See TransactionEngine."""
        return record.kind is _PREPARED

    def target(self, half: PendingRecord) -> str:
        """See TransactionEngine."""
        return half.topic

    def received(self, record: Record) -> ReceivedMessage:
        """See TransactionEngine."""
        return ReceivedMessage.of(record)


STATE_TABLE = StateTableEngine()
