"""What a person does about transactions in doubt: see what is parked, decide, have them checked again.

    halves = find(store, ["7F00000100002A9F00000000000004D2"])
    resolve(store, halves, TransactionState.COMMITTED, why="paid, see ticket 12", by="ada", ledger=resolver, now_ms=...)

A decision is one compare-and-set like any other: if the producer or check-back was faster, theirs stands. Where a
ledger has the say, it is asked first: what it does not say cannot be committed, and a rollback goes there before it is
put into the store, so that all half messages of one transaction get the same end, and a local transaction that still
runs cannot commit against it. Who decided and why stand in the end record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

from broker.enlisting.ledger_key import LEDGER_KEY
from broker.errors import AlreadyEnded, BrokerError, CorruptStore, TransactionError
from broker.format.java import decode_message_id
from broker.format.properties import decimal
from broker.live import LiveStore
from broker.store.shared.control import Word
from broker.transaction.ends import check_extra
from broker.transaction.events import BY, WHY, TransactionState
from broker.transaction.service import Half
from recovery.checkback.catalog import Catalog
from recovery.checkback.ledgers.routing import Ledgers
from recovery.checkback.protocol import STATES, Outcome

_WORDS = {TransactionState.COMMITTED: "committed", TransactionState.ROLLED_BACK: "rolled back"}
_OUTCOMES = {state: outcome for outcome, state in STATES.items()}
REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Resolution:
    """What became of one decision."""

    commitlog_offset: int
    message_id: str
    topic: str
    producer_group: str
    result: str  # committed, rolled back, unparked, unchanged, refused; of a dry run: what would be tried
    why: str  # when refused or unchanged

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ParkedTransaction:
    """A transaction that waits for a person."""

    commitlog_offset: int
    message_id: str
    unique_key: str | None
    topic: str
    producer_group: str
    keys: list[str]
    age_s: float
    parked_ms: int
    why: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def find(store: LiveStore, ids: Sequence[str]) -> list[Half]:
    """The half messages that are meant: by CommitLog offset, offset message id or unique key.

    Raises TransactionError for an id that names none in doubt; CorruptStore if it may be of one that cannot be read.
    """
    damaged: list[CorruptStore] = []
    places = {one: _offset(one) for one in ids}
    slot_of = store.writer.dispatcher.slot
    in_doubt = {slot_of(slot).commitlog_offset for slot in store.transactions.in_doubt_slots()}
    named_places = {at for at in places.values() if at is not None and at in in_doubt}
    by_place = {half.commitlog_offset: half for half in _at(store, named_places, damaged)}
    by_key: dict[str, list[Half]] = {one: [] for one, at in places.items() if at not in by_place}
    if by_key:  # all are read, and only those that are meant are kept: a million may be in doubt
        for half in store.transactions.in_doubt(damaged=damaged):
            if half.unique_key in by_key:
                by_key[half.unique_key].append(half)
    found: dict[int, Half] = {}
    for one in ids:
        named = by_key[one] if one in by_key else [by_place[at] for at in (places[one],) if at is not None]
        if not named and damaged:
            raise damaged[0]
        if not named:
            raise TransactionError(
                f"{one}: no half message in doubt is named so. See: checkback pending {quote(store.path)}"
            )
        found.update((half.commitlog_offset, half) for half in named)
    return list(found.values())


def _offset(text: str) -> int | None:
    """The CommitLog offset that a number or an offset message id says."""
    if (number := decimal(text, 19)) is not None:
        return number
    try:
        return decode_message_id(text)[1]
    except (BrokerError, ValueError):
        return None


def chosen(
    store: LiveStore,
    *,
    topic: str | None = None,
    producer_group: str | None = None,
    damaged: list[CorruptStore] | None = None,
) -> list[Half]:
    """All that are parked; of one topic and group where they are named.

    `damaged` takes the error of each that may be meant and cannot be read; without it the first is raised.
    """
    unreadable: list[CorruptStore] = []
    found = [
        half
        for half in _at(store, store.transactions.parked(), unreadable)
        if topic in (None, half.topic) and producer_group in (None, half.producer_group)
    ]
    for error in unreadable:
        _collect(error, damaged)
    return found


def _at(store: LiveStore, places: Iterable[int], damaged: list[CorruptStore]) -> Iterator[Half]:
    """The half messages that begin at CommitLog offsets, in log order, flushed as `in_doubt` does; no other is read."""
    store.writer.settle(store.writer.control[Word.TAIL])
    for commitlog_offset in sorted(places):
        try:
            yield store.transactions.half(commitlog_offset)
        except CorruptStore as error:
            damaged.append(error)
        except TransactionError:  # it was ended just now, and its segment is gone
            continue


def _collect(error: CorruptStore, damaged: list[CorruptStore] | None) -> None:
    if damaged is None:
        raise error
    damaged.append(error)


def park_list(store: LiveStore, now_ms: int, *, damaged: list[CorruptStore] | None = None) -> list[ParkedTransaction]:
    """What is parked, since when and why, in log order. `damaged` as of `chosen`."""
    found = []
    for commitlog_offset, note in sorted(store.transactions.parked().items()):
        try:
            half = store.transactions.half(commitlog_offset)
        except CorruptStore as error:
            _collect(error, damaged)
            continue
        found.append(
            ParkedTransaction(
                commitlog_offset=commitlog_offset,
                message_id=half.message_id,
                unique_key=half.unique_key,
                topic=half.topic,
                producer_group=half.producer_group,
                keys=list(half.keys),
                age_s=max(0, now_ms - half.store_timestamp_ms) / 1000,
                parked_ms=note.stored_ms,
                why=note.why,
            )
        )
    return found


def resolve(
    store: LiveStore,
    halves: Sequence[Half],
    state: TransactionState,
    *,
    why: str,
    by: str,
    now_ms: int,
    ledger: Ledgers | None = None,
    without_ledger: bool = False,
    catalog: Catalog | None = None,
    dry_run: bool = False,
) -> list[Resolution]:
    """End transactions as a person decided: `state` is COMMITTED or ROLLED_BACK.

    One whose outcome a ledger holds is refused without that ledger, unless `without_ledger` says that it is gone; then
    nothing protects against a contrary decision on another message of the same transaction. Raises TransactionError
    when nobody says why, MessageRejected for a reason or a name that a record cannot hold.
    """
    if not why.strip():
        raise TransactionError("a decision needs its reason, for those who find it later: --why TEXT")
    check_extra({WHY: why, BY: by})  # a refusal later would come behind the decision of the ledger
    found = []
    for half in halves:
        refusal = "" if without_ledger else _refusal(half, state, by, ledger, dry_run=dry_run)
        if refusal:
            found.append(_resolution(half, REFUSED, refusal))
        elif dry_run:
            found.append(_resolution(half, _WORDS[state], "dry run: nothing was done"))
        else:
            found.append(_end(store, half, state, why, by))
            if catalog is not None and found[-1].result == _WORDS[state]:
                catalog.note_decision(half.commitlog_offset, half.message_id, _WORDS[state], by, why, now_ms)
    return found


def _refusal(half: Half, state: TransactionState, by: str, ledger: Ledgers | None, *, dry_run: bool) -> str:
    """Why the ledger does not let this decision be made; empty when it does."""
    key = half.properties.get(LEDGER_KEY)
    if key is None:
        return ""
    if ledger is None:
        return "its outcome is in a ledger: name that database (--ledger URL), or say --without-ledger if it is gone"
    if state is TransactionState.COMMITTED or dry_run:
        answer = ledger.peek(half)
    else:
        answer = ledger.settle(half, int(state), by)
    if answer.outcome is _OUTCOMES[state] or (
        state is TransactionState.ROLLED_BACK and answer.outcome is Outcome.UNKNOWN
    ):
        return ""  # the ledger says so too, or has no say: it keeps no rows that old
    if answer.outcome is Outcome.UNKNOWN:
        return f"{answer.why}: the local transaction did not commit, or not yet. To announce it still: --without-ledger"
    return answer.why


def _end(store: LiveStore, half: Half, state: TransactionState, why: str, by: str) -> Resolution:
    end = store.transactions.commit if state is TransactionState.COMMITTED else store.transactions.rollback
    try:
        ended = end(half, extra_properties={WHY: why, BY: by})
    except AlreadyEnded as error:
        return _resolution(half, REFUSED, str(error))
    if ended.again:
        return _resolution(half, "unchanged", f"it was {_WORDS[state]} already")
    return _resolution(half, _WORDS[state], "")


def recheck(
    store: LiveStore, halves: Sequence[Half], *, why: str, catalog: Catalog | None = None, dry_run: bool = False
) -> list[Resolution]:
    """Have transactions checked again, from the first check on: parked ones are taken back."""
    if catalog is not None and not dry_run:  # first: one that is taken back with its old count is parked again at once
        catalog.remember((), [half.commitlog_offset for half in halves])
    found, parked = [], store.transactions.parked()
    done = "dry run: nothing was done" if dry_run else ""
    for half in halves:
        is_taken_back = half.commitlog_offset in parked and (dry_run or store.transactions.unpark(half, why))
        result = ("unparked", done) if is_taken_back else ("unchanged", "it was not parked")
        found.append(_resolution(half, *result))
    return found


def _resolution(half: Half, result: str, why: str) -> Resolution:
    return Resolution(half.commitlog_offset, half.message_id, half.topic, half.producer_group, result, why)
