"""Threads work for connections by turns: who asks for much waits for it, and others do not."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest

from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.server.requests import presence, queues, sends
from broker.server.threads import store_thread, turns
from broker.server.threads.store_thread import Stored, StoreThread
from broker.server.threads.turns import TurnThreads
from tests.server.conftest import Connect, Serve
from tests.server.processes import await_true
from tests.server.wire_client import sending

QUERY = {"topic": "orders", "key": "k", "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62}
PLACE = {"consumerGroup": "billing", "topic": "orders", "queueId": 0}


@pytest.mark.parametrize("lane", ["read", "group"])
def test_many_slow_requests_of_one_client_delay_no_other(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    """300 queries delayed each other client's by 1.4 s, and 100 long heartbeats its heartbeat by 5 s."""
    server = serve()
    greedy, honest = connect(server), connect(server)
    honest.publish("orders", b"x")
    decode = presence.decode_heartbeat
    monkeypatch.setattr(presence, "decode_heartbeat", lambda body: (time.sleep(0.05), decode(body))[1])
    monkeypatch.setattr(queues, "_keyed", lambda *_: (time.sleep(0.05), iter(()))[1])
    body = json.dumps({"clientID": "c", "producerDataSet": [{"groupName": "shop"}]}).encode()
    if lane == "read":
        asked = [greedy.send(Code.QUERY_MESSAGE, QUERY) for _ in range(80)]
    else:
        asked = [greedy.send(Code.HEART_BEAT, body=body) for _ in range(40)]
    await_true(lambda: server._working > 30)
    begun_s = time.monotonic()
    assert honest.request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"}).code == Answer.SUCCESS
    assert honest.request(Code.QUERY_CONSUMER_OFFSET, PLACE).ext == {"offset": "0"}
    assert time.monotonic() - begun_s < 0.7
    codes = {greedy.answer(opaque).code for opaque in asked}
    assert codes == {Answer.QUERY_NOT_FOUND if lane == "read" else Answer.SUCCESS}
    await_true(lambda: not server._working)
    assert not server._readers._turns | server._group_thread._turns


@pytest.mark.parametrize("turn_s", [10.0, 0.0])
def test_each_has_its_turn_in_its_order(monkeypatch: pytest.MonkeyPatch, turn_s: float) -> None:
    """Also after one that raises."""
    monkeypatch.setattr(turns, "_TURN", 2)
    results, delivered, goes_on = list[Any](), list[Any](), threading.Event()
    threads = TurnThreads(1, "test-turns", delivered.extend)

    def work(value: Any) -> Any:
        goes_on.wait(10)
        if value == "a1":
            raise ValueError(value)
        return value

    monkeypatch.setattr(turns, "_TURN_S", turn_s)
    for value in ("a0", "a1", "a2", "a3", "b0", "b1"):
        threads.submit(value[0], lambda value=value: work(value), results.append)
    goes_on.set()
    while len(results) < 6 or threads._turns:
        await_true(lambda: bool(delivered))
        done, result = delivered.pop(0)
        done(result)
    threads.pool.shutdown()
    in_turns = ["a0", "b0", "a1", "a2", "b1", "a3"] if turn_s else ["a0", "b0", "a1", "b1", "a2", "a3"]
    assert [str(result) for result in results] == in_turns
    assert (len(threads._turns), threads._waiting) == (0, {})


def test_what_a_turn_had_no_time_for_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of three pieces took too long."""
    monkeypatch.setattr(turns, "_TURN_S", 0.0)
    results, delivered = list[Any](), list[Any]()
    threads = TurnThreads(1, "test-turns", delivered.extend)
    threads._turns["a"] = 1
    threads._run("a", [(lambda value=value: value, results.append) for value in ("a0", "a1", "a2")])
    while threads._turns:
        await_true(lambda: bool(delivered))
        done, result = delivered.pop(0)
        done(result)
    threads.pool.shutdown()
    assert results == ["a0", "a1", "a2"]


def test_all_that_waits_for_the_disk_is_durable_before_it_is_answered() -> None:
    """What the event loop stored is behind what the thread stored before it, and waits in front of that."""
    settled, delivered, goes_on = list[int](), list[Any](), threading.Event()
    done = list[Any]().append

    def settle(end: int) -> None:
        goes_on.wait(10)
        settled.append(end)

    thread = StoreThread(settle, delivered.extend, waits=True)
    thread._appended.put([(done, Stored("first", 100))])
    await_true(lambda: not thread._appended)
    thread._appended.put([(done, Stored("of the loop", 300))])
    thread._appended.put([(done, Stored("of the thread", 200))])
    goes_on.set()
    thread.close()
    assert settled == [100, 300]
    assert [value for _, value in delivered] == ["first", "of the loop", "of the thread"]


@pytest.mark.parametrize("batch_s", [10.0, 0.0])
def test_what_is_stored_has_its_turn_in_its_order(monkeypatch: pytest.MonkeyPatch, batch_s: float) -> None:
    """Also what comes while a piece of work of another takes its time."""
    monkeypatch.setattr(store_thread, "_BATCH", 3)
    monkeypatch.setattr(store_thread, "_BATCH_S", batch_s)
    results, goes_on = list[Any](), threading.Event()
    thread = StoreThread(lambda _end: None, lambda done: results.extend(result for _, result in done), waits=False)
    thread.submit(lambda: goes_on.wait(10) and "first", results.append, of="z")
    for value in ("a1", "a2", "a3", "b1", "b2", "c1"):
        thread.submit(lambda value=value: value, results.append, of=value[0])
    assert len(thread) in (6, 7)
    goes_on.set()
    thread.close()
    assert results == ["first", "a1", "b1", "c1", "a2", "b2", "a3"]


def test_what_was_taken_and_not_done_keeps_its_order() -> None:
    """Before what the same connection asked for since, and in the turn that it had."""
    turns_of_all = store_thread._Turns()
    for value in ("a0", "a1", "a2", "b0", "b1"):
        turns_of_all.put(value[0], value)
    taken = turns_of_all.take()
    assert [value for _, value in taken] == ["a0", "b0", "a1", "b1", "a2"]
    turns_of_all.put("a", "a3")
    turns_of_all.give_back(taken[1:])
    assert (len(turns_of_all), [value for _, value in turns_of_all.take()]) == (5, ["b0", "a1", "b1", "a2", "a3"])


def test_sends_to_new_topics_delay_no_other(serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each makes its topic in the file of all topics: 200 of them delayed the send of another client by 17 s."""
    server = serve()
    greedy, honest = connect(server), connect(server)
    honest.publish("orders", b"x")
    created = sends._created
    monkeypatch.setattr(sends, "_created", lambda *arguments: (time.sleep(0.05), created(*arguments))[1])
    asked = [greedy.send(Code.SEND_MESSAGE_V2, sending(f"t{number}"), b"x") for number in range(30)]
    await_true(lambda: server._working > 20)
    begun_s = time.monotonic()
    assert honest.publish("orders", b"y").code == Answer.SUCCESS
    assert time.monotonic() - begun_s < 0.7
    assert {greedy.answer(opaque).code for opaque in asked} == {Answer.SUCCESS}
