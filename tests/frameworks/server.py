"""A real server with several workers on a port of its own, which can be killed in part or as a whole."""

from __future__ import annotations

import http.client
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.house.tree import ROOT

READY_S = 60.0
REQUEST_S = 15.0
WORKERS = 2


def gunicorn(application: str, *options: str) -> list[str]:
    words = ["gunicorn", application, "--workers", str(WORKERS), "--bind", "127.0.0.1:{port}", "--log-level", "warning"]
    return [sys.executable, "-m", *words, *options]


def uvicorn(application: str, *options: str) -> list[str]:
    words = ["uvicorn", application, "--workers", str(WORKERS), "--host", "127.0.0.1", "--port", "{port}"]
    return [sys.executable, "-m", *words, "--log-level", "warning", *options]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def post(port: int, path: str, body: str = "") -> int:
    """The status that the server answers with. Raises OSError or HTTPException when it does not."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=REQUEST_S)
    try:
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


class Server:
    """The processes of a shop's server. Its output goes to a file, for whoever looks into a failure."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.port = free_port()
        self._command = [word.format(port=self.port) for word in command]
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=output, stderr=output, start_new_session=True
            )
        deadline = time.monotonic() + READY_S
        while not self._answers():
            assert self._process.poll() is None, f"the server ended: {self.log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"the server does not answer: {self.log.read_text()[-3000:]}"
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            return post(self.port, "/not-there") == 404
        except (OSError, http.client.HTTPException):
            return False

    def workers(self) -> list[int]:
        """The processes below the one that was started, which serve."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [pid for pid in map(int, children.read_text().split()) if not _is_helper(pid)]

    def kill_worker(self, chance: random.Random) -> bool:
        """Kill one worker with SIGKILL; the server starts another. False when there was none at this moment."""
        workers = self.workers()
        if not workers:
            return False
        try:
            os.kill(chance.choice(workers), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def kill(self) -> None:
        """Kill all its processes with SIGKILL, at the same moment."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None


def _is_helper(pid: int) -> bool:
    """Whether a process is the resource tracker of `multiprocessing`, which serves nobody."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True
