"""One worker process: the handlers' threads, and a thread that leads check-back while no other process does.

The process ends when it is stopped, when its supervisor is gone, or when a thread of its own cannot go on; then its
supervisor, or that of the system, starts another.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from broker.app.application import App
from broker.app.handler_runs import HandlerRuns
from broker.app.handlers import HandlerGroup
from broker.app.worker import GRACE_S, Workers
from broker.errors import BrokerError
from recovery.checkback.policy import Policy
from recovery.checkback.service import INTERVAL_S, CheckService, for_producers

LOOK_S = 0.25  # between looks at what ended


@dataclass(frozen=True)
class ProcessSettings:
    """How one process works."""

    grace_s: float = GRACE_S  # for what runs when it is to stop
    check_every_s: float | None = INTERVAL_S  # None: another program runs check-back
    policy: Policy | None = None
    idle_s: float | None = None  # end when nothing was handled for so long
    runs: HandlerRuns | None = None  # counts what the handlers do


def work(
    app: App,
    groups: Sequence[HandlerGroup],
    settings: ProcessSettings,
    stopping: threading.Event,
    alive: Callable[[], None] = lambda: None,
    ready: Callable[[], None] = lambda: None,
) -> bool:
    """Run the groups' handlers until `stopping`; whether everything that ran was finished.

    `ready` is called once, `alive` four times a second while all is well. Raises BrokerError when a thread failed, or
    the database does not answer at the start.
    """
    workers = app.workers(groups, runs=settings.runs)
    _open(app)
    with app, checking(app, settings):
        workers.start()
        try:
            ready()
            _watch(workers, settings, stopping, alive)
        finally:
            finished = workers.stop(settings.grace_s)
    return finished


def _open(app: App) -> None:
    """Open its store and its database. Raises BrokerError for a database that does not answer."""
    if app.engine is None:
        app.start()
        return
    from recovery.checkback.ledgers.database_errors import translated_errors

    with translated_errors(app.engine.url):
        app.start()


def _watch(
    workers: Workers, settings: ProcessSettings, stopping: threading.Event, alive: Callable[[], None]
) -> None:  # fmt: skip
    handled, since_s = workers.handled, time.monotonic()
    while not stopping.wait(LOOK_S):
        failure = workers.failure
        if failure is not None:
            if isinstance(failure, BrokerError):
                raise failure
            raise BrokerError(f"a worker thread ended: {type(failure).__name__}: {failure}") from failure
        alive()
        if workers.handled != handled or workers.running:
            handled, since_s = workers.handled, time.monotonic()
        if settings.idle_s is not None and time.monotonic() - since_s >= settings.idle_s:
            return


@contextlib.contextmanager
def checking(app: App, settings: ProcessSettings) -> Iterator[CheckService | None]:
    """Check-back in a thread, by the lease of the store, for an application that has transactions."""
    if settings.check_every_s is None or app.engine is None or not app.sends:
        yield None
        return
    service = for_producers(
        app.store, [app.producer], policy=settings.policy, interval_s=settings.check_every_s
    )  # fmt: skip
    with service:
        yield service


class Supervised:
    """The child's end of the socket to its supervisor: says that it lives, and learns when the supervisor ends."""

    def __init__(self, descriptor: int, stopping: threading.Event) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._stopping = stopping
        threading.Thread(target=self._wait_for_the_end, name="checkback-supervisor", daemon=True).start()

    def alive(self) -> None:
        """Say it; without a supervisor nobody listens."""
        with contextlib.suppress(OSError):
            self._socket.send(b".", socket.MSG_DONTWAIT)

    def _wait_for_the_end(self) -> None:
        with contextlib.suppress(OSError):
            while self._socket.recv(64):
                pass
        self._stopping.set()
