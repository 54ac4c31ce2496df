"""Where a group of a cluster stands is written, whatever else fails."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import broker
from broker.cluster import cluster_consumer
from broker.cluster.membership import group_member
from broker.consuming.redelivery import copied_back
from broker.format import properties as names
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from tests.backends.clusters import CALL_S, Connected
from tests.cluster.conftest import LAYOUT
from tests.cluster.waiting import awaited, wait_less
from tests.server.wire_client import WireClient
from tests.store.build import record


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_member, "COMMIT_S", 0.05)


def _stands_at(served: Connected, message: broker.ReceivedMessage, position: int) -> bool:
    """Whether the broker learns in time where the group is."""
    ext = {"consumerGroup": "billing", "topic": message.topic, "queueId": message.queue_id}
    with WireClient(served.proxy.target) as operator:
        code = RequestCode.QUERY_CONSUMER_OFFSET
        return awaited(lambda: operator.request(code, ext).ext.get("offset") == str(position))


def test_a_position_that_its_broker_did_not_get_is_written_again(
    served: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is killed takes with it what it had not read yet."""
    lost: list[RemotingCommand] = []

    def lose(command: RemotingCommand) -> RemotingCommand | None:
        if command.code != RequestCode.UPDATE_CONSUMER_OFFSET:
            return command
        lost.append(command)
        return None

    wait_less(monkeypatch, CALL_S, lambda _, code: code == RequestCode.UPDATE_CONSUMER_OFFSET)
    served.client.producer("plain").send(broker.Message("carts", b"lamp"))
    with served.client.consumer("billing", "carts") as consumer:
        message = consumer.receive(served.soon_s)
        assert message is not None
        served.proxy.request = lose
        assert consumer.ack(message)
        assert awaited(lambda: lost)
        served.proxy.request = lambda command: command
        assert _stands_at(served, message, 1)


def test_a_position_that_its_broker_forgot_is_written_again(served: Connected) -> None:
    """One that is killed forgets what it was told in its last five seconds, and answered: all of that came again to the
    next consumer, however long this one went on and however it was closed."""
    producer = served.client.producer("plain")
    served.client.create_topic("carts", queues=1)
    producer.send(broker.Message("carts", b"lamp"))
    with served.client.consumer("billing", "carts") as consumer:
        message = consumer.receive(served.soon_s)
        assert message is not None
        assert consumer.ack(message)
        assert _stands_at(served, message, 1)
        with WireClient(served.proxy.target) as operator:
            place = {"consumerGroup": "billing", "topic": "carts", "queueId": 0, "commitOffset": 0}
            assert operator.request(RequestCode.UPDATE_CONSUMER_OFFSET, place).code == ResponseCode.SUCCESS
        served.proxy.cut()
        producer.send(broker.Message("carts", b"desk"))  # which the broker answers a pull with: it lost no message
        assert _stands_at(served, message, 1)


@pytest.mark.parametrize("ordered", [False, True])
def test_what_another_member_did_while_the_connection_was_lost_does_not_come_again(
    served: Connected, *, ordered: bool
) -> None:
    """All of it came again here, however much it was, and the group's position was put back."""
    producer = served.client.producer("plain")
    served.client.create_topic("carts", queues=1)
    for number in range(4):
        producer.send(broker.Message("carts", b"%d" % number))
    with served.client.consumer("billing", "carts", ordered=ordered) as consumer:
        message = consumer.receive(served.soon_s)
        assert message is not None
        assert consumer.ack(message)
        assert _stands_at(served, message, 1)
        with WireClient(served.proxy.target) as another:
            place = {"consumerGroup": "billing", "topic": "carts", "queueId": 0, "commitOffset": 3}
            assert another.request(RequestCode.UPDATE_CONSUMER_OFFSET, place).code == ResponseCode.SUCCESS
        served.proxy.cut()
        assert awaited(lambda: consumer.positions().get(("carts", 0, "broker-a")) == 3)
        message = consumer.receive(served.soon_s)
        assert message is not None
        assert message.body == b"3"
        assert consumer.ack(message)
        assert _stands_at(served, message, 4)


def test_who_leaves_after_its_connection_was_lost_puts_no_other_member_back(
    served: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it wrote as its last position was where it stood itself: all that was done meanwhile came again."""
    monkeypatch.setattr(group_member, "COMMIT_S", 60)
    producer = served.client.producer("plain")
    served.client.create_topic("carts", queues=1)
    for number in range(4):
        producer.send(broker.Message("carts", b"%d" % number))
    with WireClient(served.proxy.target) as another:
        consumer = served.client.consumer("billing", "carts")
        message = consumer.receive(served.soon_s)
        assert message is not None
        assert consumer.ack(message)
        place = {"consumerGroup": "billing", "topic": "carts", "queueId": 0, "commitOffset": 3}
        assert another.request(RequestCode.UPDATE_CONSUMER_OFFSET, place).code == ResponseCode.SUCCESS
        served.proxy.cut()
        assert awaited(lambda: all(held.may_be_behind for held in consumer._holdings.held))
        consumer.close()
        assert _stands_at(served, message, 3)


def _refuse_what_is_sent_back(served: Connected, *, also_copies: bool = True) -> None:
    """As a broker that is read-only does, or one at which the account has no right to the topic of retries; of a batch
    in one record, or of what retention removed, copies are taken."""

    def refuse(command: RemotingCommand) -> RemotingCommand | None:
        is_copy = also_copies and command.ext.get("topic") == "%RETRY%billing" and "bornTimestamp" in command.ext
        if command.code != RequestCode.CONSUMER_SEND_MSG_BACK and not is_copy:
            return command
        return RemotingCommand(RequestCode.GET_KV_CONFIG, command.opaque)  # answered with another code

    def denied(command: RemotingCommand) -> RemotingCommand | None:
        is_refused = command.is_response and "KvConfig" in (command.remark or "")
        return command.answer(ResponseCode.NO_PERMISSION, "no right") if is_refused else command

    served.proxy.request, served.proxy.answer = refuse, denied


def test_a_message_that_cannot_be_sent_back_holds_no_position_up(
    served: Connected, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker refuses it: it comes again here, and what follows is written."""
    monkeypatch.setattr(cluster_consumer, "_BACK_FAILED_S", 0.05)
    _refuse_what_is_sent_back(served)
    served.client.producer("plain").send(broker.Message("carts", b"lamp"))
    with served.client.consumer("billing", "carts", ack_timeout_s=0.1) as consumer:
        first = consumer.receive(served.soon_s)
        assert first is not None
        again = consumer.receive(served.soon_s)
        assert again is not None
        assert (again.message_id, again.reconsume_times) == (first.message_id, 1)
        assert consumer.ack(again)
        assert _stands_at(served, again, 1)


def test_a_message_that_its_broker_does_not_take_back_comes_again_here(
    served: Connected, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It stayed in hand until it was overdue, and `process` raised the refusal in place of the error of its body."""
    monkeypatch.setattr(cluster_consumer, "_BACK_FAILED_S", 0.05)
    _refuse_what_is_sent_back(served)
    served.client.producer("plain").send(broker.Message("carts", b"lamp"))
    with served.client.consumer("billing", "carts") as consumer:
        first = consumer.receive(served.soon_s)
        assert first is not None
        assert consumer.retry(first)
        again = consumer.receive(served.soon_s)
        assert again is not None
        assert again.message_id == first.message_id
    assert "could not be sent back, and comes again here" in caplog.text


def test_a_message_that_its_broker_does_not_take_back_is_sent_to_the_retries(served: Connected) -> None:
    """It came again every 5 s without end, whatever its limit of retries."""
    _refuse_what_is_sent_back(served, also_copies=False)
    sent = broker.Message("carts", b"lamp", tag="red", keys=["7"], properties={"colour": "red"})
    served.client.producer("plain").send(sent)
    with served.client.consumer("billing", "carts", max_retries=1, retry_delay_level=1) as consumer:
        first = consumer.receive(served.soon_s)
        assert first is not None
        assert consumer.retry(first)
        assert _stands_at(served, first, 1)
        again = consumer.receive(served.soon_s)
        assert again is not None
        assert (again.topic, again.body, again.tag, again.keys) == ("carts", b"lamp", "red", ("7",))
        assert (again.unique_key, again.reconsume_times) == (first.unique_key, 1)
        assert (again.born_timestamp_ms, again.properties["colour"]) == (first.born_timestamp_ms, "red")
        assert again.properties["ORIGIN_MESSAGE_ID"] == first.message_id
        assert consumer.retry(again)
        assert awaited(lambda: served.delivered("%DLQ%billing") == [b"lamp"])


@pytest.mark.parametrize("level", [None, -1])
def test_the_number_of_retries_of_a_copy(level: int | None) -> None:
    """A broker compares by > or by >=, so the numbers leave it no choice."""
    properties_of_it = {"TRAN_MSG": "true", "TIMER_DELIVER_MS": "1", "INNER_NUM": "2"}
    made = dataclasses.replace(record(0, 0), properties=names.encode(properties_of_it), reconsume_times=16)
    message = broker.ReceivedMessage.of(made)
    properties, times, times_max = copied_back(message, level or 0, 17)
    assert (times > times_max, times >= times_max) == (level == -1,) * 2
    added = {"RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": message.message_id, "WAIT": "true"}
    assert properties == {**added, "DELAY": "0" if level else "18"}


def test_a_retry_at_once_is_refused_before_it_is_needed(served: Connected) -> None:
    with pytest.raises(broker.NotInCluster, match="no retry at once: retry_delay_level is 1"):
        served.client.consumer("billing", "carts", retry_delay_level=0)
    served.client.consumer("billing", "carts", retry_delay_level=0, ordered=True).close()  # it keeps the message


def test_a_broker_that_lost_messages_is_read_from_the_position_that_it_knows(
    served: Connected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has a new disk, or lost its last seconds in a power cut: what was sent since was passed over."""
    monkeypatch.setattr(group_member, "_AFTER_FAILURE_S", 0.05)
    served.client.create_topic("carts", queues=1)
    producer = served.client.producer("plain")
    with served.client.consumer("billing", "carts") as consumer:
        for _ in range(5):
            producer.send(broker.Message("carts", b"before"))
            message = consumer.receive(served.soon_s)
            assert message is not None
            assert consumer.ack(message)
        assert _stands_at(served, message, 5)
        with (
            broker.open(tmp_path / "new", sync="os", layout=LAYOUT) as store,
            broker.serve(store, "127.0.0.1:0", advertise=served.proxy.address) as server,
        ):
            store.create_topic("carts", queues=1)
            for number in range(3):
                store.append(broker.Message("carts", b"%d" % number))
            served.proxy.target = server.address
            served.proxy.cut()
            received = [consumer.receive(served.soon_s) for _ in range(3)]
            assert [one and one.body for one in received] == [b"0", b"1", b"2"]
            assert "queue 0 of carts at broker-a ends at 3, and was read up to 5: it goes on at 0" in caplog.text
            consumer.close()
