"""The README keeps what it promises: its commands exist and its program runs as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from broker.store.disk.files import Disk
from recovery.verify.verifier import verify

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_program_runs(tmp_path: Path) -> None:
    """As it stands, in an empty directory; what it wrote is right."""
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "orders b'lamp'\n"
    assert Disk().used_bytes(str(tmp_path)) < 64 << 20, "a laptop's disk"
    report = verify(tmp_path / "shop.store")
    assert report.ok
    assert report.transactions["committed"] == 1


def test_the_program_has_right_types(tmp_path: Path) -> None:
    """For a reader whose project runs mypy --strict."""
    (program,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    options = ["--strict", "--follow-imports=silent"]  # the library's own errors are not shown, as when it is installed
    command = [sys.executable, "-m", "mypy", *options, f"--cache-dir={tmp_path / 'cache'}", "program.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_verb_is_there() -> None:
    verbs = re.findall(r"`checkback ([\w-]+)[ `]", README)
    assert verbs
    for verb in verbs:
        command = [sys.executable, "-m", "recovery.cli.app", verb, "--help"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == 0, verb
