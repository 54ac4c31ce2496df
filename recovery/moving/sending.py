"""Send what a store has, each message once as far as that can be known.

A queue is sent by one task, a message after the other. After a kill, and after an answer that did not come, what the
cluster's queue has at its end decides; a moment passes first, in which a request that is on its way arrives.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from zlib import crc32

from broker.errors import BrokerError, ClusterError
from broker.format.topics import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from broker.producing.destination import STORED
from broker.remoting.bodies import MessageQueue
from recovery.moving.catalog import SENDING, SENT, MoveCatalog, QueueProgress
from recovery.moving.contents import QueueContent, StoreContents
from recovery.moving.conversion import BrokerAbility, CarriedMessage, carried, origin_of
from recovery.moving.report import MoveReport
from recovery.moving.target import MoveTarget, may_be_there

SETTLE_S = 4.0
"""A request on its way arrives within this time: a client waits 3 s for its answer, and a broker drops it sooner."""
TRIES = 8
_BACKOFF_S = (0.5, 1.0, 2.0, 5.0)
_AT_ONCE = 8  # queues
_NOTE_EVERY, _NOTE_EVERY_S = 200, 1.0
Progress = Callable[[int, int], None]  # messages done, messages in all


class Sending:
    """One run. Its coroutines run in the target's loop."""

    def __init__(
        self, contents: StoreContents, target: MoveTarget, catalog: MoveCatalog, report: MoveReport,
        *, is_resumed: bool, progress: Progress,
    ) -> None:  # fmt: skip
        self._contents, self._target, self._catalog, self._report = contents, target, catalog, report
        self._is_resumed, self._progress = is_resumed, progress
        self._done = self._total = 0
        self._abilities: dict[str, BrokerAbility] = {}

    def broker_of(self, topic: str, queue_id: int) -> str:
        """Which broker gets a queue: by turns, another first one for each topic."""
        brokers = self._target.brokers
        return brokers[(crc32(topic.encode()) + queue_id) % len(brokers)]

    # Queues

    async def queues(self) -> None:
        """Send the messages of all queues. Raises ClusterError when the cluster cannot be reached for a while."""
        if self._is_resumed:
            await asyncio.sleep(SETTLE_S)
        wanted = self._contents.queues()
        self._total = sum(one.end - one.first for one in wanted)
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(queue: QueueContent) -> None:
            async with turn:
                await self._queue(queue)

        tasks = [asyncio.create_task(one(queue)) for queue in wanted]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _queue(self, queue: QueueContent) -> None:
        known = self._catalog.queue(queue.topic, queue.queue_id)
        state = await self._new(queue) if known is None else await self._caught_up(queue, known)
        self._report.sent_before += state.next_offset - queue.first
        self._advance(state.next_offset - queue.first)
        noted, noted_s = state.next_offset, time.monotonic()
        try:
            for queue_offset, record in self._contents.records(queue, state.next_offset):
                message = carried(record, self._contents.store_id)
                at = await self._send(message, state.target, {}, state.target_next)
                state = replace(state, next_offset=queue_offset + 1, target_next=at + 1)
                self._report.sent += 1
                self._advance(1)
                if queue_offset - noted >= _NOTE_EVERY or time.monotonic() - noted_s >= _NOTE_EVERY_S:
                    self._catalog.put_queue(state)
                    noted, noted_s = queue_offset, time.monotonic()
        finally:
            self._catalog.put_queue(state)

    def _advance(self, count: int) -> None:
        self._done += count
        self._progress(self._done, self._total)

    async def _new(self, queue: QueueContent) -> QueueProgress:
        """A queue of which nothing was sent: where it begins in the cluster is on disk before its first message."""
        place = MessageQueue(queue.topic, queue.queue_id, self.broker_of(queue.topic, queue.queue_id))
        _, end = await self._target.range(place)
        made = QueueProgress(queue.topic, queue.queue_id, place.broker_name, end, queue.first, end)
        self._catalog.put_queue(made)
        return made

    async def _caught_up(self, queue: QueueContent, state: QueueProgress) -> QueueProgress:
        """Take what was sent and not noted from the end of the cluster's queue."""
        found = await self._tail(state.target, state.target_next)
        for queue_offset, record in self._contents.records(queue, state.next_offset):
            if record.commitlog_offset not in found:
                break
            self._report.recognised += 1
            state = replace(state, next_offset=queue_offset + 1, target_next=found[record.commitlog_offset] + 1)
        self._catalog.put_queue(state)
        return state

    async def _tail(self, queue: MessageQueue, start: int) -> dict[int, int]:
        """CommitLog offset in the store → queue offset in the cluster, of what a queue has from an offset on."""
        first, end = await self._target.range(queue)
        found: dict[int, int] = {}
        async for queue_offset, message in self._target.read(queue, max(first, start), end):
            origin = origin_of(message, self._contents.store_id)
            if origin is not None:
                found.setdefault(origin, queue_offset)
        return found

    async def _send(
        self, message: CarriedMessage, queue: MessageQueue, extra: Mapping[str, str], start: int | None
    ) -> int:
        """Send one message and return its queue offset. `start`: where it would be in the queue, if it was stored.

        Raises ClusterError after some tries; MessageRejected, NotPermitted.
        """
        for attempt in range(TRIES):
            try:
                placed = await self._target.send(queue, message, extra)
            except ClusterError as error:
                if attempt == TRIES - 1:
                    raise
                await asyncio.sleep(SETTLE_S if may_be_there(error) else _BACKOFF_S[min(attempt, len(_BACKOFF_S) - 1)])
                await self._target.look_again()
                at = await self._found(message, queue, start) if may_be_there(error) else None
                if at is not None:
                    self._report.recognised += 1
                    return at
            else:
                self._report.less_safe += placed.status != STORED
                return placed.header.queue_offset
        raise AssertionError  # the last try returns or raises

    async def _found(self, message: CarriedMessage, queue: MessageQueue, start: int | None) -> int | None:
        """Where a message is that may have been stored; None when it is not there. Raises what a second look raises."""
        try:
            return await self._place(message, queue, start)
        except BrokerError:
            await asyncio.sleep(_BACKOFF_S[-1])
            return await self._place(message, queue, start)

    async def _place(self, message: CarriedMessage, queue: MessageQueue, start: int | None) -> int | None:
        if start is not None:
            return (await self._tail(queue, start)).get(message.commitlog_offset)
        return 0 if await self.is_there(message, queue.broker_name) else None

    # Delayed messages, and transactions in doubt

    async def singles(self, bindings: Mapping[str, str]) -> None:
        """Send what is not in a queue of its topic."""
        messages = [*self.delayed(), *self.in_doubt(bindings)]
        if any(known is not None and known[1] == SENDING for known in map(self._known, messages)):
            await asyncio.sleep(SETTLE_S)
        for message in messages:
            await self._single(message)

    def delayed(self) -> list[CarriedMessage]:
        """The delayed messages, in the order in which they are due."""
        store_id = self._contents.store_id
        found = [carried(one, store_id, due_ms=self._contents.due_ms(one)) for one in self._contents.delayed()]
        return sorted(found, key=lambda one: (one.due_ms, one.commitlog_offset))

    def in_doubt(self, bindings: Mapping[str, str]) -> list[CarriedMessage]:
        """The half messages, in log order."""
        return [
            carried(self._contents.record(one.commitlog_offset), self._contents.store_id, bindings=bindings)
            for one in self._contents.in_doubt(_now_ms())
        ]

    def _known(self, message: CarriedMessage) -> tuple[str, int] | None:
        return self._catalog.single(message.commitlog_offset)

    async def _single(self, message: CarriedMessage) -> None:
        known = self._known(message)
        broker_name = self.broker_of(message.topic, message.queue_id) if known is None else known[0]
        if known is not None and known[1] == SENT:
            self._report.sent_before += 1
        elif known is not None and await self.is_there(message, broker_name):
            self._report.sent_before += 1
            self._report.recognised += 1
        else:
            self._catalog.put_single(message.commitlog_offset, broker_name, SENDING)
            queue = MessageQueue(message.topic, message.queue_id, broker_name)
            extra = {} if message.is_half else await self._delay(message, broker_name)
            await self._send(message, queue, extra, None)
            self._report.sent += 1
        self._catalog.put_single(message.commitlog_offset, broker_name, SENT)
        self._report.in_doubt += message.is_half
        self._report.delayed += not message.is_half

    async def _delay(self, message: CarriedMessage, broker_name: str) -> dict[str, str]:
        if broker_name not in self._abilities:
            self._abilities[broker_name] = await self._target.ability(broker_name)
        return self._abilities[broker_name].delay_of(message.due_ms, _now_ms())

    async def is_there(self, message: CarriedMessage, broker_name: str) -> bool:
        """Whether a broker's index has the message, wherever it waits or was delivered."""
        topics = [message.topic, HALF_TOPIC] if message.is_half else [message.topic, SCHEDULE_TOPIC, TIMER_TOPIC]
        found = await self._target.by_unique_key(broker_name, topics, message.unique_key)
        return any(origin_of(one, self._contents.store_id) == message.commitlog_offset for one in found)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
