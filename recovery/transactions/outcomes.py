"""Rows of events in, one outcome for each transaction out, and a finding for whatever contradicts it.

Three joins, each a partition at a time. Ends meet the half whose CommitLog offset they name. Op messages meet the half
whose queue offset they name. What is left of the half-op generation meets by unique key, since a renewed half is the
same transaction. Which end counts is said in `broker.transaction.events`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.transaction.events import (
    HALF_OP_STATES,
    STATE_OF_END,
    EventKind,
    Generation,
    TransactionState,
    names_half,
)
from recovery.findings import Finding, Findings
from recovery.scan.spill import PARTITION_BYTES, Spill, pick
from recovery.transactions.digest import ENTRY
from recovery.transactions.events import EVENT, OP, Rows, identity, named_numbers
from recovery.transactions.half_copies import half_copies, ops_of_halves

Ints = npt.NDArray[np.int64]

OUTCOME = np.dtype(
    [
        ("generation", "u1"),
        ("state", "u1"),
        ("key_hi", "u8"),
        ("key_lo", "u8"),
        ("lowest", "i8"),  # CommitLog offset of the first half
        ("half", "i8"),  # of the last half: the one that counts
        ("queue_id", "i4"),
        ("queue_offset", "i8"),  # its slot, or its place in the half queue
        ("size", "i4"),
        ("store_ms", "i8"),
        ("born_ms", "i8"),
        ("group", "i4"),
        ("topic", "i4"),
        ("checks", "i4"),
    ]
)

_NAMED = np.dtype([*OP.descr, ("key_hi", "u8"), ("key_lo", "u8"), ("is_half", "u1")])

_RANGE_BYTES = PARTITION_BYTES  # halves of one range have neighbouring slots, which are then read at once

_END_STATES = np.zeros(len(EventKind), np.uint8)
for _kind, _state in STATE_OF_END.items():
    _END_STATES[_kind] = _state
_HALF_OP = np.array(HALF_OP_STATES, np.uint8)

# The states as reports, manifests and rows call them.
STATE_NAMES = {
    TransactionState.COMMITTED: "committed",
    TransactionState.ROLLED_BACK: "rolled_back",
    TransactionState.PREPARED: "in_doubt",
    TransactionState.PARKED: "parked",
}


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Some transactions: transaction i delivered the sorted CommitLog offsets delivered[starts[i] : starts[i + 1]]."""

    rows: Rows
    starts: Ints
    delivered: Ints
    # Half-op only: half messages whose slot does not have their transaction's state.
    copies: Rows = field(default_factory=lambda: np.zeros(0, OUTCOME))

    def slots(self, generation: Generation) -> Rows:
        """What a table of slots of this generation holds of them; every half message has a slot."""
        found = pick(self.rows, self.rows["generation"] == generation)
        if generation is not Generation.HALF_OP or not len(self.copies):
            return found
        return np.concatenate((pick(found, ~np.isin(found["half"], self.copies["half"])), self.copies))

    def entries(self) -> Rows:
        """The fixed part of what the digest hashes."""
        entries = np.zeros(len(self.rows), ENTRY)
        for name in ENTRY.names or ():
            entries[name] = self.rows[name]
        return entries


Place = Callable[[int], str]  # the file that holds a CommitLog offset


class Joins:
    """The three joins, each over one partition. What a join passes on to another goes to `on_named` and `on_keyed`.

    `differ` says what a half and its end, by their offsets, do not have in common though one is a copy of the other;
    `least_half` is the least queue offset of a half, by queue, as far as it is known.
    """

    def __init__(
        self,
        begin_offset: int,
        findings: Findings,
        place: Place,
        *,
        on_named: Callable[[Rows], None],
        on_keyed: Callable[[Rows], None],
        differ: Callable[[int, int], str],
        least_half: dict[int, int] | None = None,
    ) -> None:
        self._begin, self._findings, self._place = begin_offset, findings, place
        self._on_named, self._on_keyed, self._differ = on_named, on_keyed, differ
        self._least_half_queue_offset = dict(least_half or {})

    # Ends and the halves they name

    def join_ends(self, rows: Rows, prepared: Generation) -> Iterator[Outcomes]:
        """Each end meets the half that it names. `prepared` is the generation of the store's prepared records."""
        kinds = rows["kind"]
        halves = pick(rows, (kinds == EventKind.PREPARED) | (kinds == EventKind.HALF))
        ends = pick(rows, (kinds == EventKind.COMMITTED) | (kinds == EventKind.ROLLED_BACK))
        parks = pick(rows, kinds == EventKind.PARKED)
        which = self._match(halves, ends)
        self._report_loose(pick(ends, which < 0))
        ends, which = pick(ends, which >= 0), which[which >= 0]
        self._report_differences(pick(halves, which), ends)
        keyed = halves["kind"] == EventKind.HALF
        self._pass_on(pick(halves, keyed), pick(ends, keyed[which]), pick(halves, which[keyed[which]]), parks)
        renumber = np.cumsum(~keyed) - 1
        direct = ~keyed[which]
        yield from self._first_end_decides(
            pick(halves, ~keyed), pick(ends, direct), renumber[which[direct]], parks, prepared
        )

    def _match(self, halves: Rows, ends: Rows) -> Ints:
        """For each end the index of the half that it ends; -1 for none."""
        if not len(halves) or not len(ends):
            return np.full(len(ends), -1, np.int64)
        which = np.searchsorted(halves["offset"], ends["half"])
        which = np.minimum(which, len(halves) - 1)
        named = pick(halves, which)
        rolls_back = ends["kind"] == EventKind.ROLLED_BACK
        fits = (named["offset"] == ends["half"]) & (ends["offset"] > ends["half"])
        fits &= names_half(identity(named), identity(ends), rolls_back=rolls_back)
        fits &= ~(rolls_back & (named["kind"] == EventKind.HALF))
        return np.where(fits, which, -1)

    def _report_differences(self, halves: Rows, ends: Rows) -> None:
        slots = (ends["kind"] == EventKind.ROLLED_BACK) & (halves["queue_offset"] != ends["queue_offset"])
        for number in np.flatnonzero((halves["copy"] != ends["copy"]) | slots):
            half, end = int(halves["offset"][number]), int(ends["offset"][number])
            fields = "queue_offset" if slots[number] else self._differ(half, end)
            if fields:
                text = f"ends the half message at {half}, but is not its copy: they differ in {fields}"
                self._report("end-differs", end, text, half_offset=half)

    def _report_loose(self, ends: Rows) -> None:
        for end in ends[ends["half"] >= self._begin]:
            verb = "committed" if end["kind"] == EventKind.COMMITTED else "rolled back"
            text = f"says that the half message at {end['half']} is {verb}; no such half message of its group is there"
            self._report("end-without-half", end["offset"], text, half_offset=int(end["half"]))

    def _first_end_decides(
        self, halves: Rows, ends: Rows, which: Ints, parks: Rows, generation: Generation
    ) -> Iterator[Outcomes]:
        """State table and gap: the first end in log order decides."""
        if not len(halves):
            return
        outcomes = _outcomes(halves, generation)
        outcomes["lowest"] = halves["offset"]
        outcomes["key_hi"], outcomes["key_lo"] = 0, halves["offset"].astype(np.uint64)
        outcomes["state"] = TransactionState.PREPARED
        for park in parks[np.argsort(parks["offset"], kind="stable")]:
            at = np.searchsorted(halves["offset"], park["half"])
            if at < len(halves) and halves["offset"][at] == park["half"]:
                outcomes["state"][at] = TransactionState.PARKED if park["checks"] else TransactionState.PREPARED
        order = np.argsort(which, kind="stable")
        if (np.diff(order) != 1).any():
            ends, which = pick(ends, order), which[order]
        decided, first = np.unique(which, return_index=True)
        outcomes["state"][decided] = _END_STATES[ends["kind"][first]]
        again = np.ones(len(ends), np.bool_)
        again[first] = False
        for number in np.flatnonzero(again):
            self._report_again(ends[number], outcomes[which[number]])
        commits = ends["kind"] == EventKind.COMMITTED
        counts = np.bincount(which[commits], minlength=len(halves))
        starts = np.concatenate(([0], np.cumsum(counts)))
        delivered = ends["offset"][commits]
        self._report_twice(outcomes, starts, delivered)
        yield Outcomes(outcomes, starts, delivered)

    def _report_again(self, end: Any, outcome: Any) -> None:
        same = _END_STATES[end["kind"]] == outcome["state"]
        was = TransactionState(int(outcome["state"])).name.lower().replace("_", " ")
        text = f"ends the transaction of the half message at {end['half']} again; it was {was} already"
        self._report("double-end" if same else "decision-conflict", end["offset"], text, half_offset=int(end["half"]))

    # Half-op: ops by queue offset, then everything by unique key

    def _pass_on(self, halves: Rows, ends: Rows, named: Rows, parks: Rows) -> None:
        """Deal what the half-op generation says to the two joins that come; ends and parks take their half's key.

        The rows are this call's own.
        """
        named_rows = np.zeros(len(halves), _NAMED)
        for column in ("queue_id", "offset", "key_hi", "key_lo"):
            named_rows[column] = halves[column]
        named_rows["queue_offset"], named_rows["is_half"] = named_numbers(halves), 1
        self._on_named(named_rows)
        for queue_id in np.unique(halves["queue_id"]).tolist():
            least = int(named_rows["queue_offset"][halves["queue_id"] == queue_id].min())
            self._least_half_queue_offset[queue_id] = min(self._least_half_queue_offset.get(queue_id, least), least)
        ends["key_hi"], ends["key_lo"] = named["key_hi"], named["key_lo"]
        self._on_keyed(halves)
        self._on_keyed(ends)
        if len(halves) and len(parks):
            at = np.minimum(np.searchsorted(halves["offset"], parks["half"]), len(halves) - 1)
            parks, at = (pick(rows, halves["offset"][at] == parks["half"]) for rows in (parks, at))
            parks = parks.copy()
            parks["key_hi"], parks["key_lo"] = halves["key_hi"][at], halves["key_lo"][at]
            self._on_keyed(parks)

    def join_ops(self, rows: Rows) -> None:
        """Tell each half how many op messages name it (a row of kind OP with its key)."""
        order = np.lexsort((rows["offset"], ~rows["is_half"].astype(np.bool_), rows["queue_offset"], rows["queue_id"]))
        rows = pick(rows, order)
        half_index = np.maximum.accumulate(np.where(rows["is_half"] == 1, np.arange(len(rows)), -1))
        ops = np.flatnonzero(rows["is_half"] == 0)
        at = half_index[ops]
        fits = at >= 0
        for column in ("queue_id", "queue_offset"):
            fits &= rows[column][np.maximum(at, 0)] == rows[column][ops]
        self.report_loose_ops(rows[ops[~fits]])
        ops, at = ops[fits], at[fits]
        halves, counts = np.unique(at, return_counts=True)
        keyed = np.zeros(len(halves), EVENT)
        keyed["kind"] = EventKind.OP
        keyed["half"], keyed["offset"] = rows["offset"][halves], rows["offset"][halves]
        keyed["key_hi"], keyed["key_lo"] = rows["key_hi"][halves], rows["key_lo"][halves]
        keyed["checks"] = counts
        self._on_keyed(keyed)

    def report_loose_ops(self, ops: Rows) -> None:
        for op in ops:
            if op["queue_offset"] >= self._least_half_queue_offset.get(int(op["queue_id"]), 1 << 62):
                text = f"the op message names the half message {op['queue_offset']} of its queue, which is not there"
                self._report("end-without-half", op["offset"], text, queue_offset=int(op["queue_offset"]))

    def join_keys(self, rows: Rows) -> Iterator[Outcomes]:
        """Half-op: everything with one unique key is one transaction."""
        rows = pick(rows, np.lexsort((rows["kind"], rows["offset"], rows["key_lo"], rows["key_hi"])))
        kinds = rows["kind"]
        change = (rows["key_hi"][1:] != rows["key_hi"][:-1]) | (rows["key_lo"][1:] != rows["key_lo"][:-1])
        group = np.concatenate(([0], np.cumsum(change)))
        count = int(group[-1]) + 1
        is_half = kinds == EventKind.HALF
        ops = ops_of_halves(rows, is_half)
        copies = half_copies(rows, group, count, ops)
        indices = np.arange(len(rows))
        last, first = np.full(count, -1, np.int64), np.full(count, len(rows), np.int64)
        np.maximum.at(last, group[is_half], indices[is_half])
        np.minimum.at(first, group[is_half], indices[is_half])
        delivered = kinds == EventKind.COMMITTED
        counts = np.bincount(group[delivered], minlength=count)
        parked, by_broker = _parked(rows, group, count)
        there = last >= 0  # a park record whose halves were deleted with their segments has none
        outcomes = _outcomes(pick(rows, last[there]), Generation.HALF_OP)
        outcomes["lowest"] = rows["offset"][first[there]]
        named = (ops[last] > 0)[there]
        outcomes["state"] = _HALF_OP[(counts > 0)[there].astype(int), parked[there].astype(int), named.astype(int)]
        starts = np.concatenate(([0], np.cumsum(counts[there])))
        deliveries = rows["offset"][delivered]
        self._report_half_op(outcomes, by_broker[there], rows, ops)
        has_op = np.bincount(group[ops > 0], minlength=count)[there] > 0
        self._report_unsaid(outcomes, starts, deliveries, has_op | by_broker[there])
        self._report_twice(outcomes, starts, deliveries)
        apart = is_half & (copies.is_shared[group] | (indices != last[group]))
        slots = _outcomes(pick(rows, apart), Generation.HALF_OP)
        slots["state"], slots["lowest"] = copies.states[apart], slots["half"]
        yield Outcomes(outcomes, starts, deliveries, slots)

    def _report_unsaid(self, outcomes: Rows, starts: Ints, delivered: Ints, ended: npt.NDArray[np.bool_]) -> None:
        """Delivered transactions of which no op message names any half, and which the broker has not given up."""
        for number in np.flatnonzero((np.diff(starts) > 0) & ~ended):
            first = int(delivered[starts[number]])
            text = f"delivered at {first}, but no op message says so: RocketMQ will check it again"
            self._report("committed-without-op", outcomes["half"][number], text, delivered_offset=first)

    def _report_half_op(self, outcomes: Rows, parked: npt.NDArray[np.bool_], rows: Rows, ops: Ints) -> None:
        """`ops`: how many op messages name each row, where that is a half message."""
        for number in np.flatnonzero(ops > 1):
            count, half = int(ops[number]), rows["offset"][number]
            self._report("double-end", half, f"{count} op messages end the half message", ends=count)
        for number in np.flatnonzero(parked & (outcomes["state"] == TransactionState.COMMITTED)):
            text = "RocketMQ gave it up (it is in TRANS_CHECK_MAX_TIME_TOPIC), and it was delivered as well"
            self._report("decision-conflict", outcomes["half"][number], text)

    def _report_twice(self, outcomes: Rows, starts: Ints, delivered: Ints) -> None:
        for number in np.flatnonzero(np.diff(starts) > 1):
            offsets = delivered[starts[number] : starts[number + 1]].tolist()
            text = f"delivered {len(offsets)} times, at {', '.join(map(str, offsets))}"
            self._report("delivered-twice", outcomes["half"][number], text, delivered_offsets=offsets)

    def _report(self, kind: str, commitlog_offset: Any, text: str, **facts: Any) -> None:
        place = int(commitlog_offset)
        self._findings.add(Finding(kind, place, text, self._place(place), facts))


class Transactions:
    """Collects events during a scan, dealt to partitions on disk, and joins them after it: the local engine."""

    def __init__(
        self,
        partitions: int,
        begin_offset: int,
        findings: Findings,
        place: Place,
        differ: Callable[[int, int], str] = lambda _half, _end: "",
    ) -> None:
        self._count = partitions
        self._events = Spill(EVENT, partitions)
        self._named = Spill(_NAMED, partitions)
        self._keyed = Spill(EVENT, partitions)
        self._joins = Joins(
            begin_offset, findings, place, on_named=self._add_named, on_keyed=self._add_keyed, differ=differ
        )

    def add(self, rows: Rows, ops: Rows) -> None:
        """Take the events of a batch; batches come in log order, and so rows stay in it."""
        parked_by_key = (rows["kind"] == EventKind.PARKED) & (rows["half"] < 0)
        if parked_by_key.any():
            self._add_keyed(pick(rows, parked_by_key))
            rows = pick(rows, ~parked_by_key)
        self._events.add(rows, _half(rows) % self._count)
        named = np.zeros(len(ops), _NAMED)
        for column in OP.names or ():
            named[column] = ops[column]
        self._add_named(named)

    def _add_named(self, rows: Rows) -> None:
        self._named.add(rows, _place_in_queue(rows) % self._count)

    def _add_keyed(self, rows: Rows) -> None:
        self._keyed.add(rows, _unique_key(rows) % self._count)

    def outcomes(self, prepared: Generation) -> Iterator[Outcomes]:
        """Every transaction once. `prepared` is the generation that the store's prepared records belong to."""
        for rows in self._events.parts(_half):
            yield from self._joins.join_ends(rows, prepared)
        for rows in self._named.parts(_place_in_queue):
            self._joins.join_ops(rows)
        for rows in self._keyed.parts(_unique_key):
            yield from self._joins.join_keys(rows)
        self.close()

    def close(self) -> None:
        """Remove temporary files."""
        for spill in (self._events, self._named, self._keyed):
            spill.close()


# What the three joins deal their rows by. Ranges, not single values: neighbours stay together.


def _half(rows: Rows) -> Ints:
    return np.asarray(np.maximum(rows["half"], 0) // _RANGE_BYTES)


def _place_in_queue(rows: Rows) -> Ints:
    return np.asarray(np.maximum(rows["queue_offset"], 0) >> 12)


def _unique_key(rows: Rows) -> Ints:
    return np.asarray((rows["key_lo"] >> np.uint64(1)).astype(np.int64))


def _parked(rows: Rows, group: Ints, count: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which groups of rows are parked, by their last park record, and which by RocketMQ's, which names no half."""
    which = np.flatnonzero(rows["kind"] == EventKind.PARKED)
    if not len(which):
        return np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    last = np.full(count, -1, np.int64)
    np.maximum.at(last, group[which], which)
    parked = np.asarray((last >= 0) & ((rows["checks"][last] != 0) | (rows["half"][last] < 0)))
    return parked, np.asarray(parked & (rows["half"][last] < 0))


def _outcomes(halves: Rows, generation: Generation) -> Rows:
    outcomes = np.zeros(len(halves), OUTCOME)
    for name in set(OUTCOME.names or ()) & set(EVENT.names or ()) - {"half"}:
        outcomes[name] = halves[name]
    outcomes["generation"], outcomes["half"] = generation, halves["offset"]
    return outcomes
