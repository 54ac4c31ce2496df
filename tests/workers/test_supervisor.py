"""The supervisor: processes that end are started again, and what cannot start is not tried for ever."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.work import supervisor as room
from recovery.work.liveness import LivenessFile
from recovery.work.reload import SourceFiles
from recovery.work.supervisor import Supervisor
from tests.app.shop import until

PAUSES_S = room._PAUSES_S

# A worker process without an application. MODE is a file that says what it does.
CHILD = """
import os, signal, socket, sys, time
line = socket.socket(fileno=int(sys.argv[-1]))
with open("pids", "a") as file:
    file.write(f"{os.getpid()}\\n")
mode = open("mode").read()
if mode == "refuses":
    sys.exit(2)
if mode == "starts":
    time.sleep(60)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0) if mode != "stubborn" else None)
while True:
    line.send(b".")
    line.settimeout(0.05)
    try:
        if not line.recv(1):
            sys.exit(0)
    except TimeoutError:
        pass
    mode = open("mode").read()
"""


class Running:
    """A supervisor in a thread."""

    def __init__(self, directory: Path, processes: int, *, reload: bool = False, grace_s: float = 5.0) -> None:
        self.directory, self.stopping, self.said = directory, threading.Event(), list[str]()
        self.supervisor = Supervisor(
            [sys.executable, "-S", "-c", CHILD], processes, self.stopping, grace_s=grace_s, say=self.said.append,
            sources=SourceFiles(str(directory)) if reload else None, liveness=LivenessFile(str(directory / "alive")),
        )  # fmt: skip
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.code = self.supervisor.run()

    def pids(self) -> list[int]:
        return [child.process.pid for child in self.supervisor._children]

    def all_pids(self) -> list[int]:
        path = self.directory / "pids"
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def are_ready(self, count: int) -> bool:
        children = list(self.supervisor._children)
        return len(children) == count and all(child.is_ready for child in children)


@pytest.mark.parametrize(
    ("lived_s", "failures", "expected"),
    [
        (0.1, 0, (1, 0.0)),
        (0.1, 1, (2, 0.5)),
        (30.0, 4, (5, 5.0)),
        (0.1, 5, (6, 10.0)),
        (0.1, 99, (100, 10.0)),
        (30.1, 0, (0, 0.0)),
        (30.1, 99, (0, 0.0)),
    ],
)
def test_the_pause_before_a_process_starts_again(
    lived_s: float, failures: int, expected: tuple[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once the first time, then later and later, at most 10 s; one that lived long begins at the front."""
    monkeypatch.setattr(room, "_PAUSES_S", PAUSES_S)
    assert room.next_start(lived_s, failures) == expected


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(room, "_PAUSES_S", (0.0, 0.05))
    monkeypatch.setattr(room, "_RELOAD_S", 0.05)
    set_mode(tmp_path, "works")


def set_mode(directory: Path, text: str) -> None:
    (directory / "mode.new").write_text(text)
    (directory / "mode.new").rename(directory / "mode")


@contextmanager
def running(directory: Path, processes: int, **options: bool | float) -> Iterator[Running]:
    it = Running(directory, processes, **options)  # type: ignore[arg-type]
    try:
        yield it
    finally:
        it.stopping.set()
        it.thread.join(60)
        assert not it.thread.is_alive()


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_process_that_is_killed_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path, 3) as it:
        until(lambda: it.are_ready(3))
        until((tmp_path / "alive").exists)
        first = it.pids()
        os.kill(first[1], signal.SIGKILL)
        until(lambda: it.are_ready(3) and first[1] not in it.pids())
        assert set(it.pids()) > {first[0], first[2]}
        assert any("ended by signal 9; another one starts" in line for line in it.said)
    assert it.code == 0
    assert not any(is_there(pid) for pid in it.all_pids())
    assert not (tmp_path / "alive").exists()


def test_what_never_worked_is_not_started_again(tmp_path: Path) -> None:
    """One process says what is wrong, and its exit code is the supervisor's."""
    set_mode(tmp_path, "refuses")
    with running(tmp_path, 3) as it:
        until(lambda: it.code is not None)
    assert it.code == 2
    assert len(it.all_pids()) == 1


def test_what_worked_once_is_tried_again(tmp_path: Path) -> None:
    """A database that is away while a process starts does not end the others."""
    with running(tmp_path, 2) as it:
        until(lambda: it.are_ready(2))
        set_mode(tmp_path, "refuses")
        os.kill(it.pids()[0], signal.SIGKILL)
        until(lambda: len(it.all_pids()) >= 5)
        set_mode(tmp_path, "works")
        until(lambda: it.are_ready(2))
        assert it.code is None
    assert it.code == 0


def test_a_process_that_is_still_starting_had_nothing_to_finish(tmp_path: Path) -> None:
    set_mode(tmp_path, "starts")
    with running(tmp_path, 1) as it:
        until(it.all_pids)
    assert it.code == 0


def test_a_process_may_take_its_time_to_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a starved machine it would be killed again and again; but not for ever."""
    monkeypatch.setattr(room, "_SILENT_S", 0.05)
    monkeypatch.setattr(room, "_START_S", 1.5)
    set_mode(tmp_path, "starts")
    with running(tmp_path, 1) as it:
        until(it.all_pids)
        first = it.all_pids()
        time.sleep(0.5)
        assert it.all_pids() == first
        until(lambda: it.all_pids() != first)
        assert sum("said nothing for 2 s and is killed" in line for line in it.said) == len(it.all_pids()) - 1


def test_a_process_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_SILENT_S", 1.0)
    with running(tmp_path, 1) as it:
        until(lambda: it.are_ready(1))
        (pid,) = it.pids()
        os.kill(pid, signal.SIGSTOP)
        until(lambda: it.are_ready(1) and it.pids() != [pid])
        assert any("said nothing for 1 s and is killed" in line for line in it.said)


def test_a_process_that_does_not_stop_is_killed_after_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_BEYOND_GRACE_S", 0.2)
    set_mode(tmp_path, "stubborn")
    with running(tmp_path, 1, grace_s=0.2) as it:
        until(lambda: it.are_ready(1))
    assert it.code == 1
    assert not any(is_there(pid) for pid in it.all_pids())


def test_processes_stop_when_their_supervisor_is_gone(tmp_path: Path) -> None:
    """As after its kill: the system closes its sockets."""
    with running(tmp_path, 2) as it:
        until(lambda: it.are_ready(2))
        children = list(it.supervisor._children)
        it.stopping.wait(0.1)
        for child in children:
            child._socket.shutdown(2)
        until(lambda: all(child.process.poll() == 0 for child in children))


def test_reload(tmp_path: Path) -> None:
    """A change restarts; what does not start waits for the next change."""
    source = tmp_path / "shop.py"
    source.write_text("1")
    (tmp_path / ".hidden").mkdir()
    with running(tmp_path, 1, reload=True) as it:
        until(lambda: it.are_ready(1))
        first = it.pids()
        (tmp_path / ".hidden" / "x.py").write_text("not looked at")
        time.sleep(0.3)
        assert it.pids() == first
        set_mode(tmp_path, "refuses")
        source.write_text("22")
        until(lambda: any("starts again when a file changes" in line for line in it.said))
        tries = len(it.all_pids())
        time.sleep(0.3)
        assert len(it.all_pids()) == tries
        set_mode(tmp_path, "works")
        source.write_text("333")
        until(lambda: it.are_ready(1))
        assert "shop.py changed: the processes start again" in it.said
