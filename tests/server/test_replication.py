"""A store as the master of slaves: the bytes of the HA protocol, where a slave begins, and sends that wait for one."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

import broker
from broker.errors import BrokerError, ProtocolError
from broker.remoting.codes import ResponseCode
from broker.remoting.replication import (
    BEHIND_BYTES_MAX,
    OffsetReport,
    Transfer,
    TransferHeader,
    TransferSplitter,
    transfer_from,
)
from broker.server import event_loop
from broker.server.replication import master
from broker.server.replication.acknowledgements import Acknowledgements
from broker.server.replication.master import ReplicationMaster
from tests.server.conftest import Connect, Serve
from tests.server.processes import await_true

GOLDEN = bytes.fromhex("00000000 00000100 00000003 616263 00000000 00000103 00000000".replace(" ", ""))
"""Three bytes at offset 256, then a heartbeat, as DefaultHAConnection.transferData of 5.3.3 writes them."""


class PlainSlave:
    """Reports, and keeps what comes."""

    def __init__(self, address: str, *, reports: int = 0) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=10)
        self.splitter, self.begin, self.data = TransferSplitter(), -1, bytearray()
        self.report(reports)

    def report(self, commitlog_offset: int) -> None:
        self.socket.sendall(OffsetReport(commitlog_offset).pack())

    def receive_up_to(self, end: int, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while self.begin < 0 or self.begin + len(self.data) < end:
            assert time.monotonic() < deadline
            data = self.socket.recv(1 << 16)
            assert data, "the master closed the connection"
            for transfer in self.splitter.feed(data):
                self.begin = transfer.commitlog_offset if self.begin < 0 else self.begin
                assert transfer.commitlog_offset == self.begin + len(self.data)
                self.data += transfer.data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()


def log_of(store: broker.LiveStore) -> bytes:
    """The whole log, segment by segment."""
    files = sorted(Path(store.path, "commitlog").iterdir())
    return b"".join(file.read_bytes() for file in files)


def test_the_bytes_are_rocketmqs() -> None:
    assert TransferHeader(256, 3).pack() + b"abc" + TransferHeader(259, 0).pack() == GOLDEN
    for cut in range(len(GOLDEN) + 1):  # however they arrive
        splitter = TransferSplitter()
        assert [*splitter.feed(GOLDEN[:cut]), *splitter.feed(GOLDEN[cut:])] == [
            Transfer(256, b"abc"),
            Transfer(259, b""),
        ]
    assert OffsetReport(1 << 40).pack().hex() == "0000010000000000"


@pytest.mark.parametrize("header", [TransferHeader(-1, 3), TransferHeader(0, -1), TransferHeader(0, 5 << 20)])
def test_what_no_master_sends_is_refused(header: TransferHeader) -> None:
    with pytest.raises(ProtocolError, match="HA protocol"):
        TransferSplitter().feed(header.pack())


def test_a_slave_without_a_log_gets_the_last_segment() -> None:
    assert transfer_from(0, 5000, 4096) == 4096
    assert transfer_from(0, 0, 4096) == 0
    assert transfer_from(17, 5000, 4096) == 17


def test_a_slave_has_every_byte_and_goes_on_where_it_was(serve: Serve, store: broker.LiveStore) -> None:
    server = serve(ha="127.0.0.1:0")
    for number in range(30):  # over three segments of 8 MiB
        store.append(broker.Message("orders", bytes([number]) * 700_000))
    with PlainSlave(server.ha_address, reports=1) as slave:
        slave.receive_up_to(store.visible_end)
        assert slave.begin == 1
        assert bytes(slave.data) == log_of(store)[1 : store.visible_end]
        store.append(broker.Message("orders", b"later"))
        slave.receive_up_to(store.visible_end)
    with PlainSlave(server.ha_address) as slave:
        slave.receive_up_to(store.visible_end)
        assert slave.begin == store.visible_end - store.visible_end % (8 << 20)


@pytest.mark.parametrize("wanted", [1 << 30, -5])
def test_a_slave_of_another_store_is_refused(serve: Serve, store: broker.LiveStore, wanted: int) -> None:
    server = serve(ha="127.0.0.1:0")
    store.append(broker.Message("orders", b"x"))
    with PlainSlave(server.ha_address, reports=wanted) as slave:
        assert slave.socket.recv(1) == b""


def test_sends_wait_for_a_slave(serve: Serve, connect: Connect, store: broker.LiveStore) -> None:
    """RocketMQ's statuses: stored here, but SLAVE_NOT_AVAILABLE, FLUSH_SLAVE_TIMEOUT, or SUCCESS."""
    server = serve(ha="127.0.0.1:0", ha_sync=True)
    client = connect(server)
    assert client.publish("orders", b"alone").code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert client.publish("orders", b"alone", WAIT="false").code == ResponseCode.SUCCESS
    with PlainSlave(server.ha_address, reports=1) as slave:
        slave.receive_up_to(store.visible_end)
        began_s = time.monotonic()
        assert client.publish("orders", b"unanswered", TRAN_MSG="true").code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        assert time.monotonic() - began_s >= 2.9
        slave.receive_up_to(store.visible_end)
        slave.report(store.visible_end)
        assert client.publish("orders", b"x", WAIT="false").code == ResponseCode.SUCCESS
        slave.report(1 << 40)  # a slave cannot acknowledge what it was never sent
        slave.receive_up_to(store.visible_end)
        slave.report(store.visible_end)
    assert store.queue_range("orders", 0)[1] == 3  # all but the half message


def test_one_report_answers_all_that_it_covers() -> None:
    answers: list[tuple[int, ResponseCode]] = []
    acknowledgements = Acknowledgements()
    acknowledgements.reported(1, 0)
    for end in (30, 10, 20):
        acknowledgements.wait(end, 100.0, lambda code, end=end: answers.append((end, code)), 3.0)  # type: ignore[misc]
    acknowledgements.reported(1, 20)
    assert answers == [(10, ResponseCode.SUCCESS), (20, ResponseCode.SUCCESS)]
    acknowledgements.expire(102.9)
    assert len(acknowledgements) == 1
    acknowledgements.expire(103.0)
    assert answers[2:] == [(30, ResponseCode.FLUSH_SLAVE_TIMEOUT)]
    acknowledgements.left(1)
    acknowledgements.wait(10, 104.0, lambda code: answers.append((0, code)))
    assert answers[3:] == [(0, ResponseCode.SLAVE_NOT_AVAILABLE)]


def test_a_slave_is_waited_for_that_is_less_than_256_mib_behind() -> None:
    acknowledgements, answers = Acknowledgements(), list[ResponseCode]()
    acknowledgements.reported(1, 0)
    acknowledgements.wait(BEHIND_BYTES_MAX - 1, 0.0, answers.append)
    assert (answers, len(acknowledgements)) == ([], 1)
    acknowledgements.wait(BEHIND_BYTES_MAX, 0.0, answers.append)
    assert answers == [ResponseCode.SLAVE_NOT_AVAILABLE]


def test_a_slave_acknowledges_nothing_that_it_was_not_sent(store: broker.LiveStore) -> None:
    """Its report says more: each send was answered as if it had the record."""
    served = ReplicationMaster(store)

    async def take(reported: int) -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(OffsetReport(reported).pack())
        reader.feed_eof()
        with pytest.raises(asyncio.IncompleteReadError):
            await served._take_reports(7, reader)

    served._sent[7] = 100
    for reported, counts in ((90, 90), (1 << 40, 100)):
        asyncio.run(take(reported))
        assert served.acknowledgements.slaves == {7: counts}


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_slave_that_hangs_keeps_no_connection(
    serve: Serve, store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    """What it was sent is never read: each left a socket and its buffers behind, in no number of slaves."""
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    is_full, sizes = threading.Event(), list[int]()

    async def write_all(writer: asyncio.StreamWriter, data: bytes) -> None:
        sizes.append(len(data))
        writer.write(data)
        if writer.transport.get_write_buffer_size():
            is_full.set()
        await writer.drain()

    monkeypatch.setattr(master, "write_all", write_all)
    monkeypatch.setattr(event_loop, "_CLOSE_S", 0.05)
    for _ in range(7):
        store.append(broker.Message("orders", bytes(1 << 20)))
    server = serve(ha="127.0.0.1:0", loop=loop)
    with socket.socket() as hangs:
        hangs.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        host, _, port = server.ha_address.rpartition(":")
        hangs.connect((host, int(port)))
        hangs.sendall(OffsetReport(1).pack())
        assert is_full.wait(10)
        hangs.shutdown(socket.SHUT_WR)
        assert server.replication is not None
        tasks = server.replication._tasks
        await_true(lambda: not tasks)
        received = 0
        while data := hangs.recv(1 << 20):  # what the system had taken of it
            received += len(data)
        assert received < sum(sizes)


def test_replication_is_safe_by_default(serve: Serve) -> None:
    with pytest.raises(BrokerError, match="neither accounts nor TLS"):
        serve(ha="0.0.0.0:0")
    with pytest.raises(BrokerError, match="--ha PORT"):
        serve(ha_sync=True)
