"""A thousand connections, most of them of no use to the server: its memory stays bounded, and others are served."""

from __future__ import annotations

import contextlib
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from broker.remoting.codes import ResponseCode as Answer
from broker.remoting.command import RemotingCommand
from broker.remoting.frames import FRAME_BYTES_MAX
from tests.server.processes import server_process
from tests.server.wire_client import WireClient

CONNECTIONS = 1000
SLOW, HUGE = 200, 120  # byte by byte; with the largest frame, all but its end
FLOODING = 10  # with requests of unknown codes, whose answers nobody reads
SECONDS, ANSWERED_S = 6.0, 5.0
OWN_BYTES_MAX = 768 << 20  # unfinished frames and unread answers have 512 MiB together

_, HARD = resource.getrlimit(resource.RLIMIT_NOFILE)
pytestmark = pytest.mark.skipif(
    HARD != resource.RLIM_INFINITY and HARD < 2 * CONNECTIONS, reason="this process may not open enough files"
)


@pytest.fixture(autouse=True)
def _enough_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * CONNECTIONS if HARD == resource.RLIM_INFINITY else min(HARD, 4 * CONNECTIONS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], wanted), HARD))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def own_bytes(pid: int) -> int:
    """Memory of a process without pages of files."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    assert found
    return int(found[1]) << 10


class Crowd:
    """What clients do that mean no good, or no haste, until the end."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._ended = threading.Event()
        self._held = contextlib.ExitStack()
        slow = [self._connection() for _ in range(SLOW)]
        works: list[Callable[[], None]] = [partial(self._drip, slow)]
        works += [partial(self._huge, self._connection()) for _ in range(HUGE)]
        works += [partial(self._flood, self._connection()) for _ in range(FLOODING)]
        self._threads = [threading.Thread(target=work) for work in works]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _connection(self) -> socket.socket:
        made = self._held.enter_context(socket.create_connection(self._address, timeout=10))
        made.settimeout(0.2)
        return made

    def _drip(self, connections: list[socket.socket]) -> None:
        frame = RemotingCommand(9999).encode()
        for at in range(len(frame) - 1):
            for one in connections:
                with contextlib.suppress(OSError):
                    one.send(frame[at : at + 1])
            if self._ended.wait(0.1):
                return

    def _huge(self, connection: socket.socket) -> None:
        rest = memoryview((FRAME_BYTES_MAX - 4).to_bytes(4, "big") + b"\0\0\0\x10" + bytes(FRAME_BYTES_MAX - 64))
        while rest and not self._ended.is_set():
            try:
                rest = rest[connection.send(rest[: 1 << 18]) :]
            except TimeoutError:
                continue
            except OSError:  # it took too much
                return
        self._ended.wait()

    def _flood(self, connection: socket.socket) -> None:
        frames = memoryview(RemotingCommand(9999).encode() * 256)
        rest = frames
        while not self._ended.is_set():
            try:
                rest = rest[connection.send(rest) :] or frames
            except TimeoutError:
                continue
            except OSError:  # it does not read its answers
                return

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()
        self._held.close()


def test_a_crowd_takes_bounded_memory_and_others_are_served(tmp_path: Path) -> None:
    with server_process(tmp_path / "store", "os", "--create") as (process, address), contextlib.ExitStack() as held:
        good = held.enter_context(WireClient(address))
        assert good.publish("orders", b"x").code == Answer.SUCCESS
        idle = [held.enter_context(WireClient(address)) for _ in range(CONNECTIONS - 1 - SLOW - HUGE - FLOODING)]
        too_large = held.enter_context(WireClient(address))
        too_large.socket.sendall((16 << 20).to_bytes(4, "big"))
        assert too_large.is_closed()
        crowd = Crowd(address)
        assert held.enter_context(WireClient(address)).is_closed(), "one more than it was told"
        crowd.start()
        held.callback(crowd.close)
        longest_s, most_bytes, sent, until_s = 0.0, 0, 1, time.monotonic() + SECONDS
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            assert good.publish("orders", b"x").code == Answer.SUCCESS
            longest_s, sent = max(longest_s, time.monotonic() - began_s), sent + 1
            most_bytes = max(most_bytes, own_bytes(process.pid))
            time.sleep(0.02)
        for client in idle[::20]:
            assert client.publish("orders", b"x").code == Answer.SUCCESS
        assert process.poll() is None
    assert longest_s < ANSWERED_S
    assert most_bytes < OWN_BYTES_MAX, most_bytes >> 20
    assert sent > SECONDS / 2, "it hardly answered"  # beside other tests, too; alone it is some hundred times
    print(f"{sent} sends, the longest {longest_s:.2f} s; at most {most_bytes >> 20} MiB")
