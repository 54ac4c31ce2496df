"""Four processes append and end transactions on one store while one after another is killed with SIGKILL."""

from __future__ import annotations

from pathlib import Path

from tests.store.killing import kill_and_judge

KILLS = 40  # `make torture` kills a thousand


def test_processes_are_killed_one_after_another(tmp_path: Path) -> None:
    kill_and_judge(tmp_path, KILLS, seed=1)
