"""Arguments out of range or of the wrong type are told in a sentence: never a TypeError, and nothing is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.live import LiveStore
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
    "a path of bytes": lambda _: broker.open(b"x"),  # type: ignore[call-overload]
    "no path": lambda _: broker.open(None),  # type: ignore[call-overload]
    "a number for a path": lambda _: broker.open(1, read_only=True),  # type: ignore[call-overload]
}

OF_A_CONSUMER: dict[str, Call] = {
    "acknowledge nothing": lambda consumer: consumer.ack(None),
    "acknowledge what was never received": lambda consumer: consumer.ack(MESSAGE),
    "retry nothing": lambda consumer: consumer.retry(None),
    "a delay that does not exist": lambda consumer: consumer.retry(consumer.receive(10), 77),
    "wait for text": lambda consumer: consumer.receive("5"),
    "wait for less than nothing": lambda consumer: consumer.receive(-1),
}


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
