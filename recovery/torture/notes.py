"""A file in which processes that may be killed note what was acknowledged to them: JSON, a line each.

A kill can cut one write of a file between two pages. So each note begins with a line feed as well: what a kill left of
one note does not run into the next one, and is skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Notes:
    """The writing end for one process; several may share a file."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def add(self, **event: object) -> None:
        """Note one event, in one system call."""
        os.write(self._descriptor, f"\n{json.dumps(event)}\n".encode())


def read_notes(path: Path) -> Iterator[dict[str, Any]]:
    """Every note that is whole, in the order of the file; no beginning of a note is JSON by itself."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("}\n"):
                yield json.loads(line)
