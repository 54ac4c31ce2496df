"""Run the command line as a user does, in this process or in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from recovery.cli.app import main
from tests.house.tree import ROOT


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


def command(capsys: pytest.CaptureFixture[str], *words: Any) -> Ran:
    """`checkback WORDS` in this process."""
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return Ran(int(left.value.code or 0), captured.out, captured.err)


def process(*words: Any, into: str | None = None, **environment: str) -> Ran:
    """`checkback WORDS` in a process of its own; `into` is what its output is piped into, or redirected."""
    line = [sys.executable, "-m", "recovery.cli", *map(str, words)]
    values = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    values.pop("COLUMNS", None)
    if into is None:
        ran = subprocess.run(line, capture_output=True, text=True, env=values, check=False)
    else:
        quoted = " ".join(f"'{word}'" for word in line)
        script = f"set -o pipefail; {quoted} {into}"
        ran = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=values, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr)
