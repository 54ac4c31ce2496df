"""Force what was appended to the disk: one forced write for everyone who waits, across threads and processes.

Whoever needs the log durable up to an offset takes the sync lock. If another has forced it meanwhile, there is nothing
left to do; otherwise the holder forces everything that is published by then, its own records and everybody else's.
RocketMQ: CommitLog.GroupCommitService (5.3.3) does this for the threads of one process.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.errors import SyncFailed
from broker.store.control import ControlPage, Word
from broker.store.locks import AppendLock
from broker.store.mapped import MappedQueue


class Syncer:
    """Makes a CommitLog durable. `on_failure` marks the store as poisoned for all processes."""

    def __init__(
        self, log: MappedQueue, control: ControlPage, lock: AppendLock, on_failure: Callable[[], None]
    ) -> None:
        self._log, self._control, self._lock, self._on_failure = log, control, lock, on_failure

    def wait_durable(self, commitlog_offset: int) -> None:
        """Return when everything below an offset is on disk. Raises SyncFailed when that can no longer be known."""
        control = self._control
        while control[Word.DURABLE] < commitlog_offset:
            with self._lock:
                if control[Word.DURABLE] < commitlog_offset:
                    self._force()

    def _force(self) -> None:
        """Force the log from what is durable to what is published; call under the sync lock."""
        control = self._control
        if control[
            Word.POISON
        ]:  # pages that failed once are clean now, and lost: a sync that works would prove nothing
            raise SyncFailed(
                f"{self._log.folder}: a forced write failed before. Close the store everywhere and open it"
            )
        start, stop = control[Word.DURABLE], control[Word.TAIL]
        try:
            self._log.sync(start, stop)
        except SyncFailed:
            control[Word.POISON] = 1
            self._on_failure()
            raise
        control[Word.DURABLE] = stop

    def force_now(self) -> None:
        """Force everything that is published."""
        self.wait_durable(self._control[Word.TAIL])

    def close(self) -> None:
        self._log.close()
        self._lock.close()
