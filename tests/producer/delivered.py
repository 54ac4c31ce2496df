"""What consumers see of a store."""

from __future__ import annotations

from broker.live import LiveStore


def delivered(store: LiveStore, topic: str = "orders") -> list[bytes]:
    """What consumers see, queue by queue."""
    store.sync_now()
    found = []
    for queue_id in store.queues(topic):
        for number in range(*store.queue_range(topic, queue_id)):
            message = store.message(topic, queue_id, number)
            assert message is not None
            found.append(message.body)
    return found
