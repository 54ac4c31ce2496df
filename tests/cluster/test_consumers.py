"""Consumers of a cluster: shares of a group, what comes again, order, positions, processing once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import Session

import broker
from broker.cluster.membership import group_member
from broker.cluster.membership.allocation import averagely
from broker.cluster.membership.holdings import Holdings
from broker.message import ReceivedMessage
from broker.remoting.bodies import MessageQueue
from tests.cluster.conftest import LAYOUT, SOON, Served
from tests.cluster.network import NameServer
from tests.cluster.waiting import awaited


def publish(cluster: broker.LiveCluster, *bodies: bytes, topic: str = "carts", **named: str) -> None:
    producer = cluster.producer("plain")
    for body in bodies:
        producer.send(broker.Message(topic, body, **named), sharding_key="one")


def drained(consumer: broker.ClusterConsumer, seconds: float = 0.5) -> list[bytes]:
    found = []
    while message := consumer.receive(seconds):
        found.append(message.body)
        consumer.ack(message)
    return found


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9])
@pytest.mark.parametrize("members", [1, 2, 3, 4, 9])
def test_every_queue_has_one_member(count: int, members: int) -> None:
    queues = [MessageQueue("t", number % 4, f"b{number // 4}") for number in range(count)]
    ids = [f"c{number}" for number in range(members)]
    shares = [averagely(queues, ids, one) for one in ids]
    assert sorted((q.broker_name, q.queue_id) for share in shares for q in share) == sorted(
        (q.broker_name, q.queue_id) for q in queues
    )
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert averagely(queues, ids, "stranger") == []


def test_two_members_share_the_queues_and_one_takes_over(served: Served, cluster: broker.LiveCluster) -> None:
    publish(cluster, b"0")
    first = cluster.consumer("billing", "carts")
    of_topic = [one for one in first.queues if one[0] == "carts"]
    assert len(of_topic) == 4
    with broker.connect(served.url) as other, other.consumer("billing", "carts") as second:
        assert awaited(lambda: (len(_carts(first)), len(_carts(second))) == (2, 2))
        assert not set(_carts(first)) & set(_carts(second))
        first.close()
        assert awaited(lambda: len(_carts(second)) == 4)
        assert drained(second) == [b"0"]


def _carts(consumer: broker.ClusterConsumer) -> list[tuple[str, int, str]]:
    return [one for one in consumer.queues if one[0] == "carts"]


def test_a_group_goes_on_where_it_stopped(cluster: broker.LiveCluster) -> None:
    publish(cluster, b"1", b"2", b"3")
    with cluster.consumer("billing", "carts") as consumer:
        messages = [consumer.receive(5.0) for _ in range(3)]
        assert all(messages)
        assert consumer.ack_all([one for one in messages[:2] if one]) == 2
        assert sum(consumer.positions().values()) == 2
    with cluster.consumer("billing", "carts") as consumer:
        assert drained(consumer) == [b"3"]
    with pytest.raises(broker.ClusterError, match="was closed"):
        consumer.receive()
    with cluster.consumer("late", "carts", start="last") as consumer:
        assert drained(consumer, 0.2) == []
        publish(cluster, b"4")
        assert drained(consumer) == [b"4"]


def test_a_message_that_fails_comes_again_and_then_to_the_dead_letters(cluster: broker.LiveCluster) -> None:
    publish(cluster, b"1", tag="A", keys="k")
    with cluster.consumer("billing", "carts", tags="A || B", max_retries=1, retry_delay_level=1) as consumer:
        for times in range(2):
            message = consumer.receive(10.0)
            assert message is not None
            assert (message.topic, message.body, message.reconsume_times) == ("carts", b"1", times)
            assert consumer.retry(message)
            assert not consumer.ack(message)
        with pytest.raises(broker.NotInCluster, match="no retry at once"):
            consumer.retry(message, 0)
    with cluster.consumer("undertaker", "%DLQ%billing") as consumer:
        message = consumer.receive(10.0)
        assert message is not None
        assert message.body == b"1"


def test_what_comes_back_is_first_where_that_is_asked_for() -> None:
    """Whosever turn it is."""
    for first in (True, False):
        holdings = Holdings(ordered=False, retries_first=first)
        for topic in ("carts", "%RETRY%billing"):
            held = holdings.add(MessageQueue(topic, 0, "broker"), 0)
            messages = [SimpleNamespace(message_id=f"{topic}-{at}", body=topic.encode()) for at in range(3)]
            holdings.put(held, [(at, cast("ReceivedMessage", one)) for at, one in enumerate(messages)], 3)
        taken = [message.body for _ in range(6) if (message := holdings.take()) is not None]
        assert len(taken) == 6
        assert all(body.startswith(b"%RETRY%") for body in taken[:3]) is first


def test_tags_select(cluster: broker.LiveCluster) -> None:
    publish(cluster, b"a", b"b", tag="AaAa")
    publish(cluster, b"c", tag="BBBB")  # of one hash
    with cluster.consumer("billing", "carts", tags="AaAa") as consumer:
        assert drained(consumer) == [b"a", b"b"]


def test_an_ordered_consumer_has_its_queues_alone(served: Served, cluster: broker.LiveCluster) -> None:
    publish(cluster, *(b"%d" % number for number in range(5)))
    with cluster.consumer("billing", "carts", ordered=True) as consumer:
        first = consumer.receive(5.0)
        assert first is not None
        assert consumer.receive(0.2) is None  # one at a time
        consumer.retry(first)
        assert consumer.receive(0.2) is None  # the queue pauses
        with broker.connect(served.url) as other, other.consumer("billing", "carts", ordered=True) as second:
            again = consumer.receive(5.0) or second.receive(5.0)
            assert again is not None
            assert (again.body, again.reconsume_times) in ((b"0", 1), (b"0", 0))
            owner = consumer if consumer.ack(again) else second
            owner.ack(again)
            got = drained(consumer) + drained(second)
            assert [one for one in got if one != b"0"] == [b"1", b"2", b"3", b"4"]


def test_what_is_held_for_too_long_comes_again(cluster: broker.LiveCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_member, "COMMIT_S", 0.1)
    publish(cluster, b"1")
    with cluster.consumer("billing", "carts", ack_timeout_s=0.3, retry_delay_level=1) as consumer:
        held = consumer.receive(5.0)
        again = consumer.receive(10.0)
        assert held is not None
        assert again is not None
        assert (again.body, again.reconsume_times, consumer.ack(held), consumer.ack(again)) == (b"1", 1, False, True)


def test_a_message_is_processed_once(cluster: broker.LiveCluster, engine: Engine) -> None:
    processed = broker.Processed()
    processed.create_all(engine)
    publish(cluster, b"7")

    def work(group_session: str) -> list[bool]:
        seen = []
        with cluster.consumer("billing", "carts", processed=processed, retry_delay_level=1) as consumer:
            while message := consumer.receive(2.5 if group_session == "fails" and not seen[1:] else 0.5):
                try:
                    with Session(engine) as session, consumer.process(message, session) as first:
                        seen.append(first)
                        if first:
                            session.execute(text("INSERT INTO orders VALUES (7)"))
                        if group_session == "fails" and len(seen) == 1:
                            raise ArithmeticError
                except ArithmeticError:
                    continue
        return seen

    assert work("fails") == [True, True]  # the first attempt was rolled back
    publish(cluster, b"8")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar() == 1


def test_an_event_loop_iterates(cluster: broker.LiveCluster) -> None:
    publish(cluster, b"1", b"2")

    async def work() -> list[bytes]:
        found = []
        async with cluster.consumer("billing", "carts") as consumer:
            async for message in consumer:
                found.append(message.body)
                consumer.ack(message)
                if len(found) == 2:
                    break
        return found

    assert asyncio.run(asyncio.wait_for(work(), 10)) == [b"1", b"2"]


def test_a_consumer_waits_for_its_topic(cluster: broker.LiveCluster) -> None:
    with cluster.consumer("billing", "carts") as consumer:
        assert consumer.receive(0.1) is None
        publish(cluster, b"1")
        assert drained(consumer, 3.0) == [b"1"]


def test_a_broker_that_is_gone_keeps_nobody_from_the_others(tmp_path: Path) -> None:
    with (
        broker.open(tmp_path / "a", sync="os", layout=LAYOUT) as store_a,
        broker.open(tmp_path / "b", sync="os", layout=LAYOUT) as store_b,
        broker.serve(store_a, "127.0.0.1:0", broker_name="broker-a", **SOON) as server_a,
        broker.serve(store_b, "127.0.0.1:0", broker_name="broker-b", **SOON) as server_b,
        NameServer({"broker-a": server_a.address, "broker-b": server_b.address}) as name_server,
        broker.connect(f"rocketmq://{name_server.address}") as cluster,
    ):
        producer = cluster.producer("plain")
        for number in range(8):
            producer.send(broker.Message("carts", b"%d" % number))
        with cluster.consumer("billing", "carts") as consumer:
            assert len(drained(consumer)) == 8
            assert {one[2] for one in consumer.queues} == {"broker-a", "broker-b"}
            server_a.close()
            for number in range(4):
                producer.send(broker.Message("carts", b"after %d" % number))
            assert len(drained(consumer)) == 4
