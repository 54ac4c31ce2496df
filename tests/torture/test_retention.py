"""Retention beside kills and power cuts, at length: nothing that a group has yet to acknowledge disappears."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.consumer.retention_lives import STEPS, cut_the_power, do_anything, kill_again_and_again


@pytest.mark.timeout(3600)
def test_two_hundred_kills(tmp_path: Path) -> None:
    kill_again_and_again(tmp_path / "store", lives=200)


@pytest.mark.timeout(3600)
def test_a_power_cut_at_every_step(tmp_path: Path) -> None:
    cut_the_power(tmp_path, every=1)


@pytest.mark.timeout(3600)
@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_anything_in_any_order(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]) -> None:
    do_anything(tmp_path_factory.mktemp("any") / "store", steps)
