"""The jobs on a cluster whose workers have nothing of ours but what is sent to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from recovery.spark import package
from recovery.verify import verify
from tests.house.tree import ROOT
from tests.spark.cluster import standalone


def test_verify_on_a_standalone_cluster(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A master and two workers in processes of their own give the local engine's digest and counts."""
    store = golden("rocketmq-5.3.3-killed")
    with standalone(tmp_path) as url:
        command = [sys.executable, "-m", "recovery.spark.jobs", "--master", url, "--memory", "600m"]
        splits = ["--split-bytes", "400000"]
        done = subprocess.run(
            [*command, *splits, "verify", str(store)],
            capture_output=True,
            cwd=ROOT,
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            timeout=200,
            check=False,
        )
        applications = sorted(path.name for path in (tmp_path / "worker0.work").iterdir())
    assert done.stdout, done.stderr.decode()[-4000:]
    assert done.returncode == 1
    said, expected = json.loads(done.stdout), verify(store)
    assert (said["digest"], said["counts"]) == (expected.digest, dict(expected.findings.counts))
    assert applications, "no executor ran on this worker"


def test_the_zip_holds_the_code_and_nothing_else(tmp_path: Path) -> None:
    """The same bytes each time; a Python with NumPy and PyArrow can import from it."""
    first, second = (Path(package(tmp_path / name)) for name in ("first.zip", "second.zip"))
    assert first.read_bytes() == second.read_bytes()
    names = zipfile.ZipFile(first).namelist()
    assert "recovery/spark/source.py" in names
    assert all(name.endswith(".py") and name.split("/")[0] in ("broker", "recovery") for name in names)
    code = "import recovery.spark.inspection as one; print(one.__file__)"
    isolated = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(first)!r}); {code}"]
    out = subprocess.run(isolated, capture_output=True, text=True, cwd=tmp_path, check=True).stdout
    assert out.startswith(str(first))
