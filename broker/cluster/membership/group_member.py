"""A member of a consumer group at work: which queues are ours, pulls, positions, locks; tasks of the event loop.

    members and queues ──► averagely ──► ours: lock (ordered), position, pull on and on
                                     └─► not ours any more: position written, unlocked

RocketMQ: RebalanceImpl, DefaultMQPushConsumerImpl.pullMessage, MQClientInstance.startScheduledTask (5.3.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection

from broker.cluster.membership.allocation import averagely
from broker.cluster.membership.group_calls import GroupCalls, Pulled
from broker.cluster.membership.holdings import HeldQueue, Holdings
from broker.cluster.membership.running_info import encode_running_info
from broker.cluster.membership.written_positions import WrittenPositions
from broker.cluster.network.channels import is_refusal
from broker.cluster.network.client import ClusterClient
from broker.cluster.network.connection import ClientConnection
from broker.consuming.group.positions import Start
from broker.consuming.tags import Selection
from broker.errors import BrokerError, NotPermitted
from broker.log_fields import event
from broker.message import ReceivedMessage
from broker.remoting.bodies import ConsumerData, MessageQueue, SubscriptionData
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand

REBALANCE_S, UNBALANCED_S = 20.0, 1.0
LOCK_S, LOCK_VALID_S = 20.0, 30.0  # a broker keeps a lock for 60 s
COMMIT_S = 1.0
_AFTER_FAILURE_S, _FULL_S = 1.0, 0.02
_log = logging.getLogger("broker")


class GroupMember:
    """Keeps the holdings of one consumer. Runs in the event loop."""

    def __init__(
        self,
        client: ClusterClient,
        holdings: Holdings,
        data: ConsumerData,
        *,
        selection: Selection,
        start: Start,
        ordered: bool,
        ack_timeout_s: float,
        send_back: Callable[[ReceivedMessage], object],
    ) -> None:
        self._client, self._holdings, self._data = client, holdings, data
        self._selection, self._start, self._ordered = selection, start, ordered
        self._ack_timeout_s, self._send_back = ack_timeout_s, send_back
        self._calls = GroupCalls(client, data.group)
        self._positions = WrittenPositions(self._calls, holdings)
        self._subscriptions: dict[str, SubscriptionData] = {one.topic: one for one in data.subscriptions}
        self._notified = asyncio.Event()
        self._started_ms = time.time_ns() // 1_000_000
        self._before: frozenset[MessageQueue] = frozenset()  # the queues that were there when we joined
        self._failing: set[str | MessageQueue] = set()  # topics and queues whose failure was logged
        client.consumer, client.changed = lambda: self._data, self._connection_changed
        client.answers(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, self._members_changed)
        client.answers(RequestCode.GET_CONSUMER_RUNNING_INFO, self._asked_how_it_runs)

    @property
    def calls(self) -> GroupCalls:
        return self._calls

    async def join(self) -> None:
        """Register at the brokers and take the first queues.

        Raises ClusterError when no name server answers, NotPermitted when a broker does not let it into the group.
        """
        routes = {topic: await self._client.routes.route(topic) for topic in self._subscriptions}
        self._before = frozenset(
            queue for topic, route in routes.items() if route is not None for queue in route.readable(topic)
        )
        await self._client.routes.cluster()
        for failure in await self._client.beat():
            if isinstance(failure, NotPermitted):  # it would wait for its queues without end
                raise failure
        balanced = await self._rebalance()
        await self._client.start()
        self._client.keep(self._rebalance_on(balanced=balanced))
        self._client.keep(self._commit_on())
        if self._ordered:
            self._client.keep(self._lock_on())

    async def leave(self) -> None:
        """Write the positions, give the locks back, leave the group."""
        held = self._holdings.held
        for one in held:
            one.is_draining = True
        await asyncio.gather(*(self._give_up(one) for one in held))
        await self._client.close()

    # Which queues are ours

    async def _members_changed(self, _connection: ClientConnection, _command: RemotingCommand) -> None:
        self._notified.set()

    async def _asked_how_it_runs(self, connection: ClientConnection, command: RemotingCommand) -> None:
        body = encode_running_info(
            self._data, self._holdings.held, name_servers=";".join(self._client.settings.name_servers),
            ordered=self._ordered, started_ms=self._started_ms,
        )  # fmt: skip
        connection.send(command.answer(ResponseCode.SUCCESS, body=body))

    async def _rebalance_on(self, *, balanced: bool) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REBALANCE_S if balanced else UNBALANCED_S):  # see ClusterClient._beat_on
                    await self._notified.wait()
            self._notified.clear()
            balanced = await self._rebalance()

    async def _rebalance(self) -> bool:
        """Give up what is another member's, take what is ours; False when something is missing yet."""
        balanced = True
        for topic in self._subscriptions:
            try:
                balanced &= await self._rebalance_topic(topic)
                self._failing.discard(topic)
            except BrokerError as error:
                if self._begins_to_fail(topic):
                    _log.warning(
                        "group %s, topic %s: the queues stay as they are, until its brokers answer again: %s",
                        self._data.group,
                        topic,
                        error,
                        extra=event("queues-unchanged", group=self._data.group, topic=topic),
                    )
                balanced = False
        return balanced

    def _begins_to_fail(self, place: str | MessageQueue) -> bool:
        """Whether a topic or a queue did not fail before: it is tried every second, and said once."""
        is_first = place not in self._failing
        self._failing.add(place)
        return is_first

    async def _rebalance_topic(self, topic: str) -> bool:
        routes = self._client.routes
        held = {one.queue: one for one in self._holdings.held if one.queue.topic == topic}
        route = await routes.route(topic, max_age_s=None if held else 0.0)
        queues = () if route is None else route.readable(topic)
        if not queues:
            return False
        client_ids = await self._members({queue.broker_name for queue in queues})
        if self._client.client_id not in client_ids:  # a broker that was started again, or that we are new to
            await self._client.beat()
            return False
        mine = set(averagely(queues, client_ids, self._client.client_id))
        leaving = [one for queue, one in held.items() if queue not in mine]
        left = [await self._leave_queue(one) for one in leaving]
        wanted = [queue for queue in mine if queue not in held]
        taken = await self._take(wanted)
        for queue in mine & set(held):
            held[queue].is_draining = False
        return taken == len(wanted) and all(left)

    async def _members(self, broker_names: set[str]) -> tuple[str, ...]:
        """The group's members, by the first broker that answers. Raises ClusterError when none does."""
        failure: BrokerError | None = None
        for broker_name in sorted(broker_names):
            try:
                return await self._calls.members(broker_name)
            except BrokerError as error:
                failure = error
        assert failure is not None  # there is a broker, or there were no queues
        raise failure

    async def _take(self, queues: list[MessageQueue]) -> int:
        """Begin with queues; how many could be taken. An ordered one needs its lock first."""
        if self._ordered and queues:
            locked = await self._lock(queues)
            queues = [queue for queue in queues if queue in locked]
        taken = 0
        silent: set[str] = set()  # brokers that do not answer: asked once, not for each of their queues
        for queue in queues:
            if queue.broker_name in silent:
                continue
            try:
                position = await self._calls.start_offset(queue, self._start_in(queue))
            except BrokerError as error:
                self._warn_of_waiting(queue, "its broker says where to begin", error)
                if not is_refusal(error):
                    silent.add(queue.broker_name)
                continue
            self._failing.discard(queue)
            held = self._holdings.add(queue, position)
            if self._ordered:
                held.locked_until_s = time.monotonic() + LOCK_VALID_S
            self._client.keep(self._pull_on(held))
            taken += 1
        return taken

    async def _lock(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Those of the queues that are locked for us now."""
        locked, failures = await self._calls.lock(queues)
        for queue in queues:
            if queue.broker_name in failures:
                self._warn_of_waiting(queue, "its broker locks it", failures[queue.broker_name])
        return locked

    def _warn_of_waiting(self, queue: MessageQueue, what: str, error: BrokerError) -> None:
        if self._begins_to_fail(queue):
            _log.warning(
                "group %s: %s of %s waits, until %s: %s",
                self._data.group,
                queue.topic,
                queue.broker_name,
                what,
                error,
                extra=event("queue-waits", group=self._data.group, topic=queue.topic, queue=queue.queue_id),
            )

    def _start_in(self, queue: MessageQueue) -> Start:
        """Where a new group begins in a queue. What came into one that appeared later was sent after the group began,
        and counts as "last"."""
        return Start() if self._start.word == "last" and queue not in self._before else self._start

    async def _leave_queue(self, held: HeldQueue) -> bool:
        """Give a queue up; an ordered one only when nothing of it is in hand."""
        held.is_draining = True
        if self._ordered and held.in_hand:
            return False
        await self._give_up(held)
        return True

    async def _give_up(self, held: HeldQueue) -> None:
        position = held.window.position
        self._holdings.drop(held)
        try:
            await self._positions.write_last(held, position)
            if self._ordered:
                await self._calls.unlock([held.queue])
        except BrokerError as error:
            _log.warning(
                "group %s: its position in queue %d of %s at %s was not written: %s",
                self._data.group,
                held.queue.queue_id,
                held.queue.topic,
                held.queue.broker_name,
                error,
                extra=event("position-not-written", group=self._data.group, topic=held.queue.topic),
            )

    # Pulls

    async def _pull_on(self, held: HeldQueue) -> None:
        failing: bool | None = None  # whether it was a refusal that was logged
        while not held.is_dropped:
            is_locked = time.monotonic() < held.locked_until_s
            if held.is_full or held.is_draining or not is_locked:
                await asyncio.sleep(_FULL_S)
                continue
            subscription = self._subscriptions[held.queue.topic]
            try:
                if self._calls.is_of_master(held.queue):
                    await self._positions.catch_up(held)
                window = held.window
                found = await self._calls.pull(held.queue, window.next, subscription, self._selection)
                moved_to = await self._moved_to(held, found) if found.is_moved else None
            except BrokerError as error:
                if failing != is_refusal(error):
                    _warn_of_pull(held, error)
                failing = is_refusal(error)
                await asyncio.sleep(_AFTER_FAILURE_S)
                continue
            failing = None
            if held.window is not window:  # it was moved meanwhile: this is of the place before
                continue
            if moved_to is not None:
                self._holdings.move(held, moved_to)
                held.may_be_forgotten = False
            else:
                held.is_pulled_since |= found.is_of_master
                self._holdings.put(held, found.messages, found.next_offset)

    async def _moved_to(self, held: HeldQueue, found: Pulled) -> int:
        """Where to go on in a queue whose broker says that it is elsewhere.

        A broker that lost messages, as in a power cut, or has a new disk, says its end: what came since would be passed
        over. So the group goes on where that broker knows it, or at the first message. Java goes to the end.
        RocketMQ: DefaultMessageStore.nextOffsetCorrection (5.3.3).
        """
        if not found.next_offset == found.end < held.window.next:
            return found.next_offset
        known = await self._calls.start_offset(held.queue, Start())
        _log.warning(
            "group %s: queue %d of %s at %s ends at %d, and was read up to %d: it goes on at %d",
            self._data.group,
            held.queue.queue_id,
            held.queue.topic,
            held.queue.broker_name,
            found.end,
            held.window.next,
            min(known, found.end),
            extra=event("queue-shrank", group=self._data.group, topic=held.queue.topic, queue=held.queue.queue_id),
        )
        return min(known, found.end)

    # Positions, locks, and what is in hand for too long

    async def _commit_on(self) -> None:
        while True:
            await asyncio.sleep(COMMIT_S)
            await asyncio.gather(*map(self._positions.write, self._holdings.held))
            for message in self._holdings.overdue(time.monotonic() - self._ack_timeout_s):
                await self._give_back(message)

    async def _give_back(self, message: ReceivedMessage) -> None:
        """Send back what was in hand for too long; what its broker refuses comes again here."""
        try:
            await asyncio.to_thread(self._send_back, message)
        except BrokerError as error:
            _log.warning(
                "group %s: %s was in hand for %g s, and comes again here: %s",
                self._data.group,
                message.message_id,
                self._ack_timeout_s,
                error,
                extra=event("delayed-waits", group=self._data.group, topic=message.topic),
            )
            self._holdings.again(message, _AFTER_FAILURE_S)

    def _connection_changed(self, address: str) -> None:
        """A connection to a broker was opened, or is lost."""
        for held in self._holdings.held:
            with contextlib.suppress(BrokerError):
                if self._client.routes.master(held.queue.broker_name) == address:
                    self._positions.doubt(held)

    async def _lock_on(self) -> None:
        while True:
            await asyncio.sleep(LOCK_S)
            held = {one.queue: one for one in self._holdings.held}
            now_s = time.monotonic()
            locked = await self._lock(held)  # what is not locked again is not handed out when its time is over
            await asyncio.gather(*(self._locked(held[queue], now_s) for queue in locked))

    async def _locked(self, held: HeldQueue, since_s: float) -> None:
        with contextlib.suppress(BrokerError):  # again with the next lock
            await self._positions.catch_up(held)
            held.locked_until_s = since_s + LOCK_VALID_S
            self._failing.discard(held.queue)


def _warn_of_pull(held: HeldQueue, error: BrokerError) -> None:
    """Once for either kind, until the queue can be pulled again; of a queue that was given up meanwhile, nothing."""
    if not held.is_dropped:
        place = f"{held.queue.topic} from {held.queue.broker_name}"
        _log.warning(
            "no pull of %s, until it is there again: %s",
            place,
            error,
            extra=event("pull-waits", topic=held.queue.topic, queue=held.queue.queue_id),
        )
