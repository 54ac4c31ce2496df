"""The engine and a model of plain dicts judge the same random histories and must agree in everything they say."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import event, given

from broker.transaction.events import Generation
from recovery.findings import Report
from recovery.scan import spill
from recovery.scan.scanner import Scan
from recovery.transactions import outcomes, tracker
from recovery.transactions.outcomes import Outcomes, Transactions
from recovery.verify import verifier
from tests.scan.effort import tries
from tests.transactions.histories import History, histories
from tests.transactions.model import judge

States = dict[int, tuple[int, list[int]]]


def judged(history: History, partitions: int, held_bytes: int) -> tuple[Report, States]:
    """What the engine says of a history on disk: the report; state and deliveries by the offset of the first half."""
    states: States = {}
    all_outcomes = Transactions.outcomes

    def listening(self: Transactions, prepared: Generation) -> Iterator[Outcomes]:
        for part in all_outcomes(self, prepared):
            for number, row in enumerate(part.rows):
                offsets = part.delivered[part.starts[number] : part.starts[number + 1]]
                assert int(row["lowest"]) not in states
                states[int(row["lowest"])] = int(row["state"]), offsets.tolist()
            yield part

    changes: list[Any] = [
        mock.patch.object(tracker, "partitions_for", return_value=partitions),
        mock.patch.object(verifier, "Scan", partial(Scan, window_bytes=1000 if held_bytes < 1 << 20 else 1 << 20)),
        mock.patch.object(outcomes, "_RANGE_BYTES", 700),
        mock.patch.object(spill, "_PART_BYTES", 2000 if held_bytes < 1 << 20 else 1 << 20),
        mock.patch.object(spill, "_HELD_BYTES", held_bytes),
        mock.patch.object(Transactions, "outcomes", listening),
    ]
    with tempfile.TemporaryDirectory() as directory:
        store = history.log.write(Path(directory) / "store")
        for change in changes:
            change.start()
        try:
            return verifier.verify(store), states
        finally:
            for change in changes:
                change.stop()


@pytest.mark.parametrize(("partitions", "held_bytes"), [(1, 1 << 20), (2, 0), (7, 600)])
@tries(80)
@given(histories())
def test_the_engine_agrees_with_the_model(partitions: int, held_bytes: int, history: History) -> None:
    wanted = judge(history.entries, min(history.log.segments))
    report, states = judged(history, partitions, held_bytes)
    event(f"generation {wanted.generation}")
    for kind, _ in wanted.findings:
        event(kind)
    assert report.generation == wanted.generation
    assert states == wanted.states
    assert report.transactions == wanted.counts
    # Of a half these ends share what makes them ends, no more; whole copies are tested in tests/verify.
    told = [found for found in report.findings if found.kind not in ("end-differs", "record-implausible")]
    assert Counter((found.kind, found.commitlog_offset) for found in told) == wanted.findings
    assert report.digest == wanted.digest
