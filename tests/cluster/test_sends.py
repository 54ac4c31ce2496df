"""Sends to a cluster: the interface of a store, transactions with a ledger, lost ends, brokers that fail."""

from __future__ import annotations

import asyncio
import threading

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import broker
from broker.remoting.codes import VERSION_TIMER, RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from tests.backends.clusters import CALL_S, Connected
from tests.cluster.conftest import Buy
from tests.cluster.network import NameServer
from tests.cluster.waiting import awaited, comes_to
from tests.server.wire_client import WireClient


def test_an_order_and_its_message_commit_or_roll_back_together(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, engine: Engine, buy: Buy
) -> None:
    producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
    buy(producer, 1)
    with Session(engine) as session:
        transaction = producer.begin_transaction(session)
        session.execute(text("INSERT INTO orders VALUES (2)"))
        sent = producer.send(broker.Message("orders", b"2"), transaction)
        transaction.rollback()
    assert (sent.broker_name, sent.status) == ("broker-a", "SEND_OK")
    assert comes_to(backend, [b"1"])
    with cluster.consumer("billing", "orders") as consumer:
        message = consumer.receive(backend.soon_s)
        assert message is not None
        assert (message.body, consumer.ack(message)) == (b"1", True)


def test_a_lost_end_is_checked_and_answered(
    backend: Connected, ledger: broker.Ledger, buy: Buy, caplog: pytest.LogCaptureFixture
) -> None:
    """By what the process itself decided; and after its end, by the ledger's row, by another member of the group."""
    with backend.lost_ends(), backend.another() as first:
        buy(first.producer("shop", topics=["orders"], ledger=ledger), 1)
        assert "check-back will commit" in caplog.text
        assert (backend.in_doubt(), backend.delivered()) == (1, [])
    with backend.another() as second:
        second.producer("shop", topics=["orders"], ledger=ledger)
        assert comes_to(backend, [b"1"])


def test_a_lost_rollback_is_answered_by_the_process_that_decided_it(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, engine: Engine
) -> None:
    """Its ledger has no row, which alone would mean "unknown"."""
    producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
    backend.proxy.request = lambda command: (
        None
        if command.code == RequestCode.END_TRANSACTION and command.ext["fromTransactionCheck"] == "false"
        else command
    )
    with Session(engine) as session:
        producer.send(broker.Message("orders", b"1"), session)
        assert backend.in_doubt() == 1
        object.__setattr__(cluster._settings, "call_timeout_s", CALL_S)
        session.rollback()
    assert comes_to(backend, [])


def test_a_resolver_answers(backend: Connected, cluster: broker.LiveCluster) -> None:
    answers = {b"paid": "commit", b"cancelled": "rollback"}
    producer = cluster.producer("shop", topics=["orders"], resolver=lambda message: answers.get(message.body))
    for body in (b"paid", b"cancelled", b"else"):
        transaction = producer.begin_transaction()
        producer.send(broker.Message("orders", body), transaction)
        transaction.leave()
    assert comes_to(backend, [b"paid"], 1)


@pytest.mark.parametrize("status", ["FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"])
def test_a_half_message_that_is_not_durable_is_rolled_back(
    backend: Connected,
    cluster: broker.LiveCluster,
    ledger: broker.Ledger,
    engine: Engine,
    buy: Buy,
    status: str,
) -> None:
    """RocketMQ rolls back on every send result but SEND_OK. A plain message keeps its status, as there."""

    def worse(command: RemotingCommand) -> RemotingCommand:
        if "queueOffset" in command.ext:
            command.code = ResponseCode[status]
        return command

    producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
    backend.proxy.answer = worse
    with pytest.raises(broker.SyncFailed, match=status):
        buy(producer, 1)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT count(*) FROM orders")).scalar() == 0
    assert comes_to(backend, [])
    assert cluster.producer("plain").send(broker.Message("carts", b"x")).status == status


def test_a_half_message_is_not_sent_twice(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, buy: Buy
) -> None:
    """One whose answer was lost may be stored: its transaction fails, and its ledger row decides."""
    producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
    waits = cluster._settings.send_timeout_s
    backend.proxy.answer = lambda command: None if "queueOffset" in command.ext else command
    object.__setattr__(cluster._settings, "send_timeout_s", 0.5)
    with pytest.raises(broker.ClusterError, match="did not answer within"):
        buy(producer, 1)
    assert awaited(lambda: backend.in_doubt() == 1)  # the server may be slower than half a second
    backend.proxy.answer = lambda command: command
    object.__setattr__(cluster._settings, "send_timeout_s", waits)
    buy(producer, 2)
    assert comes_to(backend, [b"2"], 1)


def test_a_half_message_is_not_sent_twice_where_there_is_time_for_it(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, buy: Buy
) -> None:
    """Its connection was lost with the answer: the broker would have two, and deliver both by one row."""
    producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
    times = iter([True])

    def once(command: RemotingCommand) -> RemotingCommand | None:
        if "queueOffset" in command.ext and next(times, False):
            backend.proxy.cut()
            return None
        return command

    backend.proxy.answer = once
    with pytest.raises(broker.ClusterError):
        buy(producer, 1)
    assert backend.in_doubt() == 1


def test_a_plain_message_is_sent_again(backend: Connected, cluster: broker.LiveCluster) -> None:
    """After a connection that was lost: twice at the broker, with one unique key."""
    producer = cluster.producer("plain")
    times = iter([True])

    def once(command: RemotingCommand) -> RemotingCommand | None:
        if "queueOffset" in command.ext and next(times, False):
            backend.proxy.cut()
            return None
        return command

    backend.proxy.answer = once
    sent = producer.send(broker.Message("carts", b"x"))
    assert awaited(lambda: backend.delivered("carts") == [b"x", b"x"])
    assert {message.unique_key for message in cluster.newest("carts")} == {sent.unique_key}


def test_a_broker_that_lost_a_connection_hears_of_its_producers_again(
    backend: Connected, cluster: broker.LiveCluster
) -> None:
    """A broker forgets who is connected when the connection ends; without a new heartbeat nobody is checked."""
    cluster.producer("shop", topics=["orders"], resolver=lambda _: "unknown")
    with WireClient(backend.proxy.target) as client:

        def producers() -> bytes:
            """The addresses of the group's members are in it."""
            answer = client.request(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "shop"})
            return answer.body if answer.code == 0 else b""

        before = producers()
        assert before
        backend.proxy.cut()
        assert awaited(lambda: producers() not in (b"", before), backend.soon_s)


def test_messages_of_a_sharding_key_are_in_order_and_batches_together(cluster: broker.LiveCluster) -> None:
    producer = cluster.producer("plain")
    sent = [producer.send(broker.Message("carts", b"%d" % one), sharding_key="k") for one in range(5)]
    assert len({one.queue_id for one in sent}) == 1
    batch = producer.send_batch([broker.Message("batch", b"a", tag="t"), broker.Message("batch", b"b", keys="k2")])
    assert [one.queue_offset for one in batch] == [0, 1]
    assert awaited(lambda: [one.unique_key for one in cluster.newest("batch")] == [one.unique_key for one in batch])
    with pytest.raises(broker.MessageRejected, match="one topic"):
        producer.send_batch([broker.Message("a", b"a"), broker.Message("b", b"b")])
    large = [broker.Message("batch", bytes(3 << 20))] * 2
    with pytest.raises(broker.MessageRejected, match="has 6291456 bytes; at most 4194304 are allowed: divide it"):
        producer.send_batch(large)  # the broker closed the connection, and what else was sent there had failed
    just_above = [broker.Message("batch", b"x", properties={"p": "x" * 30_000})] * 140  # what a real broker refuses
    with pytest.raises(broker.MessageRejected, match="bytes with its properties; at most 4194304 are allowed"):
        producer.send_batch(just_above)


def test_an_async_session(backend: Connected, cluster: broker.LiveCluster, engine: Engine) -> None:
    async def buy() -> None:
        made = create_async_engine(engine.url.set(drivername="sqlite+aiosqlite"))
        ledger = broker.Ledger(made)
        await ledger.create_all_async()
        producer = await asyncio.to_thread(cluster.producer, "shop", topics=["orders"], ledger=ledger)
        async with AsyncSession(made) as session, session.begin():
            await session.execute(text("INSERT INTO orders VALUES (1)"))
            await producer.send_async(broker.Message("orders", b"1"), session)
        async with AsyncSession(made) as session:
            await producer.send_async(broker.Message("orders", b"2"), session)
            await session.rollback()
        await made.dispose()

    asyncio.run(buy())
    assert comes_to(backend, [b"1"])


def test_what_a_cluster_cannot_do_is_a_sentence(
    cluster: broker.LiveCluster, ledger: broker.Ledger, engine: Engine
) -> None:
    with pytest.raises(broker.NotInCluster, match="retain is of a store on this machine"):
        _ = cluster.retain
    assert not hasattr(cluster, "retain")
    producer = cluster.producer("shop", topics=["orders"], ledger=ledger)
    for delayed in ({"delay_level": 3}, {"delay": 1.0}, {"deliver_at": 1}):  # a broker loses each of them
        with Session(engine) as session, pytest.raises(broker.NotInCluster, match="drops the delay"):
            producer.send(broker.Message("orders", b"1"), session, **delayed)
    with pytest.raises(broker.TransactionError, match="is transactional"):
        cluster.producer("shop")
    with pytest.raises(broker.BrokerError, match="not HOST:PORT"):
        broker.connect("rocketmq://a b:1")
    with pytest.raises(broker.BrokerError, match="named by its name servers"):
        broker.connect("127.0.0.1:9876")
    with pytest.raises(broker.ClusterError, match="takes no connection"):
        broker.connect("rocketmq://127.0.0.1:1")


def test_a_broker_that_keeps_no_times_gets_no_message_for_later(served: Connected) -> None:
    """One before 5.0 does not know what TIMER_DELIVER_MS says: it delivered at once, and answered SEND_OK."""

    def older(answer: RemotingCommand) -> RemotingCommand:
        answer.version = VERSION_TIMER - 1
        return answer

    producer = served.client.producer("plain")
    producer.send(broker.Message("carts", b"due"), deliver_at=1)
    served.proxy.answer = older
    with served.another() as newer:
        for made in (producer, newer.producer("plain")):  # the first knew the broker when it was newer
            made.send(broker.Message("carts", b"now"), delay_level=1)
            with pytest.raises(broker.NotInCluster, match=r"older than RocketMQ 5\.0.* use delay_level, not"):
                made.send(broker.Message("carts", b"lamp"), delay=60)
    assert served.delivered("carts") == [b"due"]


def test_several_name_servers_and_a_topic_that_is_nowhere(backend: Connected) -> None:
    """The first name server is down; a topic that no broker has and none makes is refused at the start."""
    with (
        NameServer({"broker-a": backend.proxy.address}) as name_server,
        broker.connect(f"rocketmq://127.0.0.1:1;{name_server.address}") as cluster,
    ):
        assert cluster.producer("plain").send(broker.Message("carts", b"x")).broker_name == "broker-a"
        with pytest.raises(broker.ClusterError, match=r"has the topic nowhere: make it, cluster\.create_topic"):
            cluster.producer("plain").send(broker.Message("nowhere", b"x"))


def test_a_topic_that_can_only_be_read_is_said(served: Connected) -> None:
    """It is not "nowhere", and its message does not go where the default topic would make it."""
    ext = {"topic": "archive", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 4,
           "topicFilterType": "SINGLE_TAG", "order": "false"}  # fmt: skip
    with WireClient(served.proxy.target) as operator:
        assert operator.request(RequestCode.UPDATE_AND_CREATE_TOPIC, ext).code == ResponseCode.SUCCESS
    with pytest.raises(broker.NotPermitted, match=r"archive can only be read now: its brokers \(broker-a\) take no"):
        served.client.producer("plain").send(broker.Message("archive", b"x"))


def test_a_topic_that_got_fewer_queues_takes_each_message(
    backend: Connected, cluster: broker.LiveCluster, ledger: broker.Ledger, buy: Buy
) -> None:
    """The client learns it with the first message that a queue refuses."""
    plain, producer = cluster.producer("plain"), cluster.producer("shop", topics=["orders"], ledger=ledger)
    for topic in ("carts", "orders"):
        cluster.create_topic(topic, queues=8)
        assert cluster.topic(topic) is not None  # the route that it knows
        with backend.another() as administrator:
            administrator.create_topic(topic, queues=1)
    assert [plain.send(broker.Message("carts", b"lamp")).queue_id for _ in range(4)] == [0] * 4
    for number in range(3):
        buy(producer, number)
    assert comes_to(backend, [b"0", b"1", b"2"])


def test_a_message_that_its_broker_refuses_is_sent_once(served: Connected) -> None:
    producer = served.client.producer("plain")
    producer.send(broker.Message("carts", b"lamp"))
    sent: list[int] = []

    def seen(command: RemotingCommand) -> RemotingCommand:
        sent.extend([command.opaque] if command.code == RequestCode.SEND_MESSAGE else [])
        return command

    def refused(answer: RemotingCommand) -> RemotingCommand:
        return answer.answer(ResponseCode.MESSAGE_ILLEGAL, "not this one") if answer.opaque in sent else answer

    served.proxy.request, served.proxy.answer = seen, refused
    with pytest.raises(broker.MessageRejected, match="not this one"):
        producer.send(broker.Message("carts", b"lamp"))
    assert len(sent) == 1


def test_a_send_says_why_it_failed_and_not_how_little_time_was_left(served: Connected) -> None:
    producer = served.client.producer("plain")
    producer.send(broker.Message("carts", b"lamp"))
    object.__setattr__(served.client._settings, "send_timeout_s", 0.3)
    served.proxy.answer = lambda _: None
    closing = threading.Timer(0.27, served.proxy.cut)
    closing.start()
    with pytest.raises(broker.ClusterError, match=r"closed the connection|did not answer within 0\.[23]"):
        producer.send(broker.Message("carts", b"lamp"))
    closing.join()


def test_another_cluster_must_be_named(backend: Connected) -> None:
    with pytest.raises(broker.ClusterError, match="cluster=NAME"):
        broker.connect(backend.client.path, cluster="other")


@pytest.mark.parametrize(
    "options", [{"queues": 0}, {"queues": "4"}, {"queues": -1}, {"message_type": "LATE"}], ids=repr
)
def test_a_topic_that_cannot_be_is_not_asked_for(backend: Connected, options: dict[str, object]) -> None:
    """A broker of RocketMQ takes 0 queues, also of a topic that is there: nobody sends or receives there any more."""
    backend.client.create_topic("carts", queues=4)
    with pytest.raises(broker.MessageRejected):
        backend.client.create_topic("carts", **options)  # type: ignore[arg-type]
    route = backend.client.topic("carts")
    assert route is not None
    assert route.queues[0].write_count == 4
