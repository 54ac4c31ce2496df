"""What the comparisons of all splits found, brought together by segment: what stands in another split's part is not
missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from recovery.pipeline.split_comparison import DerivedRange, NumberedItems, QueueClaims, SplitDifferences
from recovery.pipeline.splits import Split
from recovery.scan.units import Interval
from recovery.transactions.events import Names, Rows
from recovery.verify.consume_queues import DelayedRecords, Delays, QueueComparison
from recovery.verify.index import ITEM, IndexDifferences, best_rule, match_items, span_of
from recovery.verify.index_files import IndexFileView
from recovery.verify.index_items import EXPECTED as EXPECTED_ITEM
from recovery.verify.index_items import IndexingRule
from recovery.verify.kinds.batch_queues import BatchQueueComparison, BatchQueueName
from recovery.verify.redo_log import EXPECTED, NUMBERED, RedoDifferences, without_pairs
from recovery.verify.state_table import StateTableComparison, TableClaims


def merge_queues(queues: QueueComparison, splits: Sequence[Split], parts: Sequence[QueueClaims]) -> None:
    """Hand `queues` what each split claimed; delayed records are compared a segment at a time."""
    claimed: dict[tuple[str, int], list[Interval]] = defaultdict(list)
    delayed: dict[tuple[str, int, int], list[DelayedRecords]] = defaultdict(list)
    for split, part in zip(splits, parts, strict=True):
        for name, intervals in part.claimed.items():
            claimed[name].extend(intervals)
        for records in part.delayed:
            delayed[records.topic, records.queue_id, split.base].append(records)
    for (topic, queue_id), intervals in claimed.items():
        queues.claim(topic, queue_id, intervals)
    for (topic, queue_id, _), runs in delayed.items():
        delays = Delays(*(np.concatenate(columns) for columns in zip(*(run.delays for run in runs), strict=True)))
        expected = np.concatenate([run.expected for run in runs])
        queues.compare_delayed(DelayedRecords(topic, queue_id, expected, delays))


def merge_batch_queues(queues: BatchQueueComparison, parts: Sequence[SplitDifferences]) -> None:
    """Hand `queues` what each split claimed."""
    claimed: dict[BatchQueueName, list[Interval]] = defaultdict(list)
    for part in parts:
        for name, intervals in part.batch_claimed.items():
            claimed[name].extend(intervals)
    for (topic, queue_id), intervals in claimed.items():
        queues.claim(topic, queue_id, intervals)


def merge_redo(
    splits: Sequence[Split], parts: Sequence[SplitDifferences], ranges: Sequence[DerivedRange]
) -> RedoDifferences:
    """What all splits missed; within a segment a unit may stand in another split's part."""
    by_segment: dict[int, list[RedoDifferences]] = defaultdict(list)
    stops: dict[int, int] = {}
    for split, part, own in zip(splits, parts, ranges, strict=True):
        if part.redo is not None:
            by_segment[split.base].append(part.redo)
            stops[split.base] = own.redo[1]
    all_missing, all_strays = [np.zeros(0, EXPECTED)], [np.zeros(0, NUMBERED)]
    left_over = np.zeros(0, NUMBERED)
    for base, of_segment in sorted(by_segment.items()):
        missing = np.concatenate([differences.missing for differences in of_segment])
        strays = np.concatenate([left_over, *(differences.strays for differences in of_segment)])
        missing, strays = without_pairs(missing, strays)
        # A segment that lacks nothing asked for its units alone; what its part has behind them is the next one's:
        # where the last units are damaged, the part ends too late.
        is_behind = not len(missing) and len(strays) and strays["number"].min() == stops[base] - len(strays)
        left_over = strays if is_behind else left_over[:0]
        all_missing.append(missing)
        all_strays.append(strays[: 0 if is_behind else None])
    return RedoDifferences(np.concatenate(all_missing), np.concatenate([*all_strays, left_over]))


def merge_index(
    files: Sequence[IndexFileView],
    splits: Sequence[Split],
    parts: Sequence[SplitDifferences],
    ranges: Sequence[DerivedRange],
) -> IndexDifferences:
    """What all splits missed, by the rule that fits each segment best."""
    by_segment: dict[int, list[dict[IndexingRule, tuple[Rows, Rows]]]] = defaultdict(list)
    items, spans = NumberedItems(files), dict[int, tuple[int, int]]()
    for split, part, own in zip(splits, parts, ranges, strict=True):
        if part.index:
            by_segment[split.base].append(part.index)
            first, stop = own.items
            ends = (items.read(first, min(first + 1, stop)), items.read(max(first, stop - 1), stop))
            if (span := span_of(np.concatenate(ends))) is not None:
                spans[split.base] = spans.get(split.base, span)[0], span[1]
    all_missing, all_strays = [np.zeros(0, EXPECTED_ITEM)], [np.zeros(0, ITEM)]
    chosen: IndexingRule | None = None
    for base, of_segment in sorted(by_segment.items()):
        under = {rule: _without_moved(files, [one[rule] for one in of_segment], base) for rule in IndexingRule}
        chosen, (missing, strays) = best_rule(under, spans.get(base), chosen)
        all_missing.append(missing)
        all_strays.append(strays)
    end = ranges[-1].items[1] if ranges else 0
    file, item = items.place(end) if end < items.count else (len(files), 1)
    return IndexDifferences(np.concatenate(all_missing), np.concatenate(all_strays), file, item)


def _without_moved(files: Sequence[IndexFileView], parts: Sequence[tuple[Rows, Rows]], base: int) -> tuple[Rows, Rows]:
    """What a segment lacks, and its strays, without the items that only stood in another split's part."""
    missing = np.concatenate([one for one, _ in parts])
    strays = np.concatenate([one for _, one in parts])
    if not len(missing) or not len(strays):
        return missing, strays
    still, known = match_items(files, missing, strays, base)
    return missing[still], strays[~known]


def merge_table(table: StateTableComparison, parts: Iterable[TableClaims], names: Names) -> None:
    """Hand `table` what each partition held back, and what it did not find in its place.

    `table` numbers groups and topics by `names`.
    """
    for part in parts:
        numbers = np.array([names.number(name) for name in part.names], np.int32)
        rows = part.elsewhere
        for column in ("group", "topic"):
            rows[column] = numbers[rows[column]]
        table.add_elsewhere(rows)
        table.hold_back(part.held_back)
