"""What a client asks for and does not get: a code and a sentence, and nothing that it would not expect."""

from __future__ import annotations

import json
import time

import pytest

from broker.format import properties as names
from broker.format.topics import retry_topic
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from tests.server.conftest import Connect, Serve
from tests.server.wire_client import WireClient


@pytest.mark.parametrize("delay", [names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS])
def test_a_message_that_would_take_another_one_back_is_refused(serve: Serve, connect: Connect, delay: str) -> None:
    """A broker of 5.x delivers neither of the two. Here both came, and both had been answered with success."""
    client = connect(serve())
    due = str(time.time_ns() // 1_000_000 + 1000) if delay == names.TIMER_DELIVER_MS else "1"
    assert client.publish("reminders", b"pay", UNIQ_KEY="A1", **{delay: due}).code == Answer.SUCCESS
    taken_back = client.publish("reminders", b"-", UNIQ_KEY="A2", TIMER_DEL_UNIQKEY="reminders+A1", **{delay: due})
    assert taken_back.code == Answer.MESSAGE_ILLEGAL
    expected = "a delayed message cannot be taken back here, and it would take back reminders+A1"
    assert taken_back.remark == expected
    plain = client.publish("reminders", b"no delay: as RocketMQ, a message as any other", TIMER_DEL_UNIQKEY="A1")
    assert plain.code == Answer.SUCCESS


def test_what_takes_back_nothing_can_be_tried_again(serve: Serve, connect: Connect) -> None:
    """A delay level makes it a message as any other, with RocketMQ, too: a client whose send back failed sends it so,
    and was refused each time."""
    client = connect(serve())
    assert client.publish("reminders", b"-", TIMER_DEL_UNIQKEY="reminders+A1").code == Answer.SUCCESS
    assert client.heartbeat(consumer="billing", topics={"reminders": "*"}).code == Answer.SUCCESS
    stated = {"TIMER_DEL_UNIQKEY": "reminders+A1", "RETRY_TOPIC": "reminders", names.DELAY: "1"}
    assert client.publish(retry_topic("billing"), b"-", **stated).code == Answer.SUCCESS


@pytest.mark.parametrize("delay", [names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS])
def test_a_delay_that_is_over_is_none(serve: Serve, connect: Connect, delay: str) -> None:
    """A client that computes what is left of a deadline was refused, where RocketMQ delivers at once."""
    client = connect(serve())
    assert client.publish("reminders", b"pay", **{delay: "-5"}).code == Answer.SUCCESS
    code, records = client.pulled("reader", "reminders")
    assert (code, [record.body for record in records]) == (Answer.SUCCESS, [b"pay"])
    refused = client.publish("reminders", b"pay", **{delay: "--5"})
    assert (refused.code, refused.remark) == (Answer.MESSAGE_ILLEGAL, f"{delay} is a number, not '--5'")


def test_a_group_that_may_not_broadcast_gets_nothing_so(serve: Serve, connect: Connect) -> None:
    """`mqadmin updateSubGroup -d false` was answered with success, and did nothing."""
    client = connect(serve())
    client.publish("orders", b"lamp")
    _allow_broadcast(client, "screens", is_allowed=False)
    _beat(client, "screens", "BROADCASTING")
    refused = client.request(Code.PULL_MESSAGE, _pull("screens"))
    assert (refused.code, refused.remark) == (
        Answer.NO_PERMISSION,
        "the consumer group[screens] can not consume by broadcast way",
    )
    assert client.pulled("screens", "orders")[0] == Answer.SUCCESS  # which states its subscription, as pull consumers
    _beat(client, "screens", "CLUSTERING")
    assert client.request(Code.PULL_MESSAGE, _pull("screens")).code == Answer.SUCCESS
    _beat(client, "screens", "BROADCASTING")
    _allow_broadcast(client, "screens", is_allowed=True)
    assert client.request(Code.PULL_MESSAGE, _pull("screens")).code == Answer.SUCCESS


def _allow_broadcast(client: WireClient, group: str, *, is_allowed: bool) -> None:
    body = json.dumps({"groupName": group, "consumeBroadcastEnable": is_allowed}).encode()
    assert client.request(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body).code == Answer.SUCCESS


def _beat(client: WireClient, group: str, model: str) -> None:
    subscription = {"topic": "orders", "subString": "*", "subVersion": time.time_ns(), "expressionType": "TAG"}
    consumer = {
        "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": model,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription],
    }  # fmt: skip
    body = {"clientID": client.client_id, "producerDataSet": [], "consumerDataSet": [consumer]}
    assert client.request(Code.HEART_BEAT, body=json.dumps(body).encode()).code == Answer.SUCCESS


def _pull(group: str) -> dict[str, object]:
    """A push consumer's: it names no subscription, and means the one of its heartbeat."""
    return {
        "consumerGroup": group, "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 0,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0,
    }  # fmt: skip
