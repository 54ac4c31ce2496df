"""What is sent to executors that have nothing of ours."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from recovery.spark import package


def test_the_zip_holds_the_code_and_nothing_else(tmp_path: Path) -> None:
    """The same bytes each time; a Python with NumPy and PyArrow can import from it."""
    first, second = (Path(package(tmp_path / name)) for name in ("first.zip", "second.zip"))
    assert first.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert "recovery/spark/source.py" in names
    assert all(name.endswith(".py") and name.split("/")[0] in ("broker", "recovery") for name in names)
    code = "import recovery.pipeline.inspection as one; print(one.__file__)"
    isolated = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(first)!r}); {code}"]
    out = subprocess.run(isolated, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert out.startswith(str(first))
