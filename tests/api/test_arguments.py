"""Arguments out of range or of the wrong type are told in a sentence: never a TypeError, and nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import create_engine

import broker
from broker.live import LiveStore
from broker.testing.fixtures import FakeClock, crash_between_commit_and_end, lose_the_commit
from tests.checkback.shop import open_store

MESSAGE = broker.Message("carts", b"x")
Call = Callable[[Any], object]  # with a store; mistakes have no types

MISTAKES: dict[str, Call] = {
    "a message of text": lambda store: store.producer("web").send("carts", b"x"),
    "no message": lambda store: store.producer("web").send(None),
    "no message, async": lambda store: asyncio.run(store.producer("web").send_async(None)),
    "a session that is none": lambda store: store.producer("web").send(MESSAGE, object()),
    "a delay level that does not exist": lambda store: store.producer("web").send(MESSAGE, delay_level=99),
    "a delay level of 0": lambda store: store.producer("web").send(MESSAGE, delay_level=0),
    "a delay level of text": lambda store: store.producer("web").send(MESSAGE, delay_level="3"),
    "a sharding key that is a number": lambda store: store.producer("web").send(MESSAGE, sharding_key=1),
    "a batch of nothing": lambda store: store.producer("web").send_batch(None),
    "a batch of texts": lambda store: store.producer("web").send_batch(["x"]),
    "a batch that is a message": lambda store: store.producer("web").send_batch(MESSAGE),
    "a producer without a group": lambda store: store.producer(None),
    "a producer group of bytes": lambda store: store.producer(b"web"),
    "topics that are a number": lambda store: store.producer("shop", topics=1, resolver=print),
    "topics of numbers": lambda store: store.producer("shop", topics=[1], resolver=print),
    "a ledger that is a URL": lambda store: store.producer("shop", topics=["a"], ledger="sqlite:///x"),
    "an immunity of text": lambda store: _plain(store).begin_transaction(immunity_s="5"),
    "an immunity below 0": lambda store: _plain(store).begin_transaction(immunity_s=-1),
    "a Ledger of a URL": lambda _: broker.Ledger("sqlite:///x"),  # type: ignore[arg-type]
    "keys that are None": lambda _: broker.Message("carts", b"x", keys=None),  # type: ignore[arg-type]
    "keys of numbers": lambda _: broker.Message("carts", b"x", keys=[1]),  # type: ignore[list-item]
    "properties that are None": lambda _: broker.Message("carts", b"x", properties=None),  # type: ignore[arg-type]
    "properties of numbers": lambda _: broker.Message("carts", b"x", properties={"a": 1}),  # type: ignore[dict-item]
    "a topic that is None": lambda _: broker.Message(None, b"x"),  # type: ignore[arg-type]
    "a body of text": lambda _: broker.Message("carts", "x"),  # type: ignore[arg-type]
    "a tag that is None": lambda _: broker.Message("carts", b"x", tag=None),  # type: ignore[arg-type]
    "a consumer without a group": lambda store: store.consumer(None, "carts"),
    "a consumer without a topic": lambda store: store.consumer("g", None),
    "a consumer of numbers": lambda store: store.consumer("g", [1]),
    "tags that are None": lambda store: store.consumer("g", "carts", tags=None),
    "retries below 0": lambda store: store.consumer("g", "carts", max_retries=-1),
    "retries of text": lambda store: store.consumer("g", "carts", max_retries="3"),
    "a retry level that does not exist": lambda store: store.consumer("g", "carts", retry_delay_level=19),
    "no time to acknowledge": lambda store: store.consumer("g", "carts", ack_timeout_s=0),
    "a time to acknowledge of text": lambda store: store.consumer("g", "carts", ack_timeout_s="5"),
    "a time to acknowledge without end": lambda store: store.consumer("g", "carts", ack_timeout_s=float("nan")),
    "a time to acknowledge beyond any float": lambda store: store.consumer("g", "carts", ack_timeout_s=10**400),
    "a time to acknowledge beyond any clock": lambda store: store.consumer("g", "carts", ack_timeout_s=1e300),
    "a number that Python does not write": lambda store: store.consumer("g", "carts", ack_timeout_s=-(10**5000)),
    "a delay beyond any float": lambda store: store.producer("web").send(MESSAGE, delay=10**400),
    "a delay that Python does not write": lambda store: store.producer("web").send(MESSAGE, delay=10**5000),
    "a delivery beyond any clock": lambda store: store.producer("web").send(MESSAGE, deliver_at=10**5000),
    "messages kept beyond any float": lambda _: broker.Retention(keep_s=10**400),
    "messages kept beyond any clock": lambda _: broker.Retention(keep_s=1e306),
    "groups gone beyond any float": lambda _: broker.Retention(keep_s=1, gone_after_s=10**5000),
    "bytes beyond any disk": lambda _: broker.Retention(max_bytes=10**5000),
    "half a sharding key": lambda store: store.producer("web").send(MESSAGE, sharding_key="\ud800"),
    "topics of numbers, once": lambda store: store.producer("shop", topics=(n for n in [1]), resolver=print),
    "a path of bytes": lambda _: broker.open(b"x"),  # type: ignore[call-overload]
    "no path": lambda _: broker.open(None),  # type: ignore[call-overload]
    "a number for a path": lambda _: broker.open(1, read_only=True),  # type: ignore[call-overload]
    "an address for a path": lambda _: broker.open("rocketmq://127.0.0.1:9876"),
    "a resolver that is a number": lambda store: store.producer("shop", topics=["a"], resolver=5),
    "a resolver by name": lambda store: store.producer("shop", topics=["a"], resolver="answer"),
    "a resolver that answers nothing": lambda store: store.producer("shop", topics=["a"], resolver=object()),
    "a resolver that is async": lambda store: store.producer("shop", topics=["a"], resolver=answer_async),
    "the class of a resolver": lambda store: store.producer("shop", topics=["a"], resolver=Answer),
    "the class of a ledger": lambda store: store.producer("shop", topics=["a"], ledger=broker.Ledger),
    "topics of bytes": lambda store: store.producer("shop", topics=b"orders", resolver=print),
    "the class of Processed": lambda store: store.consumer("g", "carts", processed=broker.Processed),
    "an order of text": lambda store: store.consumer("g", "carts", ordered="false"),
    "retries first of text": lambda store: store.consumer("g", "carts", retries_first="no"),
    "a ledger without the name of a table": lambda store: _ledger(store, table=None),
    "a schema of numbers": lambda store: _ledger(store, schema=5),
    "a Processed without the name of a table": lambda _: broker.Processed(table=None),  # type: ignore[arg-type]
    "tables made in nothing": lambda _: broker.Processed().create_all(None),  # type: ignore[arg-type]
    "rows as old as a date": lambda _: broker.Processed().forget(None, datetime.now(UTC)),  # type: ignore[arg-type]
    "append text": lambda store: store.append("carts"),
    "append what was received": lambda store: store.append({"topic": "carts"}),
    "a queue of text": lambda store: store.append(MESSAGE, queue_id="0"),
    "a queue of None": lambda store: store.append(MESSAGE, queue_id=None),
    "a queue that is true": lambda store: store.append(MESSAGE, queue_id=True),
    "a queue of a fraction": lambda store: store.append(MESSAGE, queue_id=1.0, extra_properties={"DELAY": "1"}),
    "properties of text": lambda store: store.append(MESSAGE, extra_properties="a=b"),
    "properties of an array": lambda store: store.append(MESSAGE, extra_properties=np.array(["a", "b"])),
    "a property of a number": lambda store: store.append(MESSAGE, extra_properties={"a": 1}),
    "an origin that is a host": lambda store: store.append(MESSAGE, origin="127.0.0.1"),
    "a batch of one message": lambda store: store.append_batch(MESSAGE),
    "a batch of bodies": lambda store: store.append_batch([b"x"]),
    "a batch for no queue": lambda store: store.append_batch([MESSAGE], queue_id=None),
    "a batch with properties of text": lambda store: store.append_batch([MESSAGE], extra_properties="a=b"),
    "a batch with one flag": lambda store: store.append_batch([MESSAGE], flags=1),
    "prepare text": lambda store: store.transactions.prepare("carts", "shop"),
    "prepare for a group of bytes": lambda store: store.transactions.prepare(MESSAGE, b"shop"),
    "prepare for half a group": lambda store: store.transactions.prepare(MESSAGE, "\ud800"),
    "prepare for half a queue": lambda store: _half(store, queue_id=0.5),
    "prepare from a host": lambda store: _half(store, origin="127.0.0.1"),
    "prepare for a queue of text": lambda store: store.transactions.prepare(MESSAGE, "shop", queue_id="0"),
    "prepare with properties of text": lambda store: store.transactions.prepare(MESSAGE, "g", extra_properties="a"),
    "commit a message": lambda store: store.transactions.commit(MESSAGE),
    "roll back what is not there": lambda store: store.transactions.rollback(None),
    "the message of an offset": lambda store: store.transactions.message(0),
    "commit for half a group": lambda store: store.transactions.commit(_half(store)._replace(producer_group="\ud800")),
    "the state of an id": lambda store: store.transactions.state("7F00000100002A9F0000000000000000"),
    "a half message at a text": lambda store: store.transactions.half("0"),
    "park an offset": lambda store: store.transactions.park(0, "why"),
    "check by a function": lambda store: store.transactions.check(0, 15, print),
    "a topic that is a list": lambda store: store.topic(["carts"]),
    "create a topic of bytes": lambda store: store.create_topic(b"carts"),
    "queues of text": lambda store: store.create_topic("carts", queues="4"),
    "permissions of text": lambda store: store.create_topic("carts", perm="rw"),
    "delete a list of topics": lambda store: store.delete_topic(["carts"]),
    "pause no group": lambda store: store.pause_group(None),
    "retain by a text": lambda store: store.retain("3d"),
    "retain at a date": lambda store: store.retain(broker.Retention(keep_s=1.0), now_ms=datetime.now(UTC)),
    "the queues of no topic": lambda store: store.queues(None),
    "the range of a queue of text": lambda store: store.queue_range("carts", "0"),
    "the end of a list of queues": lambda store: store.queue_end("carts", [0]),
    "a message at a text": lambda store: store.message("carts", 0, "0"),
    "a record at a text": lambda store: store.record("0"),
    "records since a date": lambda store: store.records(datetime.now(UTC)),
    "records up to a text": lambda store: store.records(0, "9"),
    "records between dates": lambda store: store.records_between(datetime.now(UTC), datetime.now(UTC)),
    "by a key of numbers": lambda store: store.by_key("carts", 1),
    "by a key since a date": lambda store: store.by_key("carts", "x", datetime.now(UTC)),
    "the offset at a date": lambda store: store.offset_at_time("carts", 0, datetime.now(UTC)),
    "serve a path": lambda _: broker.serve("shop.store"),  # type: ignore[arg-type]
    "serve on a number": lambda store: broker.serve(store, 10911),  # type: ignore[arg-type]
    "serve with an option that is misspelled": lambda store: broker.serve(store, "127.0.0.1:0", prot=1),  # type: ignore[call-arg]
    "a retry of text": lambda _: broker.Retry.exponential("3"),  # type: ignore[arg-type]
    "a factor of text": lambda _: broker.Retry.exponential(factor="2"),  # type: ignore[arg-type]
    "a codec of text": lambda _: broker.BodyCodec("a/b", "encode", "decode"),  # type: ignore[arg-type]
    "a layout of text": lambda _: broker.StoreLayout(segment_bytes="16M"),  # type: ignore[arg-type]
    "an index of fractions": lambda _: broker.StoreLayout(index_slots=0.5),  # type: ignore[arg-type]
    "lose the COMMIT of nothing": lambda _: lose_the_commit(None, committed=True).__enter__(),  # type: ignore[arg-type]
    "crash without a store": lambda _: crash_between_commit_and_end(None).__enter__(),  # type: ignore[arg-type]
    "a clock that goes on beyond any float": lambda _: FakeClock().advance(10**400),
    "a clock that goes on by text": lambda _: FakeClock().advance("10"),  # type: ignore[arg-type]
}

OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "retention": ({"retention": "3d"}, "broker.Retention"),
    "retention-seconds": ({"retention": 259_200}, "broker.Retention"),
    "retention-timedelta": ({"retention": timedelta(days=3)}, "broker.Retention"),
    "layout": ({"layout": "small"}, r"broker.StoreLayout.small\(\)"),
    "layout-bytes": ({"layout": 1 << 24}, "broker.StoreLayout"),
    "layout-class": ({"layout": broker.StoreLayout}, "not the class StoreLayout"),
    "sync": ({"sync": None}, "sync is one of each, group, os"),
    "sync-flag": ({"sync": True}, "sync is one of each, group, os"),
    "role": ({"role": "leader"}, "role is one of"),
    "reject_transactions": ({"reject_transactions": "no"}, "True or False"),
    "transactions": ({"transactions": True}, "'state-table' or 'half-op'"),
    "transactions-list": ({"transactions": ["half-op"]}, "'state-table' or 'half-op'"),
    "create": ({"create": "no"}, "True or False"),
    "in_doubt_max": ({"in_doubt_max": "100"}, "whole number from 1 on"),
    "in_doubt_max-flag": ({"in_doubt_max": True}, "whole number from 1 on"),
    "in_doubt_max-zero": ({"in_doubt_max": 0}, "whole number from 1 on"),
    "read_only": ({"read_only": "no"}, "True or False"),
}

OF_A_CONSUMER: dict[str, Call] = {
    "acknowledge nothing": lambda consumer: consumer.ack(None),
    "acknowledge what was never received": lambda consumer: consumer.ack(MESSAGE),
    "retry nothing": lambda consumer: consumer.retry(None),
    "a delay that does not exist": lambda consumer: consumer.retry(consumer.receive(10), 77),
    "wait for text": lambda consumer: consumer.receive("5"),
    "wait for less than nothing": lambda consumer: consumer.receive(-1),
    "wait beyond any float": lambda consumer: consumer.receive(10**400),
    "wait longer than Python writes": lambda consumer: consumer.receive(-(10**5000)),
    "acknowledge all of one message": lambda consumer: consumer.ack_all(consumer.receive(10)),
    "acknowledge all of nothing": lambda consumer: consumer.ack_all(None),
    "acknowledge all of a text": lambda consumer: consumer.ack_all("x"),
}


async def answer_async(_message: broker.ReceivedMessage) -> str:
    return "commit"


class Answer:
    def check_local_transaction(self, message: broker.ReceivedMessage) -> None:
        raise NotImplementedError


def _ledger(store: Any, **options: Any) -> Any:
    return broker.Ledger(create_engine(f"sqlite:///{store.path}.db"), **options)


def _half(store: Any, **options: Any) -> broker.HalfReference:
    """A half message for a topic that has one already, and what names it."""
    message = broker.Message("halves", b"x")
    store.transactions.prepare(message, "shop")
    half: broker.Half = store.transactions.prepare(message, "shop", **options)
    return half.reference


def _plain(store: Any) -> Any:
    return store.producer("shop", topics=["orders"], resolver=print)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveStore]:
    with open_store(tmp_path_factory.mktemp("store") / "store") as store:
        yield store


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_a_sentence(store: LiveStore, name: str) -> None:
    before = store.queue_end("carts", 0)
    with pytest.raises(broker.BrokerError) as caught:
        MISTAKES[name](store)
    assert len(str(caught.value).split()) > 4
    assert store.queue_end("carts", 0) == before


@pytest.mark.parametrize("queue_id", [True, 1.0])
def test_a_half_message_for_a_queue_that_is_no_whole_number(tmp_path: Path, queue_id: Any) -> None:
    """With half-op the record said REAL_QID 1.0: from then on nobody could list what was in doubt."""
    with broker.open(tmp_path / "store", layout=broker.StoreLayout.small(), transactions="half-op") as store:
        with pytest.raises(broker.MessageRejected, match="queue"):
            store.transactions.prepare(MESSAGE, "shop", queue_id=queue_id)
        half = store.transactions.prepare(MESSAGE, "shop", queue_id=1)
        assert list(store.transactions.in_doubt()) == [half]


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_of_another_type_is_refused_before_a_store_is_made(tmp_path: Path, name: str) -> None:
    options, sentence = OPTIONS[name]
    with pytest.raises(broker.BrokerError, match=sentence):
        broker.open(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


def test_a_producer_that_is_refused_leaves_nothing(store: LiveStore) -> None:
    with pytest.raises(broker.TransactionError, match=r"a function of a message.*, not 'answer'"):
        store.producer("refused", topics=["refusals"], resolver="answer")
    assert store.topic("refusals") is None
    store.producer("refused").send(broker.Message("carts", b"x"))  # the group was not taken for a transactional one


def test_a_static_method_may_answer(store: LiveStore) -> None:
    class Static:
        @staticmethod
        def check_local_transaction(message: broker.ReceivedMessage) -> None:
            raise NotImplementedError

    assert store.producer("static", topics=["orders"], resolver=Static).is_transactional


def test_a_store_goes_on_after_mistakes(store: LiveStore) -> None:
    """The refusals are no excuse for a lock that stays taken."""
    half = store.transactions.prepare(broker.Message("orders", b"1"), "after")
    with pytest.raises(broker.TransactionError, match="the Half that prepare"):
        store.transactions.commit(half.message_id)  # type: ignore[arg-type]
    with pytest.raises(broker.MessageRejected, match="extra_properties is a dict"):
        store.transactions.commit(half, extra_properties="why")  # type: ignore[arg-type]
    assert store.transactions.commit(half).queue_offset is not None


def test_mistakes_with_a_consumer_are_told_in_a_sentence(store: LiveStore) -> None:
    store.producer("web").send(broker.Message("boxes", b"x"))
    with store.consumer("boxers", "boxes") as consumer:
        for name, call in OF_A_CONSUMER.items():
            with pytest.raises(broker.BrokerError):
                pytest.fail(f"{name}: {call(consumer)!r}")


def test_receive_without_a_time_out_gives_a_message_or_raises(tmp_path: Path) -> None:
    """So that nobody needs to look for None who waits as long as it takes."""
    with open_store(tmp_path / "store") as store:
        store.producer("web").send(broker.Message("boxes", b"x"))
        consumer = store.consumer("boxers", "boxes")
        assert consumer.receive().body == b"x"
        assert consumer.receive(0) is None
        consumer.close()
        with pytest.raises(broker.StoreError, match="was closed"):
            consumer.receive()
        assert list(consumer) == []
