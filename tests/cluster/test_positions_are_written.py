"""Where a group of a cluster stands is written, whatever else fails."""

from __future__ import annotations

import pytest

import broker
from broker.cluster.membership import group_member
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from tests.backends.clusters import CALL_S, Connected
from tests.cluster.waiting import awaited
from tests.server.wire_client import WireClient


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_member, "COMMIT_S", 0.05)


def _stands_at(served: Connected, message: broker.ReceivedMessage, position: int) -> bool:
    """Whether the broker learns in time where the group is."""
    ext = {"consumerGroup": "billing", "topic": message.topic, "queueId": message.queue_id}
    with WireClient(served.proxy.target) as operator:
        code = RequestCode.QUERY_CONSUMER_OFFSET
        return awaited(lambda: operator.request(code, ext).ext.get("offset") == str(position))


def test_a_position_that_its_broker_did_not_get_is_written_again(served: Connected) -> None:
    """A broker that is killed takes with it what it had not read yet."""
    lost: list[RemotingCommand] = []

    def lose(command: RemotingCommand) -> RemotingCommand | None:
        if command.code != RequestCode.UPDATE_CONSUMER_OFFSET:
            return command
        lost.append(command)
        return None

    object.__setattr__(served.client._settings, "call_timeout_s", CALL_S)
    served.client.producer("plain").send(broker.Message("carts", b"lamp"))
    with served.client.consumer("billing", "carts") as consumer:
        message = consumer.receive(served.soon_s)
        assert message is not None
        served.proxy.request = lose
        assert consumer.ack(message)
        assert awaited(lambda: lost)
        served.proxy.request = lambda command: command
        assert _stands_at(served, message, 1)
