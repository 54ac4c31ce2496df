"""The power is cut at every step of a life of each engine, and of half-op each precaution that is left out is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.torture.power_cuts import cut_at, steps_of_a_life
from tests.store.watched_lives import MUTATIONS, is_found_out


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", ["half-op", "state-table"])
@pytest.mark.parametrize("sync", ["each", "group"])
def test_nothing_that_was_seen_is_gone(tmp_path: Path, sync: str, engine: str) -> None:
    steps, begun = steps_of_a_life(tmp_path, sync, engine)
    for step in range(begun, steps + 1):
        cut_at(tmp_path, sync, engine, step, (0, 1, 2 + step))


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_store_that_does_less_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    is_found_out(tmp_path, monkeypatch, name, "half-op")
