"""Four processes append and end transactions on one store while one after another is killed with SIGKILL."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import broker
from tests.store.killing import judge

KILLS = 40  # `make torture` kills a thousand


def kill_and_judge(folder: Path, kills: int, seed: int) -> None:
    """Nothing acknowledged is missing or doubled, no queue offset is skipped or used twice, verification is clean."""
    store, notes = folder / "store", folder / "notes"
    words = [sys.executable, "-m", "tests.store.killing", str(store), str(notes), str(kills), str(seed)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    broker.open(store, sync="os").close()
    acknowledged = judge(store, notes)
    assert min(acknowledged.values()) > kills, acknowledged


def test_processes_are_killed_one_after_another(tmp_path: Path) -> None:
    kill_and_judge(tmp_path, KILLS, seed=1)
