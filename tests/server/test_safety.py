"""Safe by default: who may connect and do what, and what hostile or hurried clients cost."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from pathlib import Path

import pytest

import broker
from broker.consuming.group.membership import is_locked
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.command import RemotingCommand
from broker.remoting.signing import signature
from broker.server.acl import AccessControl, Denied
from broker.server.settings import ServeOptions
from tests.server.conftest import Connect, Serve
from tests.server.wire_client import WireClient, sending

SECONDS = ("check_interval_s", "transaction_timeout_s", "idle_s")
NAMES = ("broker_name", "cluster")
ACL = """
globalWhiteRemoteAddresses:
  - 203.0.113.*   # none of ours
accounts:
  - accessKey: orders1
    secretKey: secret-of-orders
    defaultTopicPerm: DENY
    topicPerms:
      - orders=PUB|SUB
      - audit=SUB
    groupPerms: [billing=SUB]
  - accessKey: 'root12'
    secretKey: "secret-of-root"
    admin: true
"""


@pytest.mark.parametrize(
    ("listen", "options", "sentence"),
    [
        ("192.0.2.1:10911", {}, "--acl FILE"),
        ("0.0.0.0:10911", {"insecure": True}, "--advertise"),
        ("localhost:10911", {}, "IPv4"),
        ("127.0.0.1", {}, "IPv4"),
        (f"127.0.0.1:{'9' * 5000}", {}, "IPv4"),
        ("127.0.0.1:0", {"name_servers": [f"192.0.2.5:{'9' * 5000}"]}, "a name server is HOST:PORT"),
        ("127.0.0.1:0", {"acl": "nowhere.yml"}, "no such file"),
        ("127.0.0.1:0", {"certificate": __file__}, "--key"),
        ("127.0.0.1:0", {"certificate": __file__, "private_key": __file__}, "not a certificate"),
        ("127.0.0.1:0", {"delay_levels": "1s 2s"}, "18 delays"),
        ("127.0.0.1:0", {"broker_name": "a b"}, "without blanks"),
        ("127.0.0.1:0", {"delay_levels": " ".join(["999999d"] * 18)}, "up to 366 days"),
        ("127.0.0.1:0", {"check_max": 0}, "from 1 on"),
        ("127.0.0.1:0", {"advertise": "127.0.0.1:0"}, "that clients connect to"),
        ("127.0.0.1:0", {"advertise": "0.0.0.0:10911"}, "that clients connect to"),
    ],
)
def test_what_is_not_safe_is_refused_before_it_listens(
    store: broker.LiveStore, listen: str, options: dict[str, object], sentence: str
) -> None:
    with pytest.raises(broker.BrokerError, match=sentence):
        broker.serve(store, listen, **options)  # type: ignore[arg-type]


def test_an_option_of_another_type_is_a_sentence(store: broker.LiveStore) -> None:
    """acl=5 was the open file with that number, admin="no" was True, and metrics_port="9108" a traceback."""
    wrong: list[object] = [-1, b"x", [5], {}, object, "127.0.0.1:9\0"]
    for option in ServeOptions.__annotations__:
        for value in [*wrong, *([] if option in SECONDS else [5.5]), *([] if option in NAMES else ["no"])]:
            with pytest.raises(broker.BrokerError):
                broker.serve(store, "127.0.0.1:0", **{option: value})  # type: ignore[arg-type]


def test_paths_of_files_may_be_paths(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACL)
    answer = connect(serve(acl=path)).request(Code.SEND_MESSAGE_V2, sending("orders"), b"x")
    assert answer.code == Answer.NO_PERMISSION


def test_a_port_that_is_taken_is_a_sentence(serve: Serve, store: broker.LiveStore) -> None:
    with pytest.raises(broker.BrokerError, match="cannot listen"):
        broker.serve(store, serve().address)


def test_a_server_that_cannot_start_leaves_no_member_behind(store: broker.LiveStore) -> None:
    """Each would keep a place among the consumers of all processes, of which there are not many."""
    groups = Path(store.path, "config", "subscriptionGroup.json")
    groups.parent.mkdir(exist_ok=True)
    groups.write_text("{")
    with pytest.raises(broker.CorruptStore, match="subscriptionGroup"):
        broker.serve(store, "127.0.0.1:0")
    assert not is_locked(store.writer.disk, f"{store.writer.paths.own}/members", 0)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("other", ["metrics_port", "ha"])
def test_one_port_for_two_purposes_is_refused(serve: Serve, loop: str, other: str) -> None:
    """The server said that it serves, and answered nobody: its loop had ended."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {other: port if other == "metrics_port" else f"127.0.0.1:{port}"}
    with pytest.raises(broker.BrokerError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        serve(f"127.0.0.1:{port}", loop=loop, **options)
    assert serve(f"127.0.0.1:{port}", loop=loop).address == f"127.0.0.1:{port}"  # the port is free again


def signed(client: WireClient, key: str, secret: str, code: int, ext: dict[str, object], body: bytes = b"") -> int:
    """The response code of a signed request."""
    fields = {name: str(value) for name, value in ext.items()} | {"AccessKey": key}
    return client.request(code, fields | {"Signature": signature(secret, fields, body)}, body).code


def test_with_an_acl_every_request_is_signed_and_has_its_right(
    serve: Serve, connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACL)
    client = connect(serve(acl=str(path)))
    ours = ("orders1", "secret-of-orders")
    assert client.publish("orders", b"x").code == Answer.NO_PERMISSION
    assert signed(client, *ours, Code.SEND_MESSAGE_V2, sending("orders"), b"x") == Answer.SUCCESS
    assert signed(client, "orders1", "wrong", Code.SEND_MESSAGE_V2, sending("orders"), b"x") == Answer.NO_PERMISSION
    assert signed(client, "nobody", "wrong", Code.SEND_MESSAGE_V2, sending("orders"), b"x") == Answer.NO_PERMISSION
    assert signed(client, *ours, Code.SEND_MESSAGE_V2, sending("audit"), b"x") == Answer.NO_PERMISSION
    pull = {"topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0,
            "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}  # fmt: skip
    for group, code in (("billing", Answer.SUCCESS), ("other", Answer.NO_PERMISSION)):
        assert signed(client, *ours, Code.PULL_MESSAGE, pull | {"consumerGroup": group}) == code
        asked = b'{"topic":"orders","consumerGroup":"%b","clientId":"c"}' % group.encode()
        assert signed(client, *ours, Code.QUERY_ASSIGNMENT, {}, asked) == code
    heartbeat = b'{"clientID":"c","consumerDataSet":[{"groupName":"other"}]}'
    assert signed(client, *ours, Code.HEART_BEAT, {}, heartbeat) == Answer.NO_PERMISSION
    made = {"topic": "t", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    assert signed(client, *ours, Code.UPDATE_AND_CREATE_TOPIC, made) == Answer.NO_PERMISSION
    assert signed(client, "root12", "secret-of-root", Code.UPDATE_AND_CREATE_TOPIC, made) == Answer.SUCCESS
    assert "secret" not in caplog.text


def test_an_end_of_another_accounts_transaction_is_refused(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACL)
    client = connect(serve(acl=str(path)))
    half = sending("orders", TRAN_MSG="true", PGROUP="shop")
    assert signed(client, "orders1", "secret-of-orders", Code.SEND_MESSAGE_V2, half, b"x") == Answer.SUCCESS
    foreign = sending("private", TRAN_MSG="true", PGROUP="shop")
    fields = {name: str(value) for name, value in foreign.items()} | {"AccessKey": "root12"}
    sent = client.request(Code.SEND_MESSAGE_V2, fields | {"Signature": signature("secret-of-root", fields, b"y")}, b"y")
    end = {"producerGroup": "shop", "tranStateTableOffset": sent.ext["queueOffset"],
           "commitLogOffset": int(sent.ext["msgId"][16:], 16), "commitOrRollback": 8}  # fmt: skip
    assert signed(client, "orders1", "secret-of-orders", Code.END_TRANSACTION, end) == Answer.NO_PERMISSION
    assert signed(client, "root12", "secret-of-root", Code.END_TRANSACTION, end) == Answer.SUCCESS


def test_a_field_that_the_handler_does_not_read_gives_no_right(
    serve: Serve, connect: Connect, store: broker.LiveStore, tmp_path: Path
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACL)
    store.create_topic("private", queues=1, message_type="")
    client = connect(serve(acl=str(path)))
    ours = ("orders1", "secret-of-orders")
    place = store.append(broker.Message("private", b"secret")).commitlog_offset
    half = store.transactions.prepare(broker.Message("private", b"secret"), "shop").commitlog_offset
    back = {"delayLevel": 0, "originTopic": "orders", "topic": "orders", "maxReconsumeTimes": 3}
    refused: list[tuple[int, dict[str, object]]] = [
        (Code.SEND_MESSAGE_V2, sending("private") | {"topic": "orders"}),
        (Code.VIEW_MESSAGE_BY_ID, {"offset": place}),
        (Code.VIEW_MESSAGE_BY_ID, {"offset": place, "topic": "orders"}),
        (Code.VIEW_MESSAGE_BY_ID, {"offset": half, "topic": "orders"}),
        (Code.CONSUMER_SEND_MSG_BACK, back | {"group": "billing", "offset": place}),
        (Code.CONSUMER_SEND_MSG_BACK, back | {"group": "other", "consumerGroup": "billing", "offset": place}),
        (Code.QUERY_MESSAGE, {"topic": "private", "b": "orders", "key": "k", "maxNum": 1, "beginTimestamp": 0,
                              "endTimestamp": 1 << 60}),
        (Code.QUERY_CONSUME_QUEUE, {"topic": "private", "b": "orders", "queueId": 0, "index": 0, "count": 1}),
    ]  # fmt: skip
    for code, ext in refused:
        assert signed(client, *ours, code, ext, b"x" if code == Code.SEND_MESSAGE_V2 else b"") == Answer.NO_PERMISSION
    assert store.queue_end("private", 0) == 1
    own = store.append(broker.Message("orders", b"ours")).commitlog_offset
    assert signed(client, *ours, Code.VIEW_MESSAGE_BY_ID, {"offset": own}) == Answer.SUCCESS


@pytest.mark.parametrize("topic", ["RMQ_SYS_TRANS_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SCHEDULE_TOPIC_XXXX"])
def test_a_default_right_reads_no_topic_with_the_messages_of_others(
    serve: Serve, connect: Connect, store: broker.LiveStore, tmp_path: Path, topic: str
) -> None:
    """Else who may read every topic but one reads that one's messages while they are half, parked or delayed."""
    path = tmp_path / "plain_acl.yml"
    made = [
        f"  - accessKey: {name}\n    secretKey: of-all-others\n    defaultTopicPerm: SUB\n    defaultGroupPerm: SUB\n"
        f"    topicPerms: [{', '.join(rights)}]\n"
        for name, rights in (("curious", ["private=DENY"]), ("operator", ["private=DENY", f"{topic}=SUB"]))
    ]
    path.write_text(ACL + "".join(made))
    store.create_topic(topic, queues=1, message_type="", change=False)
    client = connect(serve(acl=str(path)))
    place = {"topic": topic, "queueId": 0}
    pull = place | {"consumerGroup": "billing", "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "commitOffset": 0,
                    "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*"}  # fmt: skip
    query = {"topic": topic, "key": "k", "maxNum": 1, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    units = place | {"index": 0, "count": 1}
    for code, ext in ((Code.PULL_MESSAGE, pull), (Code.QUERY_MESSAGE, query), (Code.QUERY_CONSUME_QUEUE, units)):
        assert signed(client, "curious", "of-all-others", code, ext) == Answer.NO_PERMISSION
        assert signed(client, "operator", "of-all-others", code, ext) != Answer.NO_PERMISSION


def test_locks_need_the_right_of_their_group(serve: Serve, connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACL)
    client = connect(serve(acl=str(path)))
    for group, topic, code in (
        ("billing", "orders", Answer.SUCCESS), ("other", "orders", Answer.NO_PERMISSION),
        ("billing", "private", Answer.NO_PERMISSION),
    ):  # fmt: skip
        queues = [{"topic": topic, "queueId": 0, "brokerName": "broker-a"}]
        body = json.dumps({"clientId": "c", "consumerGroup": group, "mqSet": queues}).encode()
        for request in (Code.LOCK_BATCH_MQ, Code.UNLOCK_BATCH_MQ):
            assert signed(client, "orders1", "secret-of-orders", request, {}, body) == code


def test_a_producer_without_the_right_is_not_asked_about_a_transaction(
    serve: Serve, connect: Connect, store: broker.LiveStore, tmp_path: Path
) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text(ACL)
    store.create_topic("private", queues=1, message_type="")
    server = serve(acl=str(path), check_interval_s=0.1, transaction_timeout_s=0.1)
    others, roots = connect(server), connect(server)
    body = b'{"clientID":"c","producerDataSet":[{"groupName":"shop"}]}'
    assert signed(others, "orders1", "secret-of-orders", Code.HEART_BEAT, {}, body) == Answer.SUCCESS
    assert signed(roots, "root12", "secret-of-root", Code.HEART_BEAT, {}, body) == Answer.SUCCESS
    store.transactions.prepare(broker.Message("private", b"secret"), "shop")
    for _ in range(5):
        roots.next_asked(Code.CHECK_TRANSACTION_STATE)
    assert signed(others, "orders1", "secret-of-orders", Code.SEND_MESSAGE_V2, sending("orders"), b"x") == 0
    assert not others.asked


@pytest.mark.parametrize(
    "text",
    ["", "accounts:", "accounts:\n- accessKey: abcdef\n", "accounts:\n  secret", "x: y\naccounts:\n- accessKey: a",
     ACL + ACL.split("accounts:")[1], ACL.replace("PUB|SUB", "READ"), ACL.replace("groupPerms", "groups")],
)  # fmt: skip
def test_an_acl_file_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(broker.BrokerError):
        AccessControl.parse(text)


def test_an_acl_file_as_editors_and_tools_write_it(tmp_path: Path) -> None:
    """A mark of the byte order, a line that begins the document, an address that is an empty text."""
    file = tmp_path / "acl.yml"
    text = ACL.replace("admin: true", "admin: true\n    whiteRemoteAddress: ''")
    file.write_text(f"---\n{text.lstrip()}", encoding="utf-8-sig")
    read = AccessControl.read(file)
    with pytest.raises(Denied):  # the empty address lets nobody in
        read.account({}, b"", "192.0.2.7")


OF_ROOT = 'secretKey: "secret-of-root"'


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("203.0.113.*", "10.0.0.0/24", "line 2: '10.0.0.0/24' is not an address here: write 192.0.2.7 or 192.0.2.*"),
        ("203.0.113.*", "10.0.0.1-9", "'10.0.0.1-9' is not an address"),
        ("203.0.113.*", "10.0.0.{1,9}", "'10.0.0.{1' is not an address"),
        ("admin: true", "whiteRemoteAddress: 10.0.1-9.*", "account 'root12': '10.0.1-9.*' is not an address"),
        ("admin: true", "admin: yes", "account 'root12': admin is true or false, not 'yes'"),
        ("admin: true", "admin: true\n    admin: false", "line 15: admin is given twice in an account"),
        (OF_ROOT, OF_ROOT.replace(": ", ": [", 1) + ", another-one]", "is given twice in an account"),
        (OF_ROOT, f"{OF_ROOT}\n    secretKey: another-one", "line 14: secretKey is given twice in an account"),
        (OF_ROOT, "secretKey: 'secret #of-root'", "line 13: a quote does not end"),
        ("audit=SUB", "'audit=SUB", "a quote does not end"),
        ("audit=SUB", "orders=SUB", "permissions for 'orders' twice"),
        ("audit=SUB", "audit*=SUB", "'audit*' is not one topic or group: the default is for all others"),
    ],
)
def test_what_an_acl_file_would_not_do_is_refused(old: str, new: str, sentence: str) -> None:
    """Such an address matched none, of two values the first one counted, of a secret what stood before its # did."""
    with pytest.raises(broker.BrokerError) as refused:
        AccessControl.parse(ACL.replace(old, new))
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "stated", ["10.0.0.*, 192.0.2.7", "[10.0.0.*, 192.0.2.7]", "\n    - 10.0.0.*\n    - 192.0.2.7"]
)
def test_an_account_may_come_from_several_addresses(stated: str) -> None:
    """It could come from the first of a list only, and where commas were between them from none."""
    control = AccessControl.parse(ACL.replace("admin: true", f"whiteRemoteAddress: {stated}"))
    fields = {"AccessKey": "root12"}
    fields["Signature"] = signature("secret-of-root", fields, b"")
    for address in ("10.0.0.5", "192.0.2.7"):
        account = control.account(fields, b"", address)
        assert account is not None
        assert account.access_key == "root12"
    with pytest.raises(Denied, match=r"may not come from 192\.0\.2\.8"):
        control.account(fields, b"", "192.0.2.8")


def test_dangerous_requests_need_a_server_that_allows_them(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    for code in (Code.UPDATE_BROKER_CONFIG, Code.WIPE_WRITE_PERM_OF_BROKER, Code.CONSUME_MESSAGE_DIRECTLY):
        assert client.request(code, {"brokerName": "broker-a"}).code == Answer.NO_PERMISSION
    for code in (Code.UPDATE_NAMESRV_CONFIG, Code.REGISTER_BROKER, 9999):
        assert client.request(code).code == Answer.REQUEST_CODE_NOT_SUPPORTED
    client.oneway(9999)
    allowed = connect(serve(admin=True))
    assert allowed.request(Code.UPDATE_BROKER_CONFIG, body=b"transactionCheckMax=3\n").code == Answer.SUCCESS
    assert b"transactionCheckMax=3\n" in allowed.request(Code.GET_BROKER_CONFIG).body
    for line in (b"rocketmqHome=x\n", b"transactionTimeOut=soon\n", b"transactionTimeOut=" + b"9" * 400):
        assert allowed.request(Code.UPDATE_BROKER_CONFIG, body=line).code == Answer.INVALID_PARAMETER
    for name in ("transactionCheckInterval", "transactionTimeOut", "transactionCheckMax"):
        refused = allowed.request(Code.UPDATE_BROKER_CONFIG, body=f"{name}=0".encode())
        assert (refused.code, (refused.remark or "").split(" ")[0]) == (Answer.INVALID_PARAMETER, name)


@pytest.mark.parametrize("line", ["autoCreateTopicEnable=ture", "enablePropertyFilter=yes", "autoCreateTopicEnable"])
def test_a_switch_that_is_neither_true_nor_false_is_refused(serve: Serve, connect: Connect, line: str) -> None:
    """Any other word switched it off, and the answer was success."""
    client = connect(serve(admin=True))
    refused = client.request(Code.UPDATE_BROKER_CONFIG, body=line.encode())
    assert refused.code == Answer.INVALID_PARAMETER
    assert "is true or false, not" in (refused.remark or "")
    assert b"autoCreateTopicEnable=true\n" in client.request(Code.GET_BROKER_CONFIG).body
    assert client.request(Code.UPDATE_BROKER_CONFIG, body=b"autoCreateTopicEnable=FALSE").code == Answer.SUCCESS
    assert b"autoCreateTopicEnable=false\n" in client.request(Code.GET_BROKER_CONFIG).body


@pytest.mark.parametrize(
    "raw", [b"GET / HTTP/1.1\r\n\r\n", b"\x7f\xff\xff\xff", b"\xff" * 8, b"\0\0\0\x04\0\0\0\0", b"\x16\x03\x01"]
)
def test_bytes_that_are_no_request_close_their_connection_alone(serve: Serve, connect: Connect, raw: bytes) -> None:
    server = serve()
    good, bad = connect(server), connect(server)
    bad.socket.sendall(raw)
    assert bad.is_closed()
    assert good.publish("orders", b"x").code == Answer.SUCCESS


def test_connections_are_counted_and_the_rest_is_refused(serve: Serve, connect: Connect) -> None:
    server = serve(connections_max=2)
    first, _second = connect(server), connect(server)
    assert connect(server).is_closed()
    assert first.publish("orders", b"x").code == Answer.SUCCESS


def test_a_connection_on_which_nothing_happens_is_closed(serve: Serve, connect: Connect) -> None:
    client = connect(serve(idle_s=0.3))
    assert client.is_closed(5)


def test_a_thousand_requests_at_once_are_all_answered(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    one = RemotingCommand(int(Code.GET_BROKER_CLUSTER_INFO))
    frames = []
    for opaque in range(1, 3001):
        one.opaque = opaque
        frames.append(one.encode())
    sender = threading.Thread(target=client.socket.sendall, args=(b"".join(frames),))
    sender.start()
    assert all(client.answer(opaque).code == Answer.SUCCESS for opaque in range(1, 3001))
    sender.join()


def test_a_stop_answers_what_was_accepted(serve: Serve, connect: Connect) -> None:
    server = serve()
    client = connect(server)
    client.publish("orders", b"x")
    waits = client.pull("g", "orders", 1, hold_ms=30_000)
    time.sleep(0.2)
    began = time.monotonic()
    server.close()
    assert client.answer(waits).remark == "OFFSET_OVERFLOW_ONE"
    assert client.is_closed()
    assert time.monotonic() - began < 8
