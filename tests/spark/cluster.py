"""A real standalone cluster on this machine: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

READY_S = 90


@contextmanager
def standalone(directory: Path, workers: int = 2) -> Iterator[str]:
    """The URL of a cluster; its processes end with the block. Logs and work directories are in `directory`."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        master = _start(
            directory, "master", "org.apache.spark.deploy.master.Master", "--port", "0", "--webui-port", "0"
        )
        started.append(master)
        url = _said(directory / "master.log", r"Starting Spark master at (spark://\S+)", master)
        for number in range(workers):
            kind = "org.apache.spark.deploy.worker.Worker"
            small = ("--cores", "1", "--memory", "1g", "--port", "0", "--webui-port", "0")
            name = f"worker{number}"
            work = ("--work-dir", str(directory / f"{name}.work"))
            worker = _start(directory, name, kind, *small, *work, url)
            started.append(worker)
        for number in range(workers):
            _said(directory / f"worker{number}.log", r"(Successfully registered) with master", started[number + 1])
        yield url
    finally:
        for process in reversed(started):
            os.killpg(process.pid, signal.SIGTERM)
        for process in started:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _start(directory: Path, name: str, *words: str) -> subprocess.Popen[bytes]:
    """pip's pyspark has no start-master.sh; this is what that would call."""
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    home = Path(found.origin).parent
    environment = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_DAEMON_MEMORY": "256m",
    }
    host = ("--host", "127.0.0.1")
    with (directory / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            [str(home / "bin" / "spark-class"), words[0], *host, *words[1:]],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def _said(log: Path, pattern: str, process: subprocess.Popen[bytes]) -> str:
    """What a process says once it is ready."""
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        text = log.read_text(errors="replace")
        found = re.search(pattern, text)
        if found:
            return found[1]
        assert process.poll() is None, text
        time.sleep(0.1)
    raise AssertionError(f"not ready after {READY_S} s: {log.read_text(errors='replace')}")
