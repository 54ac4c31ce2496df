"""The index against the CommitLog: each key of each record has its item, each item its record, each chain its order.

RocketMQ: IndexService.buildIndex, IndexFile.putKey (5.3.3; 3.1.4).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from broker.format.index import TIME_DIFF_S_MAX, IndexItem
from recovery.findings import Finding, Findings
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.units import Ints, Rows, first_sustained
from recovery.verify.comparison import FinishContext
from recovery.verify.index_files import Chains, IndexFileView
from recovery.verify.index_items import BY_VERSION, IndexingRule, expected_items

ITEM = np.dtype([*IndexItem.DTYPE, ("number", "i8"), ("file", "i8")])
_ON_DISK = np.dtype(IndexItem.DTYPE)
_AT_LEAST, _AT_ONCE = 1 << 12, 1 << 18
_SAME = ("commitlog_offset", "key_hash")

ItemDifferences = tuple[Rows, Rows]  # what the index lacks (EXPECTED of index_items), and items of no key (ITEM)


@dataclass(frozen=True, slots=True)
class _ItemRun:
    """Items of one file that follow each other."""

    file: int
    first: int
    rows: Rows

    @property
    def numbers(self) -> Ints:
        return self.first + np.arange(len(self.rows))


def _joined(runs: Sequence[_ItemRun]) -> Rows:
    """All these items, each with its number and its file."""
    items = np.zeros(sum(len(run.rows) for run in runs), ITEM)
    at = 0
    for run in runs:
        part = items[at : at + len(run.rows)]
        for name in _ON_DISK.names or ():
            part[name] = run.rows[name]
        part["number"], part["file"] = run.numbers, run.file
        at += len(run.rows)
    return items


class IndexDifferences(NamedTuple):
    """What the index lacks, the items that no record asked for, and the file and item behind the last one compared."""

    missing: Rows  # shape (n,), dtype EXPECTED of index_items
    strays: Rows  # shape (n,), dtype ITEM
    file: int
    item: int


class IndexComparison:
    """Takes the records of a scan, compares as it goes, and reports at the end what stayed wrong.

    `known` is what other comparisons of this index found already.
    """

    def __init__(
        self,
        open_files: Callable[[Findings], list[IndexFileView]],
        findings: Findings,
        known: IndexDifferences | None = None,
    ) -> None:
        self._open, self._findings = open_files, findings
        self._files = open_files(findings)
        self._file, self._item = (known.file, known.item) if known else (0, 1)  # the cursor
        self._at_once = _AT_LEAST
        self._rule: IndexingRule | None = None
        self._missing: list[Rows] = [known.missing] if known else []
        self._strays: list[Rows] = [known.strays] if known else []

    def skip_to(self, commitlog_offset: int) -> tuple[int, int]:
        """Pass over the items of records below an offset; the file and the item at which the others begin."""
        self._ahead(commitlog_offset)
        return self._file, self._item

    def add(self, records: Records, kinds: Kinds) -> None:
        """Compare the items of all keys of these records."""
        runs = self._ahead(records.base + int(records.at[-1]) + 1)
        under: dict[IndexingRule, ItemDifferences] = {}
        live: Rows | None = None
        for rule in sorted(IndexingRule, key=lambda rule: rule is not self._rule):
            expected = expected_items(records, kinds, rule)
            if self._are_as_expected(runs, expected):
                self._rule = rule
                return
            live = _joined(runs) if live is None else live
            missing, known = match_items(self._files, expected, live, records.base)
            under[rule] = (expected[missing], live[~known])
            span = span_of(live)
            if not mismatch_score(*under[rule], None if span is None else span[1]):
                break
        assert live is not None
        self._rule, (lacking, strays) = best_rule(under, span_of(live), self._rule)
        self._missing.append(lacking)
        self._strays.append(strays)

    def _are_as_expected(self, runs: Sequence[_ItemRun], expected: Rows) -> bool:
        """Whether the items are what is expected, in the order in which RocketMQ writes them: so it mostly is."""
        at = 0
        for run in runs:
            part = expected[at : at + len(run.rows)]
            at += len(run.rows)
            same = len(part) == len(run.rows) and all(bool((run.rows[name] == part[name]).all()) for name in _SAME)
            if not same or not right_times(self._files[run.file], run.numbers, run.rows, part["store_ms"]).all():
                return False
        return at == len(expected)

    def _ahead(self, stop: int | None = None) -> list[_ItemRun]:
        """The items from the cursor to the first of an offset at or above `stop`; the cursor moves behind them."""
        runs: list[_ItemRun] = []
        while self._file < len(self._files):
            file = self._files[self._file]
            rows = file.read(self._item, min(self._at_once, file.used - self._item + 1))
            count = len(rows) if stop is None else first_sustained(rows["commitlog_offset"] >= stop)
            if count == len(rows) - 1 and self._is_beyond_file(rows[-1], self._item + count):
                count += 1
            runs.append(_ItemRun(self._file, self._item, rows[:count]))
            self._item += count
            if count < len(rows):
                break
            if self._item > file.used:
                self._file, self._item = self._file + 1, 1
        self._at_once = min(max(2 * sum(len(run.rows) for run in runs), _AT_LEAST), _AT_ONCE)
        return runs

    def _is_beyond_file(self, item: Any, number: int) -> bool:
        """Whether the last item of a file says a larger offset than the next file begins with: it is damaged."""
        after = self._files[self._file + 1 : self._file + 2]
        is_last = number == self._files[self._file].used
        return is_last and bool(after) and after[0].header.begin_commitlog_offset < item["commitlog_offset"]

    def finish(self, context: FinishContext) -> None:
        """Report what stayed missing and the items that belong to no record.

        An item out of order is right when its record has that key: RocketMQ indexes the last record again when it comes
        back after a crash.
        """
        begin_offset, ignore_from = context.begin_offset, context.ignore_from
        self._look_again()
        self._strays.append(_joined(self._ahead()))
        strays = np.concatenate(self._strays)
        packed = set(zip(strays["commitlog_offset"].tolist(), strays["key_hash"].tolist(), strict=True))
        for rows in self._missing:
            for row in rows:
                if (int(row["commitlog_offset"]), int(row["key_hash"])) not in packed:
                    text = "the index lacks a key of this record: a query by that key will not find it"
                    offset, facts = int(row["commitlog_offset"]), {"key_hash": int(row["key_hash"])}
                    self._report("index-missing", offset, text, facts, self._file_for(offset))
        for stray in strays:
            offset = int(stray["commitlog_offset"])
            stale = 0 <= offset < begin_offset
            later = ignore_from is not None and offset >= ignore_from
            if not stale and not later and not self._belongs(stray, context.look(offset)):
                facts = {"item": int(stray["number"]), "key_hash": int(stray["key_hash"])}
                text = f"item {stray['number']} belongs to no key of a record, or states another time than the record"
                self._report("index-orphan", offset, text, facts, self._files[stray["file"]].segment.path)
        is_growing = bool(self._files) and self._files[-1].is_growing  # then it is known what of the last file is whole
        for file in self._files[: -1 if ignore_from is not None and not is_growing else None]:
            Chains(file, self._findings).check()

    def _look_again(self) -> None:
        """Read the headers again: a live broker has indexed more meanwhile, in the last file or in further ones."""
        before, now = self._files, self._open(Findings())
        if not before or [file.segment.path for file in now[: len(before)]] != [file.segment.path for file in before]:
            return
        if self._file == len(before):
            self._file, self._item = len(before) - 1, before[-1].used + 1
        self._files = now

    def _belongs(self, stray: Any, record: Records | None) -> bool:
        if record is None:
            return False
        live = np.array([stray], ITEM)
        return any(
            bool(match_items(self._files, expected_items(record, Kinds(record), rule), live, record.base)[1].all())
            for rule in IndexingRule
        )

    def _file_for(self, commitlog_offset: int) -> str:
        """The file that should index a record, as far as the headers say; else the directory of the index."""
        for file in self._files:
            if file.used and file.header.begin_commitlog_offset <= commitlog_offset <= file.header.end_commitlog_offset:
                return file.segment.path
        return os.path.dirname(self._files[0].segment.path) if self._files else "index"

    def _report(self, kind: str, commitlog_offset: int, text: str, facts: dict[str, Any], file: str) -> None:
        self._findings.add(Finding(kind, commitlog_offset, text, file, facts))


def match_items(
    files: Sequence[IndexFileView], expected: Rows, live: Rows, base: int
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which expected items are missing, and which live ones are known with their right time."""
    wanted, held = _packed(expected, base), _packed(live, base)
    order = np.argsort(wanted, kind="stable")
    ranked = wanted[order]
    at = np.minimum(np.searchsorted(ranked, held), max(len(ranked) - 1, 0))
    known = ranked[at] == held if len(ranked) else np.zeros(len(held), np.bool_)
    store_ms = expected["store_ms"][order[at]] if len(ranked) else np.zeros(len(held), np.int64)
    found = np.zeros(len(wanted), np.bool_)
    found[at[known]] = True
    missing = np.zeros(len(wanted), np.bool_)
    missing[order] = ~found
    if missing.any():  # one item may answer for a key that stands twice
        missing &= ~np.isin(wanted, held)
    for number in np.unique(live["file"]).tolist():
        which = live["file"] == number
        known[which] &= right_times(files[number], live["number"][which], live[which], store_ms[which])
    return missing, known


def right_times(file: IndexFileView, items: Ints, live: Rows, store_ms: Ints) -> npt.NDArray[np.bool_]:
    """Which of these items of one file state the time of their record; the header knows the first and the last.

    Quirk: the first item of a file counts from the end of the file before it. RocketMQ: IndexFile.putKey (5.3.3).
    """
    header, stated_s = file.header, live["time_diff_s"]
    after_ms = np.maximum(store_ms - header.begin_timestamp_ms, 0)
    fits = stated_s == np.minimum(after_ms // 1000, TIME_DIFF_S_MAX)
    if not fits.all():
        fits |= stated_s == np.minimum(after_ms, TIME_DIFF_S_MAX) // 1000  # 3.0
    if file.before_ms is None:
        fits |= (items == 1) & (stated_s >= 0)
    for before_ms in file.before_ms or ():
        fits |= (items == 1) & (stated_s == np.maximum(store_ms - before_ms, 0) // 1000)
    fits &= (items != 1) | (store_ms == header.begin_timestamp_ms)
    if not file.is_growing:
        fits &= (items != file.used) | (store_ms == header.end_timestamp_ms)
    return np.asarray(fits)


def mismatch_score(missing: Rows, strays: Rows, last: int | None) -> int:
    """How much speaks against a rule. What the index lacks behind its last item says nothing: it ends there."""
    return len(strays) + (0 if last is None else int((missing["commitlog_offset"] <= last).sum()))


def best_rule(
    under: Mapping[IndexingRule, ItemDifferences], span: tuple[int, int] | None, before: IndexingRule | None
) -> tuple[IndexingRule, ItemDifferences]:
    """The rule against which least speaks, and what speaks against it; of equals the one that held `before`.

    `span`: the offsets that the first and the last item say. A broker that was exchanged for one of another version
    leaves items by one rule, and behind them items by another one.
    """
    last = None if span is None else span[1]
    score = {rule: mismatch_score(*differences, last) for rule, differences in under.items()}
    best = min(under, key=lambda rule: (score[rule], rule is not before, list(IndexingRule).index(rule)))
    newest = None if span is None or not score[best] else _last_of_several(under, *span)
    if newest is None:
        return best, under[best]
    missing, strays = under[newest]
    return newest, (missing[missing["commitlog_offset"] > last], strays[:0])


def _last_of_several(under: Mapping[IndexingRule, ItemDifferences], first: int, last: int) -> IndexingRule | None:
    """The last rule, where each rule holds from where the one before it ends, up the versions or down; else None.

    In front of the first item there is nothing with a key, as where op messages begin a window; or a rule holds there
    that asks for none, and that has items behind: else they were lost.
    """
    broken: dict[IndexingRule, Ints] = {}
    for rule, (missing, strays) in under.items():
        lacking = missing["commitlog_offset"]
        broken[rule] = np.sort(np.concatenate((lacking[lacking <= last], strays["commitlog_offset"])))
    has_keys_in_front = broken[IndexingRule.V5].min(initial=first) < first
    for order in (BY_VERSION, BY_VERSION[::-1]):
        begin = np.iinfo(np.int64).min if has_keys_in_front else first
        for rule in order:
            reached = np.searchsorted(broken[rule], begin)
            if reached == len(broken[rule]):
                return rule
            end = int(broken[rule][reached])
            begin = end if end > first else begin
    return None


def span_of(items: Rows) -> tuple[int, int] | None:
    """The CommitLog offsets that the first and the last item say."""
    return (int(items[0]["commitlog_offset"]), int(items[-1]["commitlog_offset"])) if len(items) else None


def _packed(items: Rows, base: int) -> Ints:
    """Offset and hash in one number; offsets too far from `base` all become one that nothing equals."""
    distance = items["commitlog_offset"].astype(np.int64) - base
    far = (distance < 0) | (distance >= 1 << 31)
    return np.where(far, -1, (distance << 32) | (items["key_hash"].astype(np.int64) & 0xFFFFFFFF))
