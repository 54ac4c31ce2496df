"""Property tests of the scan, the transactions and the Spark reports again, twenty times the examples, at random."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "room", ["tests/scan", "tests/transaction", "tests/transactions", "tests/spark/test_same_report.py"]
)
def test_twenty_times_the_examples(room: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "--timeout", "1500", room]
    done = subprocess.run(
        command, env={**os.environ, "CHECKBACK_EFFORT": "20"}, cwd=TREE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-20_000:]
