"""Locks of queues for orderly consumption, the same whichever server of the store a client asks.

Changed under the lock of the consumers' table. RocketMQ: RebalanceLockManager (5.3.3).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from broker.consuming.group.membership import monotonic_ms
from broker.remoting.bodies import MessageQueue
from broker.store.shared.queue_lock_file import HeldLocks, is_over, lock_name, read_locks

if TYPE_CHECKING:
    from broker.consuming.group.consumer_table import ConsumerTable
    from broker.live import LiveStore


def granted(
    held: HeldLocks, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
) -> tuple[dict[str, tuple[str, int]], list[MessageQueue]]:
    """What is held after a client asked for queues, and those that it has now: they are free, its own, or given up."""
    after = {name: one for name, one in held.items() if not is_over(one, now_ms)}
    given = []
    for queue in queues:
        name = lock_name(group, queue.topic, queue.queue_id)
        if after.get(name, (client_id, 0))[0] == client_id:
            after[name] = (client_id, now_ms)
            given.append(queue)
    return after, given


def released(held: HeldLocks, group: str, client_id: str, queues: Iterable[MessageQueue]) -> dict[str, tuple[str, int]]:
    """What is held after a client gave queues back."""
    names = {lock_name(group, queue.topic, queue.queue_id) for queue in queues}
    return {name: one for name, one in held.items() if name not in names or one[0] != client_id}


class QueueLocks:
    """The locks of one store."""

    def __init__(self, store: LiveStore, cells: ConsumerTable) -> None:
        self._disk, self._cells, self._path = store.writer.disk, cells, store.writer.paths.queue_locks

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], is_leased: Callable[[str, int], bool]
    ) -> list[MessageQueue]:
        """Give a client queues that no other client of its group holds; returns those that it has now.

        `is_leased(topic, queue_id)` says whether a consumer with the store open has the queue: then nobody gets it.
        """
        with self._cells.lock:
            free = [queue for queue in queues if not is_leased(queue.topic, queue.queue_id)]
            after, given = granted(read_locks(self._disk, self._path), group, client_id, free, monotonic_ms())
            self._write(after)
        return given

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Take queues back from a client."""
        with self._cells.lock:
            self._write(released(read_locks(self._disk, self._path), group, client_id, queues))

    def _write(self, held: HeldLocks) -> None:
        self._disk.write_file(self._path, json.dumps(held).encode(), durable=False)
