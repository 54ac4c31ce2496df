"""The example runs as its page says, and once more on what it left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_one_sale_runs_and_runs_again(tmp_path: Path) -> None:
    program = ROOT / "examples/flash_sale/one_sale.py"
    for times in (1, 2):
        run = [sys.executable, program, f"sqlite:///{tmp_path}/shop.db", tmp_path / "shop.store"]
        done = subprocess.run(run, capture_output=True, text=True, check=True)
        kinds = [line.split("  ")[-1] for line in done.stdout.splitlines() if line.startswith("    ")]
        steps = ["locked", "created", "cart emptied", "paid", "deducted", "shipped", "points"]
        assert sorted(kinds) == sorted(steps * times)


def test_without_arguments_it_says_what_it_takes() -> None:
    program = ROOT / "examples/flash_sale/one_sale.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("usage: ")
