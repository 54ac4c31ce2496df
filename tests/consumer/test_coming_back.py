"""A message that could not be processed comes back: later, in order, or to the dead letters. Over each place."""

from __future__ import annotations

import time

import pytest

import broker
from tests.backends.backend import Backend
from tests.consumer.messages import ABSENT_S, acknowledged, bodies, dead_letters, next_of, publish, soonest, spread

SUSPEND_S = 0.2


@pytest.fixture
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an ordered consumer's queue, after a failure; else a second."""
    monkeypatch.setattr("broker.consumer._SUSPEND_MS", int(SUSPEND_S * 1000))
    monkeypatch.setattr("broker.cluster.cluster_consumer._SUSPEND_S", SUSPEND_S)


def test_it_comes_again_after_the_delay_of_its_level(backend: Backend) -> None:
    """As it was sent: topic, body, keys and unique key; only the count is one more."""
    publish(backend, "a", tag="t", keys=["k"], properties={"mine": "yes"})
    with backend.client.consumer("billing", "orders", tags="t") as consumer:
        first, sent_back_s = next_of(backend, consumer), time.monotonic()
        assert consumer.retry(first, 1)
        assert not consumer.ack(first)
        second = next_of(backend, consumer)
        assert time.monotonic() - sent_back_s > 0.9
        assert (second.topic, second.body, second.tag, second.keys) == ("orders", b"a", "t", ("k",))
        assert (second.unique_key, second.properties["mine"]) == (first.unique_key, "yes")
        assert (first.reconsume_times, second.reconsume_times) == (0, 1)
        assert consumer.ack(second)
    with backend.client.consumer("billing", "orders") as consumer:
        assert consumer.receive(ABSENT_S) is None


def test_it_comes_to_its_own_group_alone(backend: Backend) -> None:
    publish(backend, "a")
    with (
        backend.client.consumer("billing", "orders") as billing,
        backend.client.consumer("shipping", "orders") as other,
    ):
        assert other.ack(next_of(backend, other))
        assert billing.retry(next_of(backend, billing), soonest(backend))
        assert next_of(backend, billing).reconsume_times == 1
        assert other.receive(ABSENT_S) is None


_OF_A_STORE = [
    ({"delay_level": 0}, "no retry at once"),
    ({"delay_s": 0.2}, "delays by its levels"),
    ({"delay_level": -1, "reason": "no such customer"}, "keeps no reason"),
]


def test_at_once_any_delay_and_a_reason_are_for_a_store_alone(backend: Backend) -> None:
    for number, (arguments, refusal) in enumerate(_OF_A_STORE):
        publish(backend, str(number))
        with backend.client.consumer("billing", "orders") as consumer:
            message = next_of(backend, consumer)
            if backend.is_cluster:
                with pytest.raises(broker.NotInCluster, match=refusal):
                    consumer.retry(message, **arguments)
                assert consumer.ack(message), "a refusal leaves it in hand"
            else:
                assert consumer.retry(message, **arguments)
                assert arguments.get("delay_level") == -1 or bodies(backend, consumer, 1) == [str(number)]


def test_a_consumer_may_give_up_at_once(backend: Backend) -> None:
    publish(backend, "a")
    with backend.client.consumer("billing", "orders") as consumer:
        assert consumer.retry(next_of(backend, consumer), -1)
        assert dead_letters(backend, 1) == ["a"]
        assert consumer.receive(0) is None


def test_max_retries_counts_the_times_that_it_came_back(backend: Backend) -> None:
    publish(backend, "a")
    level = soonest(backend)
    with backend.client.consumer("billing", "orders", max_retries=1, retry_delay_level=level) as consumer:
        for times in range(2):
            message = next_of(backend, consumer)
            assert message.reconsume_times == times
            assert consumer.retry(message)
        assert dead_letters(backend, 1) == ["a"]
        assert consumer.receive(ABSENT_S) is None


def test_what_nobody_acknowledges_in_time_comes_again(backend: Backend) -> None:
    """A handler that hangs does not hold its message for ever."""
    publish(backend, "a")
    level = soonest(backend)
    with backend.client.consumer("billing", "orders", ack_timeout_s=0.3, retry_delay_level=level) as consumer:
        held, again = next_of(backend, consumer), next_of(backend, consumer)
        assert (again.body, again.reconsume_times, consumer.ack(held), consumer.ack(again)) == (b"a", 1, False, True)


@pytest.mark.usefixtures("short_pauses")
def test_in_order_means_one_at_a_time_and_the_same_again(backend: Backend) -> None:
    publish(backend, "a", "b")
    with backend.client.consumer("billing", "orders", ordered=True) as consumer:
        first = next_of(backend, consumer)
        assert consumer.receive(ABSENT_S) is None, "b waits for a"
        assert consumer.retry(first)
        assert consumer.receive(0) is None, "the queue pauses"
        again = next_of(backend, consumer)
        assert (again.body, again.reconsume_times) == (b"a", 1)
        assert consumer.ack(again)
        assert bodies(backend, consumer, 1) == ["b"]


def test_an_ordered_consumer_can_put_a_message_out_of_the_way(backend: Backend) -> None:
    publish(backend, "a", "b")
    with backend.client.consumer("billing", "orders", ordered=True) as consumer:
        assert consumer.retry(next_of(backend, consumer), -1)
        assert bodies(backend, consumer, 1) == ["b"]
        assert dead_letters(backend, 1) == ["a"]


@pytest.mark.usefixtures("short_pauses")
def test_an_ordered_queue_is_of_one_member(backend: Backend) -> None:
    """What it has in hand stays its own while another joins; all that follows comes after it, to one of them."""
    publish(backend, *"abcde")
    with backend.client.consumer("billing", "orders", ordered=True) as first:
        held = next_of(backend, first)
        with backend.another() as other, other.consumer("billing", "orders", ordered=True) as second:
            assert (first.receive(ABSENT_S), second.receive(ABSENT_S)) == (None, None)
            assert first.retry(held)
            received, limit_s = dict[str, bool](), time.monotonic() + backend.soon_s  # of a cluster, some come twice
            while len(received) < 5:
                assert time.monotonic() < limit_s, received
                for member in (first, second):
                    if (message := member.receive(0.05)) is not None and member.ack(message):
                        received[message.body.decode()] = True
            assert [*received] == [*"abcde"]


def test_delayed_messages_are_delivered_once_among_many_consumers(backend: Backend) -> None:
    """Of a store, the process with the lease delivers them for all, and hands it on when it closes."""
    spread(backend, *(str(number) for number in range(30)))
    with backend.client.consumer("a", "orders") as consumer:
        for _ in range(15):
            assert consumer.retry(next_of(backend, consumer), 1)
        with backend.client.consumer("b", "orders"), backend.another() as other, other.consumer("c", "orders"):
            for _ in range(15):
                message = next_of(backend, consumer)
                while message.reconsume_times:  # on a busy machine the first are back by now
                    assert consumer.retry(message, 1)
                    message = next_of(backend, consumer)
                assert consumer.retry(message, 1)
            received = bodies(backend, consumer, 30)
            assert sorted(received, key=int) == [str(number) for number in range(30)]
            assert consumer.receive(ABSENT_S) is None
            assert acknowledged(consumer) == 30
