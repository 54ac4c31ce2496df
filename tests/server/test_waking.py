"""A held pull is answered soon after a send of any process; its p99 is measured by tests/bench/waking.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.waking import measure, quantile

SENDS, MEDIAN_MS, LONGEST_MS = 20, 50.0, 2000.0  # generous: the machine may be busy with other tests


@pytest.mark.parametrize("sync", ["os", "group"])
def test_a_held_pull_wakes_from_a_send_of_another_process(tmp_path: Path, sync: str) -> None:
    for way, times in measure(tmp_path, sync, SENDS).items():
        from_end_ms = [end_ms for _, end_ms in times]
        assert quantile(from_end_ms, 0.5) < MEDIAN_MS, (way, from_end_ms)
        assert max(from_end_ms) < LONGEST_MS, (way, from_end_ms)
