"""Whether the CommitLog of a slave is that of its master."""

from __future__ import annotations

import time
from pathlib import Path

CAUGHT_UP_S = 120


def differs(ours: Path, theirs: Path) -> str:
    """How the slave's log differs from ours; empty when every byte is the same."""
    files = sorted((ours / "commitlog").iterdir())
    for file in files:
        copy = theirs / "commitlog" / file.name
        if not copy.exists():
            return f"{file.name} is not there"
        if copy.read_bytes() != file.read_bytes():
            return f"{file.name} differs"
    return ""


def await_same(ours: Path, theirs: Path) -> None:
    """Wait until the slave has every byte."""
    deadline = time.monotonic() + CAUGHT_UP_S
    while difference := differs(ours, theirs):
        assert time.monotonic() < deadline, difference
        time.sleep(0.5)
