"""Locks of queues for orderly consumption, the same whichever server of the store a client asks.

Changed under the lock of the consumers' table. RocketMQ: RebalanceLockManager (5.3.3).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from broker.consuming.group.membership import monotonic_ms
from broker.remoting.bodies import MessageQueue
from broker.store.shared.queue_lock_file import LOCK_MS, HeldLocks, is_over, lock_name, read_locks

if TYPE_CHECKING:
    from broker.consuming.group.consumer_table import ConsumerTable
    from broker.live import LiveStore

LOCKS_MAX = 4096  # of one connection at a time


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
        self._given: WeakKeyDictionary[Any, dict[str, int]] = WeakKeyDictionary()  # when, by connection and lock

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], is_leased: Callable[[str, int], bool],
        connection: Any,
    ) -> list[MessageQueue]:  # fmt: skip
        """Give a client queues that no other client of its group holds; returns those that it has now.

        `is_leased(topic, queue_id)` says whether a consumer with the store open has the queue: then nobody gets it.
        A connection gets no more than its share, whatever groups and clients it names. For one thread.
        """
        now_ms = monotonic_ms()
        share = {name: at for name, at in self._given.get(connection, {}).items() if now_ms - at <= LOCK_MS}
        self._given[connection] = share
        with self._cells.lock:
            free = [queue for queue in queues if not is_leased(queue.topic, queue.queue_id)]
            names = [lock_name(group, queue.topic, queue.queue_id) for queue in free]
            room = LOCKS_MAX - len(share.keys() - names)
            known = [queue for queue, name in zip(free, names, strict=True) if name in share]
            new = [queue for queue, name in zip(free, names, strict=True) if name not in share]
            asked = known + new[: max(0, room - len(known))]
            after, given = granted(read_locks(self._disk, self._path), group, client_id, asked, now_ms)
            self._write(after)
        share.update((lock_name(group, queue.topic, queue.queue_id), now_ms) for queue in given)
        return given

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue], connection: Any) -> None:
        """Take queues back from a client."""
        with self._cells.lock:
            held = read_locks(self._disk, self._path)
            after = released(held, group, client_id, queues)
            self._write(after)
        for name in held.keys() - after.keys():
            self._given.get(connection, {}).pop(name, None)

    def are_held(self, group: str) -> bool:
        """Whether a client of a group holds a queue: the group works in order. RocketMQ: isLockAllExpired (5.3.3)."""
        with self._cells.lock:
            held = read_locks(self._disk, self._path)
        now_ms = monotonic_ms()
        return any(name.startswith(f"{group} ") and not is_over(one, now_ms) for name, one in held.items())

    def _write(self, held: HeldLocks) -> None:
        self._disk.write_file(self._path, json.dumps(held).encode(), durable=False)
