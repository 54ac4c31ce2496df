"""A server that registers with name servers of a real cluster: it takes no master's place there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import broker
from broker.remoting.codes import RequestCode
from broker.remoting.command import RemotingCommand
from broker.server import registration
from tests.app.shop import until
from tests.cluster.network import NameServer
from tests.server.conftest import Serve


class Registry(NameServer):
    """A name server that keeps what brokers registered."""

    def __init__(self, brokers: Mapping[str, str]) -> None:
        self.bodies: list[bytes] = []
        super().__init__(brokers)

    def _answer(self, command: RemotingCommand) -> RemotingCommand:
        if command.code == RequestCode.REGISTER_BROKER:
            self.bodies.append(command.body)
        return super()._answer(command)


def test_a_master_of_the_same_name_keeps_its_clients(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's name server puts the new address in place of the old one; broker-a is the name of many brokers."""
    monkeypatch.setattr(registration, "_FORGOTTEN_S", 0.3)
    with Registry({"broker-a": "192.0.2.9:10911"}) as known:
        with pytest.raises(broker.BrokerError, match=r"has a broker broker-a already, at 192\.0\.2\.9:10911"):
            serve(name_servers=[known.address])
        assert known.bodies == []
        serve(name_servers=[known.address], broker_name="checkback-1").close()
        assert known.bodies


def test_one_server_of_a_store_registers(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is advised to give the second one another name: consumers would get each message twice."""
    monkeypatch.setattr(registration, "_FORGOTTEN_S", 0.0)
    with Registry({}) as known:
        known.brokers["broker-a"] = serve(name_servers=[known.address]).address
        with pytest.raises(broker.BrokerError, match=r"another server of this store\. One registers: leave out"):
            serve(name_servers=[known.address])
        serve()


def test_a_master_that_was_killed_is_forgotten(serve: Serve) -> None:
    """The server that comes in its place, on another port, waits for that."""
    with Registry({"broker-a": "192.0.2.9:10911"}) as known:
        answer = known._answer

        def once(command: RemotingCommand) -> RemotingCommand:
            answered = answer(command)
            known.brokers.clear()
            return answered

        known._answer = once  # type: ignore[method-assign]
        serve(name_servers=[known.address]).close()
        assert known.bodies


def test_a_server_that_comes_back_takes_its_own_place(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was killed, and a name server still has it: behind a proxy the connection may stay open for long."""
    monkeypatch.setattr(registration, "_FORGOTTEN_S", 0.0)
    with Registry({"broker-a": "192.0.2.7:10911"}) as known:
        serve(name_servers=[known.address], advertise="192.0.2.7:10911").close()
        assert known.bodies


@pytest.mark.parametrize(
    ("own", "peer", "expected"),
    [
        ("192.0.2.7", "192.0.2.5", True),
        ("192.0.2.7", "192.0.2.7", False),
        ("127.0.0.1", "127.0.0.2", False),
        ("2001:db8::7", "2001:db8::5", True),
        ("::1", "::1", False),
    ],
)
def test_a_name_server_is_elsewhere(own: str, peer: str, expected: bool) -> None:
    assert registration.is_elsewhere(own, peer) is expected


def test_clients_of_other_machines_are_not_sent_to_themselves(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """It registered as 127.0.0.1 with the name server of a cluster, whose clients then sent some messages nowhere."""
    monkeypatch.setattr(registration, "is_elsewhere", lambda *_: True)
    with Registry({}) as known:
        with pytest.raises(broker.BrokerError, match="each to its own machine") as raised:
            serve(name_servers=[known.address])
        assert "--advertise" in str(raised.value)
        assert known.bodies == []
        serve(name_servers=[known.address], advertise="192.0.2.7:10911").close()
        assert known.bodies


def test_a_new_store_is_taken(serve: Serve) -> None:
    """A name server of 5.x refuses a broker that it does not know and that has one topic: a new store has TBW102."""
    with Registry({}) as known:
        serve(name_servers=[known.address]).close()
    topics = json.loads(known.bodies[0])["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert sorted(topics) == ["SELF_TEST_TOPIC", "TBW102"]


def test_a_name_server_that_was_started_again_knows_the_server_with_the_next_registration(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one went by the connection that had ended: for a minute its clients had no route."""
    monkeypatch.setattr(registration, "_TOPICS_EVERY_S", 0.01)
    monkeypatch.setattr(registration, "_EVERY_S", 0.05)
    with Registry({}) as known:
        serve(name_servers=[known.address])
        known.cut()
        known.bodies.clear()
        until(lambda: len(known.bodies) >= 2)
        assert "name server" not in caplog.text


def test_topics_that_cannot_be_read_for_a_while_end_no_registration(
    serve: Serve, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It goes on with those that it knows: a name server forgets a broker that says nothing for two minutes."""
    monkeypatch.setattr(registration, "_TOPICS_EVERY_S", 0.01)
    monkeypatch.setattr(registration, "_EVERY_S", 0.05)
    store.create_topic("orders")
    topics = Path(store.path, "config", "topics.json")
    with Registry({}) as known:
        serve(name_servers=[known.address])
        whole = topics.read_bytes()
        broken = Path(store.path, "broken")
        broken.write_bytes(b"{")
        broken.replace(topics)  # in one step: an empty file is one without topics
        until(lambda: "the topics cannot be read" in caplog.text)
        known.bodies.clear()
        until(lambda: len(known.bodies) >= 2)
        assert "orders" in json.loads(known.bodies[0])["topicConfigSerializeWrapper"]["topicConfigTable"]
        topics.write_bytes(whole)
        store.create_topic("mails")
        until(lambda: b"mails" in known.bodies[-1])
    assert caplog.text.count("the topics cannot be read") == 1
