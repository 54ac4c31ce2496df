"""Small servers between a client and its brokers: a proxy that loses and changes commands, and a name server."""

from __future__ import annotations

import abc
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand, decode
from broker.remoting.fastjson import dumps
from broker.remoting.frames import FrameSplitter

Change = Callable[[RemotingCommand], RemotingCommand | None]


class _Listener(abc.ABC):
    """Accepts connections on a free port of 127.0.0.1, each in a thread."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._socket.accept()
                self._open.append(accepted)
                threading.Thread(target=self._quietly, args=(accepted,), daemon=True).start()

    def _quietly(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):
            self._serve(accepted)
        accepted.close()

    @abc.abstractmethod
    def _serve(self, accepted: socket.socket) -> None:
        """Speak with one client until it leaves."""

    def cut(self) -> None:
        """Close every connection of now; new ones are taken, also those that come while it closes."""
        now, self._open = self._open, []
        for one in now:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Proxy(_Listener):
    """Passes frames on. `request` and `answer` may change a command, or lose it by returning None."""

    def __init__(self) -> None:
        self.target = ""
        self.request: Change = lambda command: command
        self.answer: Change = lambda command: command
        self.passed: list[RemotingCommand] = []
        super().__init__()

    def _serve(self, accepted: socket.socket) -> None:
        host, _, port = self.target.rpartition(":")
        with socket.create_connection((host, int(port))) as broker:
            self._open.append(broker)
            back = threading.Thread(target=self._pass_quietly, args=(broker, accepted, False), daemon=True)
            back.start()
            self._pass_quietly(accepted, broker, True)

    def _pass_quietly(self, source: socket.socket, sink: socket.socket, is_request: bool) -> None:
        with contextlib.suppress(OSError):
            splitter = FrameSplitter()
            while data := source.recv(1 << 16):
                for frame in splitter.feed(data):
                    command = decode(frame)
                    if is_request:
                        self.passed.append(command)
                    changed = (self.request if is_request else self.answer)(command)
                    if changed is not None:
                        sink.sendall(changed.encode())
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


class Closing(_Listener):
    """Takes each connection and closes it at once, as the port of a container does whose broker is away."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        super().__init__()

    def _serve(self, accepted: socket.socket) -> None:
        self.times_s.append(time.monotonic())
        accepted.close()


class NameServer(_Listener):
    """Answers that every topic is at every one of the brokers, with two queues at each; without brokers nowhere."""

    def __init__(self, brokers: Mapping[str, str]) -> None:
        self.brokers = dict(brokers)
        super().__init__()

    def _serve(self, accepted: socket.socket) -> None:
        splitter = FrameSplitter()
        while data := accepted.recv(1 << 16):
            for frame in splitter.feed(data):
                accepted.sendall(self._answer(decode(frame)).encode())

    def _answer(self, command: RemotingCommand) -> RemotingCommand:
        datas = {
            name: {"brokerAddrs": {0: address}, "brokerName": name, "cluster": "C"}
            for name, address in self.brokers.items()
        }
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            return command.answer(0, body=dumps({"brokerAddrTable": datas, "clusterAddrTable": {"C": list(datas)}}))
        is_nowhere = command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and not datas
        if is_nowhere or command.ext.get("topic", "").startswith(("nowhere", "TBW102")):
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, "No topic route info")
        count = 1 if command.ext.get("topic", "").startswith("%RETRY%") else 2
        queues = [
            {"brokerName": name, "perm": 6, "readQueueNums": count, "writeQueueNums": count, "topicSysFlag": 0}
            for name in datas
        ]
        return command.answer(0, body=dumps({"brokerDatas": list(datas.values()), "queueDatas": queues}))
