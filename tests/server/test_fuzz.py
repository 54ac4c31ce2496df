"""Any requests and damaged frames for a few seconds; for an hour: tests/torture/test_fuzzed_server.py."""

from __future__ import annotations

from pathlib import Path

from tests.server.fuzzing import fuzz

SECONDS = 4.0


def test_no_request_meets_a_defect(tmp_path: Path) -> None:
    tally = fuzz(tmp_path, SECONDS)
    assert tally.is_good, tally
    assert tally.requests > 100
    assert tally.answers[0] > 10
