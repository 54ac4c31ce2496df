"""What a consumer shows of its queues and positions, and what another program sets. Over each place."""

from __future__ import annotations

from broker.remoting.codes import RequestCode
from tests.backends.backend import Backend
from tests.backends.clusters import Connected
from tests.consumer.messages import (
    ABSENT_S,
    acknowledged,
    bodies,
    eventually,
    is_before_5,
    next_of,
    publish,
    queues_of,
    reset_to_first,
    spread,
)
from tests.server.wire_client import WireClient


def test_its_queues_and_positions(backend: Backend) -> None:
    """A store shows the positions of the whole group, a cluster those of this member, with the broker's name."""
    backend.client.create_topic("orders", queues=4)
    spread(backend, "a", "b", "c", "d")
    with backend.client.consumer("billing", "orders") as consumer:
        assert sorted(bodies(backend, consumer, 4)) == ["a", "b", "c", "d"]
    broker_name = ("broker-a",) if backend.is_cluster else ()
    queues = {("orders", queue_id, *broker_name) for queue_id in range(4)}
    with backend.client.consumer("billing", "orders") as first:
        assert queues_of(first) == queues
        assert [first.positions()[queue] for queue in queues] == [1, 1, 1, 1]
        with backend.another() as other, other.consumer("billing", "orders") as second:
            eventually(backend, lambda: len(queues_of(first)) == len(queues_of(second)) == 2)
            assert acknowledged(second) == (2 if backend.is_cluster else 4)


def test_a_reset_under_a_consumer_at_work(backend: Backend) -> None:
    """What was in hand then counts no more. A broker before 5.0 has its Java clients do it: its groups are stopped."""
    publish(backend, "a", "b", "c")
    with backend.client.consumer("billing", "orders") as consumer:
        assert bodies(backend, consumer, 2) == ["a", "b"]
        held = next_of(backend, consumer)
        reset_to_first(backend)
        if not is_before_5(backend):
            again = next_of(backend, consumer)
            assert again.body == b"a"
            assert not consumer.ack(held)
            assert consumer.ack(again)
            assert bodies(backend, consumer, 2) == ["b", "c"]
            return
        assert consumer.receive(ABSENT_S) is None
        assert consumer.ack(held)
    assert isinstance(backend, Connected)
    with WireClient(backend.proxy.target) as client:
        for queue_id in range(4):
            asked = {"consumerGroup": "billing", "topic": "orders", "queueId": queue_id, "commitOffset": 0}
            assert client.request(RequestCode.UPDATE_CONSUMER_OFFSET, asked).code == 0
    with backend.client.consumer("billing", "orders") as consumer:
        assert bodies(backend, consumer, 3) == ["a", "b", "c"]
