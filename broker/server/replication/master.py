"""The listener for slaves, and what sends the log to each, in the server's event loop.

A slave gets what is durable here, never more: after a crash of this machine it has no byte that this store lacks.
RocketMQ sends what is written, and its slaves may be ahead of a master that lost its power.
RocketMQ: DefaultHAService, DefaultHAConnection (5.3.3).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from broker.errors import StoreError
from broker.log_fields import event
from broker.remoting.command import RemotingCommand
from broker.remoting.replication import (
    HEARTBEAT_S,
    SILENCE_S,
    TRANSFER_BYTES,
    OffsetReport,
    TransferHeader,
    transfer_from,
)
from broker.server.event_loop import backlog_of, close_soon, listening_socket, write_all
from broker.server.replication.acknowledgements import Acknowledgements, Done
from broker.server.settings import host_and_port
from broker.server.threads.store_thread import Stored
from broker.store.read.log_reader import LogReader

if TYPE_CHECKING:
    from broker.live import LiveStore

SLAVES_MAX = 16
_TRANSFERS_AHEAD = 8  # read in one go while a slave is behind

log = logging.getLogger("broker.server")


class ReplicationMaster:
    """Sends the log of one store to its slaves. All methods but `read` run in the event loop."""

    def __init__(self, store: LiveStore) -> None:
        self._store, self.acknowledgements = store, Acknowledgements()
        self._segment_bytes = store.writer.layout.segment_bytes
        self._reading = ThreadPoolExecutor(1, "checkback-serve-ha")
        self._numbers, self._grown = count(), asyncio.Event()
        self._seen = -1
        self._sent: dict[int, int] = {}  # up to where each slave got the log: no report counts beyond
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: asyncio.Server | None = None

    async def listen(self, address: str) -> None:
        """Open the port; it serves from `start` on. Raises BrokerError."""
        opened, backlog = listening_socket(*host_and_port("ha", address)), backlog_of(asyncio.get_running_loop())
        self._listener = await asyncio.start_server(self._admit, sock=opened, backlog=backlog, start_serving=False)

    def close(self) -> None:
        """Close the port."""
        if self._listener is not None:
            self._listener.close()

    @property
    def address(self) -> str:
        """HOST:PORT for slaves: their haMasterAddress."""
        assert self._listener is not None
        host, port = self._listener.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    async def start(self) -> None:
        """Accept slaves."""
        assert self._listener is not None
        await self._listener.start_serving()

    def counted(self) -> dict[str, int]:
        """For the metrics: slaves, sends that wait for one, bytes that the furthest lacks."""
        reports, end = self.acknowledgements.slaves, self._store.visible_end
        behind = max(0, end - max(reports.values(), default=0))
        return {
            "slaves": len(reports),
            "sends_waiting_for_slave": len(self.acknowledgements),
            "slave_behind_bytes": behind,
        }

    def wake(self) -> None:
        """Look whether the log has grown, and which sends waited too long; the event loop calls it all the time."""
        end = self._store.visible_end
        if end != self._seen:
            self._seen = end
            self._grown.set()
        if self.acknowledgements:
            self.acknowledgements.expire(time.monotonic())

    def wait(self, end: int, done: Done) -> None:
        """See Acknowledgements.wait."""
        self.acknowledgements.wait(end, time.monotonic(), done)

    def waiting(
        self, work: Callable[[], Any], finish: Callable[[Any], None]
    ) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        """The same work and its end, but the end waits for a slave where something was stored that waits.

        RocketMQ: CommitLog.submitReplicaRequest (4.9.7).
        """
        stored: list[Stored] = []

        def noted() -> Any:
            result = work()
            if isinstance(result, Stored) and result.waits_for_slave:
                stored.append(result)
            return result

        def durable(result: Any) -> None:
            if not stored or not isinstance(result, RemotingCommand):
                finish(result)
                return
            self.wait(stored[0].end, lambda code: finish(replace(result, code=int(code))))

        return noted, durable

    async def stop(self) -> None:
        """Close the port and all connections."""
        self.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._reading.shutdown(wait=False)

    # One slave

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task, number, peer = asyncio.current_task(), next(self._numbers), writer.get_extra_info("peername")
        assert task is not None
        self._tasks.add(task)
        try:
            if len(self._tasks) > SLAVES_MAX:
                log.warning("slave %s is refused: %d are connected", peer, SLAVES_MAX, extra=event("slave", peer=peer))
            else:
                await self._serve(number, str(peer), reader, writer)
        except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
            log.info("slave %s left: %s", peer, repr(error), extra=event("slave", peer=peer))
        except StoreError as error:
            log.warning("slave %s: the log cannot be read: %s", peer, error, extra=event("slave", peer=peer))
        except asyncio.CancelledError:  # the server stops
            pass
        finally:
            self.acknowledgements.left(number)
            self._sent.pop(number, None)
            await close_soon(writer)
            self._tasks.discard(task)

    async def _serve(self, number: int, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requested = await _report(reader)
        begin = await asyncio.get_running_loop().run_in_executor(self._reading, lambda: self._store.begin_offset)
        end = self._store.visible_end
        start = transfer_from(requested, end, self._segment_bytes)
        if not begin <= start <= end:
            text = "expired: empty its store, and it begins with the last segment" if start < begin else (
                "is beyond the end: it is not a slave of this store, or this store was replaced by an older copy"
            )  # fmt: skip
            log.warning(
                "slave %s wants the log from %d; it has %d to %d. That %s",
                peer,
                start,
                begin,
                end,
                text,
                extra=event("slave", peer=peer),
            )
            return
        log.info(
            "slave %s gets the log from %d on (it reported %d)", peer, start, requested, extra=event("slave", peer=peer)
        )
        self._sent[number] = start
        self.acknowledgements.reported(number, requested)
        reports = asyncio.create_task(self._take_reports(number, reader))
        sending = asyncio.create_task(self._send(number, writer))
        try:
            done, _ = await asyncio.wait((reports, sending), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            reports.cancel()
            sending.cancel()
            await asyncio.gather(reports, sending, return_exceptions=True)

    async def _take_reports(self, number: int, reader: asyncio.StreamReader) -> None:
        while True:
            self.acknowledgements.reported(number, min(await _report(reader), self._sent[number]))

    async def _send(self, number: int, writer: asyncio.StreamWriter) -> None:
        loop, at = asyncio.get_running_loop(), self._sent[number]
        while True:
            self._grown.clear()
            end = self._store.visible_end
            if at < end:
                data = await loop.run_in_executor(self._reading, self.read, at, end)
                places = range(0, len(data), TRANSFER_BYTES)
                parts = [(place, data[place : place + TRANSFER_BYTES]) for place in places]
                sent = b"".join(TransferHeader(at + place, len(part)).pack() + part for place, part in parts)
                at += len(data)
                self._sent[number] = at
                await write_all(writer, sent)
                continue
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._grown.wait()
            except TimeoutError:
                await write_all(writer, TransferHeader(at, 0).pack())

    def read(self, start: int, end: int) -> bytes:
        """Bytes of the log below `end`, of one segment. Raises StoreError when they are not there any more."""
        writer = self._store.writer
        reader = LogReader(writer.disk, writer.paths.commitlog, self._segment_bytes)
        data = reader.read(start, min(end - start, _TRANSFERS_AHEAD * TRANSFER_BYTES))
        if not data:
            raise StoreError(f"{reader.path_of(start)} has no byte at CommitLog offset {start}: it expired")
        return data


async def _report(reader: asyncio.StreamReader) -> int:
    """The next report of a slave. Raises TimeoutError, IncompleteReadError."""
    async with asyncio.timeout(SILENCE_S):
        return OffsetReport.unpack_from(await reader.readexactly(OffsetReport.SIZE)).commitlog_offset
