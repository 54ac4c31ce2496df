"""A server in a thread of its own: listens, hands requests to their threads, answers, and stops gracefully.

    event loop      connections, and what needs no waiting
    append, fsync   what writes to the store                (threads/store_thread.py)
    group           heartbeats, positions, locks, in order         (threads/turns.py)
    read            pulls, queries, statistics
    tick            signs of life, delayed messages that are due, positions for RocketMQ
    check           transactions without an end

RocketMQ: BrokerController, NamesrvController (5.3.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from broker.consuming.group.members import MemberKind
from broker.consuming.group.membership import Membership
from broker.consuming.group.offset_export import SCHEDULE_GROUP
from broker.consuming.reading import Leftovers
from broker.consuming.schedule import Schedule
from broker.errors import StoreError
from broker.format.topics import SCHEDULE_TOPIC
from broker.log_fields import event
from broker.remoting.codes import ResponseCode
from broker.remoting.command import RemotingCommand
from broker.server.acl import AccessControl
from broker.server.clients import Clients
from broker.server.connection import Connection
from broker.server.context import Refused, Request, ServerContext
from broker.server.counters import Counters
from broker.server.dispatch import Lane, Route, admitted, refusal
from broker.server.event_loop import backlog_of, hand_over, listening_socket, loop_name, new_event_loop
from broker.server.group_positions import GroupPositions
from broker.server.metrics import MetricsPage, Sample
from broker.server.registration import Registration
from broker.server.replication.master import ReplicationMaster
from broker.server.requests.ends import ProducerChecks, Resolver
from broker.server.requests.pulls import Held, HeldPulls, look
from broker.server.requests.relay import TIMEOUT_S, Passed
from broker.server.requests.sends import observed
from broker.server.settings import ServerSettings, host_and_port, store_host
from broker.server.siblings.queue_locks import QueueLocks
from broker.server.siblings.registry import SiblingRegistry
from broker.server.threads.loop_threads import LoopThreads
from broker.server.threads.store_thread import StoreThread
from broker.server.threads.turns import TurnThreads
from broker.server.tls import server_context
from broker.store.shared.group_file import GroupFile

if TYPE_CHECKING:
    from broker.live import LiveStore

WAITING_MAX, WAITING_BYTES_MAX = 20_000, 1 << 30  # requests at work; more are answered with SYSTEM_BUSY
_POLL_S, _TICK_S, _LOOK_S = 0.002, 0.05, 1.0
_READERS, _METRICS_HOST, _STOP_S = 2, "127.0.0.1", 10.0

log = logging.getLogger("broker.server")


class Server:
    """A running server. Close it, or use it in a `with` statement; the store stays open.

    The arguments are those of `broker.serve`. Raises BrokerError when it cannot listen.
    """

    address: str
    """HOST:PORT where it listens, with the port that the system chose for 0."""

    def __init__(self, store: LiveStore, settings: ServerSettings, resolver: Resolver | None = None) -> None:
        self._control = None if settings.acl is None else AccessControl.read(settings.acl)
        self.tls = None
        if settings.certificate is not None and settings.private_key is not None:
            self.tls = server_context(settings.certificate, settings.private_key)
        self._loop, self._looked_s = new_event_loop(settings.loop), time.monotonic()
        self._connections: set[Connection] = set()
        self._working = self.held_bytes = self.working_bytes = 0
        self._is_ready, self._is_stopping, self._is_closed = threading.Event(), threading.Event(), False
        self._metrics: asyncio.Server | None = None
        self._registration: Registration | None = None
        self.replication = ReplicationMaster(store) if settings.ha else None
        opened: list[asyncio.Server | ReplicationMaster] = [self.replication] if self.replication else []
        try:
            self._listener = self._loop.run_until_complete(self._listen(settings.listen))
            opened.append(self._listener)
            if settings.metrics_port is not None:
                self._metrics = self._loop.run_until_complete(self._listen_for_metrics(settings.metrics_port))
                opened.append(self._metrics)
            if self.replication is not None:
                self._loop.run_until_complete(self.replication.listen(settings.ha))
            self._open(store, settings, resolver)
        except BaseException:
            for one in opened:
                one.close()
            self._loop.close()
            raise

    async def _listen(self, listen: str) -> asyncio.Server:
        opened, make = listening_socket(*host_and_port("listen", listen)), lambda: Connection(self)
        return await self._loop.create_server(make, sock=opened, backlog=backlog_of(self._loop), start_serving=False)

    async def _listen_for_metrics(self, port: int) -> asyncio.Server:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            run = partial(self._loop.run_in_executor, self._readers.pool)
            await MetricsPage(self.context, run, self._counted).answer(reader, writer)

        opened = listening_socket(_METRICS_HOST, port)
        return await asyncio.start_server(answer, sock=opened, backlog=backlog_of(self._loop), start_serving=False)

    def _counted(self) -> list[Sample]:
        """What the server itself counts, for the metrics."""
        found = {"connections": len(self._connections), "held_pulls": len(self.held), "requests_working": self._working}
        if self.replication is not None:
            found |= self.replication.counted()
        return [(f"checkback_{name}", "gauge", {}, count) for name, count in found.items()]

    @property
    def loop(self) -> str:
        """The library of its event loop: uvloop or asyncio."""
        return loop_name(self._loop)

    @property
    def ha_address(self) -> str:
        """HOST:PORT where slaves connect (their haMasterAddress); empty when there is no such port."""
        return "" if self.replication is None else self.replication.address

    @property
    def metrics_address(self) -> str:
        """HOST:PORT of /metrics and /healthz; empty when they are not wanted."""
        if self._metrics is None:
            return ""
        host, port = self._metrics.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def _open(self, store: LiveStore, settings: ServerSettings, resolver: Resolver | None) -> None:
        host, port = self._listener.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        advertised = settings.advertise or self.address
        with contextlib.ExitStack() as undone:  # what is left of a server that did not start would count as a member
            kind = MemberKind.REGISTERED if settings.name_servers else MemberKind.SERVER
            positions = GroupPositions(store, kind, (clients := Clients()).sharing)
            undone.callback(positions.table.close)
            self._member = Membership(positions.table.cells, SCHEDULE_GROUP, (SCHEDULE_TOPIC,))
            undone.callback(self._member.leave)
            groups = GroupFile(store.path, store.writer.disk, store.writer.append_lock)
            self.context = ServerContext(
                settings, store, advertised, store_host(advertised), clients, positions, groups, Counters(),
                SiblingRegistry(store, self._member, settings, advertised), QueueLocks(store, positions.table.cells),
                started_ms=time.time_ns() // 1_000_000,
            )  # fmt: skip
            undone.callback(self.context.siblings.leave)
            self.context.siblings.check_alike()
            self.held = HeldPulls(self.context, self._look_again)
            self._schedule = Schedule(store, positions.table, self._member, settings.delays_ms)
            self._leftovers = Leftovers(store)
            self._checks = ProducerChecks(self.context, resolver, self._is_stopping.is_set)
            self._store_thread = StoreThread(store.writer.settle, self._deliver, waits=store.writer.sync != "os")
            undone.callback(self._store_thread.close)
            self._group_thread = TurnThreads(1, "checkback-serve-group", self._deliver)
            undone.callback(self._group_thread.pool.shutdown)
            self._readers = TurnThreads(_READERS, "checkback-serve-read", self._deliver)
            undone.callback(self._readers.pool.shutdown)
            loops = {"loop": self._run, "tick": self._tick, "check": self._check}
            self._threads = LoopThreads(self._is_stopping, loops)
            undone.pop_all()
        self._is_ready.wait()
        if settings.name_servers:
            self._registration = Registration(self.context, self.ha_address)
            try:
                self._registration.start()
            except BaseException:
                self.close()
                raise

    def __repr__(self) -> str:
        return f"<broker.Server {self.address} of {self.context.store.path!r}>"

    @property
    def settings(self) -> ServerSettings:
        """What it was started with."""
        return self.context.settings

    # The event loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
            self._loop.close()
        finally:  # also where the loop failed: nobody waits in vain for a server that does not answer
            self._is_stopping.set()
            self._is_ready.set()

    async def _serve(self) -> None:
        await self._listener.start_serving()
        if self._metrics is not None:
            await self._metrics.start_serving()
        if self.replication is not None:
            await self.replication.start()
        self._is_ready.set()
        while not self._is_stopping.is_set():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001 - as without a descriptor that is free: the next turn may do
                self.context.failed("a turn of the event loop", error)
                await asyncio.sleep(_LOOK_S)
            await asyncio.sleep(_POLL_S)
        await self._stop()

    def _turn(self) -> None:
        """What waits is looked at again."""
        self.held.wake()
        if self.replication is not None:
            self.replication.wake()
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            self.context.counters.sample()
            for connection in list(self._connections):
                connection.check(now_s, self.settings.idle_s)

    async def _stop(self) -> None:
        """Accept nothing more, answer what was accepted, and close."""
        self._listener.close()
        if self._metrics is not None:
            self._metrics.close()
        self.held.release_all()
        deadline = time.monotonic() + _STOP_S
        while self._working and time.monotonic() < deadline:
            if self.replication is not None:
                self.replication.wake()
            await asyncio.sleep(_POLL_S)
        if self.replication is not None:
            await self.replication.stop()
        for connection in list(self._connections):
            connection.finish()
        while self._connections and time.monotonic() < deadline:  # noqa: ASYNC110 - asyncio changes it
            await asyncio.sleep(_POLL_S)
        others = asyncio.all_tasks() - {asyncio.current_task()}  # of connections to /metrics that said nothing yet
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def admits(self, connection: Connection) -> bool:
        """Take a new connection; False when there are too many."""
        self._connections.add(connection)
        return len(self._connections) <= self.settings.connections_max

    def left(self, connection: Connection) -> None:
        """A connection is gone: its client leaves its groups."""
        self._connections.discard(connection)
        self.held.drop(connection)
        for group, peers in self.context.clients.drop(connection):
            self.context.notify_members(group, peers)

    def held_pulls(self, connection: Connection) -> int:
        """How many pulls of a connection wait."""
        return self.held.count_of(connection)

    def handle(self, connection: Connection, command: RemotingCommand) -> None:
        """Work on a request, in the thread of its kind."""
        self._working += 1
        request = Request(command, connection, None)
        try:
            if self._is_stopping.is_set():
                raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the server stops")
            if self._working > WAITING_MAX or self.working_bytes > WAITING_BYTES_MAX:
                raise Refused(ResponseCode.SYSTEM_BUSY, "[OVERLOAD] too many requests wait")
            route, request = admitted(self.context, self._control, request)
            if route.lane is Lane.STORE:
                self._store(request, route)
            elif route.lane is Lane.LOOP:
                self._finish(request, route.handler(self.context, request))
            elif route.at_once is not None and (done := route.at_once(self.context, request)) is not None:
                self._finish(request, done)
            else:
                work = partial(route.handler, self.context, request)
                threads = self._group_thread if route.lane is Lane.GROUP else self._readers
                threads.submit(connection, work, partial(self._finish, request))
        except Exception as error:  # noqa: BLE001 - it is the answer to this request
            self._finish(request, error)

    def _store(self, request: Request, route: Route) -> None:
        """Have something stored, and where sends wait for slaves, answered when one has it."""
        finish = observed(request, partial(self._finish, request))
        if self.replication is not None and self.settings.ha_sync:
            work, finish = self.replication.waiting(partial(route.handler, self.context, request), finish)
            self._store_thread.submit(work, finish, of=request.connection)
        elif route.at_once is not None:
            do = self._store_thread.do
            do(route.handler, finish, route.at_once, self.context, request, of=request.connection)
        else:
            work = partial(route.handler, self.context, request)
            self._store_thread.submit(work, finish, of=request.connection)

    def _deliver(self, results: list[tuple[Callable[[Any], None], Any]]) -> None:
        """Take results into the event loop; any thread may."""

        def deliver() -> None:
            for done, result in results:
                done(result)

        hand_over(self._loop, deliver)

    def _finish(self, request: Request, result: Any) -> None:
        """Answer a request, or let it wait for something else."""
        if isinstance(result, Held):
            if not self._is_stopping.is_set() and not request.connection.is_closed and self.held.hold(result):
                self._working -= 1
                request.connection.waits(request.command)
                return
            result.until_s = 0.0
            self._look_again(result, counted=True)
        elif isinstance(result, Passed):
            result.peer.ask(result.command, lambda response: self._finish(request, result.answer(response)), TIMEOUT_S)
        else:
            self._working -= 1
            answer = refusal(self.context, request.command, result) if isinstance(result, BaseException) else result
            request.connection.answered(request.command, answer)

    def _look_again(self, held: Held, *, counted: bool = False) -> None:
        if not counted:
            self._working += 1
        request = held.request
        self._readers.submit(request.connection, partial(look, self.context, held), partial(self._finish, request))

    # The other threads

    def _tick(self) -> None:
        """Every 50 ms, as a consumer of this process does. What fails holds up nothing else."""
        clock, clients, positions = self.context.store.writer.clock, self.context.clients, self.context.positions
        steps: tuple[Callable[[], object], ...] = (
            self._member.beat, partial(positions.keep, clients.clustered), self.context.meet_siblings,
            self._leftovers.finish, lambda: self._schedule.deliver(clock.now_ms()), positions.table.exchange.export,
        )  # fmt: skip
        failures = dict[str, Exception]()  # by what they say: a store that was closed fails in each step
        while not self._is_stopping.wait(_LOOK_S if failures else _TICK_S):
            failures.clear()
            for step in steps:
                try:
                    step()
                except Exception as error:  # noqa: BLE001 - whatever it is, the next time may do
                    failures[str(error)] = error
            for failure in failures.values():
                self.context.failed("background work", failure)

    def _check(self) -> None:
        while not self._is_stopping.wait(self.settings.check_interval_s):
            try:
                self._checks.round()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next round may do
                self.context.round_failed(error)

    # The end

    def close(self) -> None:
        """Stop listening, answer what was accepted, and end all threads. Closing twice is allowed."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._registration is not None:
            self._registration.close()
        self._threads.end()
        self._store_thread.close()
        self._group_thread.pool.shutdown()
        self._readers.pool.shutdown(cancel_futures=True)  # what `_stop` waited for in vain
        self._schedule.release()
        self.context.siblings.leave()
        self._member.leave()
        with contextlib.suppress(StoreError):  # the positions themselves stand in the cells
            self.context.positions.close()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until another thread closes the server, at most `timeout_s` seconds (None: no limit); whether it did."""
        return self._is_stopping.wait(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def start(store: LiveStore, settings: ServerSettings, resolver: Resolver | None = None) -> Server:
    """Serve a store; it listens when this returns. Raises BrokerError, StoreError for one that was closed."""
    store.writer.check_open()
    server = Server(store, settings, resolver)
    values = os.getpid(), store.path, server.address, server.loop
    log.info("process %d serves %s on %s (%s)", *values, extra=event("serving", store=store.path))
    return server
