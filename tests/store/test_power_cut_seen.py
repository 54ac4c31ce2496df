"""A power cut takes back nothing that was promised, and nothing that anybody saw.

Two openers send and end transactions; a third one reads beside them: as a consumer at each step of the disk, also in
the middle of an append and of a forced write, and as check-back between two calls. Then the power fails, at every step,
and any subset of the blocks that were not forced survives, torn at 512 bytes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.torture.power_cuts import cut_at, steps_of_a_life
from tests.store.watched_lives import MUTATIONS, is_found_out

WAYS = [("each", "state-table", 0), ("group", "state-table", 1), ("each", "half-op", 2), ("group", "half-op", 0)]


@pytest.mark.sample("each-state-table-0", "group-half-op-0")
@pytest.mark.parametrize(("sync", "engine", "part"), WAYS)  # tests/torture has all parts
def test_nothing_that_was_seen_is_gone(tmp_path: Path, sync: str, engine: str, part: int) -> None:
    """A twelfth of the steps each, with no un-synced block surviving, with all, and with some."""
    steps, begun = steps_of_a_life(tmp_path, sync, engine)
    assert steps - begun > 60
    for step in range(begun + part, steps + 1, 12):
        cut_at(tmp_path, sync, engine, step, (0, 1, 2 + step))


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_store_that_does_less_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The same lives with one precaution left out: some life breaks a promise, and the judge says so."""
    is_found_out(tmp_path, monkeypatch, name, "state-table")
