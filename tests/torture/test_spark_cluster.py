"""The Spark jobs on a cluster whose workers have nothing of ours but what is sent to them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from recovery.verify.verifier import verify
from tests.house.tree import ROOT
from tests.spark.cluster import standalone


def test_verify_on_a_standalone_cluster(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """A master and two workers in processes of their own give the local engine's digest and counts."""
    store = golden("rocketmq-5.3.3-killed")
    with standalone(tmp_path) as url:
        command = [sys.executable, "-m", "recovery.cli.spark_job", "--master", url, "--memory", "600m"]
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
