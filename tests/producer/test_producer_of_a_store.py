"""What a producer of a store does with the store's own files: its schedule topic, its errors, its topics' types."""

from __future__ import annotations

import pytest

import broker
from broker.errors import MessageRejected, StoreFull, StoreLocked
from broker.format import properties as names
from broker.live import LiveStore
from broker.transaction.service import LocalTransactionState
from tests.backends.shop import raiser
from tests.producer.listener import Listener, was_saved

BODY = b"x"


def test_a_delayed_message_waits_in_the_schedule_topic(store: LiveStore) -> None:
    """Its own topic and queue stand in its properties."""
    producer = store.producer("web")
    result = producer.send(broker.Message("carts", BODY), delay_level=3)
    assert store.queue_range("carts", result.queue_id) == (0, 0)
    found = store.message("SCHEDULE_TOPIC_XXXX", 2, 0)
    assert found is not None
    assert (found.properties[names.REAL_TOPIC], found.properties[names.REAL_QID]) == ("carts", str(result.queue_id))


def test_a_delayed_half_message_waits_from_its_commit_on(store: LiveStore) -> None:
    """RocketMQ has no such thing. See tests/transaction/test_delayed_commit.py."""
    producer = store.producer("shop", topics=["orders"], resolver=was_saved)
    transaction = producer.begin_transaction()
    producer.send(broker.Message("orders", BODY), transaction, delay_level=3)
    assert store.queue_range("SCHEDULE_TOPIC_XXXX", 2) == (0, 0)
    transaction.commit()
    store.sync_now()
    assert store.queue_range("SCHEDULE_TOPIC_XXXX", 2) == (0, 1)


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


@pytest.mark.parametrize("kind", ["send", "batch", "prepare", "key"])
def test_a_topic_that_another_process_makes_smaller_refuses_no_send(
    store: LiveStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A send whose queue was chosen just before this process saw it was refused, though it names no queue."""
    store.create_topic("orders", message_type="", write_queues=4)
    is_half = kind == "prepare"
    producer = store.producer("shop", topics=["orders"], resolver=was_saved) if is_half else store.producer("web")
    topics = store._admission.topics
    rules = topics.rules

    def seen_now(topic: str, now_ms: int) -> object:
        topics.look(now_ms)
        return rules(topic, now_ms)

    monkeypatch.setattr("random.randrange", lambda count: count - 1)
    monkeypatch.setattr(topics, "rules", seen_now)
    with broker.open(store.path) as other:
        other.create_topic("orders", message_type="", write_queues=1)
    message = broker.Message("orders", BODY)
    if kind == "batch":
        producer.send_batch([message, message])
    elif is_half:
        with producer.begin_transaction() as transaction:
            producer.send(message, transaction)
    else:
        producer.send(message, sharding_key="c" if kind == "key" else None)
    store.sync_now()
    assert [store.queue_range("orders", one)[1] > 0 for one in range(4)] == [True, False, False, False]


def test_the_topics_of_a_transactional_producer_take_transactions(store: LiveStore) -> None:
    store.producer("shop", topics=["orders"], resolver=was_saved)
    topic = store.topic("orders")
    assert topic is not None
    assert topic.message_type == "TRANSACTION"


def test_topics_may_come_from_a_generator(store: LiveStore) -> None:
    producer = store.producer("shop", topics=(name for name in ["orders", "carts"]), resolver=print)  # type: ignore[arg-type]
    assert producer.topics == {"orders", "carts"}
    assert store.topic("carts") is not None


def test_a_message_asks_for_time(store: LiveStore) -> None:
    producer = store.producer("shop", topics=["orders"], resolver=was_saved)
    transaction = producer.begin_transaction(immunity_s=90)
    producer.send(broker.Message("orders", BODY), transaction)
    producer.send(broker.Message("orders", BODY, properties={names.CHECK_IMMUNITY_TIME_IN_SECONDS: "5"}), transaction)
    said = [half.properties[names.CHECK_IMMUNITY_TIME_IN_SECONDS] for half in store.transactions.in_doubt()]
    assert said == ["90", "5"]
    transaction.rollback()


def test_nothing_runs_when_the_half_message_was_not_stored(store: LiveStore, monkeypatch: pytest.MonkeyPatch) -> None:
    listener = Listener(LocalTransactionState.COMMIT_MESSAGE)
    producer = store.producer("shop", topics=["orders"], resolver=listener)
    monkeypatch.setattr(store.transactions, "prepare", raiser(StoreFull("no room")))
    with pytest.raises(StoreFull):
        producer.send_message_in_transaction(broker.Message("orders", b"order"))
    assert listener.seen == []
