"""What one client, or a full table of the process, does to a server does nothing to its other clients."""

from __future__ import annotations

import json
import os
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.consuming.group.offset_export import OffsetExport
from broker.errors import StoreFull
from broker.remoting import command as remoting
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.command import RemotingCommand
from broker.server import connection as connections
from broker.server.group_positions import GroupPositions
from broker.server.requests import pulls
from broker.server.threads.store_thread import Stored, StoreThread
from broker.store.shared import group_file, topicfile
from broker.transaction.backpressure import InDoubtLimit
from tests.server.conftest import LAYOUT, Connect, Serve
from tests.server.processes import await_true
from tests.server.wire_client import sending

RESET = {"topic": "old", "group": "billing", "timestamp": -1, "isForce": "true"}


def test_fields_without_a_value_are_counted() -> None:
    items = bytes(6) * 600
    header = struct.pack(">hbhiiii", 106, 0, 479, 1, 0, 0, len(items)) + items
    with pytest.raises(remoting.ProtocolError, match="too many"):
        remoting.decode(struct.pack(">i", 1 << 24 | len(header)) + header)


def test_a_subscription_is_parsed_once_and_has_a_length(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = connect(serve())
    client.publish("orders", b"x", TAGS="t7")
    parsed: list[str] = []
    parse = pulls.Selection.parse
    monkeypatch.setattr(pulls.Selection, "parse", lambda text: parsed.append(text) or parse(text))
    pulls._parsed_once.cache_clear()
    client.heartbeat(consumer="billing", topics={"orders": "t7 || t8"})
    asked = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 1,
             "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0}  # fmt: skip
    for _ in range(5):
        assert client.request(Code.PULL_MESSAGE, asked).code == Answer.SUCCESS
    assert parsed == ["t7 || t8"]
    client.heartbeat(consumer="billing", topics={"orders": " || ".join(f"t{number}" for number in range(20_000))})
    answer = client.request(Code.PULL_MESSAGE, asked)
    assert (answer.code, "at most" in (answer.remark or "")) == (Answer.SUBSCRIPTION_PARSE_FAILED, True)


def test_a_server_goes_on_after_a_turn_of_its_loop_failed(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    client, failed = connect(server), threading.Event()
    client.publish("orders", b"x")

    def wake() -> None:
        failed.set()
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(server.held, "wake", wake)
        assert failed.wait(5)
    waits = client.pull("billing", "orders", 1, hold_ms=200)
    assert client.answer(waits, 5).code == Answer.PULL_NOT_FOUND


def test_a_connection_whose_frames_end_is_kept(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read ends inside a frame, which is complete 50 ms later."""
    monkeypatch.setattr(connections, "_FRAME_S", 0.5)
    client = connect(serve())
    ext = {name: str(value) for name, value in sending("orders").items()}
    frames = [
        RemotingCommand(int(Code.SEND_MESSAGE_V2), 100 + number, ext=ext, body=b"x" * 500).encode()
        for number in range(60)
    ]
    stream, size = b"".join(frames), len(frames[0])
    for at in range(0, len(stream), size):
        begin = at + size // 2 if at else 0
        client.socket.sendall(stream[begin : at + size + size // 2])
        time.sleep(0.05)
    for number in range(60):
        assert client.answer(100 + number).code == Answer.SUCCESS


def test_a_connection_that_is_not_read_is_kept(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that stalls, or another process that was stopped in an append."""
    monkeypatch.setattr(connections, "_FRAME_S", 0.5)
    client = connect(serve())
    client.publish("orders", b"x")
    ext = {name: str(value) for name, value in sending("orders").items()}
    frames = [
        RemotingCommand(int(Code.SEND_MESSAGE_V2), 100 + number, ext=ext, body=b"x").encode() for number in range(3000)
    ]
    sender = threading.Thread(target=client.socket.sendall, args=(b"".join(frames),), daemon=True)
    with store.writer.append_lock:
        sender.start()
        time.sleep(2.5)
    for number in range(3000):
        assert client.answer(100 + number).code == Answer.SUCCESS
    sender.join()


def test_a_reset_that_nobody_learns_wakes_nobody_and_ends(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("broker.server.group_positions._RESET_S", 1.0)
    store.create_topic("old", queues=1)
    server = serve()
    client, looked = connect(server), list[object]()
    client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    waits = client.pull("billing", "orders", 1, hold_ms=20_000)
    await_true(lambda: len(server.held) == 1)
    monkeypatch.setattr(server.held, "_again", looked.append)
    assert client.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == Answer.SUCCESS
    time.sleep(0.3)
    assert (looked, len(server.held), waits > 0) == ([], 1, True)
    await_true(lambda: not server.context.positions.has_resets)
    store.append(broker.Message("old", b"x"))
    place = {"consumerGroup": "billing", "topic": "old", "queueId": 0}
    client.request(Code.UPDATE_CONSUMER_OFFSET, place | {"commitOffset": 1})
    assert client.request(Code.QUERY_CONSUMER_OFFSET, place).ext == {"offset": "1"}


def test_a_slow_heartbeat_ends_in_all_of_its_groups(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a consumer of this machine reads the queues, too."""
    server, join = serve(), GroupPositions.join

    def slow(self: GroupPositions, *arguments: object) -> None:
        join(self, *arguments)  # type: ignore[arg-type]
        time.sleep(0.4)

    monkeypatch.setattr(GroupPositions, "join", slow)
    client, groups = connect(server), [f"group-{number}" for number in range(6)]
    body = {"clientID": "c", "consumerDataSet": [{"groupName": name, "subscriptionDataSet": []} for name in groups]}
    assert client.request(Code.HEART_BEAT, {}, json.dumps(body).encode()).code == Answer.SUCCESS
    time.sleep(0.3)
    assert sorted(server.context.positions._members) == groups


@pytest.mark.parametrize("attributes", [{}, {"attributes": ""}, {"attributes": "+queue.type=SimpleCQ"}])
def test_a_change_of_a_topic_that_does_not_state_its_type_keeps_it(
    serve: Serve, connect: Connect, store: broker.LiveStore, attributes: dict[str, str]
) -> None:
    """`mqadmin updateTopic -r 8 -w 8` of 5.x states an empty text: the topic took messages of all types after it."""
    store.create_topic("typed", queues=2, message_type="FIFO")
    client, change = connect(serve()), {"topic": "typed", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}
    assert client.request(Code.UPDATE_AND_CREATE_TOPIC, change | attributes).code == Answer.SUCCESS
    held = store.topic("typed")
    assert held is not None
    assert (held.write_queue_count, held.message_type, held.order) == (4, "FIFO", True)
    for stated, kept in (("+message.type=DELAY", {"message.type": "DELAY"}), ("-message.type", {})):
        assert client.request(Code.UPDATE_AND_CREATE_TOPIC, change | {"attributes": stated}).code == Answer.SUCCESS
        held = store.topic("typed")
        assert held is not None
        assert held.attributes == kept


@pytest.mark.parametrize("attribute", ["+cleanup.policy=COMPACTION", "+queue.type=BatchCQ", "+nonsense=1"])
def test_an_attribute_that_would_have_no_effect_is_refused(
    serve: Serve, connect: Connect, store: broker.LiveStore, attribute: str
) -> None:
    """It was answered with success, and forgotten."""
    change = {"topic": "compacted", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "attributes": attribute}
    refused = connect(serve()).request(Code.UPDATE_AND_CREATE_TOPIC, change)
    text = f"a topic here has the attribute message.type only, and cannot have {attribute!r}"
    assert (refused.code, refused.remark) == (Answer.INVALID_PARAMETER, text)
    assert store.topic("compacted") is None


def by_thread(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[str]:
    """The threads that call something from now on."""
    threads, real = list[str](), getattr(owner, name)

    def called(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return real(*arguments)

    monkeypatch.setattr(owner, name, called)
    return threads


def test_what_is_in_doubt_is_counted_beside_the_event_loop(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count reads, and waits for a process that is inside an append."""
    threads, stored = list[str](), list[int]()
    begin = InDoubtLimit.__init__

    def counted(self: InDoubtLimit, most: int, count: Any, path: str) -> None:
        begin(self, most, lambda: (threads.append(threading.current_thread().name), count())[1], path)

    monkeypatch.setattr(InDoubtLimit, "__init__", counted)
    with (
        broker.open(tmp_path / "limited", sync="os", layout=LAYOUT, in_doubt_max=5) as store,
        broker.serve(store, "127.0.0.1:0") as server,
    ):
        client = connect(server)
        for number in range(8):
            fields = sending("orders", 1, sys_flag=4, TRAN_MSG="true", PGROUP="shop", UNIQ_KEY=f"U-{number}")
            stored.append(client.request(Code.SEND_MESSAGE_V2, fields, b"x").code)
            time.sleep(0.03)
    assert stored == [Answer.SUCCESS] * 5 + [Answer.SYSTEM_BUSY] * 3
    assert set(threads) == {"checkback-serve-append"}


@pytest.mark.parametrize("properties", [{}, {"UNIQ_KEY": "K"}], ids=["uncommon", "common"])
def test_files_that_changed_are_read_beside_the_event_loop(
    serve: Serve,
    connect: Connect,
    store: broker.LiveStore,
    monkeypatch: pytest.MonkeyPatch,
    properties: dict[str, str],
) -> None:
    """Thousands of groups, or of topics, take a tenth of a second, in which no client would be answered."""
    client = connect(serve())
    client.publish("orders", b"x")
    client.pulled("billing", "orders")
    read = by_thread(monkeypatch, group_file, "read_subscription_groups")
    read_too = by_thread(monkeypatch, topicfile, "read_topics")
    for turn in range(2):
        for name in ("topics.json", "subscriptionGroup.json"):
            path = Path(store.path) / "config" / name
            (path.parent / "new").write_text(path.read_text(encoding="utf-8").replace("6", "4"), encoding="utf-8")
            os.replace(path.parent / "new", path)
        deadline_s = time.monotonic() + 5
        while len(read) <= turn or len(read_too) <= turn:
            assert time.monotonic() < deadline_s
            sent = client.publish("orders", b"x", **properties).code
            pulled = client.pulled("billing", "orders")[0]
            time.sleep(0.02)
    assert (sent, pulled) == (Answer.NO_PERMISSION, Answer.SUCCESS)
    assert not {"checkback-serve-loop", "MainThread"} & {*read, *read_too}


def test_an_expensive_expression_is_checked_beside_the_event_loop(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    client, other, goes_on = connect(server), connect(server), threading.Event()
    text = " OR ".join(f"a = {number}" for number in range(300))
    parse = pulls.Expression.parse
    monkeypatch.setattr(pulls.Expression, "parse", lambda text: (goes_on.wait(10), parse(text))[1])
    asked = {"subscriptionData": {"topic": "orders", "subString": text, "expressionType": "SQL92"}}
    opaque = client.send(Code.CHECK_CLIENT_CONFIG, body=json.dumps(asked).encode())
    assert other.request(Code.GET_BROKER_CLUSTER_INFO, timeout_s=5).code == Answer.SUCCESS
    assert other.publish("orders", b"x").code == Answer.SUCCESS
    assert other.pulled("billing", "orders")[0] == Answer.SUCCESS
    assert not goes_on.is_set()
    goes_on.set()
    assert client.answer(opaque).code == Answer.SUCCESS


def test_the_thread_that_waits_for_the_disk_goes_on_after_a_defect() -> None:
    """All who waited get an answer, and so do those after them."""
    begun, goes_on, ends = threading.Event(), threading.Event(), list[int]()

    def settle(end: int) -> None:
        ends.append(end)
        begun.set()
        assert goes_on.wait(10)
        if end < 5:
            raise ValueError("nobody expected this")

    results: dict[str, Any] = {}
    thread = StoreThread(settle, lambda done: [one(result) for one, result in done], waits=True)
    for name, end in (("a", 1), ("b", 2), ("c", 3), ("d", 9)):
        if name == "d":
            goes_on.set()
            await_true(lambda: len(results) == 3)
        thread.submit(lambda end=end: Stored(end, end), lambda result, name=name: results.setdefault(name, result))
        assert begun.wait(5)
    await_true(lambda: len(results) == 4)
    thread.close()
    assert [type(results[name]) for name in "abc"] == [ValueError] * 3
    assert (results["d"], ends[-1]) == (9, 9)


def test_an_fsync_that_fails_unexpectedly_is_answered(
    tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker.open(tmp_path / "synced", sync="group", layout=LAYOUT) as store:
        store.create_topic("orders", queues=4)
        settle, failing = store.writer.settle, threading.Event()

        def settled(end: int) -> None:
            if failing.is_set():
                raise ValueError("nobody expected this")
            settle(end)

        monkeypatch.setattr(store.writer, "settle", settled)
        with broker.serve(store, "127.0.0.1:0") as server:
            clients = [connect(server) for _ in range(3)]
            failing.set()
            sent = [client.send(Code.SEND_MESSAGE_V2, sending("orders"), b"x") for client in clients]
            answers = [client.answer(opaque) for client, opaque in zip(clients, sent, strict=True)]
            assert [(one.code, "a defect here: ValueError" in (one.remark or "")) for one in answers] == [
                (Answer.SYSTEM_ERROR, True)
            ] * 3
            failing.clear()
            assert clients[0].publish("orders", b"x").code == Answer.SUCCESS


def test_groups_beyond_those_that_fit_are_refused_unread(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read thousands of groups under the append lock: a send of another client took half a second."""
    monkeypatch.setattr(group_file, "GROUPS_MAX", 3)
    client = connect(serve())
    client.publish("orders", b"x")
    for number in range(3):
        assert client.pulled(f"g{number}", "orders")[0] == Answer.SUCCESS
    read = by_thread(monkeypatch, group_file, "read_subscription_groups")
    for number in range(5):
        answer = client.answer(client.pull(f"more-{number}", "orders"))
        assert (answer.code, "room for 3 consumer groups" in (answer.remark or "")) == (Answer.MESSAGE_ILLEGAL, True)
    assert (client.pulled("g1", "orders")[0], read) == (Answer.SUCCESS, [])


def test_a_change_of_a_group_that_cannot_be_written_is_none(
    store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was so in this process, and in no other."""
    groups = group_file.GroupFile(store.path, store.writer.disk, store.writer.append_lock)
    groups.ensure("billing")

    def full(*_: object, **__: object) -> None:
        raise StoreFull("no space left on the device")

    with monkeypatch.context() as patch:
        patch.setattr(store.writer.disk, "write_file", full)
        for change in (lambda: groups.pause("billing"), lambda: groups.ensure("new")):
            with pytest.raises(StoreFull):
                change()
    assert (groups.is_paused("billing"), groups.get("new")) == (False, None)
    groups.pause("billing")
    assert groups.is_paused("billing")


def test_delayed_messages_come_while_the_positions_cannot_be_written(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk that is full, or beside a consumerOffset.json that was damaged: retries, too, never came."""
    failed = threading.Event()

    def export(*_: object, **__: object) -> None:
        failed.set()
        raise StoreFull("the disk has 0 bytes free")

    with monkeypatch.context() as patch:
        patch.setattr(OffsetExport, "export", export)
        client = connect(serve(delay_levels=" ".join(["1s"] * 18)))
        assert failed.wait(5)
        client.publish("orders", b"x", DELAY="1")
        await_true(lambda: store.queue_end("orders", 0) == 1, 10)


def test_a_store_that_is_closed_before_its_server_is_a_sentence(
    serve: Serve, connect: Connect, store: broker.LiveStore, caplog: pytest.LogCaptureFixture
) -> None:
    """For every request, also one that reads no file, and for a pull that waits."""
    server = serve()
    client = connect(server)
    client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    waits = client.pull("billing", "orders", 1, hold_ms=20_000)
    client.request(Code.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0})
    store.close()
    answers = [
        client.publish("orders", b"y"),
        client.heartbeat(consumer="billing", topics={"orders": "*"}),
        client.answer(client.pull("billing", "orders", 0)),
        client.request(Code.GET_MAX_OFFSET, {"topic": "orders", "queueId": 0}),
        client.request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}),
    ]
    server.close()
    answers.append(client.answer(waits))
    assert [("belongs to a store that was closed" in (one.remark or "")) for one in answers] == [True] * 6
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
