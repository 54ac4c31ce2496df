"""The redo log against the CommitLog: one unit for each prepared record and each end, in log order.

The redo log is RocketMQ's own rebuild source for the state table, so a missing or foreign unit matters even when the
table is right. RocketMQ: TransactionStateService.appendPreparedTransaction, DefaultMessageStore.doDispatch (3.1.4).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from broker.format import properties as names
from broker.format.consumequeue import Unit
from broker.format.redolog import PREPARED_TAG
from broker.format.sysflag import TransactionType
from broker.format.topics import HALF_TOPIC, SCHEDULE_TOPIC
from recovery.findings import Finding, Findings
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.units import Ints, Rows, UnitFile, first_sustained
from recovery.verify.comparison import FinishContext

# The last column: a 4.x or 5.x broker wrote it, and those keep no redo log (a `mixed` store).
EXPECTED = np.dtype([("commitlog_offset", "i8"), ("size", "i4"), ("tags_code", "i8"), ("half_op", "?")])
_AHEAD = 1 << 16
UNIT_NAMES = ("commitlog_offset", "size", "tags_code")
NUMBERED = np.dtype([*Unit.DTYPE, ("number", "i8")])


class RedoDifferences(NamedTuple):
    """What the redo log lacks, and the units (with their numbers) that no record asked for."""

    missing: Rows  # shape (n,), dtype EXPECTED
    strays: Rows  # shape (n,), dtype NUMBERED


class RedoLogComparison:
    """Takes the records of a scan, compares as it goes, and reports at the end what stayed wrong.

    `span` are the units to compare (by default all); `known` is what other comparisons of this log found already.
    """

    def __init__(
        self,
        units: UnitFile,
        findings: Findings,
        span: tuple[int, int] | None = None,
        known: RedoDifferences | None = None,
    ) -> None:
        self._units, self._findings = units, findings
        self._cursor: int
        self._end: int
        self._cursor, self._end = span or (units.begin, units.end)
        self._missing: list[Rows] = [known.missing] if known else []
        self._strays: list[Rows] = [known.strays] if known else []  # that no record asked for yet

    def add(self, records: Records, kinds: Kinds) -> None:
        """Compare the units of prepared records and of everything with the type of an end.

        Quirk (3.1.4): redeliveries keep the COMMIT flag, and so get a unit that names the transaction at offset 0.
        """
        which = np.flatnonzero(kinds.types)
        if not len(which):
            return
        part = records.take(which)
        expected = np.zeros(len(which), EXPECTED)
        expected["commitlog_offset"], expected["size"] = part.offsets, part.sizes
        prepared = kinds.types[which] << 2 == TransactionType.PREPARED
        expected["tags_code"] = np.where(prepared, PREPARED_TAG, part.field("prepared_transaction_offset"))
        live = self._units.read(self._cursor, min(len(expected), max(self._end - self._cursor, 0)))
        if len(live) == len(expected) and _equal(live, expected).all():
            self._cursor += len(expected)
            return
        expected["half_op"] = part.values(names.REAL_QID).lengths > 0  # a half's copy has it
        expected["half_op"] &= ~prepared & ~_ends_delayed(part)  # and delayed transactions of ours
        self._compare(expected, records.base + int(records.at[-1]) + 1)

    def _compare(self, expected: Rows, stop: int) -> None:
        """The slow way: find each record's unit among those that lie ahead and name offsets below `stop`."""
        numbers, live = self._ahead(stop)
        filled = _filled(live)  # a unit that was never written, or zeroed, is a hole and belongs to nobody
        numbers, live = numbers[filled], live[filled]
        order = np.argsort(live["commitlog_offset"], kind="stable")
        ranked = live[order]
        at = np.searchsorted(ranked["commitlog_offset"], expected["commitlog_offset"])
        found = np.zeros(len(expected), np.bool_)
        inside = at < len(ranked)
        found[inside] = _equal(ranked[at[inside]], expected[inside])
        self._missing.append(expected[~found])
        used = np.zeros(len(live), np.bool_)
        used[order[at[found]]] = True
        self._strays.append(_numbered(live[~used], numbers[~used]))

    def _ahead(self, stop: int) -> tuple[Ints, Rows]:
        """The live units from the cursor to the first that names `stop` or later; the cursor moves behind them."""
        parts: list[Rows] = []
        first = self._cursor
        while self._cursor < self._end:
            rows = self._units.read(self._cursor, min(_AHEAD, self._end - self._cursor))
            count = first_sustained((rows["commitlog_offset"] >= stop) | (rows["size"] == 0))
            parts.append(rows[:count])
            self._cursor += count
            if count < len(rows):
                break
        live = np.concatenate(parts) if parts else np.zeros(0, self._units.dtype)
        return first + np.arange(len(live)), live

    def differences(self) -> RedoDifferences:
        """What stayed missing and the units that no record asked for, those behind the last record included."""
        missing = np.concatenate([np.zeros(0, EXPECTED), *self._missing])
        return RedoDifferences(missing, self._all_strays())

    def finish(self, context: FinishContext) -> None:
        """Report what stayed missing and the units that belong to no record.

        What a live broker had not dispatched when the record was read, it has dispatched meanwhile.
        """
        begin_offset, ignore_from = context.begin_offset, context.ignore_from
        strays = self._all_strays()
        if ignore_from is not None and self._missing:
            missing, strays = without_pairs(np.concatenate(self._missing), strays)
            self._missing = [missing]
        self._report_missing(strays, context.look)
        for stray in strays:
            stale = 0 <= stray["commitlog_offset"] < begin_offset and stray["size"] > 0
            later = ignore_from is not None and stray["commitlog_offset"] >= ignore_from
            if not stale and not later:
                text = f"unit {stray['number']} of the redo log belongs to no prepared record and no end"
                unit, offset = int(stray["number"]), int(stray["commitlog_offset"])
                self._findings.add(Finding("redo-orphan", offset, text, self._units.file_of(unit), {"unit": unit}))

    def _all_strays(self) -> Rows:
        """The units that no record asked for, with those that follow the cursor; it moves to the end."""
        for first, rows in self._units.filled(self._cursor, self._end):
            filled = np.flatnonzero(_filled(rows))
            self._strays.append(_numbered(rows[filled], first + filled))
        self._cursor = self._end
        return np.concatenate([np.zeros(0, NUMBERED), *self._strays])

    def _report_missing(self, strays: Rows, look: Callable[[int], Records | None]) -> None:
        """What has a unit all the same was dispatched late, or stands in the wrong order.

        Since 5.4 only the half message that it names tells an end of a 5.x broker from one of a store with a redo log.
        """
        there = {tuple(row) for row in strays[list(UNIT_NAMES)].tolist()}
        for expected in self._missing:
            for row in expected.tolist():
                if row[:-1] not in there and not row[-1] and not _ends_half(row[2], look):
                    what = "prepared record" if row[2] == PREPARED_TAG else "end"
                    directory = os.path.dirname(self._units.file_of(self._units.begin)) or "transaction/redolog"
                    self._findings.add(Finding("redo-missing", row[0], f"the redo log lacks this {what}", directory))


def without_pairs(missing: Rows, strays: Rows) -> tuple[Rows, Rows]:
    """A missing unit and a stray that is the same are none; of strays with one offset the first counts."""
    if not len(missing) or not len(strays):
        return missing, strays
    order = np.lexsort((strays["number"], strays["commitlog_offset"]))
    ranked = strays[order]
    at = np.minimum(np.searchsorted(ranked["commitlog_offset"], missing["commitlog_offset"]), len(ranked) - 1)
    same = np.ones(len(missing), np.bool_)
    for name in UNIT_NAMES:
        same &= ranked[name][at] == missing[name]
    used = np.zeros(len(strays), np.bool_)
    used[order[at[same]]] = True
    return missing[~same], strays[~used]


def _ends_delayed(part: Records) -> np.ndarray:
    """Which are delayed commits of ours. What 4.x and 5.x copy into the schedule topic names the offset 0."""
    return part.in_topic(SCHEDULE_TOPIC.encode()) & (part.field("prepared_transaction_offset") > 0)


def _ends_half(prepared_offset: int, look: Callable[[int], Records | None]) -> bool:
    """Whether the record that an end names lies in the half topic."""
    if prepared_offset <= 0:
        return False
    named = look(prepared_offset)
    return named is not None and bool(named.in_topic(HALF_TOPIC.encode()).all())


def _filled(units: Rows) -> np.ndarray:
    return np.asarray((units["commitlog_offset"] != 0) | (units["size"] != 0) | (units["tags_code"] != 0))


def _numbered(units: Rows, numbers: Ints) -> Rows:
    found = np.zeros(len(units), NUMBERED)
    for name in UNIT_NAMES:
        found[name] = units[name]
    found["number"] = numbers
    return found


def _equal(live: Rows, expected: Rows) -> np.ndarray:
    same = live["commitlog_offset"] == expected["commitlog_offset"]
    return np.asarray(same & (live["size"] == expected["size"]) & (live["tags_code"] == expected["tags_code"]))
