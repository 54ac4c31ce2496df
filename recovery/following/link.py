"""One connection to a master: reports up, transfers down. Every wait ends."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from threading import Event
from typing import Self

from broker.errors import BrokerError
from broker.format.java import split_address
from broker.remoting.replication import HEARTBEAT_S, SILENCE_S, OffsetReport, Transfer, TransferSplitter

CONNECT_S = 5.0
TRIES = 5
"""How often a master that does not answer is tried again by a run that has an end."""
_RECEIVE_BYTES = 1 << 18
_WAIT_S = 0.05
_BACKOFF_S = (0.2, 0.5, 1.0, 2.0, 5.0)


class MasterAway(BrokerError):
    """The master does not answer, or closed the connection: connect again."""


def parse_master(text: str) -> tuple[str, int]:
    """HOST:PORT of a master's HA port. Raises BrokerError."""
    host, port = split_address(text) or ("", 0)
    if not (host and port):
        example = "such as 192.0.2.7:10912"
        raise BrokerError(f"a master is HOST:PORT of its HA port (haListenPort), {example}, not {text!r:.60}")
    return host, port


def backoff_s(attempt: int) -> float:
    """How long to wait before a master is tried again after so many failures, from 1 on."""
    return _BACKOFF_S[min(attempt, len(_BACKOFF_S)) - 1]


def await_master(
    master: str, stopped: Event, *, tries: int | None = None, on_trouble: Callable[[str], None] = lambda _: None
) -> bool:
    """Return True when a master answers, False when `stopped` is set before.

    Raises MasterAway after so many `tries`, BrokerError for what is not HOST:PORT.
    """
    address, attempt = parse_master(master), 0
    while not stopped.is_set():
        try:
            with MasterLink(address) as link:
                link.ask(0)
                return link.first_answer(stopped.is_set) is not None
        except MasterAway as error:
            attempt += 1
            if tries is not None and attempt >= tries:
                raise
            on_trouble(str(error))
            stopped.wait(backoff_s(attempt))
    return False


class MasterLink:
    """Connected as a slave. Nothing is reported before `ask`: the first report says where the log is wanted from."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Raises MasterAway."""
        self._name = f"{address[0]}:{address[1]}"
        self._splitter = TransferSplitter()
        try:
            self._socket = socket.create_connection(address, timeout=CONNECT_S)
        except OSError as error:
            raise MasterAway(f"{self._name} cannot be reached: {error.strerror or error}") from None
        # poll and not select: a process with many files open has descriptors above 1,023, which select refuses.
        self._readable = select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self.heard_s = self._reported_s = time.monotonic()
        self._has_heard = False

    def first_answer(self, is_over: Callable[[], bool]) -> Transfer | None:
        """What the master sends first; None when `is_over` says so before. Raises MasterAway, ProtocolError."""
        while not is_over():
            for transfer in self.receive(_WAIT_S):
                return transfer
        return None

    def ask(self, commitlog_offset: int) -> None:
        """Want the log from an offset on; 0 means from the master's last segment on. Raises MasterAway."""
        self._report(commitlog_offset)

    def acknowledge(self, commitlog_offset: int, *, now: bool = False) -> None:
        """Report an offset: now, or when a sign of life is due. Raises MasterAway.

        A master that reads two reports at once takes the second for what is wanted: so nothing before it answered.
        """
        if self._has_heard and (now or time.monotonic() - self._reported_s >= HEARTBEAT_S):
            self._report(commitlog_offset)

    def _report(self, commitlog_offset: int) -> None:
        try:
            self._socket.sendall(OffsetReport(commitlog_offset).pack())
        except OSError as error:
            raise self._away(f"closed the connection: {error.strerror or error}") from None
        self._reported_s = time.monotonic()

    def receive(self, timeout_s: float) -> list[Transfer]:
        """What came within some time. Raises MasterAway after a long silence, ProtocolError."""
        try:
            if not self._readable.poll(timeout_s * 1000):
                if time.monotonic() - self.heard_s > SILENCE_S:
                    raise self._away(f"has been silent for {SILENCE_S:.0f} s")
                return []
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as error:
            raise self._away(f"closed the connection: {error.strerror or error}") from None
        if not data:
            raise self._away("closed the connection")
        self.heard_s, self._has_heard = time.monotonic(), True
        return self._splitter.feed(data)

    def _away(self, what: str) -> MasterAway:
        """Quirk (5.x): a broker in controller mode takes a slave's first report for another message."""
        hint = "" if self._has_heard else " (and sent nothing: a broker in controller mode speaks another protocol)"
        return MasterAway(f"{self._name} {what}{hint}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
