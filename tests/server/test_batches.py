"""Batches over the wire: all of one or nothing, and nothing that a batch cannot be."""

from __future__ import annotations

import pytest

import broker
from broker.remoting.bodies import BatchedMessage
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.message_headers import SendMessageRequestHeader
from tests.server.conftest import Connect, Serve
from tests.server.wire_client import sending


def test_a_batch_is_stored_whole_or_not_at_all(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    client = connect(serve())
    one = "000000180000000000000000000000000000000262%s0000"
    two = bytes.fromhex(one % "30" + one % "31")
    answer = client.request(Code.SEND_BATCH_MESSAGE, sending("orders", 1) | {"m": "true"}, two)
    assert (answer.code, len(answer.ext["msgId"].split(","))) == (Answer.SUCCESS, 2)
    assert [one.body for one in client.pulled("g", "orders", queue_id=1)[1]] == [b"b0", b"b1"]
    end = store.visible_end
    assert client.request(Code.SEND_BATCH_MESSAGE, sending("orders", 1), two[:-1]).code == Answer.SYSTEM_ERROR
    assert store.visible_end == end


@pytest.mark.parametrize(("code", "name"), [(Code.SEND_MESSAGE_V2, "m"), (Code.SEND_MESSAGE, "batch")])
def test_a_batch_is_one_by_its_header(serve: Serve, connect: Connect, code: Code, name: str) -> None:
    """RocketMQ's broker looks at it, not at the code: the batch was stored as the body of one message."""
    client = connect(serve())
    client.publish("orders", b"x")
    body = BatchedMessage(b"b0", 0, b"").encode() + BatchedMessage(b"b1", 0, b"").encode()
    sent = SendMessageRequestHeader.decode({key: str(value) for key, value in sending("orders").items()}, short=True)
    header = sent.encode(short=code is Code.SEND_MESSAGE_V2) | {name: "true"}
    assert len(client.request(code, header, body).ext["msgId"].split(",")) == 2
    assert [one.body for one in client.pulled("g", "orders")[1]] == [b"x", b"b0", b"b1"]


@pytest.mark.parametrize(
    ("sys_flag", "properties", "reason"),
    [(4, {}, "no transaction"), (0, {"TRAN_MSG": "true"}, "no transaction"), (0, {"DELAY": "3"}, "delayed"),
     (0, {"TIMER_DELAY_SEC": "9"}, "delayed")],
)  # fmt: skip
def test_a_batch_that_is_to_be_half_or_delayed_is_not_delivered(
    serve: Serve, connect: Connect, store: broker.LiveStore, sys_flag: int, properties: dict[str, str], reason: str
) -> None:
    """A producer of Java may send one in a transaction: it was delivered, and its rollback refused."""
    client = connect(serve())
    client.publish("orders", b"x")
    end, header = store.visible_end, sending("orders", 0, sys_flag, **properties) | {"m": "true"}
    answer = client.request(Code.SEND_BATCH_MESSAGE, header, BatchedMessage(b"x", 0, b"").encode())
    assert (answer.code, reason in (answer.remark or "")) == (Answer.MESSAGE_ILLEGAL, True)
    assert store.visible_end == end


def test_each_message_of_a_batch_keeps_its_flag(serve: Serve, connect: Connect) -> None:
    """Where they differed, all were stored with that of the request, which is 0."""
    client = connect(serve())
    body = b"".join(BatchedMessage(b"x", flag, b"").encode() for flag in (7, -1, 0))
    assert client.request(Code.SEND_BATCH_MESSAGE, sending("orders"), body).code == Answer.SUCCESS
    assert [one.flag for one in client.pulled("g", "orders")[1]] == [7, -1, 0]
