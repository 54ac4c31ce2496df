"""Accounts, TLS, addresses, and bytes from a name server that are not what they must be."""

from __future__ import annotations

import os
import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import broker
from broker.cluster.network.settings import credentials_of, parse_url, tls_of
from broker.cluster.publishing.queue_choice import FAILED_MS, FaultTable, avoided_ms, choose
from broker.errors import ProtocolError
from broker.remoting.bodies import MessageQueue
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.remoting.fastjson import dumps
from broker.remoting.routes import decode_clusters, decode_route
from tests.backends.clusters import Connected
from tests.cluster.conftest import LAYOUT

ACL = """
accounts:
  - accessKey: orders1
    secretKey: secret-of-orders
    defaultTopicPerm: DENY
    topicPerms: [orders=PUB|SUB, TBW102=PUB|SUB]
    groupPerms: [billing=SUB]
"""


def test_a_cluster_is_not_opened_as_a_directory() -> None:
    with pytest.raises(broker.BrokerError, match=r"use broker\.connect"):
        broker.open("rocketmq://127.0.0.1:9876")


def test_requests_are_signed(tmp_path: Path) -> None:
    acl = tmp_path / "plain_acl.yml"
    acl.write_text(ACL)
    with (
        broker.open(tmp_path / "store", sync="os", layout=LAYOUT) as store,
        broker.serve(store, "127.0.0.1:0", acl=str(acl)) as server,
    ):
        url = f"rocketmq://{server.address}"
        with broker.connect(url, acl=("orders1", "secret-of-orders")) as cluster:
            assert cluster.producer("web").send(broker.Message("orders", "grün".encode(), keys="ä")).queue_offset == 0
            with cluster.consumer("billing", "orders") as consumer:
                message = consumer.receive(5.0)
                assert message is not None
                assert (message.keys, consumer.ack(message)) == (("ä",), True)
            with pytest.raises(broker.NotPermitted, match="has no PUB at topic others"):
                cluster.producer("web").send(broker.Message("others", b"x"))
            for group, topics, text in (
                ("shipping", "orders", "SUB at group shipping"),
                ("billing", ["orders", "others"], "SUB at topic others"),
            ):
                with pytest.raises(broker.NotPermitted, match=f"refused HEART_BEAT .* has no {text}"):
                    cluster.consumer(group, topics)
        for account in (None, ("orders1", "wrong-secret"), ("nobody", "secret-of-orders")):
            with pytest.raises(broker.NotPermitted, match="refused GET_BROKER_CLUSTER_INFO"):
                broker.connect(url, acl=account)


def made_for(address: str, place: Path) -> tuple[Path, Path]:
    """A certificate that names an address, and its key."""
    certificate, key = place / "cert.pem", place / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=shop", "-days", "1"]
    command += ["-addext", f"subjectAltName=IP:{address}", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def test_tls_verifies_who_answers(tmp_path: Path) -> None:
    certificate, key = made_for("127.0.0.1", tmp_path)
    with (
        broker.open(tmp_path / "store", sync="os", layout=LAYOUT) as store,
        broker.serve(store, "127.0.0.1:0", certificate=str(certificate), private_key=str(key), tls_only=True) as server,
    ):
        url, body = f"rocketmq://{server.address}", os.urandom(2_000_000)
        with broker.connect(url, tls=str(certificate)) as cluster:
            cluster.producer("web").send(broker.Message("orders", body))
            with cluster.consumer("billing", "orders") as consumer:
                message = consumer.receive(10.0)
                assert message is not None
                assert message.body == body
        with pytest.raises(broker.ClusterError, match=r"TLS failed, for its certificate is refused: self.signed"):
            broker.connect(url, tls=True)
        with pytest.raises(broker.ClusterError, match="closed the connection"):
            broker.connect(url)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        broker.connect(url, tls=context).close()


def test_a_certificate_of_another_address_is_said(tmp_path: Path) -> None:
    """CERTIFICATE_VERIFY_FAILED was all, as for one that has expired, or is signed by somebody else."""
    certificate, key = made_for("192.0.2.7", tmp_path)
    with (
        broker.open(tmp_path / "store", sync="os", layout=LAYOUT) as store,
        broker.serve(store, "127.0.0.1:0", certificate=str(certificate), private_key=str(key)) as server,
        pytest.raises(broker.ClusterError, match=r"IP address mismatch, certificate is not valid for '127.0.0.1'$"),
    ):
        broker.connect(f"rocketmq://{server.address}", tls=str(certificate))


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("rocketmq://a", ("a:9876",)),
        ("rocketmq://a:1;b:2", ("a:1", "b:2")),
        ("rocketmq://a:1, b/", ("a:1", "b:9876")),
        ("rocketmq://[::1]:9876", ("[::1]:9876",)),
        ("rocketmq://", None),
        ("rocketmq://a:0", None),
        ("rocketmq://a:99999", None),
        ("rocketmq://a;b c", None),
        ("http://a:1", None),
        (7, None),
    ],
)
def test_an_address_is_name_servers(url: object, found: tuple[str, ...] | None) -> None:
    if found is None:
        with pytest.raises(broker.BrokerError, match=r"a cluster is named by its name servers"):
            parse_url(url)
    else:
        assert parse_url(url) == found


def test_what_is_no_account_or_certificate_is_a_sentence() -> None:
    for acl in ("key", ("key",), ("key", ""), {"access_key": "k"}, 7, ("key", "secret", 7)):
        with pytest.raises(broker.BrokerError, match="acl is an account"):
            credentials_of(acl)
    assert "hidden" not in repr(credentials_of({"access_key": "k", "secret_key": "hidden"}))
    with pytest.raises(broker.BrokerError, match="is not a file with certificates"):
        tls_of("/nowhere.pem")
    for wrong in ("", 5, b"ca.pem"):
        with pytest.raises(broker.BrokerError, match="tls is True, the path"):
            tls_of(wrong)  # type: ignore[arg-type]


def test_a_server_without_tls_is_said(tmp_path: Path) -> None:
    with (
        broker.open(tmp_path / "store", sync="os", layout=LAYOUT) as store,
        broker.serve(store, "127.0.0.1:0") as server,
        pytest.raises(broker.ClusterError, match="Does it speak TLS"),
    ):
        broker.connect(f"rocketmq://{server.address}", tls=True)


@pytest.mark.parametrize("group", ["", "two words", 7])
def test_an_impossible_group_is_not_joined(served: Connected, group: object) -> None:
    """Each heartbeat would name it, and be refused as a whole."""
    with pytest.raises(broker.MessageRejected):
        served.client.join(group)  # type: ignore[arg-type]
    served.client.producer("plain").send(broker.Message("carts", b"lamp"))


def test_a_forked_child_is_refused(served: Connected) -> None:
    """The connection, its thread and its consumer are the parent's."""
    cluster = served.client
    producer, consumer = cluster.producer("web"), cluster.consumer("billing", "orders")
    child = os.fork()
    if child == 0:
        try:
            for call in (lambda: producer.send(broker.Message("orders", b"x")), consumer.receive_now):
                try:
                    call()
                    os._exit(1)
                except broker.ClusterError as error:
                    if "of which this one was forked" not in str(error):
                        os._exit(2)
            consumer.close()
            cluster.close()
            os._exit(0)
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert producer.send(broker.Message("orders", b"x")).status == "SEND_OK"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
BROKER = st.fixed_dictionaries({"brokerName": JSON, "brokerAddrs": JSON, "cluster": JSON})
QUEUES = st.fixed_dictionaries({"brokerName": JSON, "readQueueNums": JSON, "writeQueueNums": JSON, "perm": JSON})


@given(st.binary() | st.builds(dumps, st.fixed_dictionaries({
    "brokerDatas": st.lists(BROKER, max_size=2) | JSON, "queueDatas": st.lists(QUEUES, max_size=2) | JSON,
    "brokerAddrTable": JSON, "clusterAddrTable": JSON,
})))  # fmt: skip
@example(b'{"brokerAddrTable":{},"clusterAddrTable":{"c":[[]]}}')  # a name that is not text
def test_any_bytes_are_a_route_or_refused(body: bytes) -> None:
    for decode in (decode_route, decode_clusters):
        try:
            decode(body)
        except ProtocolError:
            continue


def test_a_route_is_read_with_quotes_and_without() -> None:
    text = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"h:1","1":"h:2"},"brokerName":"a","cluster":"C"},'
        b'{"brokerAddrs":{1:"h:3"},"brokerName":"b","cluster":"C"}],"filterServerTable":{},'
        b'"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":2,"writeQueueNums":1},'
        b'{"brokerName":"b","perm":6,"readQueueNums":1,"writeQueueNums":1},'
        b'{"brokerName":"c","perm":6,"readQueueNums":1,"writeQueueNums":1}]}'
    )
    route = decode_route(text)
    assert (route.brokers["a"].master, route.brokers["b"].master, route.brokers["b"].readable) == ("h:1", None, "h:3")
    assert route.writable("t") == (MessageQueue("t", 0, "a"),)  # a broker without a master takes nothing
    assert [(one.broker_name, one.queue_id) for one in route.readable("t")] == [("a", 0), ("a", 1), ("b", 0)]


def test_brokers_that_fail_are_avoided_for_as_long_as_rocketmq_does() -> None:
    assert [avoided_ms(latency) for latency in (0, 99, 100, 550, 1800, 3000, 9999, FAILED_MS, 15_000)] == [
        0, 0, 0, 2000, 5000, 6000, 10_000, 10_000, 30_000,
    ]  # fmt: skip
    queues = [MessageQueue("t", number, name) for name in "ab" for number in range(2)]
    faults = FaultTable()
    faults.note("a", FAILED_MS, now_ms=0)
    assert {choose(queues, turn, frozenset(), faults, 1).broker_name for turn in range(4)} == {"b"}
    assert choose(queues, 0, frozenset("b"), faults, 1).broker_name == "a"  # it failed for this message
    assert {choose(queues, turn, frozenset(), faults, 10_000).broker_name for turn in range(4)} == {"a", "b"}
    faults.note("b", 600, now_ms=0)
    assert choose(queues, 0, frozenset("ab"), faults, 1).broker_name == "b"  # avoided least


def test_an_account_that_may_only_receive_receives(served: Connected) -> None:
    """ACL 2.0 wants GET at a topic of who asks where its queues begin, which Java's consumers do not."""
    asked: set[int] = set()

    def seen(command: RemotingCommand) -> RemotingCommand:
        asked.update([command.opaque] if command.code == RequestCode.GET_MIN_OFFSET else [])
        return command

    def refused(answer: RemotingCommand) -> RemotingCommand:
        return answer.answer(ResponseCode.NO_PERMISSION, "no matched policies") if answer.opaque in asked else answer

    served.client.producer("plain").send(broker.Message("carts", b"lamp"))
    served.proxy.request, served.proxy.answer = seen, refused
    with served.client.consumer("billing", "carts") as consumer:
        message = consumer.receive(5.0)
        assert message is not None
        assert message.body == b"lamp"
    assert asked
