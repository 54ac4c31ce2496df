"""Producer: what an application sends with. Plain, in order, in batches, and together with a local transaction.

    producer = store.producer("web")
    producer.send(broker.Message("carts", b"..."))

    producer = store.producer("shop", topics=["orders"], ledger=broker.Ledger(engine))
    with Session(engine) as session, producer.begin_transaction(session) as transaction:
        session.add(order)
        producer.send(broker.Message("orders", b"..."), transaction)

A producer with a ledger or a resolver is transactional: it sends nothing else, and its group is for this alone, since
a group is whom check-back asks. RocketMQ: DefaultMQProducer, TransactionMQProducer (5.3.3).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from broker.errors import MessageRejected, StoreLocked, TransactionError
from broker.format import properties as names
from broker.format.java import encode_message_id, string_hash
from broker.local_transaction import AsyncTransaction, LocalTransaction, PlainTransaction, SessionTransaction
from broker.message import Message
from broker.store.write.pending_record import LOCAL_HOST, Appended
from broker.store.write.topicfile import DEFAULT_QUEUES
from broker.store.write.uniquekey import new_unique_key
from broker.transaction.service import Half, LocalTransactionState

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncSession
    from sqlalchemy.orm import Session

    from broker.ledger import Ledger
    from broker.live import LiveStore

SEND_TIMEOUT_MS = 3000  # RocketMQ: sendMsgTimeout
RETRIES = 2  # RocketMQ: retryTimesWhenSendFailed

_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
_RESERVED_PREFIX = "CHECKBACK_"
_TRANSACTIONAL = b"transactional\n"
_TAKEN_TYPES = ("TRANSACTION", "MIXED")

_marking = threading.Lock()  # two threads of a process would write the same temporary file
_log = logging.getLogger("broker")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message went. RocketMQ: SendResult (5.3.3)."""

    message_id: str  # the offset message id
    unique_key: str | None  # the producer's id of the message; of a batch the store makes it
    topic: str
    queue_id: int
    queue_offset: int  # of a half message its slot, of a delayed one its place in the schedule topic
    commitlog_offset: int
    local_state: LocalTransactionState | None = None  # of send_message_in_transaction

    @classmethod
    def of_half(cls, half: Half, local_state: LocalTransactionState | None = None) -> SendResult:
        place = (half.topic, half.queue_id, half.slot, half.commitlog_offset)
        return cls(half.message_id, half.unique_key, *place, local_state)


class Producer:
    """Sends for one producer group. Threads may share it; `store.producer(group)` makes one.

    `topics` are the topics that a transactional producer sends to, made here if they are not there yet: a wrong name
    fails now and not in the middle of a business transaction. `ledger` and `resolver` are who can say later how a local
    transaction ended: a Ledger, or an application's function or object with `check_local_transaction(message)`.
    Raises TransactionError when the group or the topics do not fit, MessageRejected for an impossible name.
    """

    def __init__(
        self,
        store: LiveStore,
        group: str,
        *,
        topics: Sequence[str] = (),
        ledger: Ledger | None = None,
        resolver: Any = None,
        timeout_ms: int = SEND_TIMEOUT_MS,
        retries: int = RETRIES,
    ) -> None:
        if not _GROUP.fullmatch(group):
            raise MessageRejected(f"the producer group {group!r} has 1 to 255 letters, digits and the signs % | _ -")
        self.store, self.group, self.ledger, self.resolver = store, group, ledger, resolver
        self.topics = frozenset((topics,) if isinstance(topics, str) else topics)
        self._timeout_ms, self._retries = timeout_ms, retries
        self._turns: dict[str, itertools.count[int]] = {}
        self._store_id = store.writer.store_id
        if self.is_transactional:
            self._bind()
        elif store.writer.disk.entry(self._mark) is not None:
            raise TransactionError(f"the producer group {group} is transactional: take another one for other messages")

    def __repr__(self) -> str:
        return f"<broker.Producer {self.group!r} of {self.store.path!r}>"

    @property
    def is_transactional(self) -> bool:
        return self.ledger is not None or self.resolver is not None

    @property
    def _mark(self) -> str:
        """The file that says that a group is transactional; losing it loses this check and nothing else."""
        return os.path.join(self.store.writer.paths.own, "producers", self.group)

    def _bind(self) -> None:
        if not self.topics:
            text = "name the topics that the transactional producer sends to: store.producer(group, topics=[...], ...)"
            raise TransactionError(text)
        for topic in sorted(self.topics):
            known = self.store.topic(topic)
            if known is None:
                self.store.create_topic(topic, message_type="TRANSACTION")
            elif (said := known.attributes.get("message.type", "")) and said not in _TAKEN_TYPES:
                text = f"the topic {topic} takes {said} messages: make it take TRANSACTION or MIXED, or use another"
                raise TransactionError(text)
        disk, folder = self.store.writer.disk, os.path.dirname(self._mark)
        with _marking:
            if disk.entry(self._mark) is None:
                disk.create_folder(folder)
                disk.write_file(self._mark, _TRANSACTIONAL)

    # Send

    def send(
        self,
        message: Message,
        transaction: LocalTransaction | None = None,
        *,
        sharding_key: str | None = None,
        delay_level: int | None = None,
    ) -> SendResult:
        """Send a message: stored, and as durable as the store's sync mode says, when this returns.

        With a `transaction` it is a half message, which is delivered when that commits; a session's forces it to disk
        just before COMMIT, with whatever else waits there. Messages with the same `sharding_key` go to the same queue
        and are consumed in the order of sending; transactional ones in the order of their commits. `delay_level` 1 to
        18 delivers later, by RocketMQ's table from 1 s to 2 h; with a transaction from its commit on. Raises
        MessageRejected, NotPermitted, StoreFull, StoreLocked, SyncFailed, TransactionError.
        """
        extra = _extra(sharding_key, delay_level)
        if transaction is not None:
            return SendResult.of_half(self._prepare(message, transaction, extra))
        self._check_plain()
        _check_names(message)
        unique_key = new_unique_key(time.time_ns() // 1_000_000)
        extra[names.UNIQ_KEY] = unique_key

        def append(queue_id: int) -> SendResult:
            placed = self.store.append(message, queue_id=queue_id, extra_properties=extra)
            return _result(message.topic, queue_id, placed, unique_key)

        return self._on_a_queue(message.topic, sharding_key, append)

    async def send_async(
        self,
        message: Message,
        transaction: AsyncTransaction | None = None,
        *,
        sharding_key: str | None = None,
        delay_level: int | None = None,
    ) -> SendResult:
        """The same without blocking the event loop while the disk writes."""
        if transaction is None:
            return await asyncio.to_thread(self.send, message, sharding_key=sharding_key, delay_level=delay_level)
        extra = _extra(sharding_key, delay_level)
        self._check_half(message, transaction)

        def prepare(queue_id: int) -> Any:
            return self.store.transactions.prepare_async(
                message, self.group, queue_id=queue_id, extra_properties=transaction.properties_for(message, extra)
            )

        with transaction.sending():
            future = self._on_a_queue(message.topic, sharding_key, prepare)
            half: Half = await asyncio.wrap_future(future)
        transaction.halves.append(half)
        return SendResult.of_half(half)

    def send_batch(self, messages: Sequence[Message]) -> list[SendResult]:
        """Send messages of one topic together: all of them or none, one behind the other in one queue."""
        self._check_plain()
        for message in messages:
            _check_names(message)

        def append(queue_id: int) -> list[SendResult]:
            placed = self.store.append_batch(messages, queue_id=queue_id)
            return [_result(messages[0].topic, queue_id, one, None) for one in placed]

        return self._on_a_queue(messages[0].topic if messages else "", None, append)

    # Send together with a local transaction

    @overload
    def begin_transaction(self, session: None = None, *, immunity_s: int | None = None) -> PlainTransaction: ...

    @overload
    def begin_transaction(self, session: Session, *, immunity_s: int | None = None) -> SessionTransaction: ...

    @overload
    def begin_transaction(self, session: AsyncSession, *, immunity_s: int | None = None) -> AsyncTransaction: ...

    def begin_transaction(self, session: Any = None, *, immunity_s: int | None = None) -> LocalTransaction:
        """Begin a transaction of messages that ends as a database session's does: leave the block, and both commit.

        Without a session call `commit()` or `rollback()`, or leave the block; check-back asks the resolver then.
        `immunity_s` keeps check-back away from it for so long. Raises TransactionError when the producer has no ledger
        (with a session) or no resolver (without).
        """
        if session is None:
            self._check_resolver("begin_transaction() without a session")
            return PlainTransaction(self.store.transactions, self.group, immunity_s)
        if self.ledger is None:
            raise TransactionError("begin_transaction(session) needs a ledger: store.producer(group, ledger=...)")
        place = (self.store.transactions, self.group, immunity_s, self.ledger, self._store_id, session)
        return AsyncTransaction(*place) if hasattr(session, "sync_session") else SessionTransaction(*place)

    def send_message_in_transaction(self, message: Message, listener: Any = None, arg: Any = None) -> SendResult:
        """Store a half message, run the local transaction, end it: RocketMQ's way.

        `listener.execute_local_transaction(message, arg)` runs the local transaction and says how it ended; what it
        raises, and None, mean UNKNOW: check-back will ask. Without a listener the producer's resolver is it. Raises
        what `send` raises: then the half message was not stored, or nobody knows, and nothing was run.
        RocketMQ: DefaultMQProducerImpl.sendMessageInTransaction (5.3.3).
        """
        self._check_resolver("send_message_in_transaction()")
        execute = getattr(listener or self.resolver, "execute_local_transaction", None)
        if execute is None:
            raise TransactionError("the listener has no execute_local_transaction(message, arg)")
        transaction = self.begin_transaction()
        half = self._prepare(message, transaction, {})
        try:
            said = execute(message, arg)
        except Exception:  # noqa: BLE001 - whatever it raises, it did not say how it ended
            _log.warning("the local transaction of %s raised: check-back will ask", half.message_id, exc_info=True)
            said = LocalTransactionState.UNKNOW
        if said is LocalTransactionState.COMMIT_MESSAGE:
            transaction.commit()
        elif said is LocalTransactionState.ROLLBACK_MESSAGE:
            transaction.rollback()
        else:
            said = LocalTransactionState.UNKNOW
            transaction.leave()
        return SendResult.of_half(half, said)

    def _prepare(self, message: Message, transaction: LocalTransaction, extra: dict[str, str]) -> Half:
        """Store a half message. A transaction of which one could not be stored can only be rolled back."""
        if isinstance(transaction, AsyncTransaction):
            raise TransactionError("in an async transaction: await producer.send_async(message, transaction)")
        self._check_half(message, transaction)

        def prepare(queue_id: int) -> Half:
            properties = transaction.properties_for(message, extra)
            return self.store.transactions.prepare(
                message, self.group, queue_id=queue_id, extra_properties=properties, wait=transaction.waits_in_send
            )

        with transaction.sending():
            half = self._on_a_queue(message.topic, extra.get(names.SHARDING_KEY), prepare)
        transaction.halves.append(half)
        return half

    # What is allowed

    def _check_plain(self) -> None:
        if self.is_transactional:
            text = f"the producer group {self.group} is transactional: send within begin_transaction(), or take another"
            raise TransactionError(text)

    def _check_resolver(self, what: str) -> None:
        if self.resolver is None:
            text = f"{what} needs someone who can say later how it ended: store.producer(group, resolver=...)"
            raise TransactionError(text)

    def _check_half(self, message: Message, transaction: LocalTransaction) -> None:
        if transaction.group != self.group:
            raise TransactionError(f"the transaction is of producer group {transaction.group}, not {self.group}")
        if message.topic not in self.topics:
            bound = ", ".join(sorted(self.topics))
            raise TransactionError(f"the topic {message.topic} is not one that the producer was made for: {bound}")
        _check_names(message)

    # The queue, and again

    def _on_a_queue(self, topic: str, sharding_key: str | None, action: Callable[[int], _T]) -> _T:
        """Do it on a queue whose turn it is; when the store is locked at this moment, again on the next one."""
        try:
            return action(self._queue(topic, sharding_key))
        except StoreLocked:
            if not self._retries:
                raise
        return self._again(topic, sharding_key, action)

    def _queue(self, topic: str, sharding_key: str | None) -> int:
        """The next queue, or that of a sharding key.

        RocketMQ: TopicPublishInfo.selectOneMessageQueue, SelectMessageQueueByHash (5.3.3).
        """
        known = self.store.topic(topic)
        count = DEFAULT_QUEUES if known is None else max(1, known.write_queue_count)
        if sharding_key is not None:
            return abs(_remainder(string_hash(sharding_key), count))
        turn = self._turns.get(topic)
        if turn is None:
            turn = self._turns.setdefault(topic, itertools.count(random.randrange(count)))
        return next(turn) % count

    def _again(self, topic: str, sharding_key: str | None, action: Callable[[int], _T]) -> _T:
        import tenacity

        again = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(StoreLocked),
            stop=tenacity.stop_after_attempt(self._retries) | tenacity.stop_after_delay(self._timeout_ms / 1000),
            wait=tenacity.wait_random_exponential(multiplier=0.02, max=0.5),
            reraise=True,
        )
        return again(lambda: action(self._queue(topic, sharding_key)))


def _result(topic: str, queue_id: int, placed: Appended, unique_key: str | None) -> SendResult:
    message_id = encode_message_id(LOCAL_HOST, placed.commitlog_offset)
    return SendResult(message_id, unique_key, topic, queue_id, placed.queue_offset, placed.commitlog_offset)


def _extra(sharding_key: str | None, delay_level: int | None) -> dict[str, str]:
    """The properties that RocketMQ keeps an order and a delay in."""
    extra = {} if sharding_key is None else {names.SHARDING_KEY: sharding_key}
    if delay_level is not None:
        extra[names.DELAY] = str(delay_level)
    return extra


def _check_names(message: Message) -> None:
    for name in message.properties:
        if name.startswith(_RESERVED_PREFIX):
            raise MessageRejected(f"the property {name!r} is checkback's own; choose another name")


def _remainder(number: int, divisor: int) -> int:
    """Java's %, which keeps the sign of the number."""
    return number % divisor if number >= 0 else -(-number % divisor)
