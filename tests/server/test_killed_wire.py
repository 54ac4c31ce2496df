"""Servers, producers and consumers are killed ten times; at length: tests/torture/test_killed_wire.py."""

from __future__ import annotations

from pathlib import Path

from tests.server.killed_wire import kill

KILLS = 10


def test_ten_kills(tmp_path: Path) -> None:
    tally = kill(tmp_path, KILLS)
    assert tally.adds_up, tally
    assert tally.kills.total() == KILLS
    assert tally.by_check > 0
    assert tally.acknowledged > 0
