"""The stages of a judgement without Spark: its tasks called one after another, in a shuffled order."""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from typing import Any

import pyarrow as pa

from broker.store.recover.watermark import Watermark
from recovery.findings import Report
from recovery.spark.blocks import EVENTS, KEYED, NAMED, SCHEMA, SUMMARY, VERDICTS, rows_of, values_of
from recovery.spark.inspection import Inspection
from recovery.spark.judging import Court, Sentence, join_ops, judge_ends, judge_keys
from recovery.spark.pipeline import Judgement
from recovery.spark.places import Place, log_of
from recovery.spark.splits import Split
from recovery.spark.verification import comparing, judge
from recovery.verify.verifier import verify_by


class JudgementByHand(Judgement):
    """What Spark would do, here."""

    def _read(self, splits: list[Split]) -> None:
        tables = [pa.Table.from_batches(rows_of(Inspection(self.task, split).run()), SCHEMA) for split in splits]
        random.Random(len(tables)).shuffle(tables)  # tasks end in any order
        self.held = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
        self.summaries = sorted(values_of(self.held, SUMMARY), key=lambda one: one.split.number)

    def judged(self, court: Court) -> list[Sentence]:
        court = replace(court, with_rows=True)
        tables = [self.held]
        for tag, stage in ((EVENTS, judge_ends), (NAMED, join_ops), (KEYED, judge_keys)):
            tables.append(_joined(pa.concat_tables(tables), tag, stage(court)))
        return list(values_of(pa.concat_tables(tables), VERDICTS))


def _joined(table: pa.Table, tag: str, stage: Any) -> pa.Table:
    parts: dict[int, list[int]] = defaultdict(list)
    for row, (found, part) in enumerate(zip(table["tag"].to_pylist(), table["part"].to_pylist(), strict=True)):
        if found == tag:
            parts[part].append(row)
    batches = [batch for rows in parts.values() for batch in rows_of(stage(table.take(rows)))]
    return pa.Table.from_batches(batches, SCHEMA)


def verify_by_hand(path: str, split_bytes: int) -> Report:
    """The report that Spark would give."""
    place = Place(path)

    def judge_up_to(mark: Watermark | None) -> Report:
        files = place.files(mark)
        log = log_of(place, files)
        made = JudgementByHand(None, log, split_bytes=split_bytes, prepare=comparing(files, log))  # type: ignore[arg-type]
        return judge(files, log, made)

    return verify_by(place.inside, place.disk(), judge_up_to)


def comparable(report: Report) -> dict[str, Any]:
    """What two engines must agree on: everything but the time it took and the order of findings at one place."""
    said = report.as_json()
    said.pop("seconds")
    said["findings"] = sorted(map(repr, said["findings"]))
    return said
