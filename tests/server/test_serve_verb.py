"""The verb `serve`: how it ends, and what it asks of its process."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from broker.server.counters import Counters
from tests.server.processes import server_process

FAILING = """
import sys
from broker.server.running import Server
from recovery.cli.app import main

real = Server._serve

async def failing(self):
    await self._listener.start_serving()
    self._is_ready.set()
    raise ValueError("nobody expected this")

Server._serve = failing
sys.argv[1:] = ["serve", sys.argv[1], "--create", "--listen", "127.0.0.1:0", "--seconds", "20"]
main()
"""


def test_it_ends_with_a_sentence_when_its_event_loop_does(tmp_path: Path) -> None:
    words = [sys.executable, "-c", FAILING, str(tmp_path / "store")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode not in (0, -signal.SIGKILL)
    assert "the server stopped because of an error, see the log. Start it again" in done.stderr
    assert "nobody expected this" in done.stderr


def limited(hard: int, soft: int) -> list[str]:
    """A command that runs another one with limits of open files."""
    code = f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))"
    return [sys.executable, "-c", f"{code}; os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"]


def test_it_may_open_as_many_files_as_the_system_lets_it(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with server_process(tmp_path / "store", "os", "--create", before=limited(hard, 256)) as (process, _):
        limits = Path(f"/proc/{process.pid}/limits").read_text(encoding="utf-8")
    found = re.search(r"Max open files\s+(\d+)\s+(\d+)", limits)
    assert found is not None
    assert found[1] == found[2] == str(hard)


@pytest.mark.parametrize(("connections", "is_enough"), [("500", False), ("100", True)])
def test_a_hard_limit_that_is_too_small_is_said(tmp_path: Path, connections: str, is_enough: bool) -> None:
    words = [
        "-m",
        "recovery.cli",
        "serve",
        str(tmp_path / "s"),
        "--create",
        "--listen",
        "127.0.0.1:0",
        "--seconds",
        "1",
    ]
    command = [*limited(700, 300), *words, "--connections", connections]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50, env=dict(os.environ))
    assert done.returncode == 0
    said = "this process may have 700 files open, and --connections asks for 1012"
    assert (said in done.stderr, done.stderr == "") == (not is_enough, is_enough)


def test_rates_are_read_while_a_sample_is_taken() -> None:
    """Readers ask for them, and the event loop takes samples."""
    counters = Counters()

    class Late(float):
        def __rsub__(self, other: float) -> float:
            counters._samples.append((other, counters._samples[0][1]))
            return 0.0

    counters._samples.append((Late(), counters._samples[0][1]))
    assert counters.recent("TOPIC_PUT_NUMS")[0] == 0


def test_where_nothing_is_it_names_the_option_that_makes_a_store(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "recovery.cli", "serve", str(tmp_path / "store"), "--seconds", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("or let --create make a store there")
    assert not (tmp_path / "store").exists()


def test_no_option_makes_a_store_at_a_uri() -> None:
    words = [sys.executable, "-m", "recovery.cli", "serve", "file:///srv/store", "--seconds", "1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 2
    assert done.stderr.strip().endswith("Give the path where that file system is mounted")
