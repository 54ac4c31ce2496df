"""What people look at: how the transactions of a store stand, which are in doubt or parked, the story of one.

Used by the page in Airflow and by `checkback up`. Everything is read, nothing is opened for writing; a store with a
state table is answered from the table, so that looking at it every few seconds costs nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import broker
from broker.format import properties as names
from broker.format.statetable import Slot
from broker.format.sysflag import TransactionType
from broker.store.disk.paths import Paths
from broker.transaction.events import BY, WHY, EventKind, Generation, kind_of, target_topic
from broker.transaction.parking import GIVEN_UP, ParkTopic
from broker.transaction.service import ParkNote
from recovery.humanize import count
from recovery.scan.ends import ends_of
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import UnitFile
from recovery.transactions.in_doubt import Pending
from recovery.views.history_half_op import delivered, half_op_story, parkings, prepared, when

_SLOT = np.dtype(Slot.DTYPE)
_AT_ONCE = 1 << 16
_STATE_NAMES = {
    TransactionType.PREPARED: "in_doubt",
    TransactionType.COMMIT: "committed",
    TransactionType.ROLLBACK: "rolled_back",
}


@dataclass(frozen=True, slots=True)
class WaitingTransaction:
    """One transaction that waits: for an answer, or, parked, for a person."""

    commitlog_offset: int
    slot: int | None
    producer_group: str
    topic: str
    keys: list[str]
    age_s: float
    checks: int
    why: str | None = None  # it was parked; None while it is not

    last: str = ""  # what the last one who was asked said, or why nobody could be asked
    outcome: str = ""  # of that: unknown, running, down, refused; empty before the first time

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Overview:
    """A store at one moment."""

    counts: dict[str, int]
    in_doubt: list[WaitingTransaction]
    parked: list[WaitingTransaction]
    omitted: int = 0  # in doubt and not listed
    unreadable: int = 0  # of those that would be listed: their half messages are damaged

    @property
    def oldest_s(self) -> float:
        """How long the transaction that waits longest for an answer has been in doubt; 0 without one."""
        return max((one.age_s for one in self.in_doubt), default=0.0)

    def as_json(self) -> dict[str, Any]:
        lists = {"in_doubt": [one.as_json() for one in self.in_doubt], "parked": [one.as_json() for one in self.parked]}
        left_out = {"omitted": self.omitted, "unreadable": self.unreadable}
        return {"counts": self.counts, "oldest_s": self.oldest_s, **lists, **left_out}


def overview(path: str, now_ms: int, limit: int = 100, parked_limit: int | None = None) -> Overview:
    """How the transactions of a store stand; `limit` of those in doubt are listed, `parked_limit` parked ones (None:
    all). Raises StoreError when there is none at `path`.
    """
    files = StoreFiles.open(path)
    table = UnitFile(files.state_table, _SLOT)
    if not table:
        return _from_log(path, now_ms, limit, parked_limit)
    states, waiting = _look_at_table(table)
    with broker.open(path, read_only=True) as store:
        parked_notes = _park_notes_of(store, waiting, files.table_generation)
        asked = [(slot, at) for slot, at in waiting if at not in parked_notes]
        parked_places = [(slot, at) for slot, at in waiting if at in parked_notes]
        wanted = [*parked_places[:parked_limit], *asked[:limit]]
        attempts = attempts_at(path, [at for _, at in wanted])
        read, unreadable = list[WaitingTransaction](), 0
        for slot, at in wanted:
            try:
                half = _read(store, slot, at, now_ms, parked_notes.get(at), attempts.get(at))
            except broker.CorruptStore:
                unreadable += 1
                continue
            read += [] if half is None else [half]
    counts = {name: states[number] for number, name in _STATE_NAMES.items()}
    counts = {**counts, "in_doubt": len(asked), "parked": len(waiting) - len(asked)}
    listed, parked = [one for one in read if one.why is None], [one for one in read if one.why is not None]
    return Overview(counts, listed, parked, max(0, len(asked) - limit), unreadable)


def _park_notes_of(store: broker.Store, waiting: list[tuple[int, int]], generation: Generation) -> dict[int, ParkNote]:
    """The note that parks it of each half message that waits and is parked, by CommitLog offset."""
    park_topic = ParkTopic(store)
    notes = park_topic.notes()
    if generation is Generation.HALF_OP and park_topic.has_copies:
        for _, commitlog_offset in waiting:
            with contextlib.suppress(broker.CorruptStore):
                half = store.record(commitlog_offset)
                properties = half.property_map if half is not None else {}
                keys = properties.get(names.UNIQ_KEY, ""), properties.get(names.PGROUP, "")
                note = park_topic.copy_of(commitlog_offset, *keys)
                if note is not None:
                    notes.setdefault(commitlog_offset, note)
    return notes


def attempts_at(path: str, offsets: Collection[int]) -> dict[int, Any]:
    """What the catalog in the store remembers of these halves, by CommitLog offset; empty without one."""
    if not offsets or not os.path.exists(Paths(path).catalog):
        return {}
    from recovery.checkback.catalog import attempts_of

    try:
        return dict(attempts_of(path, offsets))
    except broker.BrokerError:  # it is a cache: without it nothing is wrong
        return {}


def story(path: str, commitlog_offset: int) -> list[dict[str, Any]]:
    """What is known of one transaction, in order: prepared, checked, parked and taken back, decided, delivered.

    Empty when no half message begins there. What 3.1.5 to 4.2 wrote has no slots: there it is the half message alone.
    Raises CorruptStore where damage may hide a part of it.
    """
    with broker.open(path, read_only=True) as store:
        half = None
        with contextlib.suppress(broker.CorruptRecord):
            half = store.record(commitlog_offset)
        kind = half and kind_of(half.topic, half.transaction_type)
        if half is not None and kind is EventKind.HALF:
            return half_op_story(store, half)
        if half is not None and kind is EventKind.PREPARED:
            steps = [prepared(half), *parkings(store, {commitlog_offset}), *_ends(path, store, commitlog_offset)]
            return sorted(steps, key=lambda step: int(step["commitlog_offset"])) + _asked(path, commitlog_offset)
    return []


def _look_at_table(table: UnitFile) -> tuple[Counter[int], list[tuple[int, int]]]:
    """How many slots are in each state; (slot, CommitLog offset of the half) of each in doubt."""
    states: Counter[int] = Counter()
    waiting: list[tuple[int, int]] = []
    for first in range(table.begin, table.end, _AT_ONCE):
        rows = table.read(first, min(_AT_ONCE, table.end - first))
        rows_used = rows["size"] > 0
        if not rows_used.any():
            break
        numbers, counts = np.unique(rows["state"][rows_used], return_counts=True)
        states.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        which = np.flatnonzero(rows_used & (rows["state"] == TransactionType.PREPARED))
        waiting += zip((which + first).tolist(), rows["commitlog_offset"][which].tolist(), strict=True)
    return states, waiting


def _read(
    store: broker.Store, slot: int, commitlog_offset: int, now_ms: int, note: ParkNote | None, attempt: Any
) -> WaitingTransaction | None:
    """One that waits, from its half; None when its segment expired, or when a live broker is not so far yet.

    Raises CorruptStore for one that is damaged.
    """
    half = store.record(commitlog_offset)
    if half is None:
        return None
    properties = half.property_map
    age_s = max(0, now_ms - half.store_timestamp_ms) / 1000
    keys = names.keys(properties)
    why = None if note is None else note.why
    checks, last, outcome = (attempt.checks, attempt.why, attempt.outcome) if attempt else (0, "", "")
    group = properties.get(names.PGROUP, "")
    topic = target_topic(half.topic, properties)
    return WaitingTransaction(commitlog_offset, slot, group, topic, keys, age_s, checks, why, last, outcome)


def _from_log(path: str, now_ms: int, limit: int, parked_limit: int | None) -> Overview:
    """The other generations have no table: the log is read."""
    found: dict[str, list[WaitingTransaction]] = {"in_doubt": [], "parked": []}
    for half in Pending(path, now_ms, parked=True):
        why = GIVEN_UP if half.state == "parked" else None
        one = WaitingTransaction(
            half.commitlog_offset, half.slot, half.producer_group, half.topic, half.keys, half.age_s, half.checks, why
        )
        found[half.state].append(one)
    counts = {state: len(halves) for state, halves in found.items()}
    omitted = max(0, len(found["in_doubt"]) - limit)
    return Overview(counts, found["in_doubt"][:limit], found["parked"][:parked_limit], omitted)


def _asked(path: str, commitlog_offset: int) -> list[dict[str, Any]]:
    """The checks, as far as the catalog in the store remembers them: of what is still in doubt."""
    attempt = attempts_at(path, [commitlog_offset]).get(commitlog_offset)
    if attempt is None:
        return []
    facts = {"last_answer": attempt.why, "outcome": attempt.outcome, "next_ms": attempt.next_ms}
    return [{"what": f"asked {count(attempt.checks, 'time')}", "stored_ms": attempt.looked_ms, **facts}]


def _ends(path: str, store: broker.Store, commitlog_offset: int) -> Iterator[dict[str, Any]]:
    """The records that end it, as steps."""
    for end in ends_of(path, store, commitlog_offset):
        properties = end.property_map
        is_commit = end.transaction_type is TransactionType.COMMIT
        yield {
            "what": "committed" if is_commit else "rolled back",
            **when(end),
            "why": properties.get(WHY, ""),
            "by": properties.get(BY, ""),
            "delivered": delivered(end) if is_commit else "",
        }
