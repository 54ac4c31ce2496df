"""How long a frame may take, on a connection whose every read ends its turn."""

from __future__ import annotations

import time

import pytest

from broker.remoting.command import RemotingCommand
from broker.remoting.frames import FrameSplitter
from broker.server import connection as connections
from tests.server.conftest import Connect, Serve

FRAME_S, GIVEN_S = 1.0, 6.0


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_frame_that_drips_is_not_waited_for(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    if loop == "uvloop":
        pytest.importorskip("uvloop")
    monkeypatch.setattr(connections, "_FRAME_S", FRAME_S)
    feed = FrameSplitter.feed

    def slow(self: FrameSplitter, data: bytes) -> list[bytes]:
        """As where another thread has Python's lock meanwhile."""
        time.sleep(2 * connections._TURN_S)
        return feed(self, data)

    monkeypatch.setattr(FrameSplitter, "feed", slow)
    peer, begun_s = connect(serve(loop=loop)), time.monotonic()
    for byte in RemotingCommand(9999, body=bytes(4000)).encode():
        try:
            peer.socket.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.1)
        assert time.monotonic() - begun_s < GIVEN_S
