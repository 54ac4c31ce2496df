"""Who is connected: producers and consumers by group, and what each group subscribes to. Threads share it.

RocketMQ: ProducerManager, ConsumerManager (5.3.3).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from broker.remoting.bodies import ConsumerData, HeartbeatData, SubscriptionData
from broker.remoting.command import RemotingCommand
from broker.server.acl import Account

CLUSTERING = "CLUSTERING"


Answer = Callable[["RemotingCommand | None"], None]


class Peer(Protocol):
    """A connection, as far as those who notify it need to know."""

    address: str  # HOST:PORT of the client
    host: str
    is_closed: bool

    def notify(self, command: RemotingCommand) -> None:
        """Send a request of ours that needs no answer; any thread may."""

    def offer(self, command: RemotingCommand, timeout_s: float) -> bool:
        """The same, if the client keeps up with what it is sent; waits for the event loop."""

    def answered(self, request: RemotingCommand, answer: RemotingCommand | None) -> None:
        """A request is done."""

    def waits(self, request: RemotingCommand) -> None:
        """A request is answered later, and what it said is not needed for that."""

    def ask(self, command: RemotingCommand, answer: Answer, timeout_s: float) -> None:
        """Send a request of ours; `answer` gets the response, None when none comes in time."""


@dataclass(slots=True)
class Channel:
    """One client in one group."""

    peer: Peer
    client_id: str
    language: str
    version: int
    seen_ms: int = 0
    account: Account | None = None  # in whose name it is there
    broadcasts: bool = False  # as a consumer it gets all messages, and has no share of the queues

    def as_json(self) -> dict[str, object]:
        return {
            "clientAddr": self.peer.address, "clientId": self.client_id, "language": self.language,
            "version": self.version,
        }  # fmt: skip


@dataclass(slots=True)
class GroupOfConsumers:
    """The clients of a consumer group, and its subscriptions."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = CLUSTERING
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    channels: dict[Peer, Channel] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    @property
    def sharing(self) -> list[Channel]:
        """Those that share out the queues, also beside one that broadcasts by mistake."""
        return [channel for channel in self.channels.values() if not channel.broadcasts]

    def take(self, data: ConsumerData) -> bool:
        """Take over what a client says; whether the subscriptions changed."""
        self.consume_type, self.message_model = data.consume_type, data.message_model
        self.consume_from_where = data.consume_from_where
        changed = False
        for one in data.subscriptions:
            held = self.subscriptions.get(one.topic)
            if held is None or one.sub_version > held.sub_version:
                changed |= held is None or held.expression != one.expression
                self.subscriptions[one.topic] = one
        for topic in self.subscriptions.keys() - {one.topic for one in data.subscriptions}:
            del self.subscriptions[topic]
            changed = True
        return changed


class Clients:
    """The clients of one server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._producers: dict[str, dict[Peer, Channel]] = {}
        self._consumers: dict[str, GroupOfConsumers] = {}

    # Coming and going

    def heartbeat(
        self, peer: Peer, data: HeartbeatData, language: str, version: int, account: Account | None = None
    ) -> list[Peer]:
        """Register a client in its groups; returns the peers that must divide their queues again."""
        now_ms = time.time_ns() // 1_000_000
        notified: list[Peer] = []
        with self._lock:
            if peer.is_closed:
                return []
            for name in data.producer_groups:
                channel = Channel(peer, data.client_id, language, version, now_ms, account)
                self._producers.setdefault(name, {})[peer] = channel
            for one in data.consumers:
                group = self._consumers.setdefault(one.group, GroupOfConsumers(one.group))
                is_new = peer not in group.channels or group.channels[peer].client_id != data.client_id
                broadcasts = one.message_model != CLUSTERING
                group.channels[peer] = Channel(peer, data.client_id, language, version, now_ms, account, broadcasts)
                if (group.take(one) or is_new) and one.message_model == CLUSTERING:
                    notified += group.channels
        return notified

    def unregister(self, peer: Peer, producer_group: str | None, consumer_group: str | None) -> list[Peer]:
        """Take a client out of a group; returns those of it that must divide their queues again."""
        with self._lock:
            if producer_group:
                _drop(self._producers, producer_group, peer)
            return self._leave(consumer_group, peer) if consumer_group else []

    def drop(self, peer: Peer) -> list[tuple[str, list[Peer]]]:
        """A connection is gone: take it out of all groups; returns those that must divide their queues again."""
        with self._lock:
            for group in [name for name, channels in self._producers.items() if peer in channels]:
                _drop(self._producers, group, peer)
            left = [name for name, group in self._consumers.items() if peer in group.channels]
            return [(name, self._leave(name, peer)) for name in left]

    def _leave(self, name: str, peer: Peer) -> list[Peer]:
        group = self._consumers.get(name)
        if group is None or group.channels.pop(peer, None) is None:
            return []
        if not group.channels:
            del self._consumers[name]
        return [channel.peer for channel in group.sharing]

    # Asking

    def producers(self, group: str) -> list[Channel]:
        with self._lock:
            return list(self._producers.get(group, {}).values())

    def random_producer(self, group: str, may_see: Callable[[Account | None], bool]) -> Channel | None:
        """One that lives, and whose account may see the message. RocketMQ: ProducerManager.getAvailableChannel (5.3.3).

        RocketMQ asks any of the group: there an account without rights reads the half messages of others.
        """
        living = [one for one in self.producers(group) if not one.peer.is_closed and may_see(one.account)]
        return random.choice(living) if living else None

    def all_producers(self) -> dict[str, list[Channel]]:
        with self._lock:
            return {group: list(channels.values()) for group, channels in self._producers.items()}

    def consumers(self, group: str) -> GroupOfConsumers | None:
        """The group as it is now; None when nobody of it is connected."""
        with self._lock:
            found = self._consumers.get(group)
            if found is None:
                return None
            return GroupOfConsumers(
                group, found.consume_type, found.message_model, found.consume_from_where, dict(found.channels),
                dict(found.subscriptions),
            )  # fmt: skip

    def sharing(self, group: str) -> list[Peer]:
        """The connections of those that share out its queues."""
        with self._lock:
            found = self._consumers.get(group)
            return [] if found is None else [channel.peer for channel in found.sharing]

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        with self._lock:
            found = self._consumers.get(group)
            return None if found is None else found.subscriptions.get(topic)

    def is_broadcast(self, group: str) -> bool:
        """Whether each client of a group gets all messages, as its last heartbeat says."""
        with self._lock:
            found = self._consumers.get(group)
            return found is not None and found.message_model != CLUSTERING

    def clustered(self) -> dict[str, set[str]]:
        """The groups whose positions the store keeps, with the topics of each."""
        with self._lock:
            groups = (group for group in self._consumers.values() if group.sharing)
            return {group.name: set(group.subscriptions) for group in groups}

    def client_ids(self, group: str) -> list[str]:
        """Those that share out its queues; where none does, all that broadcast."""
        found = self.consumers(group)
        if found is None:
            return []
        return sorted({channel.client_id for channel in found.sharing or found.channels.values()})

    def groups_of(self, peer: Peer) -> tuple[set[str], dict[str, tuple[str, tuple[SubscriptionData, ...]]]]:
        """The producer groups of a connection, and by name its consumer groups: message model and subscriptions."""
        with self._lock:
            producers = {name for name, channels in self._producers.items() if peer in channels}
            consumers = {
                group.name: (group.message_model, tuple(group.subscriptions.values()))
                for group in self._consumers.values()
                if peer in group.channels
            }
        return producers, consumers

    def ids_by_group(self) -> dict[str, list[str]]:
        """The clients of each consumer group whose queues they share out."""
        return {group: self.client_ids(group) for group in self.clustered()}

    def peer_of(self, client_id: str) -> Peer | None:
        """The connection of a client, the last that it made: an earlier one may be cut off, and not known to be.

        A group that it left meanwhile has the earlier one alone: the last that it sent a heartbeat on counts.
        """
        found: Channel | None = None
        with self._lock:
            for channels in (*self._producers.values(), *(group.channels for group in self._consumers.values())):
                for channel in channels.values():
                    is_its_own = channel.client_id == client_id and not channel.peer.is_closed
                    if is_its_own and (found is None or channel.seen_ms >= found.seen_ms):
                        found = channel
        return None if found is None else found.peer

    def counts(self) -> tuple[int, int]:
        """How many producer groups and consumer groups have clients."""
        with self._lock:
            return len(self._producers), len(self._consumers)


def _drop(groups: dict[str, dict[Peer, Channel]], group: str, peer: Peer) -> None:
    channels = groups.get(group, {})
    channels.pop(peer, None)
    if not channels:
        groups.pop(group, None)
