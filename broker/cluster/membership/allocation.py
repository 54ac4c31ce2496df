"""Which queues a member of a consumer group has: every member computes the same. Pure.

RocketMQ: AllocateMessageQueueAveragely (5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.remoting.bodies import MessageQueue


def order_of(queue: MessageQueue) -> tuple[str, str, int]:
    """RocketMQ: MessageQueue.compareTo (5.3.3)."""
    return queue.topic, queue.broker_name, queue.queue_id


def averagely(queues: Iterable[MessageQueue], client_ids: Sequence[str], client_id: str) -> list[MessageQueue]:
    """The queues of one member: neighbours, the first members one more where they do not divide evenly.

    Quirk (5.3.3): a broker that hung for a while names a client once for each connection that it had meanwhile, for two
    minutes. Each client counts once: the shares of the others were read by nobody.
    """
    ids = sorted(set(client_ids))
    if client_id not in ids:
        return []
    listed, index = sorted(queues, key=order_of), ids.index(client_id)
    rest = len(listed) % len(ids)
    if len(listed) <= len(ids):
        size = 1
    else:
        size = len(listed) // len(ids) + (1 if rest and index < rest else 0)
    start = index * size if rest and index < rest else index * size + rest
    if len(listed) <= len(ids):
        start = index
    return listed[start : start + size]
