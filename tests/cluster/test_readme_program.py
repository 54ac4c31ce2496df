"""The README's program runs on a cluster with one line changed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.backends.clusters import Connected
from tests.cluster.conftest import ONE_ENGINE
from tests.house.tree import ROOT


@ONE_ENGINE
def test_one_line_is_changed(backend: Connected, tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    changed = program.replace('broker.open("shop.store")', f'broker.connect("{backend.client.path}")')
    assert changed.count("broker.connect(") == 1
    (directory := tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-c", changed]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "orders b'lamp'\n"), done.stderr
    assert backend.in_doubt() == 0
    assert [one.name for one in directory.iterdir()] == ["shop.db"]
