"""A cluster as the destination of a producer's messages."""

from __future__ import annotations

import enum
import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.cluster.network.client import ClusterClient
from broker.cluster.publishing.sending import Placed, Sender, check_batch_size, checked_batch_topic, no_route
from broker.cluster.publishing.topics import TopicAdmin
from broker.cluster.publishing.transactions import DECISIONS, Check, ClusterHalf, ClusterTransactions
from broker.database.ledger_binding import RememberedLedgers
from broker.errors import BrokerError, NotInCluster, SyncFailed, TransactionError
from broker.format import properties as names
from broker.format.java import decode_message_id
from broker.format.topics import AUTO_CREATE_TOPIC
from broker.message import Message, ReceivedMessage
from broker.producing.destination import STORED, Destination, SendResult
from broker.remoting.bodies import BatchedMessage
from broker.store.write.uniquekey import new_unique_key
from broker.transaction.events import TransactionState
from broker.transaction.service import Half, HalfMessageService, LocalTransactionState

if TYPE_CHECKING:
    from broker.database.bound_ledger import BoundLedger

_ID_SIZE = 32  # of the column store_id
_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT_MESSAGE, LocalTransactionState.ROLLBACK_MESSAGE
_ANSWERS: dict[object, LocalTransactionState] = {  # as check-back of a store takes them: recovery.checkback.protocol
    **dict.fromkeys((int(TransactionState.COMMITTED), "commit", "committed", "commit_message"), _COMMIT),
    **dict.fromkeys((int(TransactionState.ROLLED_BACK), "rollback", "rolled back", "rollback_message"), _ROLLBACK),
}


def cluster_id(cluster: str) -> str:
    """What stands in a ledger's rows for a cluster: its name, or a hash of one that is too long for the column."""
    return cluster if len(cluster) <= _ID_SIZE else hashlib.sha256(cluster.encode()).hexdigest()[:_ID_SIZE]


class ClusterDestination(Destination):
    """Sends to the brokers of a cluster."""

    def __init__(
        self, client: ClusterClient, transactions: ClusterTransactions, group: str, transactional: dict[str, bool]
    ) -> None:
        """`transactional` says of each producer group of this client whether it sends half messages."""
        self._client, self._transactions, self._group = client, transactions, group
        self._sender = Sender(client, group, _now_ms)
        self._transactional = transactional
        self._id = ""

    @property
    def prepare_waits(self) -> bool:
        return True

    @property
    def store_id(self) -> str:
        if not self._id:
            name, _ = self._client.loop.run(self._client.routes.cluster())
            self._id = cluster_id(name)
        return self._id

    @property
    def transactions(self) -> HalfMessageService:
        return self._transactions

    def open_plain(self) -> None:
        if self._transactional.setdefault(self._group, False):
            text = f"the producer group {self._group} is transactional: take another one for other messages"
            raise TransactionError(text)
        self._client.loop.run(self._register())

    def open_transactional(self, topics: frozenset[str], ledger: BoundLedger | None, resolver: Any) -> None:
        for topic in sorted(topics):
            self._client.loop.run(self._make(topic))
        if ledger is not None:
            ledger.bind(self.store_id, RememberedLedgers())
        self._transactional[self._group] = True
        self._transactions.answer_for(self._group, answers_of(ledger, resolver))
        self._client.loop.run(self._register())

    async def _register(self) -> None:
        """Be a member of the producer group at every broker that is known."""
        self._client.producer_groups.add(self._group)
        await self._client.beat()

    async def _make(self, topic: str) -> None:
        """See that a topic is there, or that its first message makes it. Raises TransactionError."""
        routes = self._client.routes
        if await routes.route(topic, max_age_s=0.0) is not None:  # not one that was deleted, whose route is kept
            return
        try:
            await TopicAdmin(self._client).create(topic, message_type="TRANSACTION")
        except BrokerError as error:
            if await routes.route(AUTO_CREATE_TOPIC) is None:
                raise TransactionError(f"{no_route(topic, self._client.settings.url)} ({error})") from error

    # Sends

    def send(self, message: Message, extra_properties: Mapping[str, str], sharding_key: str | None) -> SendResult:
        placed = self._client.loop.run(self._sender.send(message, extra_properties, sharding_key))
        return _result(message.topic, placed, placed.header.msg_id, extra_properties.get(names.UNIQ_KEY), 0)

    def send_batch(self, messages: Sequence[Message]) -> list[SendResult]:
        listed = list(messages)
        if not listed:
            return []
        topic = checked_batch_topic(listed)
        keys = [new_unique_key(_now_ms()) for _ in listed]
        body = b"".join(_batched(one, key) for one, key in zip(listed, keys, strict=True))
        check_batch_size(listed, body)
        # Without a unique key of the batch: brokers of 4.8 to 5.3 give it to every message, whose own is lost then, and
        # a consumer takes all but the first for duplicates (RocketMQ's issue 9416).
        properties = names.encode({names.WAIT: "true"}).decode()
        placed = self._client.loop.run(self._sender.send_batch(topic, body, properties))
        ids = placed.header.msg_id.split(",")
        return [
            _result(topic, placed, message_id, key, number)
            for number, (message_id, key) in enumerate(zip(ids, keys, strict=True))
        ]

    def prepare(
        self,
        message: Message,
        extra_properties: Mapping[str, str],
        sharding_key: str | None,
        *,
        wait: bool,  # noqa: ARG002 - a broker answers when it keeps its promise
    ) -> Half:
        """Store a half message. One that its broker could not make durable is rolled back, as RocketMQ does.

        Raises SyncFailed for that, ClusterError, NotInCluster.
        """
        if names.DELAY in extra_properties or names.TIMER_DELIVER_MS in extra_properties:
            text = "a broker drops the delay of a transactional message, or the message: send it without a delay"
            raise NotInCluster(f"{text}, or use a store on this machine")
        unique_key = new_unique_key(_now_ms())
        extra = {**extra_properties, names.UNIQ_KEY: unique_key}
        placed = self._client.loop.run(self._sender.send(message, extra, sharding_key, is_half=True))
        half = _half(message, self._group, placed, extra, unique_key)
        if placed.status != STORED:
            text = f"the broker {placed.queue.broker_name} has it and answered {placed.status}"
            try:
                self._transactions.rollback(half)
            except BrokerError as error:
                text += f"; its rollback is left to check-back ({error})"
            raise SyncFailed(f"the half message is not as safe as the broker is to make it: {text}")
        return half


def answers_of(ledger: BoundLedger | None, resolver: Any) -> Check:
    """What a producer's own process answers to a check: its ledger's row first, then its resolver.

    A row that is missing means "unknown" here: the transaction may still run. `recovery.answering` also decides those.
    """

    def check(half: Half, read: Callable[[], ReceivedMessage]) -> LocalTransactionState:
        state = None if ledger is None else ledger.state_of(half.properties)
        if state is not None:
            return DECISIONS.get(state, LocalTransactionState.UNKNOW)
        if resolver is None:
            return LocalTransactionState.UNKNOW
        return _meant(getattr(resolver, "check_local_transaction", resolver)(read()))

    return check


def _meant(answer: object) -> LocalTransactionState:
    """What an answer of an application stands for, whichever enumeration or word it took."""
    value = answer.value if isinstance(answer, enum.Enum) else answer
    if isinstance(value, str):
        value = value.lower().strip()
    found = _ANSWERS.get(value) if isinstance(value, str | int) else None
    return found or LocalTransactionState.UNKNOW


def _batched(message: Message, unique_key: str) -> bytes:
    stored = {**message.stored_properties, names.UNIQ_KEY: unique_key, names.WAIT: "true"}
    return BatchedMessage(message.body, 0, names.encode(stored, java_order_capacity=16)).encode()


def _half(message: Message, group: str, placed: Placed, extra: Mapping[str, str], unique_key: str) -> ClusterHalf:
    host, commitlog_offset = decode_message_id(placed.header.msg_id)
    now_ms = _now_ms()
    return ClusterHalf(
        commitlog_offset, placed.header.queue_offset, group, message.topic, placed.queue.queue_id, unique_key,
        tuple(message.keys), now_ms, now_ms, 0, {**message.stored_properties, **extra}, host,
        broker_name=placed.queue.broker_name,
    )  # fmt: skip


def _result(topic: str, placed: Placed, message_id: str, unique_key: str | None, number: int) -> SendResult:
    _, commitlog_offset = decode_message_id(message_id)
    queue_offset = placed.header.queue_offset + number
    return SendResult(
        message_id, unique_key, topic, placed.header.queue_id, queue_offset, commitlog_offset, None, placed.status,
        placed.queue.broker_name,
    )  # fmt: skip


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
