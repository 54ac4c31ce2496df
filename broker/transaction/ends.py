"""What the caller of a commit or rollback gets, and end records.

A commit repeats its half message, a rollback leaves the body out, both may say who decided and why.

RocketMQ: EndTransactionProcessor.endMessageTransaction (3.1.4).
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import lru_cache
from shlex import quote
from typing import SupportsIndex, cast

from broker.errors import AlreadyEnded, MessageRejected, TransactionError, shown
from broker.format import properties as names
from broker.format.commitlog import decode
from broker.format.record.recordcrc import record_crc_reserve
from broker.format.sysflag import TransactionType
from broker.store.engines.state_table import STATE_TABLE
from broker.store.write.pending_record import PendingRecord, draft_of, with_texts
from broker.transaction.events import BY, MOVED_FROM, WHY, TransactionState
from broker.transaction.service import Ended, Half, HalfReference, Reference

STATES = {kind: TransactionState(int(kind)) for kind in (TransactionType.COMMIT, TransactionType.ROLLBACK)}
_NUMBERS = 1 << 63  # a record has 64 bits for each
EXTRA = frozenset((WHY, BY, names.TRANSACTION_CHECK_TIMES))


def check_extra(extra: Mapping[str, str]) -> None:
    """Raises MessageRejected for a property that an end may not have: it is a copy of its half but for these."""
    if not isinstance(extra, Mapping):
        raise MessageRejected(f"extra_properties is a dict of text to text, not {shown(extra)}")
    for name, value in extra.items():
        if name not in EXTRA:
            raise MessageRejected(f"an end may say {', '.join(sorted(EXTRA))}, and nothing else of its own: {name!r}")
        names.check(name, value)


def add_extra(end: PendingRecord, extra: Mapping[str, str], room: int = names.SIZE_MAX) -> None:
    """Let an end say who decided and why, as far as there is room for it: no decision fails because of its reason.

    `room`: how many bytes the end may grow by. Raises MessageRejected for any other property.
    """
    check_extra(extra)
    record, texts = decode(end.raw, check_crc=False), b""
    room = min(room, names.SIZE_MAX - len(record_crc_reserve(record.properties)))
    for name, value in extra.items():
        item = f"{name}\x01{value}\x02".encode()
        if len(texts) + len(item) <= room:
            texts += item
    end.raw = with_texts(record, texts)


def moved(raw: bytes, why: str, by: str) -> tuple[PendingRecord, PendingRecord]:
    """A half message once more, which will get a slot of its own, and the rollback that settles the one it was.

    For a half whose slot another one owns: nobody can settle it there. Raises as `TransactionEngine.read_half`.
    """
    found, record = STATE_TABLE.read_half(raw)
    again, _ = draft_of(with_texts(record, f"{MOVED_FROM}\x01{record.commitlog_offset}\x02".encode()))
    rollback = TransactionType.ROLLBACK
    (end,) = STATE_TABLE.ends(found, record.commitlog_offset, record.queue_offset, rollback, 0)
    add_extra(end, {WHY: why, BY: by})
    return again, end


def new_ended(kind: TransactionType, commitlog_offset: int, queue_offset: int | None) -> Ended:
    """What the caller of a commit or rollback gets; `queue_offset` is None for a message that is not yet delivered."""
    ended = object.__new__(Ended)  # as Ended(...) does, in a third of the time
    ended.__dict__.update(state=STATES[kind], commitlog_offset=commitlog_offset, queue_offset=queue_offset, again=False)
    return ended


def ended_before(half: Reference, kind: TransactionType, held: TransactionState) -> Ended:
    """What the caller gets for a half message whose end is written. Raises AlreadyEnded when it is the other one."""
    if held == int(kind):
        return Ended(held, None, None, again=True)
    done = "committed" if held is TransactionState.COMMITTED else "rolled back"
    wanted = "rolled back" if kind is TransactionType.ROLLBACK else "committed"
    text = f"the transaction at CommitLog offset {half.commitlog_offset} was already {done}; it cannot be {wanted}"
    raise AlreadyEnded(f"{text}: the first decision stands", message_id=id_of(half), state=int(held))


def held_state(half: Reference, state: int, path: str) -> TransactionState:
    """What a slot's number means. Raises TransactionError for one that no broker writes."""
    try:
        return TransactionState(state)
    except ValueError:
        text = f"slot {half.slot} of {path}, which is of the half message at CommitLog offset {half.commitlog_offset}"
        text = f"{text}, holds the state {state}: it is damaged. Run: checkback rebuild {quote(path)}"
        raise TransactionError(text, message_id=id_of(half)) from None


def id_of(half: Reference) -> str | None:
    """The message id of a half message, if its reference knows it."""
    return half.message_id if isinstance(half, Half) else None


def wrong_half(half: Reference, reason: str) -> TransactionError:
    """The error for a reference to a half message at whose place another one is."""
    text = f"the half message at CommitLog offset {half.commitlog_offset} is another one: {reason}"
    return TransactionError(text, message_id=id_of(half))


def check_reference(half: object) -> None:
    """Raises TransactionError for what names no half message: the result of a send, a message, an offset."""
    if isinstance(half, Half):
        return
    if not isinstance(half, HalfReference):
        raise TransactionError(f"a transaction is named by the Half that prepare() returned, not by {shown(half)}")
    offset, slot, group = half
    if not (_is_number(offset) and _is_number(slot) and _is_text(group)):
        text = "a HalfReference has a CommitLog offset, a slot and the name of a producer group"
        raise TransactionError(f"{text}: {half!r:.200} is none")


def check_bounds(after_slot: object, limit: object) -> None:
    """Raises TransactionError for what does not say which of the half messages in doubt are asked for."""
    if not _is_number(after_slot):
        raise TransactionError(f"after_slot is a slot, or -1 for all, not {shown(after_slot)}")
    if limit is not None and not (_is_number(limit) and cast(int, limit) >= 0):
        raise TransactionError(f"limit is a whole number from 0 on, or None for all, not {shown(limit)}")


def _is_number(value: object) -> bool:
    """Whether it is a whole number that a record can hold, of NumPy, too."""
    try:
        return -_NUMBERS <= operator.index(cast(SupportsIndex, value)) < _NUMBERS
    except TypeError:  # of anything else: text, a float, an array
        return False


def _is_text(value: object) -> bool:
    """Whether it is text that UTF-8 can write."""
    return isinstance(value, str) and (value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value))


@lru_cache(maxsize=4096)
def group_item(group: str) -> bytes:
    """How a record says its producer group."""
    return f"{names.PGROUP}\x01{group}\x02".encode()
