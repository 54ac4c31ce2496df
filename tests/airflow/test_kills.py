"""A task that is killed loses and doubles nothing, and two of one kind at once do not either."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.tree import ROOT

KILLS = 2  # tests/torture does it at length
AT_ODDS = ["recover", "rebuild", "resolve"]


def kill(work: str, folder: Path, *how: object) -> int:
    """Run `tests.airflow.killing`; how many stores it judged."""
    words = [sys.executable, "-m", "tests.airflow.killing", work, str(folder), *map(str, how)]
    ran = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return int(json.loads(ran.stdout)["stores"])


@pytest.mark.parametrize("work", ["check_back", "recover", "rebuild", "resolve", "retain"])
def test_a_killed_task_is_done_by_its_retry(work: str, tmp_path: Path) -> None:
    """SIGKILL in the middle; then the store is as if nobody had been killed, and a third run finds nothing to do."""
    assert kill(work, tmp_path, KILLS, 1)


@pytest.mark.parametrize("work", AT_ODDS)
def test_two_at_once_do_it_once(work: str, tmp_path: Path) -> None:
    """Neither is killed; then one is, and the other. The second is told to wait, or finds it done."""
    assert kill(work, tmp_path, "together") == 3
