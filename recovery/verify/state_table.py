"""The state table against the outcomes: each prepared record in its own slot, in its state.

A slot is compared where it should be; what is not there is looked for by CommitLog offset in what the table holds
besides, since a table that RocketMQ 3.x rebuilt has its settled slots left out and all others moved.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from broker.format.java import string_hash
from broker.transaction.events import TransactionState
from recovery.findings import Finding, Findings
from recovery.scan.spill import PARTITION_BYTES, Spill, pick
from recovery.scan.units import Interval, IntervalSet, Ints, Rows, UnitFile
from recovery.transactions.events import Names
from recovery.transactions.outcomes import OUTCOME
from recovery.verify.comparison import FinishContext
from recovery.verify.later_ends import SETTLED, is_settled_by

_PREPARED = int(TransactionState.PREPARED)
_SETTLED = (int(TransactionState.COMMITTED), int(TransactionState.ROLLED_BACK))
_FIELDS = ("size", "store_time_s", "group_hash")


class TableClaims(NamedTuple):
    """What a comparison of some transactions leaves: their slots, and the outcomes whose slot holds something else."""

    claimed: list[Interval]
    elsewhere: Rows  # shape (n,), dtype OUTCOME; groups and topics as numbers of `names`
    held_back: Rows  # shape (n,), dtype SETTLED: slots that an end behind the watermark may have settled
    names: list[bytes]


class StateTableComparison:
    """Takes the outcomes of prepared records and says what the table holds instead.

    `claimed` are the slots that other comparisons of this table claimed already. With `is_written` ends may come after
    the outcomes: a slot that is settled where its outcome says prepared is held back, and compared with the later ends
    by `finish`.
    """

    def __init__(
        self,
        units: UnitFile,
        names: Names,
        partitions: int,
        findings: Findings,
        claimed: Iterable[Interval] = (),
        *,
        is_written: bool = False,
    ) -> None:
        self._units, self._names, self._findings, self._count = units, names, findings, partitions
        self._is_written = is_written
        self._held_back = [np.zeros(0, SETTLED)]
        self._claimed = IntervalSet(claimed)
        self._elsewhere = Spill(OUTCOME, partitions)  # outcomes whose slot holds something else
        self._unclaimed = Spill([*units.dtype.descr, ("slot", "i8")], partitions)
        self._hashes: dict[int, int] = {}

    def add(self, outcomes: Rows) -> None:
        """Compare the slots of some outcomes."""
        if not len(outcomes):
            return
        slots = self._units.take(outcomes["queue_offset"])
        in_place = (slots["commitlog_offset"] == outcomes["half"]) & (slots["size"] > 0)
        if not in_place.all():
            rest = pick(outcomes, ~in_place)
            self.add_elsewhere(rest)
            outcomes, slots = pick(outcomes, in_place), pick(slots, in_place)
        self._claimed.add(outcomes["queue_offset"])
        self._compare(outcomes, slots, outcomes["queue_offset"])

    def claims(self, names: list[bytes]) -> TableClaims:
        """What is left of a comparison with one partition; `names` are those behind the numbers."""
        claimed = self._claimed.within(self._units.begin, self._units.end)
        return TableClaims(claimed, self._elsewhere.take(0), np.concatenate(self._held_back), names)

    def add_elsewhere(self, rows: Rows) -> None:
        """Take over outcomes whose slot holds something else."""
        self._elsewhere.add(rows, self._partition(rows["half"]))

    def hold_back(self, rows: Rows) -> None:
        """Take over slots that an end behind the watermark may have settled: shape (n,), dtype SETTLED."""
        self._held_back.append(rows)

    def _partition(self, offsets: Ints) -> Ints:
        return np.asarray((offsets // PARTITION_BYTES) % self._count)

    def _compare(self, outcomes: Rows, slots: Rows, numbers: Ints) -> None:
        """Slots that hold the right transaction: in the right state, with the record's size, time and group?"""
        state = np.where(outcomes["state"] == TransactionState.PARKED, _PREPARED, outcomes["state"])
        groups = np.unique(outcomes["group"])
        hashes = np.array([self._hash(group) for group in groups.tolist()], np.int32)
        expected = {
            "size": outcomes["size"],
            "store_time_s": (outcomes["store_ms"] // 1000).astype(np.int32),
            "group_hash": hashes[np.searchsorted(groups, outcomes["group"])],
        }
        wrong = slots["state"] != state
        if self._is_written:
            later = wrong & (state == _PREPARED) & np.isin(slots["state"], _SETTLED)
            rows = np.zeros(int(later.sum()), SETTLED)
            rows["half"], rows["state"], rows["slot"] = outcomes["half"][later], slots["state"][later], numbers[later]
            self.hold_back(rows)
            wrong &= ~later
        for index in np.flatnonzero(wrong):
            half, held = int(outcomes["half"][index]), int(slots["state"][index])
            self._report_state(half, held, int(state[index]), int(numbers[index]))
        for name in _FIELDS:
            for index in np.flatnonzero(slots[name] != expected[name]):
                found, true_value = int(slots[name][index]), int(expected[name][index])
                text = f"slot {numbers[index]} has {name} {found}, its record says {true_value}"
                facts = {"slot": int(numbers[index]), "field": name, "found": found, "expected": true_value}
                self._report("slot-wrong-field", int(outcomes["half"][index]), text, facts)

    def _report_state(self, half: int, held: int, true: int, number: int) -> None:
        text = f"slot {number} says {_state(held)}, the CommitLog says {_state(true)}"
        facts = {"slot": number, "found": _state(held), "expected": _state(true)}
        self._report("slot-wrong-state", half, text, facts)

    def _hash(self, group: int) -> int:
        if group not in self._hashes:
            self._hashes[group] = string_hash(self._names[group])
        return self._hashes[group]

    def finish(self, context: FinishContext) -> None:
        """Join what was not in its place with what nobody claimed."""
        self._report_held_back(context)
        self._collect_unclaimed(context)
        lost: list[Rows] = []
        moved = 0
        for partition in range(self._count):
            wanted, strays = self._elsewhere.take(partition), self._unclaimed.take(partition)
            found, rest = self._join(wanted, strays)
            moved += found
            lost.append(rest)
        self._report_lost(np.concatenate(lost), moved)
        self._elsewhere.close()
        self._unclaimed.close()

    def _report_held_back(self, context: FinishContext) -> None:
        """Settled slots of which no end tells.

        The ends behind the watermark are read once all slots were: a slot that was settled meanwhile was settled by one
        of them.
        """
        held_back = np.concatenate(self._held_back)
        if len(held_back):
            for row in held_back[~is_settled_by(held_back, context.later_ends())]:
                self._report_state(int(row["half"]), int(row["state"]), _PREPARED, int(row["slot"]))

    def _collect_unclaimed(self, context: FinishContext) -> None:
        """The slots that hold something and that no outcome claimed, but for what expired and what came later."""
        for first, stop in self._claimed.gaps(self._units.begin, self._units.end):
            for number, rows in self._units.filled(first, stop):
                filled = np.flatnonzero(rows.view(np.uint8).reshape(len(rows), -1).any(axis=1))
                strays = np.zeros(len(filled), self._unclaimed.dtype)
                for name in rows.dtype.names or ():
                    strays[name] = rows[name][filled]
                strays["slot"] = number + filled
                half_offsets = strays["commitlog_offset"]
                kept = (half_offsets >= context.begin_offset) | (half_offsets < 0) | (strays["size"] <= 0)
                if context.ignore_from is not None:
                    kept &= half_offsets < context.ignore_from
                self._unclaimed.add(strays[kept], self._partition(np.maximum(half_offsets[kept], 0)))

    def _join(self, wanted: Rows, strays: Rows) -> tuple[int, Rows]:
        """Match by CommitLog offset; returns how many stand elsewhere, and the outcomes that stand nowhere."""
        wanted = wanted[np.argsort(wanted["half"], kind="stable")]
        at = np.searchsorted(wanted["half"], strays["commitlog_offset"])
        inside = np.minimum(at, max(len(wanted) - 1, 0))
        hit = (
            (at < len(wanted)) & (wanted["half"][inside] == strays["commitlog_offset"])
            if len(wanted)
            else np.zeros(len(strays), np.bool_)
        )
        for stray in strays[~hit]:
            text = f"slot {stray['slot']} belongs to no prepared record"
            self._report("slot-orphan", int(stray["commitlog_offset"]), text, {"slot": int(stray["slot"])})
        for stray, outcome in zip(strays[hit], wanted[at[hit]], strict=True):
            text = f"stands in slot {stray['slot']}, its record says {outcome['queue_offset']}: nobody can settle it"
            facts = {"slot": int(stray["slot"]), "expected_slot": int(outcome["queue_offset"])}
            self._report("slot-moved", int(outcome["half"]), text, facts)
        self._compare(wanted[at[hit]], strays[hit], strays["slot"][hit])
        found = np.zeros(len(wanted), np.bool_)
        found[at[hit]] = True
        return int(hit.sum()), wanted[~found]

    def _report_lost(self, lost: Rows, moved: int) -> None:
        """Transactions that the table does not hold.

        RocketMQ 3.x leaves settled ones out when it rebuilds its table: that is one finding, about the table. One that
        is in doubt is lost either way. One whose slot a later transaction took stands nowhere by right.
        """
        overtaken = self._owned(lost["queue_offset"])
        settled = ~np.isin(lost["state"], (_PREPARED, TransactionState.PARKED))
        compacted = moved > 0 or bool(overtaken.any()) or (self._empty() and bool(settled.any()))
        if compacted:
            text = (
                f"RocketMQ rebuilt this table without its settled slots: {int(settled.sum())} settled transactions "
                f"have none, {moved} of the others stand in another slot than their record says"
            )
            counts = {"settled_without_slot": int(settled.sum()), "moved": moved}
            self._report("table-compacted", int(lost["half"].min()) if len(lost) else 0, text, counts)
        named = ~settled if compacted else np.ones(len(lost), np.bool_)
        for outcome, taken in zip(lost[named], overtaken[named], strict=True):
            state = _state(outcome["state"])
            facts: dict[str, Any] = {"slot": int(outcome["queue_offset"]), "state": state}
            if taken:
                text = f"a later transaction took slot {outcome['queue_offset']}: this one ({state}) has none"
                self._report("slot-moved", int(outcome["half"]), text, facts)
            else:
                text = f"the state table lacks this transaction ({state}): RocketMQ will never check it"
                self._report("slot-missing", int(outcome["half"]), text, facts)

    def _empty(self) -> bool:
        return not any(len(rows) and rows["size"].any() for _, rows in self._units.filled(0, self._units.end))

    def _owned(self, slots: Ints) -> Any:
        """Which slots hold, in its place, another transaction."""
        owned = np.ones(len(slots), np.bool_)
        if len(slots):
            for first, stop in self._claimed.gaps(int(slots.min()), int(slots.max()) + 1):
                owned &= (slots < first) | (slots >= stop)
        return owned

    def _report(self, kind: str, commitlog_offset: int, text: str, facts: dict[str, Any]) -> None:
        self._findings.add(Finding(kind, commitlog_offset, text, self._units.file_of(facts.get("slot", 0)), facts))


def _state(number: int) -> str:
    try:
        return TransactionState(int(number)).name.lower()
    except ValueError:
        return str(int(number))
