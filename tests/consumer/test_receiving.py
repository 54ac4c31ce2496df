"""A group gets every message of its topic, from where it stopped, shared among its members: over each place."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time

import pytest

import broker
from tests.backends.backend import Backend
from tests.consumer.messages import (
    ABSENT_S,
    SAVED_S,
    acknowledged,
    bodies,
    eventually,
    is_before_5,
    next_of,
    publish,
    queues_of,
    spread,
)


def test_a_group_goes_on_where_it_stopped(backend: Backend) -> None:
    spread(backend, "a", "b", "c", "d")
    with backend.client.consumer("billing", "orders") as consumer:
        assert sorted(bodies(backend, consumer, 4)) == ["a", "b", "c", "d"]
    spread(backend, "e")
    with backend.client.consumer("billing", "orders") as consumer:
        assert bodies(backend, consumer, 1) == ["e"]
        assert consumer.receive(0) is None


def test_what_was_not_acknowledged_comes_again(backend: Backend) -> None:
    """And so does what was acknowledged behind it: the position is the lowest that is open."""
    publish(backend, "a", "b", "c")
    with backend.client.consumer("billing", "orders") as consumer:
        next_of(backend, consumer)
        assert consumer.ack(next_of(backend, consumer))
    with backend.client.consumer("billing", "orders") as consumer:
        assert bodies(backend, consumer, 3) == ["a", "b", "c"]


def test_groups_do_not_know_of_each_other(backend: Backend) -> None:
    spread(backend, "a", "b")
    for group in ("billing", "shipping"):
        with backend.client.consumer(group, "orders") as consumer:
            assert sorted(bodies(backend, consumer, 2)) == ["a", "b"]


def test_a_batch_is_what_is_there_up_to_a_limit(backend: Backend) -> None:
    """It waits for the first message only; what is not acknowledged comes again, message by message."""
    publish(backend, *"abcdefg")
    eventually(backend, lambda: len(backend.delivered()) == 7)
    with backend.client.consumer("billing", "orders") as consumer:
        five, rest = consumer.batch(5, backend.soon_s), consumer.batch(5, backend.soon_s)
        assert [message.body.decode() for message in (*five, *rest)] == [*"abcdefg"]
        assert (len(five), len(rest), consumer.batch(5, 0)) == (5, 2, [])
        assert consumer.ack_all(five) == 5
        assert consumer.ack_all(five) == 0
    with backend.client.consumer("billing", "orders") as consumer:
        again = consumer.batch(10, backend.soon_s)
        assert [message.body for message in again] == [message.body for message in rest]
        for limit in (0, -1, True, None):
            with pytest.raises(broker.BrokerError, match="limit is a whole number from 1 on"):
                consumer.batch(limit)  # type: ignore[arg-type]


def test_only_the_tags_that_are_asked_for(backend: Backend) -> None:
    """Tags with one hash are told apart, and what is passed over does not hold the position back."""
    for tag in ("Aa", "BB", "C", "D"):
        publish(backend, tag, tag=tag)
    with backend.client.consumer("billing", "orders", tags="Aa || C") as consumer:
        assert bodies(backend, consumer, 2) == ["Aa", "C"]
        assert consumer.receive(0) is None
        eventually(backend, lambda: consumer.receive_now() is None and acknowledged(consumer) == 4)


def test_members_share_the_queues_and_lose_none(backend: Backend) -> None:
    """A second member takes half; when it leaves, the first has all again."""
    backend.client.create_topic("orders", queues=4)
    with backend.client.consumer("billing", "orders") as first:
        with backend.another() as other, other.consumer("billing", "orders") as second:
            eventually(backend, lambda: [len(queues_of(one)) for one in (first, second)] == [2, 2])
            assert not queues_of(first) & queues_of(second)
            spread(backend, *(str(number) for number in range(40)))
            received = bodies(backend, first, 20) + bodies(backend, second, 20)
            assert sorted(received, key=int) == [str(number) for number in range(40)]
        eventually(backend, lambda: len(queues_of(first)) == 4)
        assert first.receive(0) is None, "the position of the second came with its queues"


def test_what_is_in_hand_when_another_member_joins(backend: Backend) -> None:
    """A store gives a queue over when its messages are acknowledged. RocketMQ's groups give it over at once."""
    backend.client.create_topic("orders", queues=2)
    spread(backend, "a", "b")
    with backend.client.consumer("billing", "orders") as first:
        held = [next_of(backend, first) for _ in range(2)]
        with backend.another() as other, other.consumer("billing", "orders") as second:
            if backend.is_cluster:
                again = next_of(backend, second)
                assert second.ack(again)
                eventually(backend, lambda: len(queues_of(first)) == 1)
                assert {message.body: first.ack(message) for message in held}[again.body] is False
            else:
                assert second.receive(ABSENT_S) is None
                assert all(first.ack(message) for message in held)
                eventually(backend, lambda: len(queues_of(second)) == 1)
                assert second.receive(0) is None


def test_members_that_ask_for_other_topics(backend: Backend) -> None:
    """A store refuses it. A broker does not know of it: half of the queues fall to one that does not want them."""
    backend.client.create_topic("orders", queues=4)
    with backend.client.consumer("billing", "orders") as first, backend.another() as other:
        if not backend.is_cluster:
            with pytest.raises(broker.StoreError, match="the same topics"):
                other.consumer("billing", "refunds")
            return
        with other.consumer("billing", "refunds") as second:
            eventually(backend, lambda: len(queues_of(first)) == 2)
            assert not queues_of(second)


CONSUMER = """
import sys, time, broker
place, start, seconds, count = sys.argv[1], sys.argv[2], float(sys.argv[3]), int(sys.argv[4])
opened = broker.connect(place) if place.startswith("rocketmq://") else broker.open(place)
consumer = opened.consumer("billing", "orders", start=start)
for _ in range(count):
    consumer.ack(consumer.receive())
if count:
    consumer.receive()
time.sleep(seconds)
print(flush=True)
time.sleep(300)
"""


def kill_a_consumer(backend: Backend, *, start: str = "first", seconds: float = 0.0, count: int = 0) -> None:
    """One that acknowledged so many messages, has another one in hand, and then lived for some seconds."""
    words = [sys.executable, "-c", CONSUMER, str(backend.client.path), start, str(seconds), str(count)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as killed:
        assert killed.stdout is not None
        try:
            assert killed.stdout.readline() == b"\n"
        finally:
            killed.kill()


def test_a_killed_consumer_leaves_its_queues_to_the_others(backend: Backend) -> None:
    """What it acknowledged is done, of a cluster after a second; what it held comes again."""
    publish(backend, "a", "b", "c")
    kill_a_consumer(backend, seconds=SAVED_S if backend.is_cluster else 0.0, count=1)
    with backend.client.consumer("billing", "orders") as consumer:
        assert bodies(backend, consumer, 2) == ["b", "c"]


@pytest.mark.parametrize(("start", "expected"), [("first", ["a", "b", "c"]), ("last", ["c"])])
def test_where_a_new_group_begins(backend: Backend, start: str, expected: list[str]) -> None:
    publish(backend, "a", "b")
    eventually(backend, lambda: len(backend.delivered()) == 2)
    with backend.client.consumer("billing", "orders", start=start) as consumer:
        publish(backend, "c")
        if is_before_5(backend):
            expected = ["a", "b", "c"]
        assert bodies(backend, consumer, len(expected)) == expected


def test_a_group_that_begins_at_a_time(backend: Backend) -> None:
    publish(backend, "a")
    time.sleep(0.01)
    between_ms = time.time_ns() // 1_000_000
    time.sleep(0.01)
    publish(backend, "b")
    eventually(backend, lambda: len(backend.delivered()) == 2)
    with backend.client.consumer("billing", "orders", start=between_ms) as consumer:
        expected = ["a", "b"] if is_before_5(backend) else ["b"]
        assert bodies(backend, consumer, len(expected)) == expected


def test_a_group_begins_once(backend: Backend) -> None:
    """What came since its first consumer was there is its own, although that was killed before it had a message."""
    publish(backend, "a")
    kill_a_consumer(backend, start="last")
    publish(backend, "b")
    with backend.client.consumer("billing", "orders", start="last") as consumer:
        expected = ["a", "b"] if is_before_5(backend) else ["b"]
        assert bodies(backend, consumer, len(expected)) == expected


def test_a_queue_that_appears_later_is_read_from_its_first_message(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever `start` says: nothing is skipped. A cluster's clients ask for routes every 30 s; here more often."""
    monkeypatch.setattr("broker.cluster.membership.group_member.REBALANCE_S", 0.5)
    backend.client.create_topic("orders", queues=1)
    with backend.client.consumer("billing", "orders", start="last") as consumer:
        eventually(backend, lambda: len(queues_of(consumer)) == 1)
        backend.client.create_topic("orders", queues=2)
        with backend.another() as other:  # which knows of both queues
            producer = other.producer("plain")
            results = [producer.send(broker.Message("orders", b"new")) for _ in range(2)]
        assert {result.queue_id for result in results} == {0, 1}
        if backend.is_cluster:
            object.__setattr__(backend.client._settings, "route_s", 0.5)  # type: ignore[union-attr]
        assert bodies(backend, consumer, 2) == ["new", "new"]


@pytest.mark.parametrize("start", ["first", "last"])
def test_a_topic_that_appears_later_is_consumed(backend: Backend, start: str) -> None:
    """From its first message: the group was there before it."""
    with backend.client.consumer("billing", "orders", start=start) as consumer:
        publish(backend, "first")
        assert bodies(backend, consumer, 1) == ["first"]


def test_several_topics_in_one_group(backend: Backend) -> None:
    publish(backend, "a")
    publish(backend, "b", topic="refunds")
    with backend.client.consumer("billing", ["orders", "refunds"]) as consumer:
        assert sorted(bodies(backend, consumer, 2)) == ["a", "b"]


def test_async_for_gets_the_messages_and_leaves_the_loop_free(backend: Backend) -> None:
    async def consume() -> list[str]:
        received: list[str] = []
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async with backend.client.consumer("billing", "orders") as consumer:
            spread(backend, "a", "b")
            async for message in consumer:
                received.append(message.body.decode())
                consumer.ack(message)
                if len(received) == 2:
                    break
        ticking.cancel()
        assert ticks > 0
        return received

    assert sorted(asyncio.run(asyncio.wait_for(consume(), backend.soon_s))) == ["a", "b"]


def test_threads_share_a_consumer(backend: Backend) -> None:
    """Each message goes to one of them; the loop of each ends when the consumer is closed."""
    spread(backend, *(str(number) for number in range(200)))
    received: list[str] = []
    with backend.client.consumer("billing", "orders") as consumer:

        def work() -> None:
            for message in consumer:
                received.append(message.body.decode())
                consumer.ack(message)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        eventually(backend, lambda: len(received) >= 200)
        eventually(backend, lambda: acknowledged(consumer) == 200)
    for thread in threads:
        thread.join(backend.soon_s)
        assert not thread.is_alive()
    assert sorted(received, key=int) == [str(number) for number in range(200)]


def test_a_closed_consumer_says_so(backend: Backend) -> None:
    consumer = backend.client.consumer("billing", "orders")
    consumer.close()
    consumer.close()
    with pytest.raises(broker.ClusterError if backend.is_cluster else broker.StoreError, match="was closed"):
        consumer.receive_now()
