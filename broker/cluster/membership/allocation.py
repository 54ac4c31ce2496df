"""Which queues a member of a consumer group has: every member computes the same. Pure.

RocketMQ: AllocateMessageQueueAveragely (5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from broker.consuming.group.membership import share
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
    return share(sorted(queues, key=order_of), ids, client_id)
