"""Which retention each process has that opened the store, so that they do not fight.

    STORE/checkback/retention/4711-9f2c01ab  the settings of one process, as JSON: locked as long as it has it open
    STORE/checkback/retention.json           what was removed so far, and the last round

The system releases the lock when the process dies, however it dies: its settings count no more. The most careful of
those that count is what any of them does (`most_careful`).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Mapping
from typing import Any

from broker.errors import BrokerError, StoreError
from broker.store.disk.files import Disk, Missing
from broker.store.disk.lock_calls import is_flocked
from broker.store.disk.paths import Paths
from broker.store.maintain.retention import Retention


class RetentionRegistration:
    """The settings of this process, for all others to see until it closes the store or dies."""

    def __init__(self, disk: Disk, paths: Paths, retention: Retention) -> None:
        """Call under the background lock. Raises StoreFull."""
        if disk.entry(paths.retention) is None:
            disk.create_directory(paths.retention)
        self._disk, self._pid = disk, os.getpid()
        self._path = os.path.join(paths.retention, f"{os.getpid()}-{secrets.token_hex(4)}")  # pids repeat
        disk.write_file(self._path, json.dumps(retention.as_json()).encode())
        self._descriptor = disk.open_lock(self._path)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def close(self) -> None:
        """Settings that do not count any more are removed by the next process that looks."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0 and self._pid != os.getpid():  # of the process that this one was forked from
            os.close(descriptor)
        elif descriptor >= 0:
            with contextlib.suppress(StoreError):
                self._disk.remove(self._path, durable=False)
            os.close(descriptor)


def registered(disk: Disk, paths: Paths) -> list[Retention]:
    """The settings of all processes that have the store open with a retention. Those of the dead are passed over."""
    found = []
    for entry in [] if disk.entry(paths.retention) is None else disk.entries(paths.retention):
        with contextlib.suppress(Missing, ValueError, TypeError, BrokerError):  # closed meanwhile, or half written
            if is_flocked(disk, entry.path):
                found.append(Retention(**json.loads(disk.read(entry.path))))
    return found


def remove_dead(disk: Disk, paths: Paths) -> None:
    """Remove the settings of processes that died; call under the background lock."""
    for entry in [] if disk.entry(paths.retention) is None else disk.entries(paths.retention):
        with contextlib.suppress(Missing):
            if not is_flocked(disk, entry.path):
                disk.remove(entry.path, durable=False)


def read_history(disk: Disk, paths: Paths) -> dict[str, Any]:
    """What retention removed from the store so far, and its last round; empty before the first."""
    try:
        found = json.loads(disk.read(paths.retention_json))
    except (Missing, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_history(disk: Disk, paths: Paths, history: Mapping[str, Any]) -> None:
    """Put it in place of the one before; call under the background lock. Raises StoreFull."""
    disk.write_file(paths.retention_json, json.dumps(history).encode())
