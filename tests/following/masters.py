"""Masters for followers: a served store of ours, and one that says what a test tells it to."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import broker
from broker.format.commitlog import BLANK_SIZE, encode, encode_blank
from broker.remoting.replication import OffsetReport, Transfer, TransferHeader
from recovery.following.follower import Follower, FollowOptions
from recovery.following.status import FollowerStatus
from recovery.verify.verifier import verify

SEGMENT = 1 << 20
LAYOUT = broker.StoreLayout(segment_bytes=SEGMENT)
OF_LOG = ("transactions", "digest", "records", "bytes", "generation", "begin_offset", "end_offset")


@contextmanager
def served(path: Path, transactions: str = "state-table") -> Iterator[tuple[broker.LiveStore, str]]:
    """A store of ours with an HA port, and where that is."""
    with (
        broker.open(path, sync="os", layout=LAYOUT, transactions=transactions) as store,
        broker.serve(store, "127.0.0.1:0", ha="127.0.0.1:0") as server,
    ):
        yield store, server.ha_address


def traffic(store: broker.LiveStore, count: int, size: int = 900) -> None:
    """Plain messages, and transactions of which a third each is committed, rolled back, and left in doubt."""
    for number in range(count):
        half = store.transactions.prepare(broker.Message("orders", bytes(size), keys=[f"k{number}"]), "shop")
        if number % 3 == 0:
            store.transactions.commit(half)
        elif number % 3 == 1:
            store.transactions.rollback(half)
        store.append(broker.Message("orders", bytes(size // 2)))


def follow_once(master: str, path: Path, **options: object) -> FollowerStatus:
    """Copy until it is up to date."""
    with Follower(master, path, FollowOptions(**options)) as follower:  # type: ignore[arg-type]
        stopped = threading.Event()
        bound = threading.Timer(60, stopped.set)
        bound.start()
        try:
            status = follower.run(stopped, until_caught_up=True)
        finally:
            bound.cancel()
    assert not stopped.is_set(), status.line()
    return status


def log_bytes(path: Path) -> bytes:
    """The segments of a store, one after another; one that was only made for later is left out."""
    segments = [file.read_bytes() for file in sorted((path / "commitlog").iterdir())]
    return b"".join(segment for segment in segments if any(segment[:8]))


class ScriptedMaster:
    """Sends a log from memory as RocketMQ does: at once, and then heartbeats, which come every 20 ms here."""

    def __init__(self, log: bytes, *, begin: int = 0, segment_bytes: int = SEGMENT, limit: int = 32768) -> None:
        """`log` are the bytes from CommitLog offset `begin` on; they may be exchanged at any time.

        `limit` is haTransferBatchSize.
        """
        self.log, self.begin, self.segment_bytes, self.limit = log, begin, segment_bytes, limit
        self.asked: list[int] = []
        self.reports: list[int] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=self._serve, args=(self._listener.accept()[0],), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            if not (report := connection.recv(8)):
                return
            at = asked = OffsetReport.unpack_from(report).commitlog_offset
            self.asked.append(asked)
            connection.settimeout(0.02)
            if asked == 0:
                end = self.begin + len(self.log)
                at = max(self.begin, end - end % self.segment_bytes)
            while True:
                data = self.log[at - self.begin : at - self.begin + self.limit] if at >= self.begin else b""
                connection.sendall(TransferHeader(at, len(data)).pack() + data)
                at += len(data)
                if self.goes_on(Transfer(at - len(data), data)):
                    continue
                with suppress(TimeoutError):
                    if not (report := connection.recv(8)):
                        return
                    self.reports.append(OffsetReport.unpack_from(report).commitlog_offset)

    def goes_on(self, sent: Transfer) -> bool:
        """Whether it sends again without waiting for a report."""
        return bool(sent.data)

    def close(self) -> None:
        self._listener.close()


class DroppingMaster(ScriptedMaster):
    """Closes each connection once it has sent something, until there is nothing more: behind a bad network, say."""

    def goes_on(self, sent: Transfer) -> bool:
        """Only at the end of its log."""
        if sent.data and sent.commitlog_offset + len(sent.data) < self.begin + len(self.log):
            raise ConnectionError("dropped")
        return super().goes_on(sent)


class BusyMaster(ScriptedMaster):
    """Never silent, never a heartbeat: it waits until its log has grown."""

    def goes_on(self, sent: Transfer) -> bool:
        """After the log has grown, within ten seconds."""
        at, bound = sent.commitlog_offset + len(sent.data), time.monotonic() + 10
        while at >= self.begin + len(self.log) and time.monotonic() < bound:
            time.sleep(0.002)
        return True


class SlowMaster(ScriptedMaster):
    """Takes seconds to send what it has."""

    def goes_on(self, sent: Transfer) -> bool:
        """After a pause that makes it about 400 kB in a second."""
        time.sleep(len(sent.data) / 400_000)
        return super().goes_on(sent)


def record_starts(path: Path) -> Sequence[int]:
    """Where the records of a store begin."""
    with broker.open(path, read_only=True) as store:
        return [record.commitlog_offset for record in store.records()]


def store_end(path: Path) -> int:
    """Where the log of a store ends."""
    with broker.open(path, read_only=True) as store:
        return store.end_offset


def other_records(path: Path, at: int, end: int) -> bytes:
    """Records that a master may have written from an offset on: those of another store, moved there."""
    made = bytearray()
    with broker.open(path, read_only=True) as store:
        for record in store.records():
            if record.transaction_type:
                continue
            place = at + len(made)
            raw = encode(replace(record, commitlog_offset=place), record_crc=True)
            room = SEGMENT - place % SEGMENT
            if len(raw) + BLANK_SIZE > room:
                made += encode_blank(room).ljust(room, b"\0")
                place = at + len(made)
                raw = encode(replace(record, commitlog_offset=place), record_crc=True)
            if place + len(raw) > end:
                break
            made += raw
    assert at + len(made) > end - 2000
    return bytes(made)


def verified(path: Path) -> dict[str, Any]:
    """What an offline verification says of the log."""
    report = verify(path).as_json()
    return {name: report[name] for name in OF_LOG} | {"counts": report["counts"]}
