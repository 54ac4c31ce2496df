"""What an application sends with: plain, in order, in batches, and what each kind of producer refuses."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import broker
from broker.errors import MessageRejected, StoreFull, StoreLocked, TransactionError
from broker.format import properties as names
from broker.live import LiveStore
from broker.transaction.service import LocalTransactionState
from tests.checkback.shop import raiser
from tests.producer.delivered import delivered

BODY = b"x"


def was_saved(_message: object) -> LocalTransactionState:
    return LocalTransactionState.COMMIT_MESSAGE


def test_a_message_is_where_the_result_says(store: LiveStore) -> None:
    result = store.producer("web").send(broker.Message("carts", b"a cart", tag="t", keys=["k"]))
    found = store.message("carts", result.queue_id, result.queue_offset)
    assert found is not None
    assert (found.body, found.tag, found.keys) == (b"a cart", "t", ("k",))
    assert (found.message_id, found.unique_key) == (result.message_id, result.unique_key)
    assert found.commitlog_offset == result.commitlog_offset


def test_messages_take_the_queues_by_turns(store: LiveStore) -> None:
    producer = store.producer("web")
    store.create_topic("carts", queues=3)
    queues = Counter(producer.send(broker.Message("carts", BODY)).queue_id for _ in range(9))
    assert queues == {0: 3, 1: 3, 2: 3}


def test_messages_of_one_sharding_key_stay_in_order(store: LiveStore) -> None:
    """The queue is RocketMQ's: SelectMessageQueueByHash. "4711".hashCode() is 1603555, negative hashes are turned."""
    producer = store.producer("web")
    results = [producer.send(broker.Message("carts", b"%d" % number), sharding_key="4711") for number in range(5)]
    assert {result.queue_id for result in results} == {1603555 % 4}
    assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
    found = store.message("carts", results[0].queue_id, 0)
    assert found is not None
    assert found.properties[names.SHARDING_KEY] == "4711"


def test_a_negative_hash_is_turned_as_java_does(store: LiveStore) -> None:
    """ "polygenelubricants".hashCode() is -2147483648: its remainder is negative in Java, then made positive."""
    store.create_topic("odd", queues=7, message_type="FIFO")
    result = store.producer("web").send(broker.Message("odd", BODY), sharding_key="polygenelubricants")
    assert result.queue_id == 2147483648 % 7


def test_a_delayed_message_waits_in_the_schedule_topic(store: LiveStore) -> None:
    """Its own topic and queue stand in its properties; a level that is none is refused."""
    producer = store.producer("web")
    result = producer.send(broker.Message("carts", BODY), delay_level=3)
    assert store.queue_range("carts", result.queue_id) == (0, 0)
    found = store.message("SCHEDULE_TOPIC_XXXX", 2, 0)
    assert found is not None
    assert (found.properties[names.REAL_TOPIC], found.properties[names.REAL_QID]) == ("carts", str(result.queue_id))
    with pytest.raises(MessageRejected, match="level from 1"):
        producer.send(broker.Message("carts", BODY), delay_level=-1)


def test_a_delayed_half_message_waits_from_its_commit_on(store: LiveStore) -> None:
    """RocketMQ has no such thing. See tests/transaction/test_delayed_commit.py."""
    producer = store.producer("shop", topics=["orders"], resolver=was_saved)
    transaction = producer.begin_transaction()
    producer.send(broker.Message("orders", BODY), transaction, delay_level=3)
    assert store.queue_range("SCHEDULE_TOPIC_XXXX", 2) == (0, 0)
    transaction.commit()
    store.sync_now()
    assert store.queue_range("SCHEDULE_TOPIC_XXXX", 2) == (0, 1)


def test_a_coroutine_may_delay_as_well(store: LiveStore) -> None:
    """See tests/producer/test_sessions.py for one in a transaction."""
    producer = store.producer("web")
    asyncio.run(producer.send_async(broker.Message("carts", BODY), delay_level=3))
    assert store.queue_range("SCHEDULE_TOPIC_XXXX", 2) == (0, 1)


def test_a_batch_lies_together(store: LiveStore) -> None:
    results = store.producer("web").send_batch([broker.Message("carts", b"%d" % number) for number in range(5)])
    assert len({result.queue_id for result in results}) == 1
    assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]


def test_a_batch_of_two_topics_is_refused(store: LiveStore) -> None:
    with pytest.raises(MessageRejected, match="one topic"):
        store.producer("web").send_batch([broker.Message("carts", BODY), broker.Message("users", BODY)])


@pytest.mark.parametrize("error", [StoreFull("no room"), MessageRejected("too large"), StoreLocked("a recovery runs")])
def test_what_the_store_raises_is_raised_once(
    store: LiveStore, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    tried: list[object] = []

    def fails(*_: object, **__: object) -> None:
        tried.append(None)
        raise error

    monkeypatch.setattr(store, "append", fails)
    with pytest.raises(type(error)):
        store.producer("web").send(broker.Message("carts", BODY))
    assert len(tried) == 1


@pytest.mark.parametrize("group", ["", "a b", "ä", "x" * 256, "../web"])
def test_an_impossible_group_is_refused(store: LiveStore, group: str) -> None:
    with pytest.raises(MessageRejected, match="producer group"):
        store.producer(group)


# What is transactional, and what is not


def test_a_transactional_producer_names_its_topics(store: LiveStore) -> None:
    with pytest.raises(TransactionError, match="name the topics"):
        store.producer("shop", resolver=was_saved)


def test_its_topics_are_made_and_take_transactions(store: LiveStore) -> None:
    store.producer("shop", topics=["orders"], resolver=was_saved)
    topic = store.topic("orders")
    assert topic is not None
    assert topic.message_type == "TRANSACTION"


def test_a_topic_for_other_messages_is_refused_at_once(store: LiveStore) -> None:
    store.create_topic("orders", message_type="FIFO")
    with pytest.raises(TransactionError, match="takes FIFO"):
        store.producer("shop", topics=["orders"], resolver=was_saved)


def test_a_transactional_group_is_for_nothing_else(store: LiveStore) -> None:
    """Not in the same producer, and not in another of the same group."""
    producer = store.producer("shop", topics=["orders"], resolver=was_saved)
    with pytest.raises(TransactionError, match="is transactional"):
        producer.send(broker.Message("orders", BODY))
    with pytest.raises(TransactionError, match="is transactional"):
        producer.send_batch([broker.Message("orders", BODY)])
    with pytest.raises(TransactionError, match="is transactional"):
        store.producer("shop")
    store.producer("shop", topics=["orders"], resolver=was_saved)  # of its kind there may be many


def test_a_topic_that_was_not_named_is_refused(store: LiveStore) -> None:
    producer = store.producer("shop", topics=["orders"], resolver=was_saved)
    transaction = producer.begin_transaction()
    with pytest.raises(TransactionError, match="not one that"):
        producer.send(broker.Message("ordres", BODY), transaction)
    with pytest.raises(TransactionError, match="not one that"):
        transaction.commit()


def test_a_transaction_of_another_group_is_refused(store: LiveStore) -> None:
    one = store.producer("shop", topics=["orders"], resolver=was_saved)
    other = store.producer("shop2", topics=["orders"], resolver=was_saved)
    transaction = one.begin_transaction()
    with pytest.raises(TransactionError, match="of producer group shop"):
        other.send(broker.Message("orders", BODY), transaction)


def test_a_property_of_ours_is_refused(store: LiveStore) -> None:
    with pytest.raises(MessageRejected, match="checkback's own"):
        store.producer("web").send(broker.Message("carts", BODY, properties={"CHECKBACK_LEDGER_KEY": "x"}))


def test_who_can_answer_must_be_named(store: LiveStore) -> None:
    plain = store.producer("web")
    with pytest.raises(TransactionError, match="resolver"):
        plain.begin_transaction()
    with pytest.raises(TransactionError, match="ledger"):
        plain.begin_transaction(object())  # type: ignore[call-overload]
    with pytest.raises(TransactionError, match="resolver"):
        plain.send_message_in_transaction(broker.Message("carts", BODY))


# A transaction without a database


def test_commit_delivers_and_rollback_does_not(store: LiveStore) -> None:
    producer = store.producer("shop", topics=["orders"], resolver=was_saved)
    first, second = producer.begin_transaction(), producer.begin_transaction()
    kept = producer.send(broker.Message("orders", b"kept"), first)
    producer.send(broker.Message("orders", b"dropped"), second)
    assert delivered(store) == []
    second.rollback()
    first.commit()
    assert delivered(store) == [b"kept"]
    assert kept.unique_key is not None
    with pytest.raises(TransactionError, match="over"):
        first.rollback()


def test_a_block_commits_when_it_is_left_well(store: LiveStore) -> None:
    producer = store.producer("shop", topics=["orders"], resolver=was_saved)
    with producer.begin_transaction() as transaction:
        producer.send(broker.Message("orders", b"kept"), transaction)
    with pytest.raises(ZeroDivisionError):
        _fail_inside(producer)
    assert delivered(store) == [b"kept"]


def _fail_inside(producer: broker.Producer) -> None:
    with producer.begin_transaction() as transaction:
        producer.send(broker.Message("orders", b"dropped"), transaction)
        raise ZeroDivisionError


def test_messages_of_a_transaction_keep_the_order_of_their_commits(store: LiveStore) -> None:
    """Same sharding key, same queue; the order is that of the commits (decision 0017)."""
    producer = store.producer("shop", topics=["orders"], resolver=was_saved)
    transactions = [producer.begin_transaction() for _ in range(3)]
    for number, transaction in enumerate(transactions):
        producer.send(broker.Message("orders", b"%d" % number), transaction, sharding_key="42")
    for number in (2, 0, 1):
        transactions[number].commit()
    assert delivered(store) == [b"2", b"0", b"1"]


def test_a_message_asks_for_time(store: LiveStore) -> None:
    producer = store.producer("shop", topics=["orders"], resolver=was_saved)
    transaction = producer.begin_transaction(immunity_s=90)
    producer.send(broker.Message("orders", BODY), transaction)
    producer.send(broker.Message("orders", BODY, properties={names.CHECK_IMMUNITY_TIME_IN_SECONDS: "5"}), transaction)
    said = [half.properties[names.CHECK_IMMUNITY_TIME_IN_SECONDS] for half in store.transactions.in_doubt()]
    assert said == ["90", "5"]
    transaction.rollback()


# RocketMQ's way


class Listener:
    """A listener as RocketMQ's clients have it."""

    def __init__(self, said: object) -> None:
        self.said, self.seen = said, []

    def execute_local_transaction(self, message: broker.Message, arg: object) -> object:
        self.seen.append((message.body, arg))
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def check_local_transaction(self, _message: object) -> LocalTransactionState:
        return LocalTransactionState.COMMIT_MESSAGE


@pytest.mark.parametrize(
    ("said", "state", "in_doubt", "there"),
    [
        (LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.COMMIT_MESSAGE, 0, [b"order"]),
        (LocalTransactionState.ROLLBACK_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE, 0, []),
        (LocalTransactionState.UNKNOW, LocalTransactionState.UNKNOW, 1, []),
        (None, LocalTransactionState.UNKNOW, 1, []),
        (ZeroDivisionError("no"), LocalTransactionState.UNKNOW, 1, []),
    ],
)
def test_send_message_in_transaction(
    store: LiveStore, said: object, state: LocalTransactionState, in_doubt: int, there: list[bytes]
) -> None:
    """An exception or no answer means unknown: the half message stays."""
    listener = Listener(said)
    producer = store.producer("shop", topics=["orders"], resolver=listener)
    result = producer.send_message_in_transaction(broker.Message("orders", b"order"), listener, "an argument")
    assert listener.seen == [(b"order", "an argument")]
    assert result.local_state is state
    assert len(store.transactions.in_doubt_slots()) == in_doubt
    assert delivered(store) == there


def test_nothing_runs_when_the_half_message_was_not_stored(store: LiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(LocalTransactionState.COMMIT_MESSAGE)
    producer = store.producer("shop", topics=["orders"], resolver=listener)
    monkeypatch.setattr(store.transactions, "prepare", raiser(StoreFull("no room")))
    with pytest.raises(StoreFull):
        producer.send_message_in_transaction(broker.Message("orders", b"order"))
    assert listener.seen == []
