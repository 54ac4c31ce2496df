"""What the event loop stores itself: the same answers and records as by the thread, and nothing that waits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import broker
from broker import compiled
from broker.format.commitlog import Record
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.command import RemotingCommand
from broker.server import dispatch
from broker.server.threads.store_thread import Stored, StoreThread
from tests.server.conftest import Connect, Serve
from tests.server.wire_client import WireClient, sending

STORED = (Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.END_TRANSACTION)
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0

with_c = pytest.mark.skipif(compiled.fast is None, reason="there is no C module")


def by_thread(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes of what the thread of the store did."""
    done: list[int] = []
    for code in STORED:
        route = dispatch.ROUTES[code]

        def handler(*arguments: Any, code: int = code, real: Any = route.handler) -> Any:
            done.append(code)
            return real(*arguments)

        monkeypatch.setitem(dispatch.ROUTES, code, route._replace(handler=handler))
    return done


def end(client: WireClient, half: RemotingCommand, decision: int, group: str = "shop") -> int:
    """Send the end of a half message; its opaque."""
    ext = {
        "producerGroup": group, "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": int(half.ext["msgId"][16:], 16), "commitOrRollback": decision,
    }  # fmt: skip
    return client.send(Code.END_TRANSACTION, ext)


def half(client: WireClient, key: str, **properties: str) -> RemotingCommand:
    ext = sending("orders", 1, sys_flag=4, TRAN_MSG="true", PGROUP="shop", UNIQ_KEY=key, **properties)
    return client.request(Code.SEND_MESSAGE_V2, ext, b"half")


def history(client: WireClient) -> list[tuple[int, dict[str, str]]]:
    """A bit of everything; the answers."""
    answers = [
        client.request(Code.SEND_MESSAGE_V2, sending("orders", 1, UNIQ_KEY=f"K{at}"), b"b" * at) for at in (1, 9, 900)
    ]
    answers.append(
        client.request(Code.SEND_MESSAGE_V2, sending("orders", 2, flag=7, sys_flag=1, TAGS="grün"), b"x\x9c" + bytes(9))
    )
    answers.append(client.request(Code.SEND_MESSAGE_V2, sending("orders", 1, DELAY="1", UNIQ_KEY="later"), b"later"))
    answers.append(client.request(Code.SEND_MESSAGE_V2, sending("orders", 99), b"no such queue"))
    answers.append(client.request(Code.SEND_MESSAGE_V2, sending("orders", 1), b""))
    halves = [half(client, f"H{at}", KEYS="a b") for at in range(4)]
    for one, decision in zip(halves, (COMMIT, ROLLBACK, COMMIT, ROLLBACK), strict=True):
        answers.append(client.answer(end(client, one, decision)))
    answers.append(client.answer(end(client, halves[0], COMMIT)))  # again
    answers.append(client.answer(end(client, halves[0], ROLLBACK)))  # contrary
    answers.append(client.answer(end(client, halves[1], COMMIT, group="other")))
    open_half = half(client, "open")
    end(client, open_half, UNKNOWN)
    return [(one.code, one.ext) for one in (*answers, *halves, open_half)]


def records(store: broker.LiveStore) -> list[tuple[Any, ...]]:
    def told(one: Record) -> tuple[Any, ...]:
        properties = {name: value for name, value in one.property_map.items() if name != "__CRC32#"}
        return (
            one.topic,
            one.queue_id,
            one.queue_offset,
            one.commitlog_offset,
            one.flag,
            one.sys_flag,
            one.body,
            properties,
        )

    return [told(one) for one in store.records()]


@with_c
@pytest.mark.parametrize("engine", ["state-table", "half-op"])
@pytest.mark.parametrize("sync", ["os", "group", "each"])
def test_both_store_and_answer_the_same(engine: str, sync: str, tmp_path: Path) -> None:
    found = []
    for name in ("at-once", "by-thread"):
        with broker.open(tmp_path / name, sync=sync, transactions=engine) as store:
            store.create_topic("orders", queues=4, message_type="")
            with pytest.MonkeyPatch.context() as patch:
                if name == "by-thread":
                    for code in STORED:
                        patch.setitem(dispatch.ROUTES, code, dispatch.ROUTES[code]._replace(at_once=None))
                patch.setattr("broker.server.requests.sends.new_unique_key", lambda _ms: "MADE")
                patch.setattr("broker.store.write.compose.new_unique_key", lambda _ms: "MADE")
                with (
                    broker.serve(store, "127.0.0.1:0", advertise="127.0.0.1:10911") as server,
                    WireClient(server.address) as client,
                ):
                    answers = history(client)
            found.append((answers, records(store), sorted(store.transactions.in_doubt_slots())))
    assert found[0][0] == found[1][0]
    assert len(found[0][1]) == len(found[1][1]) >= 14
    assert found[0] == found[1]


@with_c
def test_what_is_common_needs_no_thread(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a delay, and an end that comes again or contradicts."""
    monkeypatch.setattr("broker.server.threads.store_thread._SLOW_S", 60.0)  # other processes may have the processor
    done = by_thread(monkeypatch)
    store.create_topic("orders", queues=4, message_type="")
    client = connect(serve())
    client.publish("orders", b"x", queue_id=1)
    first, done[:] = half(client, "first"), []
    for _ in range(20):
        assert client.publish("orders", b"x", queue_id=1).code == Answer.SUCCESS
        assert client.answer(end(client, half(client, "next"), COMMIT)).code == Answer.SUCCESS
    assert len(done) < 10  # of 60: the upkeep of the store takes the lock, too
    done.clear()
    assert client.answer(end(client, first, COMMIT)).code == Answer.SUCCESS
    assert client.answer(end(client, first, ROLLBACK)).code == Answer.SYSTEM_ERROR
    assert client.publish("orders", b"x", queue_id=1, DELAY="1").code == Answer.SUCCESS
    assert done[-2:] == [Code.END_TRANSACTION, Code.SEND_MESSAGE_V2]


def test_a_lock_that_another_has_keeps_nobody_else_waiting(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """And what was sent meanwhile is stored in its order."""
    store.create_topic("orders", queues=4, message_type="")
    server = serve()
    client, other = connect(server), connect(server, client_id="c2")
    client.publish("orders", b"first")
    with store.writer.append_lock:
        waiting = [client.send(Code.SEND_MESSAGE_V2, sending("orders"), b"%d" % number) for number in range(5)]
        assert other.request(Code.GET_BROKER_CLUSTER_INFO).code == Answer.SUCCESS
        time.sleep(0.05)
    waiting += [client.send(Code.SEND_MESSAGE_V2, sending("orders"), b"%d" % number) for number in range(5, 200)]
    assert [int(client.answer(one).ext["queueOffset"]) for one in waiting] == list(range(1, 201))
    assert [one.body for one in store.records()][1:] == [b"%d" % number for number in range(200)]


class Done(list[Any]):
    """What came back, and in which thread."""

    def __call__(self, result: Any) -> None:
        self.append((result, threading.current_thread() is threading.main_thread()))

    def wait(self, count: int) -> list[Any]:
        deadline = time.monotonic() + 10
        while len(self) < count and time.monotonic() < deadline:
            time.sleep(0.001)
        return list(self)


def deliver(results: list[Any]) -> None:
    for done, result in results:
        done(result)


@with_c
def test_the_caller_does_what_needs_no_waiting() -> None:
    settled, done = list[int](), Done()
    thread = StoreThread(settled.append, deliver, waits=True)
    thread.do(lambda: "by the thread", done, lambda: "at once")
    assert done == [("at once", True)]
    thread.do(lambda: "by the thread", done, lambda: None)
    assert done.wait(2)[1] == ("by the thread", False)
    thread.do(lambda: None, done, lambda: Stored("durable", 7))
    assert done.wait(3)[2] == ("durable", False)
    assert settled == [7]
    thread.do(lambda: None, done, lambda: 1 // 0)
    thread.close()
    assert isinstance(done[3][0], ZeroDivisionError)


@with_c
def test_what_was_submitted_is_not_overtaken() -> None:
    done, goes_on = Done(), threading.Event()
    thread = StoreThread(lambda _end: None, deliver, waits=False)
    thread.submit(lambda: goes_on.wait(10) and "first", done)
    thread.do(lambda: "second", done, lambda: "overtaken")
    assert not done
    goes_on.set()
    assert done.wait(2) == [("first", False), ("second", False)]
    thread.close()


@with_c
def test_after_a_slow_write_the_thread_works_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the disk does not keep up, and each page has to wait for it: others of the event loop do not."""
    times = iter([0.0, 0.03, 0.1, 0.17, 0.19, 0.19])
    monkeypatch.setattr("broker.server.threads.store_thread.time", SimpleNamespace(monotonic=lambda: next(times)))
    thread = StoreThread(lambda _end: None, deliver, waits=False)
    results = [thread._at_once(lambda: "done") for _ in range(4)]
    assert results == ["done", None, None, "done"]  # 30 ms, then 150 ms by the thread
    thread.close()


def test_without_c_the_thread_does_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each message would be composed twice."""
    monkeypatch.setattr(compiled, "fast", None)
    done = Done()
    thread = StoreThread(lambda _end: None, deliver, waits=False)
    thread.do(lambda: "by the thread", done, lambda: "at once")
    assert done.wait(1) == [("by the thread", False)]
    thread.close()
