"""Pulls that the event loop answers itself: the same bytes as a reader thread gives, and nothing that waits."""

from __future__ import annotations

import os
import struct
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import pytest

import broker
from broker.format.commitlog import encode, make_record
from broker.format.java import Host
from broker.remoting.codes import RequestCode as Code
from broker.remoting.codes import ResponseCode as Answer
from broker.server import dispatch
from broker.server.requests import pulls, records
from broker.store.read.commitlog import CommitLog
from tests.server.conftest import Connect, Serve
from tests.server.wire_client import WireClient, records_of

UNIT = struct.Struct(">qiq")


def units_of(store: broker.LiveStore, topic: str, queue_id: int = 0) -> bytes:
    queue = store.consumequeues.queue(topic, queue_id)
    assert queue is not None
    return queue.units.raw(0, 1000)[: UNIT.size * store.queue_end(topic, queue_id)]


def by_python(log: CommitLog, units: bytes) -> bytes:
    return b"".join(records.read_records(log, [(at, size) for at, size, _ in UNIT.iter_unpack(units)]))


@pytest.fixture
def compiled_pulls() -> None:
    if records._sent_records is None:
        pytest.skip("the C module is not there")


@pytest.mark.usefixtures("compiled_pulls")
def test_c_sends_what_python_sends(store: broker.LiveStore) -> None:
    """Short and long bodies and properties, as many as fit, and one however long it is."""
    for number in range(40):
        body, properties = b"b" * (1 + number * 97), {f"p{at}": "ü" * at for at in range(1, number % 7)}
        store.append(
            broker.Message("t" * (number % 2 * 100 + 1), body, keys=["k"] * (number % 3), properties=properties)
        )
    for topic in ("t", "t" * 101):
        units = units_of(store, topic)
        found = records.cached_records(store.commitlog, units, 1 << 20)
        assert found == (by_python(store.commitlog, units), 20)
        size = sum(UNIT.unpack_from(units, at * UNIT.size)[1] for at in range(4))
        assert records.cached_records(store.commitlog, units, size) == (by_python(store.commitlog, units[:80]), 4)
        assert records.cached_records(store.commitlog, units, size - 1) == (by_python(store.commitlog, units[:60]), 3)
        assert records.cached_records(store.commitlog, units, 1) == (by_python(store.commitlog, units[:20]), 1)


@pytest.mark.usefixtures("compiled_pulls")
@pytest.mark.parametrize(
    "change",
    [
        lambda at, size, body: (at + 1, size, body),
        lambda at, size, body: (at, size + 1, body),
        lambda at, size, body: (at, 50, body),
        lambda at, size, body: (1 << 40, size, body),
        lambda at, size, body: (at, size, b"\x7f" + body[1:]),
        lambda at, size, body: (at, size, body[:4] + b"\xda\xa3\x20\xa8" + body[8:]),
        lambda at, size, body: (at, size, body[:39] + b"\x10" + body[40:]),
        lambda at, size, body: (at, size, body[:84] + b"\x7f\xff\xff\xff" + body[88:]),
        lambda at, size, body: (at, size, body[:92] + b"\xff" + body[93:]),
    ],
)
def test_c_leaves_what_is_uncommon_to_python(tmp_path: Path, change: Any) -> None:
    """Another place or size, another magic, IPv6 hosts, lengths beyond the record."""
    assert records._sent_records is not None
    with broker.open(tmp_path / "store", sync="os") as store:
        store.append(broker.Message("t", b"body"))
        at, size, _ = UNIT.unpack(units_of(store, "t"))
        raw = store.commitlog.raw(at, size)
    assert raw is not None
    path = tmp_path / "segment"

    def called(offset: int, stated: int, written: bytes) -> Any:
        path.write_bytes(written + bytes(100))
        with path.open("rb") as file:
            return records._sent_records(file.fileno(), 0, 4096, UNIT.pack(offset, stated, 0), 1 << 20)

    assert called(at, size, raw) == (records.as_sent(raw), 1)
    assert called(*change(at, size, raw)) is None


def test_a_record_with_ipv6_hosts_is_sent_as_it_is() -> None:
    """Its body begins elsewhere: only records of ours, which have none, lose their CRC."""
    host = Host(bytes(15) + b"\1", 1234)
    raw = encode(
        make_record("t", b"x", b"", born_host=host, store_host=host, born_timestamp_ms=1, store_timestamp_ms=2),
        record_crc=True,
    )
    assert records.as_sent(raw) == raw


def answered_by_readers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pulls the reader threads got."""
    counted: list[int] = []
    by_thread = pulls.pull_message

    def pull_message(*arguments: Any) -> Any:
        counted.append(1)
        return by_thread(*arguments)

    for code in (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE):
        monkeypatch.setitem(dispatch.ROUTES, code, dispatch.ROUTES[code]._replace(handler=pull_message))
    return counted


def bodies(client: WireClient, group: str = "g", **options: Any) -> list[bytes]:
    code, found = client.pulled(group, "orders", **options)
    assert code == Answer.SUCCESS
    return [one.body for one in found]


def test_what_is_cached_needs_no_thread(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a group that is new, and a filter, which looks at many messages."""
    counted = answered_by_readers(monkeypatch)
    for number in range(3):
        store.append(broker.Message("orders", b"%d" % number, tag="even" if number % 2 == 0 else "odd"), queue_id=0)
    client = connect(serve())
    assert bodies(client) == [b"0", b"1", b"2"]
    assert len(counted) == 1
    assert bodies(client) == bodies(client, most=3) == [b"0", b"1", b"2"]
    assert bodies(client, most=2) == [b"0", b"1"]
    assert len(counted) == (1 if hasattr(os, "RWF_NOWAIT") else 4)
    before = len(counted)
    assert bodies(client, text="odd") == [b"1"]
    assert len(counted) == before + 1


@pytest.mark.parametrize("without_c", [False, True])
def test_what_is_on_disk_alone_is_read_by_a_thread(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch, without_c: bool
) -> None:
    """Also where the system cannot tell."""
    if without_c:
        monkeypatch.setattr(records, "_sent_records", None)
    store.append(broker.Message("orders", b"x"), queue_id=0)
    client = connect(serve())
    assert bodies(client) == [b"x"]
    counted = answered_by_readers(monkeypatch)
    assert bodies(client) == [b"x"]

    def nothing_cached(*_: object) -> NoReturn:
        raise BlockingIOError

    before = len(counted)
    monkeypatch.setattr(os, "preadv", nothing_cached)
    assert bodies(client) == [b"x"]
    assert len(counted) == before + 1


def test_a_position_that_another_is_writing_keeps_nobody_else_waiting(
    serve: Serve, connect: Connect, store: broker.LiveStore
) -> None:
    """A process that is stopped with the lock of the positions: its pull waits, the event loop does not."""
    store.append(broker.Message("orders", b"x"), queue_id=0)
    server = serve()
    client, other = connect(server), connect(server, client_id="c2")
    assert bodies(client) == [b"x"]
    ext = {
        "consumerGroup": "g", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 5,
        "commitOffset": 1, "suspendTimeoutMillis": 0, "subscription": "*", "expressionType": "TAG", "subVersion": 0,
    }  # fmt: skip
    assert client.request(Code.PULL_MESSAGE, ext).code == Answer.SUCCESS
    cells = server.context.positions.table.cells
    holds, done = threading.Event(), threading.Event()

    def hold() -> None:
        with cells.lock:
            holds.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(10)
    pull = client.send(Code.PULL_MESSAGE, ext | {"commitOffset": 1})
    assert other.request(Code.GET_BROKER_CLUSTER_INFO).code == Answer.SUCCESS
    done.set()
    thread.join()
    assert [one.body for one in records_of(client.answer(pull).body)] == [b"x"]
    assert server.context.positions.get("g", "orders", 0) == 1


def test_the_first_message_is_searched_once_after_a_segment_was_removed(
    serve: Serve, connect: Connect, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a thread; then the event loop knows it."""
    for number in range(8):
        store.append(broker.Message("orders", b"%d" % number + bytes(3 << 20)), queue_id=0)
    client = connect(serve())
    assert bodies(client, most=1)[0][:1] == b"0"
    store.retain(broker.Retention(keep_s=0, even_unread=True), now_ms=time.time_ns() // 1_000_000 + 3_600_000)
    begin, queue = store.begin_offset, store.consumequeues.queue("orders", 0)
    assert begin > 0
    assert queue is not None
    queue._least = None  # as for a process that did not remove it
    first = next(number for number in range(8) if (unit := queue.get(number)) and unit.commitlog_offset >= begin)
    counted = answered_by_readers(monkeypatch)
    for _ in range(3):
        assert bodies(client, queue_offset=first, most=1)[0][:1] == b"%d" % first
    assert len(counted) == (1 if hasattr(os, "RWF_NOWAIT") else 3)
    gone = client.answer(client.pull("g", "orders", 0))
    found = gone.code, gone.remark, gone.ext["nextBeginOffset"]
    assert found == (Answer.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", str(first))
