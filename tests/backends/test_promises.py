"""What a store promises and a cluster does not: docs/cluster.md has it in a table, each test is one of its rows.

A store that is served keeps the promises of a store. A real broker does what the test says instead.
"""

from __future__ import annotations

import pytest

import broker
from broker.remoting.codes import RequestCode
from broker.transaction.service import Half, HalfMessageService
from tests.backends.backend import Backend
from tests.backends.clusters import Connected
from tests.cluster.waiting import awaited
from tests.producer.listener import is_unknown, was_saved
from tests.server.wire_client import WireClient

END, COMMIT = RequestCode.END_TRANSACTION, 8
LOST_S = 5.0  # a level takes 1 s here


def ends(backend: Backend) -> HalfMessageService:
    """What writes, or sends, the end of a half message."""
    client = backend.client
    return client.half_messages if isinstance(client, broker.LiveCluster) else client.transactions


def half_message(backend: Backend, body: bytes = b"1") -> Half:
    """Its transaction is left: nobody but the test decides."""
    producer = backend.client.producer("shop", topics=["orders"], resolver=is_unknown)
    transaction = producer.begin_transaction()
    producer.send(broker.Message("orders", body), transaction)
    (half,) = transaction.halves
    transaction.leave()
    return half


def is_delivered(backend: Backend, times: int) -> bool:
    """Whether the message was delivered so often. A real broker may check at any time, and deliver once more."""
    found = backend.delivered()
    assert set(found) <= {b"1"}
    return len(found) >= times if backend.is_real and times else len(found) == times


# The first decision is final


def test_a_commit_after_a_rollback(backend: Backend) -> None:
    half, service = half_message(backend), ends(backend)
    service.rollback(half)
    if backend.is_real:
        service.commit(half)
        assert is_delivered(backend, 1)
        return
    with pytest.raises(broker.BrokerError, match="the first decision stands"):
        service.commit(half)
    assert is_delivered(backend, 0)


def test_a_rollback_after_a_commit(backend: Backend) -> None:
    """No broker takes back what it delivered."""
    half, service = half_message(backend), ends(backend)
    service.commit(half)
    if backend.is_real:
        service.rollback(half)
    else:
        with pytest.raises(broker.BrokerError, match="the first decision stands"):
            service.rollback(half)
    assert is_delivered(backend, 1)


def test_the_same_end_twice(backend: Backend) -> None:
    half, service = half_message(backend), ends(backend)
    service.commit(half)
    service.commit(half)
    assert is_delivered(backend, 2 if backend.is_real else 1)


def test_a_broker_that_checked_before_it_knew_of_the_end(backend: Backend) -> None:
    """It wrote the half message again for its next check: the end is of the old one, and the answer of the new."""
    if not isinstance(backend, Connected):
        pytest.skip("a store asks nobody by itself: see tests/checkback/test_races.py")
    half, service = half_message(backend), ends(backend)
    with backend.lost_ends():  # the answer to the check is the first
        assert awaited(lambda: END in {one.code for one in backend.proxy.passed}, backend.soon_s)
    service.commit(half)
    assert awaited(lambda: backend.in_doubt() == 0, backend.soon_s)
    may_be = (1, 2) if backend.is_real else (1,)  # two, if the check had been answered by then
    assert awaited(lambda: len(backend.delivered()) in may_be, backend.soon_s)


# Delays, groups, topics


def test_a_delayed_half_message(backend: Backend) -> None:
    """Delivered by a store when the delay is over; a cluster's producer refuses it."""
    producer = backend.client.producer("shop", topics=["orders"], resolver=was_saved)
    transaction = producer.begin_transaction()
    message = broker.Message("orders", b"1")
    if backend.is_cluster:
        with pytest.raises(broker.NotInCluster, match="drops the delay"):
            producer.send(message, transaction, delay_level=1)
        return
    producer.send(message, transaction, delay_level=1)
    transaction.commit()
    assert backend.delivered() == []
    with backend.client.consumer("readers", "orders") as consumer:
        assert consumer.receive(backend.soon_s) is not None


def test_a_delayed_half_message_of_another_client(backend: Backend) -> None:
    """Why it is refused: RocketMQ's broker loses it, and a served store delivers it at once."""
    if not isinstance(backend, Connected):
        pytest.skip("a store has no protocol")
    backend.client.create_topic("orders", queues=4)
    with WireClient(backend.proxy.target) as client:
        sent = client.publish("orders", b"1", sys_flag=4, TRAN_MSG="true", PGROUP="shop", UNIQ_KEY="U1", DELAY="3")
        fields = {
            "producerGroup": "shop", "tranStateTableOffset": sent.ext["queueOffset"], "msgId": "U1",
            "commitLogOffset": int(sent.ext["msgId"][16:], 16), "commitOrRollback": COMMIT,
            "fromTransactionCheck": "false", "transactionId": "U1",
        }  # fmt: skip
        assert client.request(END, fields).code == 0
    if backend.is_real:  # it waits in the schedule topic, and its own topic is forgotten
        assert not awaited(backend.delivered, LOST_S)
    else:
        assert backend.delivered() == [b"1"]


def test_a_group_is_transactional_in_another_process_too(backend: Backend) -> None:
    """A store knows its groups; the brokers of a cluster know no kinds of groups."""
    backend.client.producer("shop", topics=["orders"], resolver=was_saved)
    with backend.another() as other:
        if backend.is_cluster:
            assert other.producer("shop").send(broker.Message("carts", b"1")).status == "SEND_OK"
            return
        with pytest.raises(broker.TransactionError, match="is transactional"):
            other.producer("shop")


def test_a_topic_for_messages_of_another_type(backend: Backend) -> None:
    """A store checks what a topic takes; of RocketMQ only the proxies of 5.x do."""
    backend.client.create_topic("orders", message_type="FIFO")
    producer = backend.client.producer("web")
    if backend.is_real:
        assert producer.send(broker.Message("orders", b"1")).status == "SEND_OK"
        backend.client.producer("shop", topics=["orders"], resolver=was_saved)
        return
    with pytest.raises(broker.BrokerError, match="takes FIFO"):
        producer.send(broker.Message("orders", b"1"))
    if backend.is_cluster:
        return  # its first half message is refused
    with pytest.raises(broker.TransactionError, match="takes FIFO"):
        backend.client.producer("shop", topics=["orders"], resolver=was_saved)
