"""End records: a commit repeats its half message, a rollback leaves the body out, both may say who decided and why.

RocketMQ: EndTransactionProcessor.endMessageTransaction (3.1.4).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from broker.errors import MessageRejected, TransactionError
from broker.format import properties as names
from broker.format.commitlog import Record, decode, encode
from broker.format.record.recordcrc import record_crc_reserve, record_crc_said
from broker.format.sysflag import BORN_IPV6, STORE_IPV6, TransactionType
from broker.store.write.pending_record import PendingRecord, draft_of, end_draft
from broker.transaction.events import BY, MOVED_FROM, WHY

EXTRA = frozenset((WHY, BY, names.TRANSACTION_CHECK_TIMES))


def check_extra(extra: Mapping[str, str]) -> None:
    """Raises MessageRejected for a property that an end may not have: it is a copy of its half but for these."""
    for name, value in extra.items():
        if name not in EXTRA:
            raise MessageRejected(f"an end may say {', '.join(sorted(EXTRA))}, and nothing else of its own: {name!r}")
        names.check(name, value)


def half_draft(raw: bytes) -> tuple[PendingRecord, Record]:
    """A half message from the log as a draft that ends can be made of, whichever program wrote it.

    Raises CorruptRecord, and TransactionError when the record is not a prepared one.
    """
    found, record = draft_of(raw)
    if found.kind is not TransactionType.PREPARED:
        raise TransactionError(f"the record at CommitLog offset {record.commitlog_offset} is not a half message")
    if record.version != 1 or record.sys_flag & (BORN_IPV6 | STORE_IPV6):
        reason = "was not written by RocketMQ 3.0–3.1.4 nor by checkback: only its own broker can end it"
        raise TransactionError(f"the half message at CommitLog offset {record.commitlog_offset} {reason}")
    if record_crc_said(record.properties) is None:
        found.raw = _with_texts(record, b"")
    return found, record


def make_end(
    half: PendingRecord, half_offset: int, slot: int, kind: TransactionType, extra: Mapping[str, str]
) -> PendingRecord:
    """The end of a half message, with who decided and why. Raises MessageRejected for any other property."""
    check_extra(extra)
    end = end_draft(half, half_offset, slot, kind)
    texts = "".join([f"{name}\x01{value}\x02" for name, value in extra.items()]).encode()
    end.raw = _with_texts(decode(end.raw, check_crc=False), texts)
    return end


def moved(raw: bytes, why: str, by: str) -> tuple[PendingRecord, PendingRecord]:
    """A half message once more, which will get a slot of its own, and the rollback that settles the one it was.

    For a half whose slot another one owns: nobody can settle it there. Raises as `half_draft`.
    """
    found, record = half_draft(raw)
    again, _ = draft_of(_with_texts(record, f"{MOVED_FROM}\x01{record.commitlog_offset}\x02".encode()))
    decision = {WHY: why, BY: by}
    return again, make_end(found, record.commitlog_offset, record.queue_offset, TransactionType.ROLLBACK, decision)


def _with_texts(record: Record, texts: bytes) -> bytes:
    """The record with more properties, and room for its CRC behind them."""
    properties = record.properties
    if properties and not properties.endswith(b"\x02"):
        properties += b"\x02"
    return encode(replace(record, properties=record_crc_reserve(properties + texts)))
