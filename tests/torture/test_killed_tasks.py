"""Each kind of task is killed at fifty random moments, and started twice at once; then the store is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.killing import WORKS, kill_in_a_process

pytestmark = pytest.mark.timeout(1800)
KILLS = 50


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("work", WORKS)
def test_fifty_kills(work: str, seed: int, tmp_path: Path) -> None:
    kill_in_a_process(work, tmp_path, KILLS, seed)


@pytest.mark.parametrize("work", WORKS)
def test_two_at_once(work: str, tmp_path: Path) -> None:
    kill_in_a_process(work, tmp_path, "together")


@pytest.mark.parametrize("seed", [11, 12])
def test_rebuilds_are_killed_while_an_application_sells(seed: int, tmp_path: Path) -> None:
    """What was acknowledged is there, once; and the application never waits for one who is dead."""
    kill_in_a_process("traffic", tmp_path, KILLS, seed)
