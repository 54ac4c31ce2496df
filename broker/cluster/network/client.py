"""One client of a cluster: its id, its connections, its heartbeats, and what brokers ask of it.

RocketMQ: MQClientInstance, ClientRemotingProcessor (5.3.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Coroutine
from typing import Any

from broker.cluster.network.channels import Channels, checked, is_refusal
from broker.cluster.network.connection import ClientConnection
from broker.cluster.network.event_loop import LoopThread
from broker.cluster.network.route_table import RouteTable
from broker.cluster.network.settings import ClientSettings
from broker.errors import BrokerError
from broker.log_fields import event
from broker.remoting.admin_headers import UnregisterClientRequestHeader
from broker.remoting.bodies import ConsumerData, HeartbeatData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand

_BACK_S = 1.0  # a lost connection is looked after so soon
_LOOK_S = 5.0  # while it cannot be opened again, name servers are asked so often where its broker is
_log = logging.getLogger("broker")

Answerer = Callable[[ClientConnection, RemotingCommand], Coroutine[Any, Any, None]]


class ClusterClient:
    """Registered at brokers as a member of producer groups, or of one consumer group. Runs in the event loop."""

    def __init__(self, settings: ClientSettings, loop: LoopThread) -> None:
        self.settings, self.loop = settings, loop
        self.client_id = f"127.0.0.1@{os.getpid()}#{secrets.token_hex(8)}"
        self.channels = Channels(settings, self._asked, self._changed)
        self.routes = RouteTable(settings, self.channels)
        self.producer_groups: set[str] = set()
        self.consumer: Callable[[], ConsumerData] | None = None  # what the heartbeat says of a consumer group
        self.changed: Callable[[str], None] = lambda _: None  # hears of each connection to a broker, and of its loss
        self._answerers: dict[RequestCode, Answerer] = {}
        self._wake = asyncio.Event()
        self._lost: set[str] = set()  # addresses of brokers whose connection is to be opened again
        self._fresh: set[str] = set()  # addresses that have not heard of this client yet
        self._failing: dict[str, bool] = {}  # addresses whose failure was logged, and whether it was a refusal
        self._tasks: set[asyncio.Task[None]] = set()

    def answers(self, code: RequestCode, answerer: Answerer) -> None:
        """Name what handles a request of brokers."""
        self._answerers[code] = answerer

    async def start(self) -> None:
        """Begin with heartbeats."""
        self.keep(self._beat_on())

    def keep(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside until it ends or the client is closed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # What brokers ask

    def _asked(self, connection: ClientConnection, command: RemotingCommand) -> None:
        try:
            answerer = self._answerers.get(RequestCode(command.code))
        except ValueError:
            answerer = None
        if answerer is not None:
            self.keep(self._answer(answerer, connection, command))
        elif not command.is_oneway:
            text = f" request type {command.code} not supported"
            connection.send(command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, text))

    async def _answer(self, answerer: Answerer, connection: ClientConnection, command: RemotingCommand) -> None:
        try:
            await answerer(connection, command)
        except BrokerError as error:
            _log.warning(
                "a request of %s could not be answered: %s",
                connection.address,
                error,
                extra=event("request-failed", peer=connection.address),
            )

    # Heartbeats

    def _changed(self, address: str, is_open: bool) -> None:
        """A broker forgets a client whose connection is gone: one that is open again is greeted at once.

        One that was closed before its greeting is lost alone, and waits: what stands in front of a broker that is away,
        as the port of a container, takes each connection, and closes it.
        """
        self._lost.discard(address)
        self._fresh.discard(address)
        if address in self.routes.masters:
            (self._fresh if is_open else self._lost).add(address)
            self._wake.set()
            self.changed(address)

    @property
    def _is_registered(self) -> bool:
        return bool(self.producer_groups) or self.consumer is not None

    async def _beat_on(self) -> None:
        """A heartbeat to every broker at each interval; to new connections at once; lost ones are opened again."""
        next_s = look_s = asyncio.get_running_loop().time()
        while True:
            now_s = asyncio.get_running_loop().time()
            self._wake.clear()  # first: what wakes it while it waits for an answer counts
            with contextlib.suppress(BrokerError):
                if now_s >= next_s:
                    next_s = now_s + self.settings.heartbeat_s
                    await self.routes.refresh()
                    await self.beat()
                else:
                    await self._beat_to((self._fresh | self._lost) & set(self.routes.masters))
                    if now_s >= look_s and self._lost & set(self.routes.masters):
                        look_s = now_s + _LOOK_S
                        await self._look_for_lost()
            left_s = next_s - asyncio.get_running_loop().time()
            waits_s = min(left_s, _BACK_S) if self._lost & set(self.routes.masters) else left_s
            with contextlib.suppress(TimeoutError):  # not wait_for: before 3.12 it may lose a cancellation
                async with asyncio.timeout(max(0.01, waits_s)):
                    await self._wake.wait()
            if self._lost and not self._fresh:
                await asyncio.sleep(_BACK_S)

    async def _look_for_lost(self) -> None:
        """A broker whose connection cannot be opened again may be elsewhere: it was started again there, or is another
        server of the same store. Java's client learns it after 30 s; until then nothing is received from it.
        """
        before = set(self.routes.masters)
        await self.routes.look_again()
        await self._beat_to(set(self.routes.masters) - before)

    async def beat(self) -> list[BrokerError]:
        """A heartbeat to every broker that routes name. What does not answer is tried again later; why it did not."""
        return await self._beat_to(set(self.routes.masters))

    async def version(self, address: str) -> int | None:
        """The ordinal of a broker's version; None where it does not answer, or no group is registered."""
        if self.channels.version(address) is None:
            await self._beat_to({address})
        return self.channels.version(address)

    async def _beat_to(self, addresses: set[str]) -> list[BrokerError]:
        if not self._is_registered or not addresses:
            return []
        consumers = () if self.consumer is None else (self.consumer(),)
        body = HeartbeatData(self.client_id, tuple(sorted(self.producer_groups)), consumers).encode()
        failures = await asyncio.gather(*(self._greet(one, body) for one in addresses))
        for address, failure in zip(addresses, failures, strict=True):
            if failure is None:
                self._failing.pop(address, None)
            elif self._failing.get(address) != (refuses := is_refusal(failure)):
                self._failing[address] = refuses
                _log.warning(
                    "no heartbeat to %s, until it is there again: %s",
                    address,
                    failure,
                    extra=event("heartbeat-failed", peer=address),
                )
        return [failure for failure in failures if failure is not None]

    async def _greet(self, address: str, body: bytes) -> BrokerError | None:
        """One heartbeat; why it failed."""
        try:
            answer = await self.channels.request(address, RequestCode.HEART_BEAT, body=body)
            checked(answer, RequestCode.HEART_BEAT, address)
        except BrokerError as error:
            return error
        self._fresh.discard(address)
        self._lost.discard(address)
        return None

    # The end

    async def leave(self) -> None:
        """Tell every broker that this client leaves its groups."""
        groups: list[tuple[str | None, str | None]] = [(group, None) for group in sorted(self.producer_groups)]
        if self.consumer is not None:
            groups.append((None, self.consumer().group))
        open_ = [one for one in self.routes.masters if one in self.channels.addresses]
        await asyncio.gather(*(self._leave(address, groups) for address in open_))

    async def _leave(self, address: str, groups: list[tuple[str | None, str | None]]) -> None:
        with contextlib.suppress(BrokerError):  # it does not answer: nor would it for the next group
            for producer_group, consumer_group in groups:
                header = UnregisterClientRequestHeader(self.client_id, producer_group, consumer_group)
                await self.channels.request(address, RequestCode.UNREGISTER_CLIENT, header)

    async def close(self) -> None:
        """Leave the groups and close every connection."""
        for task in list(self._tasks):
            if task is not asyncio.current_task():
                task.cancel()
        await asyncio.gather(*(one for one in self._tasks if one is not asyncio.current_task()), return_exceptions=True)
        await self.leave()
        self.channels.close()
        await asyncio.sleep(0)  # then the sockets are closed, too
