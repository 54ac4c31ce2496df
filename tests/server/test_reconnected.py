"""A client that connects again, while its earlier connection is cut off and the server does not know it yet."""

from __future__ import annotations

import time

from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from tests.server.conftest import Connect, Serve
from tests.server.wire_client import sending


def test_a_client_that_connected_again_is_found_at_its_new_connection(serve: Serve, connect: Connect) -> None:
    """Its old one may be cut off, and is closed after 120 s only: until then replies to its requests went there."""
    server = serve()
    connect(server).publish("orders", b"x")
    old, new = connect(server, client_id="same"), connect(server, client_id="same")
    for client in (old, new):
        assert client.heartbeat(producer="shop", consumer="billing", topics={"orders": "*"}).code == Answer.SUCCESS
    properties = "REPLY_TO_CLIENT\x01same\x02CORRELATION_ID\x01q\x02"
    other = connect(server, client_id="other")
    other.send(Code.SEND_REPLY_MESSAGE_V2, sending("replies") | {"i": properties}, b"reply")
    assert new.next_asked(Code.PUSH_REPLY_MESSAGE_TO_CLIENT).body == b"reply"
    other.send(Code.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "billing", "clientId": "same"})
    assert new.next_asked(Code.GET_CONSUMER_RUNNING_INFO).ext["clientId"] == "same"


def test_a_client_that_left_a_group_is_found_at_its_new_connection(serve: Serve, connect: Connect) -> None:
    """Its consumer was shut down while it was cut off: the old connection alone is in that group still."""
    server = serve()
    old, new = connect(server, client_id="same"), connect(server, client_id="same")
    assert old.heartbeat(producer="shop", consumer="billing", topics={"orders": "*"}).code == Answer.SUCCESS
    time.sleep(0.002)  # heartbeats are half a minute apart
    assert new.heartbeat(producer="shop").code == Answer.SUCCESS
    properties = "REPLY_TO_CLIENT\x01same\x02CORRELATION_ID\x01q\x02"
    connect(server, client_id="other").send(
        Code.SEND_REPLY_MESSAGE_V2, sending("replies") | {"i": properties}, b"reply"
    )
    assert new.next_asked(Code.PUSH_REPLY_MESSAGE_TO_CLIENT).body == b"reply"
