"""What a consumer of a cluster logs while its broker does not answer: once, however often it tries."""

from __future__ import annotations

import pytest

import broker
from broker.cluster.membership import group_member
from broker.cluster.network import client as client_of_brokers
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from tests.backends.clusters import Connected
from tests.cluster.waiting import awaited


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, "the queues stay as they are"),
        (RequestCode.QUERY_CONSUMER_OFFSET, " of broker-a waits"),
    ],
)
def test_queues_that_cannot_be_divided_are_said_once(
    served: Connected,
    code: RequestCode,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(group_member, "UNBALANCED_S", 0.02)
    served.client.producer("plain").send(broker.Message("carts", b"lamp"))
    tries: list[RemotingCommand] = []

    def refuse(command: RemotingCommand) -> RemotingCommand:
        if command.code != code:
            return command
        tries.append(command)
        return RemotingCommand(RequestCode.GET_KV_CONFIG, command.opaque)  # which lacks its fields

    served.proxy.request = refuse
    with served.client.consumer("billing", "carts") as consumer:
        assert awaited(lambda: len(tries) > 15)
        said = [record.getMessage() for record in caplog.records if text in record.getMessage()]
        assert said
        assert len(said) <= 5  # one for each of two topics, or five queues
        served.proxy.request = lambda command: command
        assert consumer.receive(served.soon_s) is not None


def test_a_position_that_cannot_be_written_names_its_queue(served: Connected, caplog: pytest.LogCaptureFixture) -> None:
    served.client.create_topic("carts", queues=1)
    served.client.producer("plain").send(broker.Message("carts", b"lamp"))

    def refused(command: RemotingCommand) -> RemotingCommand:
        if command.code != RequestCode.UPDATE_CONSUMER_OFFSET:
            return command
        return RemotingCommand(RequestCode.GET_KV_CONFIG, command.opaque)  # which lacks its fields

    served.proxy.request = refused
    with served.client.consumer("billing", "carts") as consumer:
        message = consumer.receive(served.soon_s)
        assert message is not None
        assert consumer.ack(message)
    assert "group billing: its position in queue 0 of carts at broker-a was not written: " in caplog.text


def test_a_broker_that_is_back_and_refuses_is_said(
    served: Connected, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An account was taken away as it was started again: the log said "no connection", and no message came."""
    monkeypatch.setattr(client_of_brokers, "_BACK_S", 0.02)
    monkeypatch.setattr(group_member, "_AFTER_FAILURE_S", 0.02)
    refused = RequestCode.HEART_BEAT, RequestCode.PULL_MESSAGE
    asked: list[int] = []

    def refuse(command: RemotingCommand) -> RemotingCommand:
        asked.append(command.code)
        return RemotingCommand(RequestCode.GET_KV_CONFIG, command.opaque) if command.code in refused else command

    def said(sentence: str) -> list[str]:
        return [one for one in (record.getMessage() for record in caplog.records) if one.startswith(sentence)]

    with served.client.consumer("billing", "carts"):
        target, served.proxy.target = served.proxy.target, "127.0.0.1:1"  # where nothing listens
        served.proxy.cut()
        assert awaited(lambda: said("no heartbeat to") and said("no pull of"))
        served.proxy.request, served.proxy.target = refuse, target
        assert awaited(lambda: asked.count(RequestCode.PULL_MESSAGE) > 30)
        for sentence in ("no heartbeat to", "no pull of %RETRY%billing"):
            assert awaited(lambda sentence=sentence: len(said(sentence)) == 2)
            assert " refused " in said(sentence)[1]
