"""The stages of a judgement without Spark: its tasks called one after another, in a shuffled order."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pyarrow as pa

from recovery.findings import Report
from recovery.pipeline.blocks import EVENTS, KEYED, NAMED, OUTCOMES, SCHEMA, SUMMARY, rows_of, values_of
from recovery.pipeline.inspection import Inspection
from recovery.pipeline.joins import JoinContext, PartitionResult, join_ends, join_keys, join_ops
from recovery.pipeline.splits import Split
from recovery.pipeline.stages import TransactionStages
from recovery.pipeline.store_location import StoreLocation, manifest_of
from recovery.spark.verification import comparing, judge


class JudgementByHand(TransactionStages):
    """What Spark would do, here."""

    def _read(self, splits: list[Split]) -> None:
        tables = [pa.Table.from_batches(rows_of(Inspection(self.task, split).run()), SCHEMA) for split in splits]
        random.Random(len(tables)).shuffle(tables)  # tasks end in any order
        self.held = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
        self.summaries = sorted(values_of(self.held, SUMMARY), key=lambda one: one.split.number)

    def results(self, context: JoinContext) -> list[PartitionResult]:
        context = replace(context, with_rows=True)
        tables = [self.held]
        for tag, stage in ((EVENTS, join_ends), (NAMED, join_ops), (KEYED, join_keys)):
            tables.append(_joined(pa.concat_tables(tables), tag, stage(context)))
        return list(values_of(pa.concat_tables(tables), OUTCOMES))


def _joined(table: pa.Table, tag: str, stage: Any) -> pa.Table:
    parts: dict[int, list[int]] = defaultdict(list)
    for row, (found, part) in enumerate(zip(table["tag"].to_pylist(), table["part"].to_pylist(), strict=True)):
        if found == tag:
            parts[part].append(row)
    batches = [batch for rows in parts.values() for batch in rows_of(stage(table.take(rows)))]
    return pa.Table.from_batches(batches, SCHEMA)


def verify_by_hand(path: str, split_bytes: int) -> Report:
    """The report that Spark would give."""
    place = StoreLocation(path)
    files = place.files()
    log = manifest_of(place, files.commitlog)
    made = JudgementByHand(None, log, split_bytes=split_bytes, prepare=comparing(files, log))  # type: ignore[arg-type]
    return judge(files, log, made)


def comparable(report: Report) -> dict[str, Any]:
    """What two engines must agree on: everything but the time it took and the order of findings at one place."""
    said = report.as_json()
    said.pop("seconds")
    said["findings"] = sorted(map(repr, said["findings"]))
    return said
