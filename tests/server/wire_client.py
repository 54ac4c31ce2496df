"""A client of few words for tests: sends requests over a socket, reads answers, and what the server asks."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections import deque
from types import TracebackType
from typing import Any, Self

from broker.format.commitlog import Record, decode
from broker.format.properties import encode
from broker.remoting import command as remoting
from broker.remoting.codes import RequestCode
from broker.remoting.command import ONEWAY, RemotingCommand
from broker.remoting.frames import FrameSplitter


class WireClient:
    """One connection. Every wait ends."""

    def __init__(self, address: str, *, client_id: str = "c1", context: ssl.SSLContext | None = None) -> None:
        host, _, port = address.rpartition(":")
        plain = socket.create_connection((host, int(port)), timeout=10)
        self.socket = plain if context is None else context.wrap_socket(plain)
        self.client_id = client_id
        self._splitter = FrameSplitter()
        self._opaque = 0
        self.asked: deque[RemotingCommand] = deque()  # what the server sent of its own
        self._answers: dict[int, RemotingCommand] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", *, flag: int = 0) -> int:
        """Send a request; its number."""
        self._opaque += 1
        fields = {name: str(value) for name, value in (ext or {}).items()}
        self.socket.sendall(
            RemotingCommand(int(code), self._opaque, flag, fields, body, language="JAVA", version=479).encode()
        )
        return self._opaque

    def answer(self, opaque: int, timeout_s: float = 10.0) -> RemotingCommand:
        """The answer to a request."""
        deadline = time.monotonic() + timeout_s
        while opaque not in self._answers:
            self.receive(deadline)
        return self._answers.pop(opaque)

    def taken(self) -> list[RemotingCommand]:
        """The answers that came and were not asked for one by one."""
        found, self._answers = list(self._answers.values()), {}
        return found

    def request(
        self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", *, timeout_s: float = 10.0
    ) -> RemotingCommand:
        return self.answer(self.send(code, ext, body), timeout_s)

    def oneway(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"") -> None:
        self.send(code, ext, body, flag=ONEWAY)

    def next_asked(self, code: int, timeout_s: float = 10.0) -> RemotingCommand:
        """The next request of the server with a code."""
        deadline = time.monotonic() + timeout_s
        while True:
            for one in list(self.asked):
                if one.code == code:
                    self.asked.remove(one)
                    return one
            self.receive(deadline)

    def receive(self, deadline: float) -> None:
        """Wait for bytes until a time of the monotonic clock. Raises TimeoutError, ConnectionError."""
        self.socket.settimeout(max(0.01, deadline - time.monotonic()))
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        for frame in self._splitter.feed(data):
            one = remoting.decode(frame)
            if one.is_response:
                self._answers[one.opaque] = one
            else:
                self.asked.append(one)

    def is_closed(self, timeout_s: float = 10.0) -> bool:
        """Whether the server closes the connection in time."""
        self.socket.settimeout(timeout_s)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    # What clients do

    def heartbeat(
        self,
        *,
        producer: str = "",
        consumer: str = "",
        topics: dict[str, str] | None = None,
        kind: str = "TAG",
        model: str = "CLUSTERING",
    ) -> RemotingCommand:
        subscriptions = [
            {"topic": topic, "subString": text, "subVersion": time.time_ns(), "expressionType": kind}
            for topic, text in (topics or {}).items()
        ]
        consumers = [
            {"groupName": consumer, "consumeType": "CONSUME_PASSIVELY", "messageModel": model,
             "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": subscriptions}
        ]  # fmt: skip
        body = {
            "clientID": self.client_id, "producerDataSet": [{"groupName": producer}] if producer else [],
            "consumerDataSet": consumers if consumer else [],
        }  # fmt: skip
        return self.request(RequestCode.HEART_BEAT, body=json.dumps(body).encode())

    def publish(
        self, topic: str, body: bytes, *, queue_id: int = 0, sys_flag: int = 0, flag: int = 0, **properties: str
    ) -> RemotingCommand:
        return self.request(RequestCode.SEND_MESSAGE_V2, sending(topic, queue_id, sys_flag, flag, **properties), body)

    def pull(
        self, group: str, topic: str, queue_offset: int = 0, *, queue_id: int = 0, hold_ms: int = 0, text: str = "*",
        kind: str = "TAG", most: int = 32,
    ) -> int:  # fmt: skip
        """Send a pull that brings its own subscription; its number."""
        ext = {
            "consumerGroup": group, "topic": topic, "queueId": queue_id, "queueOffset": queue_offset,
            "maxMsgNums": most, "sysFlag": 4 | (2 if hold_ms else 0), "commitOffset": 0,
            "suspendTimeoutMillis": hold_ms, "subscription": text, "expressionType": kind, "subVersion": 0,
        }  # fmt: skip
        return self.send(RequestCode.PULL_MESSAGE, ext)

    def pulled(self, *arguments: Any, **options: Any) -> tuple[int, list[Record]]:
        """(response code, records) of a pull."""
        found = self.answer(self.pull(*arguments, **options))
        return found.code, records_of(found.body)


def sending(topic: str, queue_id: int = 0, sys_flag: int = 0, flag: int = 0, **properties: str) -> dict[str, Any]:
    """The fields of SEND_MESSAGE_V2."""
    return {
        "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": sys_flag, "g": 1_700_000_000_000,
        "h": flag, "i": encode(properties).decode(), "j": 0, "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip


def records_of(body: bytes) -> list[Record]:
    """The records side by side in a body."""
    found: list[Record] = []
    at = 0
    while at < len(body):
        found.append(decode(body, at))
        at += found[-1].total_size
    return found


def json_of(command: RemotingCommand) -> Any:
    return json.loads(command.body)
