"""A task that is killed loses and doubles nothing, and two of one kind at once do not either."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.airflow.killing import kill_in_a_process

KILLS = 2  # tests/torture does it at length
AT_ODDS = ["recover", "rebuild", "resolve"]


@pytest.mark.sample("check_back", "recover", "rebuild")
@pytest.mark.parametrize("work", ["check_back", "recover", "rebuild", "resolve", "retain"])
def test_a_killed_task_is_done_by_its_retry(work: str, tmp_path: Path) -> None:
    """SIGKILL in the middle; then the store is as if nobody had been killed, and a third run finds nothing to do."""
    assert kill_in_a_process(work, tmp_path, KILLS, 1)


@pytest.mark.sample("recover", "resolve")
@pytest.mark.parametrize("work", AT_ODDS)
def test_two_at_once_do_it_once(work: str, tmp_path: Path) -> None:
    """Neither is killed; then one is, and the other. The second is told to wait, or finds it done."""
    assert kill_in_a_process(work, tmp_path, "together") == 3
