"""No false alarm: `verify` and `rebuild` beside writers that are killed all the time, and a real damage among them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.verify.beside_writers import watch
from tests.verify.flipped_bits import assert_a_flipped_bit_is_found


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("layout", "kills", "engine"),
    [("small", 60, "state-table"), ("small", 40, "half-op"), ("big", 30, "state-table")],
)
@pytest.mark.sample("small-40-half-op")
def test_no_false_alarm_beside_writers_that_are_killed(layout: str, kills: int, engine: str, tmp_path: Path) -> None:
    """`make torture` kills a thousand."""
    seen = watch(tmp_path / "store", layout, kills, 7, engine)
    assert seen.found == []
    assert min(seen.verifications, seen.rebuilds) >= 2


@pytest.mark.timeout(180)
def test_a_flipped_bit_among_writers_that_are_killed(tmp_path: Path) -> None:
    assert_a_flipped_bit_is_found(tmp_path / "store", "small", kills=40)
