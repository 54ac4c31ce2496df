"""What an application sends with: plain, in order, in batches, and what each kind of producer refuses.

The same on a store, on one that is served, and on a cluster. What a store alone shows: test_producer_of_a_store.py.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import broker
from broker.errors import MessageRejected, TransactionError
from broker.format import properties as names
from broker.transaction.service import LocalTransactionState
from tests.backends.backend import Backend
from tests.producer.listener import AsyncListener, Listener, is_unknown, was_saved

BODY = b"x"


def received(backend: Backend, topic: str) -> broker.ReceivedMessage:
    """The first message of a topic, as a new group receives it."""
    with backend.client.consumer("readers", topic) as consumer:
        message = consumer.receive(backend.soon_s)
        assert message is not None
        consumer.ack(message)
        return message


def test_a_message_is_where_the_result_says(backend: Backend) -> None:
    result = backend.client.producer("web").send(broker.Message("carts", b"a cart", tag="t", keys=["k"]))
    message = received(backend, "carts")
    assert (message.body, message.tag, message.keys) == (b"a cart", "t", ("k",))
    assert (message.message_id, message.unique_key) == (result.message_id, result.unique_key)
    assert (message.queue_id, message.queue_offset) == (result.queue_id, result.queue_offset)
    assert message.commitlog_offset == result.commitlog_offset


def test_messages_take_the_queues_by_turns(backend: Backend) -> None:
    backend.client.create_topic("carts", queues=3)
    producer = backend.client.producer("web")
    queues = Counter(producer.send(broker.Message("carts", BODY)).queue_id for _ in range(9))
    assert queues == {0: 3, 1: 3, 2: 3}


def test_messages_of_one_sharding_key_stay_in_order(backend: Backend) -> None:
    """The queue is RocketMQ's: SelectMessageQueueByHash. "4711".hashCode() is 1603555, negative hashes are turned."""
    backend.client.create_topic("carts", queues=4, message_type="FIFO")
    producer = backend.client.producer("web")
    results = [producer.send(broker.Message("carts", b"%d" % number), sharding_key="4711") for number in range(5)]
    assert {result.queue_id for result in results} == {1603555 % 4}
    assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
    assert received(backend, "carts").properties[names.SHARDING_KEY] == "4711"


def test_a_negative_hash_is_turned_as_java_does(backend: Backend) -> None:
    """ "polygenelubricants".hashCode() is -2147483648: its remainder is negative in Java, then made positive."""
    backend.client.create_topic("odd", queues=7, message_type="FIFO")
    result = backend.client.producer("web").send(broker.Message("odd", BODY), sharding_key="polygenelubricants")
    assert result.queue_id == 2147483648 % 7


def test_a_delayed_message_comes_later(backend: Backend) -> None:
    """From a coroutine as well. A level that is none is refused before it is sent."""
    producer = backend.client.producer("web")
    with pytest.raises(MessageRejected, match="level from 1"):
        producer.send(broker.Message("carts", BODY), delay_level=-1)
    asyncio.run(producer.send_async(broker.Message("carts", BODY), delay_level=1))
    assert backend.delivered("carts") == []
    assert received(backend, "carts").body == BODY


def test_a_batch_lies_together(backend: Backend) -> None:
    producer = backend.client.producer("web")
    results = producer.send_batch([broker.Message("carts", b"%d" % number) for number in range(5)])
    assert len({result.queue_id for result in results}) == 1
    assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
    assert backend.delivered("carts") == [b"0", b"1", b"2", b"3", b"4"]
    with pytest.raises(MessageRejected, match="one topic"):
        producer.send_batch([broker.Message("carts", BODY), broker.Message("users", BODY)])


def test_plain_messages_can_be_sent_from_a_coroutine(backend: Backend) -> None:
    producer = backend.client.producer("web")

    async def send() -> None:
        await asyncio.gather(*(producer.send_async(broker.Message("carts", b"%d" % number)) for number in range(8)))

    asyncio.run(send())
    assert sorted(backend.delivered("carts")) == [b"%d" % number for number in range(8)]


def test_an_impossible_group_is_refused(backend: Backend) -> None:
    for group in ("", "a b", "ä", "x" * 256, "../web"):
        with pytest.raises(MessageRejected, match="producer group"):
            backend.client.producer(group)


# What is transactional, and what is not


def test_a_transactional_producer_names_its_topics_and_they_are_made(backend: Backend) -> None:
    with pytest.raises(TransactionError, match="name the topics"):
        backend.client.producer("shop", resolver=was_saved)
    backend.client.producer("shop", topics=["orders"], resolver=was_saved)
    assert backend.client.topic("orders") is not None


def test_a_transactional_group_is_for_nothing_else(backend: Backend) -> None:
    """Not in the same producer, and not in another of the same group."""
    producer = backend.client.producer("shop", topics=["orders"], resolver=was_saved)
    with pytest.raises(TransactionError, match="is transactional"):
        producer.send(broker.Message("orders", BODY))
    with pytest.raises(TransactionError, match="is transactional"):
        producer.send_batch([broker.Message("orders", BODY)])
    with pytest.raises(TransactionError, match="is transactional"):
        backend.client.producer("shop")
    backend.client.producer("shop", topics=["orders"], resolver=was_saved)  # of its kind there may be many


def test_a_message_that_does_not_belong_to_the_transaction_is_refused(backend: Backend) -> None:
    """Of a topic that was not named, and of another group."""
    producer = backend.client.producer("shop", topics=["orders"], resolver=was_saved)
    other = backend.client.producer("shop2", topics=["orders"], resolver=was_saved)
    for wrong, topic, match in ((producer, "ordres", "not one that"), (other, "orders", "of producer group shop")):
        transaction = producer.begin_transaction()
        with pytest.raises(TransactionError, match=match):
            wrong.send(broker.Message(topic, BODY), transaction)
        with pytest.raises(TransactionError, match=match):
            transaction.commit()


def test_a_plain_producer_takes_part_in_no_transaction(backend: Backend) -> None:
    """Nor does it send a property of ours."""
    plain = backend.client.producer("web")
    with pytest.raises(MessageRejected, match="checkback's own"):
        plain.send(broker.Message("carts", BODY, properties={"CHECKBACK_LEDGER_KEY": "x"}))
    with pytest.raises(TransactionError, match="resolver"):
        plain.begin_transaction()
    with pytest.raises(TransactionError, match="ledger"):
        plain.begin_transaction(object())  # type: ignore[call-overload]
    with pytest.raises(TransactionError, match="resolver"):
        plain.send_message_in_transaction(broker.Message("carts", BODY))


# A transaction without a database


def test_commit_delivers_and_rollback_does_not(backend: Backend) -> None:
    producer = backend.client.producer("shop", topics=["orders"], resolver=was_saved)
    first, second = producer.begin_transaction(), producer.begin_transaction()
    kept = producer.send(broker.Message("orders", b"kept"), first)
    producer.send(broker.Message("orders", b"dropped"), second)
    second.rollback()
    first.commit()
    assert set(backend.delivered()) == {b"kept"}
    assert kept.unique_key is not None
    with pytest.raises(TransactionError, match="over"):
        first.rollback()


def test_a_block_commits_when_it_is_left_well(backend: Backend) -> None:
    producer = backend.client.producer("shop", topics=["orders"], resolver=was_saved)
    with producer.begin_transaction() as transaction:
        producer.send(broker.Message("orders", b"kept"), transaction)
    with pytest.raises(ZeroDivisionError):
        _fail_inside(producer)
    assert backend.delivered() == [b"kept"]


def _fail_inside(producer: broker.Producer) -> None:
    with producer.begin_transaction() as transaction:
        producer.send(broker.Message("orders", b"dropped"), transaction)
        raise ZeroDivisionError


def test_messages_of_a_transaction_keep_the_order_of_their_commits(backend: Backend) -> None:
    """Same sharding key, same queue; the order is that of the commits (decision 0017)."""
    producer = backend.client.producer("shop", topics=["orders"], resolver=is_unknown)
    transactions = [producer.begin_transaction() for _ in range(3)]
    for number, transaction in enumerate(transactions):
        producer.send(broker.Message("orders", b"%d" % number), transaction, sharding_key="42")
    for number in (2, 0, 1):
        transactions[number].commit()
    assert backend.delivered() == [b"2", b"0", b"1"]


# RocketMQ's way


def test_send_message_in_transaction(backend: Backend) -> None:
    """An exception or no answer means unknown: the half message stays."""
    states = LocalTransactionState
    for group, result, state in (
        ("commits", states.COMMIT_MESSAGE, states.COMMIT_MESSAGE),
        ("rolls-back", states.ROLLBACK_MESSAGE, states.ROLLBACK_MESSAGE),
        ("unknown", states.UNKNOW, states.UNKNOW),
        ("nothing", None, states.UNKNOW),
        ("raises", ZeroDivisionError("no"), states.UNKNOW),
    ):
        listener = Listener(result)
        producer = backend.client.producer(group, topics=["orders"], resolver=listener)
        sent = producer.send_message_in_transaction(broker.Message("orders", group.encode()), listener, "an argument")
        assert listener.seen == [(group.encode(), "an argument")]
        assert sent.local_state is state
    assert (backend.delivered(), backend.in_doubt()) == ([b"commits"], 3)


def test_an_async_listener_is_refused_before_anything_is_stored(backend: Backend) -> None:
    """What it returned was taken for "unknown", and its local transaction never ran."""
    producer = backend.client.producer("async", topics=["orders"], resolver=is_unknown)
    with pytest.raises(TransactionError, match="make it a plain def, not async"):
        producer.send_message_in_transaction(broker.Message("orders", BODY), AsyncListener(None))
    assert (backend.delivered(), backend.in_doubt()) == ([], 0)
