"""The flash sale in full: twenty times in a row, and for ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.demo.runner import LEAST, Demo

SOAK_S = 600


@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", range(20))
def test_it_adds_up_twenty_times_in_a_row(seed: int, tmp_path: Path) -> None:
    """In under a minute each, every kind of crash at least 20 times."""
    result = Demo(str(tmp_path), seed=seed).run()
    assert result.ok, (result.faults, result.rare)
    assert min(result.crashes.values()) >= LEAST
    assert result.seconds < 60


@pytest.mark.timeout(SOAK_S + 300)
def test_it_adds_up_after_ten_minutes(tmp_path: Path) -> None:
    result = Demo(str(tmp_path), seed=100, seconds=SOAK_S).run()
    assert result.ok, (result.faults, result.rare)
