"""Groups that are put elsewhere while their clients are connected."""

from __future__ import annotations

import time
from contextlib import closing
from typing import cast

import pytest

import broker
from broker.consuming.group.members import MemberKind
from broker.consuming.group.positions import Positions, Start
from broker.remoting.admin_headers import ResetOffsetRequestHeader
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.server import group_positions
from broker.server.clients import Peer
from broker.server.context import Refused
from broker.server.group_positions import GroupPositions
from broker.server.requests.admin import reset_position
from tests.server.conftest import Connect, Serve
from tests.server.processes import await_true

PLACE = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
RESET = {"topic": "orders", "group": "billing", "timestamp": 0, "isForce": "true"}


class Client:
    """One that is connected, in place of its connection."""


def test_a_reset_reaches_clients_with_their_next_pull(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    for _ in range(3):
        client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    asked = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    client.request(Code.UPDATE_CONSUMER_OFFSET, asked | {"commitOffset": 3})
    reset = {"topic": "orders", "group": "billing", "timestamp": 0, "isForce": "true"}
    assert b'"queueId":0,"topic":"orders"}:0' in client.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset).body
    client.oneway(Code.UPDATE_CONSUMER_OFFSET, asked | {"commitOffset": 3})  # from before: counts no more
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked).ext == {"offset": "0"}
    answer = client.answer(client.pull("billing", "orders", 3))
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked).ext == {"offset": "0"}


@pytest.mark.parametrize("is_of_another", [False, True])
def test_a_reset_waits_for_a_client_that_has_enough_to_do(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch, is_of_another: bool
) -> None:
    """A client with 1,000 messages in hand does not pull. After a minute its next commit undid the reset."""
    monkeypatch.setattr(group_positions, "_RESET_S", 0.0)
    server = serve()
    client = connect(server)
    for _ in range(3):
        client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    asked = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    client.request(Code.UPDATE_CONSUMER_OFFSET, asked | {"commitOffset": 1})
    client.pulled("billing", "orders", 1)
    positions, looks = server.context.positions, list[int]()
    if is_of_another:
        with closing(Positions(store)) as own:
            own.reset("billing", "orders", Start("last"))
        await_true(lambda: positions.has_resets)
    else:
        reset = {"topic": "orders", "group": "billing", "timestamp": -1, "isForce": "true"}
        client.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    notice = positions._notice_resets

    def counted(now_s: float) -> None:
        looks.append(1)
        notice(now_s)

    monkeypatch.setattr(positions, "_notice_resets", counted)
    await_true(lambda: len(looks) > 2)
    client.request(Code.UPDATE_CONSUMER_OFFSET, asked | {"commitOffset": 1})
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked).ext == {"offset": "3"}
    answer = client.answer(client.pull("billing", "orders", 1))
    assert (answer.remark, answer.ext["nextBeginOffset"]) == ("OFFSET_RESET", "3")


def test_a_reset_of_a_queue_that_is_not_there_is_refused(serve: Serve, connect: Connect) -> None:
    """It would take a place in the table of positions, and stand in every statistic of the group."""
    client = connect(serve())
    client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    reset = {"topic": "orders", "group": "billing", "timestamp": -1, "isForce": "true", "offset": 0}
    refused = client.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"queueId": 99})
    assert (refused.code, refused.remark) == (29, "queueId 99 of orders does not exist")
    assert client.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"queueId": 3}).code == 0
    assert b"99" not in client.request(Code.GET_ALL_CONSUMER_OFFSET).body


def test_a_reset_wakes_a_pull_that_is_held(serve: Serve, connect: Connect) -> None:
    client = connect(serve())
    client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    waits = client.pull("billing", "orders", 1, hold_ms=20_000)
    reset = {"topic": "orders", "group": "billing", "timestamp": 0, "isForce": "true"}
    client.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset)
    answer = client.answer(waits)
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")


@pytest.mark.parametrize("has_position", [True, False])
def test_a_reset_by_another_process_reaches_clients(
    serve: Serve, connect: Connect, store: broker.LiveStore, has_position: bool
) -> None:
    """By `checkback consumer --reset`, and by another server: clients went on, and their next commit undid it."""
    client = connect(serve())
    for _ in range(3):
        client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    commit = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": 3}
    if has_position:
        assert client.request(Code.UPDATE_CONSUMER_OFFSET, commit).code == Answer.SUCCESS
    assert client.answer(client.pull("billing", "orders", 3)).code == Answer.PULL_NOT_FOUND
    waits = client.pull("billing", "orders", 3, hold_ms=20_000)
    with closing(Positions(store)) as positions:
        positions.reset("billing", "orders", Start("first"))
    client.oneway(Code.UPDATE_CONSUMER_OFFSET, commit)  # from before: counts no more
    answer = client.answer(waits)
    assert (answer.code, answer.remark, answer.ext["nextBeginOffset"]) == (21, "OFFSET_RESET", "0")
    assert client.request(Code.QUERY_CONSUMER_OFFSET, commit).ext == {"offset": "0"}
    assert client.request(Code.UPDATE_CONSUMER_OFFSET, commit | {"commitOffset": 1}).code == Answer.SUCCESS
    assert client.request(Code.QUERY_CONSUMER_OFFSET, commit).ext == {"offset": "1"}


def test_a_reset_that_a_client_of_another_server_learned_takes_nothing_back(serve: Serve, connect: Connect) -> None:
    one, other = serve(), serve()
    client, at_other = connect(one), connect(other)
    for _ in range(3):
        client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    client.answer(client.pull("billing", "orders", 3))
    reset = {"topic": "orders", "group": "billing", "timestamp": 0, "isForce": "true"}
    await_true(lambda: other.context.groups.get("billing") is not None)
    assert at_other.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == Answer.SUCCESS
    await_true(lambda: one.context.positions.has_resets)
    commit = {"consumerGroup": "billing", "topic": "orders", "queueId": 0, "commitOffset": 2}
    assert at_other.request(Code.UPDATE_CONSUMER_OFFSET, commit).code == Answer.SUCCESS
    answer = client.answer(client.pull("billing", "orders", 3))
    assert (answer.remark, answer.ext["nextBeginOffset"]) == ("OFFSET_RESET", "2")


@pytest.mark.parametrize("is_at_once", [False, True])
def test_no_commit_undoes_a_reset_that_is_not_noticed_yet(store: broker.LiveStore, is_at_once: bool) -> None:
    """Neither one that waits for its turn, nor that of a pull, which the event loop does itself."""
    for _ in range(3):
        store.append(broker.Message("orders", b"x"), queue_id=0)
    place, peer = ("billing", "orders", 0), cast(Peer, Client())
    with (
        closing(GroupPositions(store, MemberKind.SERVER, lambda _: [peer])) as positions,
        closing(Positions(store)) as other,
    ):
        positions.commit(*place, 1)
        positions.take_reset(*place, peer, 1)  # a client pulls
        other.reset("billing", "orders", Start("last"), 0)
        assert not positions.has_resets
        (positions.commit_at_once if is_at_once else positions.commit)(*place, 2, peer)
        assert positions.get(*place) == 3


def test_a_reset_beyond_its_queue_is_refused(serve: Serve, connect: Connect) -> None:
    """It was a reset to the end, and was answered as if the group stood where it was to go."""
    client = connect(serve())
    for _ in range(3):
        client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    asked = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}
    client.request(Code.UPDATE_CONSUMER_OFFSET, asked | {"commitOffset": 1})
    reset = {"topic": "orders", "group": "billing", "timestamp": 0, "isForce": "true"}
    answer = client.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"queueId": 0, "offset": 4})
    assert (answer.code, answer.remark) == (1, "Target offset 4 not in consume queue range [0-3]")
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked).ext == {"offset": "1"}
    assert client.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"queueId": 0, "offset": 3}).code == 0
    assert client.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset | {"offset": 3}).code == 0  # of no queue: by time
    assert client.request(Code.QUERY_CONSUMER_OFFSET, asked).ext == {"offset": "0"}


@pytest.mark.parametrize(
    ("queue_id", "offset", "time_ms", "expected"),
    [
        (-1, -1, -1, 9),  # the end
        (-1, -1, 500, 5),  # the first message from a time on
        (-1, -1, 100, 3),  # which was removed: the first that is kept
        (-1, -1, 2000, 9),
        (-1, 7, 500, 5),  # an offset of no queue does not count
        (2, -1, 500, 5),
        (2, 3, 500, 3),
        (2, 9, 500, 9),
        (2, 2, 500, None),
        (2, 10, 500, None),
    ],
)
def test_where_a_group_is_put(queue_id: int, offset: int, time_ms: int, expected: int | None) -> None:
    """In a queue of the offsets 3 to 8, with a message each 100 ms."""
    header = ResetOffsetRequestHeader("orders", "billing", time_ms, True, queue_id, offset)

    def position() -> int:
        return reset_position(header, 3, 9, lambda ms: ms // 100)

    if expected is None:
        with pytest.raises(Refused, match=r"not in consume queue range \[3-9\]"):
            position()
    else:
        assert position() == expected


def test_a_client_that_lost_the_queue_keeps_no_reset_from_the_one_that_has_it(serve: Serve, connect: Connect) -> None:
    """Its last pull waits on for up to 15 s, took the reset, and the one that has the queue went on where it was."""
    server = serve()
    before, now = connect(server, client_id="c1"), connect(server, client_id="c2")
    for _ in range(3):
        before.publish("orders", b"x")
    for client in (before, now):
        client.heartbeat(consumer="billing", topics={"orders": "*"})
    waiting = [(client, client.pull("billing", "orders", 3, hold_ms=15_000)) for client in (before, now)]
    await_true(lambda: len(server.held) == len(waiting))
    reset = {"topic": "orders", "group": "billing", "timestamp": 0, "isForce": "true"}
    assert connect(server).request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == Answer.SUCCESS
    for client, number in waiting:
        answer = client.answer(number, timeout_s=5)
        assert (answer.remark, answer.ext["nextBeginOffset"]) == ("OFFSET_RESET", "0")


def test_a_pull_that_is_refused_takes_no_reset(serve: Serve, connect: Connect) -> None:
    """A topic is closed for readers, its group reset, the topic opened: the group went on where it was."""
    server = serve()
    client, admin = connect(server), connect(server)
    for _ in range(3):
        client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    number = client.pull("billing", "orders", 3, hold_ms=15_000)
    await_true(lambda: len(server.held) == 1)
    topic = {"topic": "orders", "readQueueNums": 4, "writeQueueNums": 4, "topicFilterType": "SINGLE_TAG"}
    assert admin.request(Code.UPDATE_AND_CREATE_TOPIC, topic | {"perm": 2}).code == Answer.SUCCESS
    reset = {"topic": "orders", "group": "billing", "timestamp": 0, "isForce": "true"}
    assert admin.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, reset).code == Answer.SUCCESS
    assert client.answer(number, timeout_s=5).code == Answer.NO_PERMISSION
    assert admin.request(Code.UPDATE_AND_CREATE_TOPIC, topic | {"perm": 6}).code == Answer.SUCCESS
    answer = client.answer(client.pull("billing", "orders", 3))
    assert (answer.remark, answer.ext["nextBeginOffset"]) == ("OFFSET_RESET", "0")


@pytest.mark.parametrize("is_of_another", [False, True])
def test_a_client_that_has_the_queue_and_does_not_pull_learns_of_a_reset(
    serve: Serve, connect: Connect, store: broker.LiveStore, is_of_another: bool
) -> None:
    """It has enough to do. The pull of the one that lost the queue took the reset, and its next commit undid it."""
    server = serve()
    before, now = connect(server, client_id="c1"), connect(server, client_id="c2")
    for _ in range(3):
        before.publish("orders", b"x")
    for client in (before, now):
        client.heartbeat(consumer="billing", topics={"orders": "*"})
    waiting = before.pull("billing", "orders", 3, hold_ms=15_000)
    assert now.answer(now.pull("billing", "orders", 1)).code == Answer.SUCCESS
    await_true(lambda: len(server.held) == 1)
    if is_of_another:
        with closing(Positions(store)) as own:
            own.reset("billing", "orders", Start("first"))
    else:
        connect(server).request(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET | {"queueId": 0, "offset": 0})
    assert before.answer(waiting, timeout_s=5).remark == "OFFSET_RESET"
    assert now.request(Code.UPDATE_CONSUMER_OFFSET, PLACE | {"commitOffset": 3}).code == Answer.SUCCESS  # no more
    assert now.request(Code.QUERY_CONSUMER_OFFSET, PLACE).ext == {"offset": "0"}
    answer = now.answer(now.pull("billing", "orders", 3))
    assert (answer.remark, answer.ext["nextBeginOffset"]) == ("OFFSET_RESET", "0")
    assert now.pulled("billing", "orders", 0)[0] == Answer.SUCCESS
    now.request(Code.UPDATE_CONSUMER_OFFSET, PLACE | {"commitOffset": 2})
    assert now.request(Code.QUERY_CONSUMER_OFFSET, PLACE).ext == {"offset": "2"}
    await_true(lambda: not server.context.positions.has_resets)


def test_a_client_that_asked_after_a_reset_is_not_sent_back(serve: Serve, connect: Connect) -> None:
    """It was given the queue since, and knows where the group stands: a client of 4.x would pause for 20 s."""
    server = serve()
    before, now = connect(server, client_id="c1"), connect(server, client_id="c2")
    for _ in range(3):
        before.publish("orders", b"x")
    for client in (before, now):
        client.heartbeat(consumer="billing", topics={"orders": "*"})
    before.pulled("billing", "orders", 2)
    assert connect(server).request(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == Answer.SUCCESS
    assert now.request(Code.QUERY_CONSUMER_OFFSET, PLACE).ext == {"offset": "0"}
    for queue_offset in (0, 1):
        assert now.pulled("billing", "orders", queue_offset, most=1)[0] == Answer.SUCCESS
    assert before.answer(before.pull("billing", "orders", 3)).remark == "OFFSET_RESET"
    assert before.pulled("billing", "orders", 0)[0] == Answer.SUCCESS


def test_a_client_that_asks_and_goes_on_where_it_was_learns_of_a_reset(serve: Serve, connect: Connect) -> None:
    """As `DefaultLitePullConsumer.committed` does."""
    server = serve()
    client = connect(server)
    for _ in range(3):
        client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    client.pulled("billing", "orders", 2)
    assert connect(server).request(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == Answer.SUCCESS
    assert client.request(Code.QUERY_CONSUMER_OFFSET, PLACE).ext == {"offset": "0"}
    client.request(Code.UPDATE_CONSUMER_OFFSET, PLACE | {"commitOffset": 2})
    assert client.request(Code.QUERY_CONSUMER_OFFSET, PLACE).ext == {"offset": "0"}
    assert client.answer(client.pull("billing", "orders", 3)).remark == "OFFSET_RESET"


def test_a_reset_ends_when_the_clients_that_did_not_learn_of_it_are_gone(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_positions, "_RESET_S", 0.2)
    server = serve()
    with connect(server) as client:
        client.publish("orders", b"x")
        client.heartbeat(consumer="billing", topics={"orders": "*"})
        client.pulled("billing", "orders")
        assert connect(server).request(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == Answer.SUCCESS
        time.sleep(0.5)
        assert server.context.positions.has_resets
    await_true(lambda: not server.context.positions.has_resets)


@pytest.mark.parametrize("has_asked", [False, True])
def test_a_reset_ends_when_its_clients_left_the_group_and_stay_connected(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, has_asked: bool
) -> None:
    """A process has one connection for all its groups: until it ended, what was cloned to the group was dropped."""
    monkeypatch.setattr(group_positions, "_RESET_S", 0.2)
    server = serve()
    client, monitor = connect(server), connect(server)
    client.publish("orders", b"x")
    client.heartbeat(consumer="billing", topics={"orders": "*"})
    client.pulled("billing", "orders")
    monitor.heartbeat(consumer="other", topics={"orders": "*"})
    assert monitor.request(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == Answer.SUCCESS
    if has_asked:
        assert monitor.request(Code.QUERY_CONSUMER_OFFSET, PLACE).ext == {"offset": "0"}
    client.request(Code.UNREGISTER_CLIENT, {"clientID": "c1", "consumerGroup": "billing"})
    await_true(lambda: not server.context.positions.has_resets)
    commit = {"consumerGroup": "other", "topic": "orders", "queueId": 0, "commitOffset": 1}
    assert monitor.request(Code.UPDATE_CONSUMER_OFFSET, commit).code == Answer.SUCCESS
    clone = {"srcGroup": "other", "destGroup": "billing", "topic": "orders"}
    assert monitor.request(Code.CLONE_GROUP_OFFSET, clone).code == Answer.SUCCESS
    assert monitor.request(Code.QUERY_CONSUMER_OFFSET, PLACE).ext == {"offset": "1"}


def test_a_reset_that_some_clients_never_learn_costs_little(store: broker.LiveStore) -> None:
    """Clients divide the queues, and those without this one pull from others: 20 times a second each was looked at."""
    store.append(broker.Message("orders", b"x"), queue_id=0)
    place, peer, looks = ("billing", "orders", 0), cast(Peer, Client()), list[str]()

    def peers_of(group: str) -> list[Peer]:
        looks.append(group)
        return [peer]

    with closing(GroupPositions(store, MemberKind.SERVER, peers_of)) as positions:
        positions.commit(*place, 1)
        positions.take_reset(*place, peer, 1)
        positions.reset(*place, 0, is_online=True)
        looks.clear()
        for _ in range(20):
            positions.keep(lambda: ["billing"])
        assert looks == ["billing"]
        assert positions.take_reset(*place, peer, 1) == 0


@pytest.mark.parametrize("had_it", [False, True])
def test_a_client_that_never_had_the_queue_goes_on_where_it_likes(serve: Serve, connect: Connect, had_it: bool) -> None:
    """It was given the queue weeks after the reset, and sought a place of its own: it was sent to the group's."""
    server = serve()
    before, now = connect(server, client_id="c1"), connect(server, client_id="c2")
    for _ in range(5):
        before.publish("orders", b"x")
    for client in (before, now):
        client.heartbeat(consumer="billing", topics={"orders": "*"})
    before.pulled("billing", "orders", 4)
    if had_it:  # it may have asked, and pull only now
        assert now.request(Code.QUERY_CONSUMER_OFFSET, PLACE).code == Answer.SUCCESS
    assert connect(server).request(Code.INVOKE_BROKER_TO_RESET_OFFSET, RESET).code == Answer.SUCCESS
    assert before.answer(before.pull("billing", "orders", 5)).remark == "OFFSET_RESET"
    before.request(Code.UPDATE_CONSUMER_OFFSET, PLACE | {"commitOffset": 3})
    answer = now.answer(now.pull("billing", "orders", 1))
    assert answer.remark == ("OFFSET_RESET" if had_it else "FOUND")
