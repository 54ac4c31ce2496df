"""Any requests and damaged frames for an hour, or CHECKBACK_FUZZ_S seconds: no crash, no defect, no growth."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.server.fuzzing import fuzz

SECONDS = float(os.environ.get("CHECKBACK_FUZZ_S", "3600"))


@pytest.mark.timeout(int(SECONDS) + 600)
def test_an_hour_of_any_requests(tmp_path: Path) -> None:
    tally = fuzz(tmp_path, SECONDS, seed=int(SECONDS))
    print(tally)
    assert tally.is_good, tally
    assert tally.requests > 10 * SECONDS
