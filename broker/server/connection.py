"""One connection: bytes to requests, answers to bytes; bounded, and of no cost to others.

RocketMQ: NettyRemotingServer, NettyRemotingAbstract.processMessageReceived (5.3.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import ssl
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, cast

from broker.errors import ProtocolError
from broker.log_fields import event
from broker.remoting import command as remoting
from broker.remoting.command import ONEWAY, RemotingCommand
from broker.remoting.frames import FrameSplitter
from broker.server.settings import ServerSettings
from broker.server.tls import HANDSHAKE, TlsLayer

UNANSWERED_MAX = 1024  # requests of one connection; more are not read until some are answered
UNSENT_BYTES_MAX = 64 << 20  # answers that the peer does not read; then the connection is closed
HELD_BYTES_MAX = 512 << 20  # unfinished frames and unread answers of all connections together
FAIR_BYTES = 1 << 19  # of these a connection may have so many, whatever others have
WORK_BYTES_MAX = 32 << 20  # large requests of one connection that are not answered; more are not read until some are
_LARGE = 4096  # bytes of a frame; with smaller ones UNANSWERED_MAX is the bound
_FRAME_S = 30.0  # how long a frame may take to arrive
_TURN_S = 0.005  # what comes may take so long; then all others have their turn before this connection is read again
_WRITE_HIGH = 4 << 20

log = logging.getLogger("broker.server")


class Encodable(Protocol):
    """An answer: a command, or what makes the bytes of one."""

    def encode(self) -> bytes: ...


class ConnectionOwner(Protocol):
    """What a connection needs of its server."""

    held_bytes: int  # unfinished frames and unread answers of all connections
    working_bytes: int  # large requests of all connections that are not answered
    tls: ssl.SSLContext | None

    @property
    def settings(self) -> ServerSettings: ...

    def admits(self, connection: Connection) -> bool: ...

    def left(self, connection: Connection) -> None: ...

    def handle(self, connection: Connection, command: RemotingCommand) -> None: ...

    def held_pulls(self, connection: Connection) -> int: ...


class Connection(asyncio.Protocol):
    """The server's end of a client's connection. All of it runs in the event loop but `notify` and `offer`."""

    def __init__(self, server: ConnectionOwner) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter()
        self._tls: TlsLayer | None = None
        self._transport: asyncio.Transport | None = None
        self._frames: deque[bytes] = deque()  # that came, and wait until the peer reads its answers
        self._out: list[bytes] = []
        self._out_bytes = self._unanswered = self._large_bytes = 0
        self._large: dict[int, int] = {}  # bytes of the frame of each large request that is not answered, by its id()
        self._is_paused = self._is_choked = self._is_others_turn = False
        self._opaque = itertools.count()
        self._asked: dict[int, Callable[[RemotingCommand | None], None]] = {}
        self._begun = False
        self._turn_s = 0.0  # how long it took what came in this turn
        self._reported = 0
        self.is_closed = False
        self.address = ""
        self.host = ""
        self.active_s = self._frame_since_s = time.monotonic()

    # Coming and going

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = made = cast("asyncio.Transport", transport)  # uvloop's is of no class of asyncio
        made.set_write_buffer_limits(high=_WRITE_HIGH)
        host, port, *_ = transport.get_extra_info("peername") or ("", 0)
        self.host, self.address = host, f"{host}:{port}"
        if not self._server.admits(self):
            self._close("there are as many connections as the server takes")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio says so
        self.is_closed = True
        self._out.clear()
        self._frames.clear()
        self._out_bytes = 0
        self._report(0)
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            answer(None)
        self._server.left(self)

    def _close(self, reason: str) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            log.info("%s: closed: %s", self.address, reason, extra=event("connection-closed", peer=self.address))
            # A peer that reads gets what uvloop writes at the end of this round, such as an alert of TLS.
            (transport.abort if transport.get_write_buffer_size() else transport.close)()

    def _alert(self) -> None:
        """Send why TLS failed, which its layer wrote: the client's error says it then."""
        if self._tls is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._tls.outgoing())

    def finish(self) -> None:
        """Send what is to be sent, and close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def check(self, now_s: float, idle_s: float) -> None:
        """Close a connection on which nothing happens, or whose frame does not end."""
        with contextlib.suppress(ProtocolError):  # it is closed when it adds to it
            self._report(self._held_bytes())
        if now_s - self.active_s > idle_s and not self._unanswered:
            self._close(f"nothing came for {idle_s:g} s")
            if self._transport is not None:
                self._transport.abort()  # also one that was to close, and whose last bytes nobody reads
        elif self._splitter.held_bytes and not self._is_paused and now_s - self._frame_since_s > _FRAME_S:
            self._close(f"a frame did not end for {_FRAME_S:g} s")

    # What comes

    def data_received(self, data: bytes) -> None:
        self.active_s = time.monotonic()
        try:
            if not self._begun:
                self._begin(data[0])
            if self._tls is not None:
                data = self._tls.receive(data)
                self._send_now(self._tls.outgoing())
            if not self._splitter.held_bytes:
                self._frame_since_s = self.active_s
            frames = self._splitter.feed(data)
            if frames:  # what is held now is another one
                self._frame_since_s = self.active_s
            self._frames.extend(frames)
            self._go_on()
            if self._tls is not None and self._tls.is_ended:
                self._end_tls(self._tls)
            self._report(self._held_bytes())
            self._turn_s += time.monotonic() - self.active_s
            if self._turn_s > _TURN_S:
                self._give_turn(is_others=True)
                self._loop.call_soon(self._next_turn)
        except ProtocolError as error:
            self._close(str(error))
        except ssl.SSLError as error:
            self._alert()
            self._close(f"TLS: {error.reason or 'the handshake failed'}")

    def _end_tls(self, tls: TlsLayer) -> None:
        """The peer ended TLS: what a connection without it does where the peer closed its end."""
        self._flush()
        tls.end()
        self._send_now(tls.outgoing())
        if self._transport is not None:
            self._transport.close()

    def _go_on(self) -> None:
        """Work on what came, as long as the peer reads its answers. Raises ProtocolError."""
        while self._frames and not self._is_choked and not self._is_closing():
            frame = self._frames.popleft()
            self._receive(remoting.decode(frame), len(frame))

    def _next_turn(self) -> None:
        self._turn_s = 0.0
        self._give_turn(is_others=False)

    def _give_turn(self, *, is_others: bool) -> None:
        """Read no more in this round, or go on: uvloop reads up to 32 times from one before it looks at the next."""
        frame_since_s = self._frame_since_s  # which a turn does not change: it is one round
        self._is_others_turn = is_others
        self._balance()
        self._frame_since_s = frame_since_s

    def _begin(self, first: int) -> None:
        self._begun = True
        context = self._server.tls
        if first == HANDSHAKE and context is not None:
            self._tls = TlsLayer(context)
        elif first == HANDSHAKE:
            raise ProtocolError("the client speaks TLS, and this server has no certificate")
        elif context is not None and self._server.settings.tls_only:
            raise ProtocolError("the client does not speak TLS")

    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _held_bytes(self) -> int:
        """What this connection keeps in memory."""
        if self.is_closed:
            return 0
        return self._splitter.held_bytes + sum(map(len, self._frames)) + self._unsent_bytes()

    def _unsent_bytes(self) -> int:
        return self._out_bytes + (0 if self._transport is None else self._transport.get_write_buffer_size())

    def _report(self, held_bytes: int) -> None:
        self._server.held_bytes += held_bytes - self._reported
        self._reported = held_bytes
        if held_bytes > FAIR_BYTES and self._server.held_bytes > HELD_BYTES_MAX:
            raise ProtocolError("unfinished frames and unread answers take too much memory")

    def _receive(self, command: RemotingCommand, size: int) -> None:
        if command.is_response:
            answer = self._asked.pop(command.opaque, None)
            if answer is not None:
                answer(command)
            return
        self._unanswered += 1
        if size > _LARGE:
            self._large[id(command)] = size
            self._count_large(size)
        self._balance()
        self._server.handle(self, command)

    def _count_large(self, size: int) -> None:
        self._large_bytes += size
        self._server.working_bytes += size

    def waits(self, request: RemotingCommand) -> None:
        """A request is answered when something happens: of what it said nothing is needed any more, or kept."""
        request.ext, request.body = {}, b""
        self._count_large(-self._large.pop(id(request), 0))
        self._balance()

    def answered(self, request: RemotingCommand, answer: Encodable | None) -> None:
        """A request is done; one-way requests get no answer, whatever became of them."""
        self._unanswered -= 1
        if self._large:
            self._count_large(-self._large.pop(id(request), 0))
        if answer is not None and not request.is_oneway:
            self.send(answer.encode())
        self._balance()

    # What goes

    def send(self, frame: bytes) -> None:
        """Send a frame, with all others of this round of the loop."""
        if self.is_closed:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes > _WRITE_HIGH:  # many in one round: the transport says when it is too much
            self._flush()

    def _flush(self) -> None:
        if self._out and not self.is_closed:
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            if self._is_closing():  # nothing can be sent, and TLS that was ended refuses it
                return
            if self._tls is not None:
                self._tls.send(data)
                data = self._tls.outgoing()
            self._send_now(data)

    def _send_now(self, data: bytes) -> None:
        if not data or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            self._close("it does not read its answers")
        elif self._is_choked or self._reported:
            try:
                self._report(self._held_bytes())
            except ProtocolError as error:
                self._close(str(error))

    def notify(self, command: RemotingCommand) -> None:
        """Send a request of ours that needs no answer; any thread may."""
        self._loop.call_soon_threadsafe(self._notify, command)

    def offer(self, command: RemotingCommand, timeout_s: float) -> bool:
        """Send such a request to a peer that keeps up; False, and nothing sent, to one that does not, or has gone.

        Any thread may but that of the event loop, for which it waits.
        """
        taken = Future[bool]()
        try:
            self._loop.call_soon_threadsafe(self._offer, command, taken)
            return taken.result(timeout_s)
        except (RuntimeError, TimeoutError):  # the loop has ended, or has no time
            return not taken.cancel() and taken.result()

    def _offer(self, command: RemotingCommand, taken: Future[bool]) -> None:
        if taken.set_running_or_notify_cancel():
            keeps_up = not self._is_choked and not self._is_closing()
            if keeps_up:
                self._notify(command)
                self._flush()
            taken.set_result(keeps_up)

    def _notify(self, command: RemotingCommand) -> None:
        command.opaque, command.flag = next(self._opaque), ONEWAY
        self.send(command.encode())

    def ask(self, command: RemotingCommand, answer: Callable[[RemotingCommand | None], None], timeout_s: float) -> None:
        """Send a request of ours; `answer` gets the response, None when none comes in time."""
        command.opaque, command.flag = next(self._opaque), 0
        self._asked[command.opaque] = answer
        self.send(command.encode())
        self._loop.call_later(timeout_s, self._give_up, command.opaque)

    def _give_up(self, opaque: int) -> None:
        answer = self._asked.pop(opaque, None)
        if answer is not None:
            answer(None)

    def pause_writing(self) -> None:
        self._is_choked = True
        self._balance()

    def resume_writing(self) -> None:
        self._is_choked = False
        self._loop.call_soon(self._resume)

    def _resume(self) -> None:
        try:
            self._go_on()
            self._report(self._held_bytes())
        except ProtocolError as error:
            self._close(str(error))
        self._balance()

    def _balance(self) -> None:
        """Read on, or not."""
        is_full = self._large_bytes > FAIR_BYTES and self._has_its_share()
        waits = self._is_choked or self._is_others_turn or is_full
        if not self._is_paused and not waits and self._unanswered < UNANSWERED_MAX:
            return
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        wanted = waits or self._unanswered >= UNANSWERED_MAX + self._server.held_pulls(self)
        if wanted != self._is_paused:
            self._is_paused = wanted
            self._frame_since_s = time.monotonic()  # nothing can come while it is paused
            (transport.pause_reading if wanted else transport.resume_reading)()

    def _has_its_share(self) -> bool:
        """Whether its large requests are as many bytes as it may have at a time."""
        return self._large_bytes >= WORK_BYTES_MAX or self._server.working_bytes > HELD_BYTES_MAX
