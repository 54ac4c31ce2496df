"""Worker processes under a supervisor: started again when they end, stopped together, restarted when files change.

The supervisor touches neither store nor database: killed at any instant it loses nothing, and its processes notice by
their sockets and stop. A process that says nothing for a minute hangs, and is killed.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from recovery.work.liveness import LivenessFile
from recovery.work.reload import SourceFiles

_LOOK_S = 0.1
_RELOAD_S = 0.5
_SILENT_S = 60.0  # as a consumer that is silent loses its queues
_START_S = 600.0  # a starved machine, or a database that recovers
_LATE_S = 10.0  # a process that was silent for so long makes the liveness file old
_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0)  # before a process is started again that did not live long
_LONG_S = 30.0
_BEYOND_GRACE_S = 5.0


def next_start(lived_s: float, failures: int) -> tuple[int, float]:
    """How often a process has ended early in a row, and the pause in seconds before it starts again.

    It lived for `lived_s` seconds, and `failures` times before it had ended early.
    """
    if lived_s > _LONG_S:
        return 0, 0.0
    return failures + 1, _PAUSES_S[min(failures, len(_PAUSES_S) - 1)]


class Child:
    """One worker process and its socket."""

    def __init__(self, command: Sequence[str], number: int, failures: int = 0) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            words = [*command, "--supervised", str(theirs.fileno())]
            self.process = subprocess.Popen(  # noqa: S603 - this program, with its own arguments
                words, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        ours.setblocking(False)
        self._socket = ours
        self.number, self.failures = number, failures
        self.is_ready = False
        self.started_s = self.heard_s = time.monotonic()

    def listen(self) -> None:
        """Take note of what it says: a byte is a sign of life, the first one means that it works."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            if self._socket.recv(4096):
                self.is_ready, self.heard_s = True, time.monotonic()

    @property
    def patience_s(self) -> float:
        """How long it may be silent; while it starts it has no way to say anything."""
        return _SILENT_S if self.is_ready else _START_S

    def hangs(self, now_s: float) -> bool:
        """Whether it was silent for too long."""
        return now_s - self.heard_s > self.patience_s

    def signal(self, number: int) -> None:
        """Send a signal to the process, if it is there."""
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(number)

    def close(self) -> None:
        self._socket.close()


class Supervisor:
    """Keeps `processes` of one command at work until `stopping`."""

    def __init__(
        self,
        command: Sequence[str],
        processes: int,
        stopping: threading.Event,
        *,
        grace_s: float,
        say: Callable[[str], object],
        sources: SourceFiles | None = None,
        liveness: LivenessFile | None = None,
    ) -> None:
        self._command, self._count, self._stopping = list(command), processes, stopping
        self._grace_s, self._say = grace_s, say
        self._sources, self._liveness = sources, liveness
        self._children: list[Child] = []
        self._due: list[tuple[float, int, int]] = []  # (when, number, failures) of processes to be started again
        self._has_worked = self._waits_for_change = False

    def run(self) -> int:
        """The exit code: 0 when it was stopped and everything was finished, else that of a process that cannot work."""
        self._start(0)  # the others follow when it is ready: what is wrong with the application is said once
        looked_s = time.monotonic()
        code: int | None = None
        try:
            while code is None and not self._stopping.wait(_LOOK_S):
                code = self._look()
                if self._sources is not None and time.monotonic() - looked_s >= _RELOAD_S:
                    looked_s = time.monotonic()
                    self._reload(self._sources)
        finally:
            finished = self._stop_all()
            if self._liveness is not None:
                self._liveness.remove()
        return code if code is not None else int(not finished)

    def _look(self) -> int | None:
        """One look at all processes; an exit code when there is no point in going on."""
        for child in list(self._children):
            child.listen()
            self._has_worked |= child.is_ready
            if child.process.poll() is not None:
                if (code := self._ended(child)) is not None:
                    return code
            elif child.hangs(time.monotonic()):
                self._say(f"process {child.process.pid} said nothing for {child.patience_s:.0f} s and is killed")
                child.process.kill()
                child.process.wait()
        self._start_due()
        if self._liveness is not None and self._all_alive():
            self._liveness.beat({"processes": [child.process.pid for child in self._children]})
        return None

    def _all_alive(self) -> bool:
        now_s = time.monotonic()
        heard = [child for child in self._children if child.is_ready and now_s - child.heard_s < _LATE_S]
        return len(heard) == self._count

    def _start(self, number: int, failures: int = 0) -> None:
        self._children.append(Child(self._command, number, failures))

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for entry in [one for one in self._due if one[0] <= now_s]:
            self._due.remove(entry)
            self._start(*entry[1:])
        running = {child.number for child in self._children} | {number for _, number, _ in self._due}
        if any(child.is_ready for child in self._children) and not self._waits_for_change:
            for number in set(range(self._count)) - running:
                self._start(number)

    def _ended(self, child: Child) -> int | None:
        """A process ended by itself: start it again, or give up when none ever worked."""
        self._children.remove(child)
        child.close()
        code = child.process.returncode
        if not child.is_ready and code > 0:
            if self._sources is not None:
                self._say("It starts again when a file changes.")
                self._waits_for_change = True
                return None
            if not self._has_worked:
                return code
        failures, pause_s = next_start(time.monotonic() - child.started_s, child.failures)
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        self._say(
            f"process {child.process.pid} ended {how}; another one starts" + (f" in {pause_s} s" if pause_s else "")
        )
        self._due.append((time.monotonic() + pause_s, child.number, failures))
        return None

    def _reload(self, sources: SourceFiles) -> None:
        path = sources.changed()
        if path is None:
            return
        self._say(f"{path} changed: the processes start again")
        self._stop_all()
        self._due.clear()
        self._waits_for_change = False
        self._start(0)

    def _stop_all(self) -> bool:
        """Stop all processes; whether each finished what it was doing. What is killed is delivered again."""
        stopped = [child for child in self._children if child.process.poll() is None]
        for child in stopped:
            child.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + self._grace_s + _BEYOND_GRACE_S
        finished = True
        for child in self._children:
            try:
                code = child.process.wait(max(0.0, deadline_s - time.monotonic()))
                child.listen()
                was_idle = not child.is_ready or child not in stopped  # still starting, or had ended before
                finished &= code == 0 or was_idle
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()
                finished = False
            child.close()
        self._children.clear()
        return finished
