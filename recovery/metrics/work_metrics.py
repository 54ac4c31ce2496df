"""The metrics of `checkback work`: one page for all its processes, which share a directory while they run.

    process ──► DIRECTORY/PID.runs      what its handlers did, written when it changed and at its end
    process ──► DIRECTORY/store.prom    the store's samples, by one process, while the page is requested
    page    ──► DIRECTORY/asked         its time says when the page was requested

The supervisor opens no store, so a process measures it. What a process that is gone did stays in the sums.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from broker.app.handler_runs import BOUNDS_S, HandlerRuns, HandlerTotals, summed
from broker.errors import BrokerError
from broker.server.metrics import Sample, exposition
from recovery.metrics.store_metrics import samples
from recovery.metrics_server import PROMETHEUS

if TYPE_CHECKING:
    from broker.live import LiveStore

_STORE, _ASKED, _RUNS = "store.prom", "asked", ".runs"
_FRESH_S = 5.0  # positions of groups are exported so often
_WAIT_S, _LOOK_S = 2.0, 0.02  # for a process that measures the store


def run_samples(found: Sequence[HandlerTotals]) -> Iterator[Sample]:
    """What handlers did, for Prometheus."""
    for one in found:
        labels = {"group": one.group, "handler": one.handler}
        yield "checkback_handler_handled_total", "counter", labels, one.handled
        yield "checkback_handler_failed_total", "counter", labels, one.failed
        yield "checkback_handler_retried_total", "counter", labels, one.retried
        yield "checkback_handler_dead_lettered_total", "counter", labels, one.dead_lettered
        reached = 0
        for bound_s, count in zip([*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"], one.buckets, strict=True):
            reached += count
            yield "checkback_handler_seconds_bucket", "histogram", {**labels, "le": bound_s}, reached
        yield "checkback_handler_seconds_sum", "histogram", labels, one.seconds
        yield "checkback_handler_seconds_count", "histogram", labels, reached


class SharedRuns:
    """One worker process's part."""

    def __init__(self, directory: str) -> None:
        self._directory, self.runs = directory, HandlerRuns()
        self._written: list[HandlerTotals] | None = None

    def publish(self, store: LiveStore | None) -> None:
        """Write what changed; with the store open, its samples too, if they are asked for and old.

        What cannot be written makes the page old, and ends no worker.
        """
        with contextlib.suppress(OSError):
            found = self.runs.read()
            if found != self._written:
                text = json.dumps([one.as_json() for one in found])
                _replace(os.path.join(self._directory, f"{os.getpid()}{_RUNS}"), text)
                self._written = found
            if store is not None and self._is_wanted():
                with contextlib.suppress(BrokerError, ValueError):
                    text = exposition(samples(store, time.time_ns() // 1_000_000))
                    _replace(os.path.join(self._directory, _STORE), text)

    def _is_wanted(self) -> bool:
        """Whether the page was requested when the samples were old."""
        asked_s = _time_of(os.path.join(self._directory, _ASKED))
        return asked_s > _time_of(os.path.join(self._directory, _STORE)) + _FRESH_S


class WorkPage:
    """`/metrics` and `/healthz` of all processes that share a directory."""

    def __init__(self, directory: str) -> None:
        self._directory, self._lock = directory, threading.Lock()
        self._gone: list[HandlerTotals] = []  # of processes that ended

    def page(self, path: str) -> tuple[int, str, str]:
        """Code, type and text of the answer to a GET. Without a process that works there is no sample of the store."""
        if path == "/healthz":
            return 200, "text/plain", "ok\n"
        if path != "/metrics":
            return 404, "text/plain", "GET /metrics or /healthz\n"
        try:
            of_store = self._store_samples()
            return 200, PROMETHEUS, exposition(run_samples(self.totals())) + of_store
        except (OSError, ValueError) as error:
            return 503, "text/plain", f"{error}\n"

    def totals(self) -> list[HandlerTotals]:
        """The sums over all processes, those that ended included. Raises OSError."""
        with self._lock:
            living: list[HandlerTotals] = []
            for name in sorted(os.listdir(self._directory)):
                if not name.endswith(_RUNS):
                    continue
                is_gone = not _is_alive(int(name.removesuffix(_RUNS)))  # before the file is read: it is the last one
                path = os.path.join(self._directory, name)
                found = [HandlerTotals.from_json(one) for one in json.loads(_read(path))]
                if is_gone:
                    self._gone = summed([*self._gone, *found])
                    os.unlink(path)
                else:
                    living += found
            return summed([*self._gone, *living])

    def _store_samples(self) -> str:
        """As of the last seconds; empty when no process wrote them in time."""
        path, asked = os.path.join(self._directory, _STORE), os.path.join(self._directory, _ASKED)
        deadline_s = time.monotonic() + _WAIT_S
        with open(asked, "w", encoding="utf-8"):
            os.utime(asked)
        while _time_of(asked) > _time_of(path) + _FRESH_S:
            if time.monotonic() >= deadline_s:
                return ""
            time.sleep(_LOOK_S)
        return _read(path)


def _time_of(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _read(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _replace(path: str, text: str) -> None:
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)
