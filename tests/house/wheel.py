"""The wheel, built from a copy of the tree by the backend that the lock pins: no network."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from tests.house.tree import ROOT, files


def build_wheel(tree: Path, out: Path) -> Path:
    """Copy what git knows to `tree` and build it there; the wheel in `out`."""
    for path in files():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, tree / path)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(out)!r})"
    subprocess.run([sys.executable, "-c", build], check=True, cwd=tree, capture_output=True)
    (path,) = out.glob("*.whl")
    return path
