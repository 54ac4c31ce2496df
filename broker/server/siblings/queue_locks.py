"""Which client of a group holds which queue for orderly consumption, whichever server of the store it asks.

    STORE/checkback/servers/locks      {"group topic 0": ["client", milliseconds of this boot]}

Changed under the lock of the consumers' table. RocketMQ: RebalanceLockManager (5.3.3).
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from broker.consuming.membership import monotonic_ms
from broker.remoting.bodies import MessageQueue
from broker.store.disk.files import Missing

if TYPE_CHECKING:
    from broker.consuming.consumer_table import ConsumerTable
    from broker.live import LiveStore

LOCK_MS = 60_000  # RocketMQ: rocketmq.broker.rebalance.lockMaxLiveTime
Held = Mapping[str, tuple[str, int]]  # client and time of its last request, by queue


def granted(
    held: Held, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int
) -> tuple[dict[str, tuple[str, int]], list[MessageQueue]]:
    """What is held after a client asked for queues, and those that it has now: they are free, its own, or given up."""
    after = {name: one for name, one in held.items() if not _is_over(one, now_ms)}
    given = []
    for queue in queues:
        name = _name(group, queue)
        if after.get(name, (client_id, 0))[0] == client_id:
            after[name] = (client_id, now_ms)
            given.append(queue)
    return after, given


def released(held: Held, group: str, client_id: str, queues: Iterable[MessageQueue]) -> dict[str, tuple[str, int]]:
    """What is held after a client gave queues back."""
    names = {_name(group, queue) for queue in queues}
    return {name: one for name, one in held.items() if name not in names or one[0] != client_id}


def _name(group: str, queue: MessageQueue) -> str:
    return f"{group} {queue.topic} {queue.queue_id}"


def _is_over(held: tuple[str, int], now_ms: int) -> bool:
    """Also where it is of an earlier boot, whose clock was ahead."""
    return not 0 <= now_ms - held[1] <= LOCK_MS


class QueueLocks:
    """The locks of one store."""

    def __init__(self, store: LiveStore, cells: ConsumerTable) -> None:
        self._disk, self._cells = store.writer.disk, cells
        self._path = os.path.join(store.writer.paths.servers, "locks")

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Give a client queues that no other client of its group holds; returns those that it has now."""
        with self._cells.lock:
            after, given = granted(self._held(), group, client_id, queues, monotonic_ms())
            self._write(after)
        return given

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        """Take queues back from a client."""
        with self._cells.lock:
            self._write(released(self._held(), group, client_id, queues))

    def _held(self) -> Held:
        with contextlib.suppress(Missing, ValueError, TypeError, AttributeError):
            found = json.loads(self._disk.read(self._path))
            return {str(name): (str(client), int(at)) for name, (client, at) in found.items()}
        return {}

    def _write(self, held: Held) -> None:
        self._disk.write_file(self._path, json.dumps(held).encode(), durable=False)
