"""Topics that a client's first message makes, or makes again."""

from __future__ import annotations

import broker
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from tests.server.conftest import Connect, Serve


def test_a_topic_that_was_deleted_comes_back_with_the_queues_that_hold_messages(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    client = connect(serve())
    store.create_topic("orders", queues=8, message_type="")
    client.publish("orders", b"x", queue_id=7)
    assert client.request(Code.DELETE_TOPIC_IN_BROKER, {"topic": "orders"}).code == Answer.SUCCESS
    assert client.publish("orders", b"x").code == Answer.SUCCESS
    assert client.publish("orders", b"x", queue_id=7).ext["queueOffset"] == "1"


def test_topics_are_not_created_unless_that_is_wanted(serve: Serve, connect: Connect) -> None:
    client = connect(serve(auto_create=False))
    assert client.publish("orders", b"x").code == Answer.TOPIC_NOT_EXIST
    assert client.request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"}).code == Answer.TOPIC_NOT_EXIST


def test_what_is_sent_back_before_the_first_heartbeat_has_a_topic_to_come_again_in(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """As after a restart of the server, whose clients go on with what they have in hand."""
    client = connect(serve())
    client.publish("orders", b"x")
    (record,) = client.pulled("billing", "orders")[1]
    back = {"group": "billing", "offset": record.commitlog_offset, "delayLevel": 0, "originMsgId": "m"}
    assert client.request(Code.CONSUMER_SEND_MSG_BACK, back).code == Answer.SUCCESS
    assert store.topic("%RETRY%billing") is not None
