"""Four processes append and end transactions on one store while one after another is killed with SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.engines import ENGINES
from tests.store.killed_workers import kill_and_judge

KILLS = 40  # `make torture` kills a thousand


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_are_killed_one_after_another(engine: str, tmp_path: Path) -> None:
    kill_and_judge(tmp_path, KILLS, 1, engine)
