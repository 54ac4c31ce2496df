"""Producer: what an application sends with. Plain, in order, in batches, and together with a local transaction.

    producer = store.producer("web")
    producer.send(broker.Message("carts", b"..."))

    producer = store.producer("shop", topics=["orders"], ledger=broker.Ledger(engine))
    with Session(engine) as session, session.begin():
        session.add(order)
        producer.send(broker.Message("orders", b"..."), session)  # joins the session's transaction

A producer with a ledger or a resolver is transactional: it sends nothing else, and its group is for this alone, since
a group is whom check-back asks. RocketMQ: DefaultMQProducer, TransactionMQProducer (5.3.3).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast, overload

from broker import observing
from broker.database.bound_ledger import BoundLedger
from broker.database.ledger_binding import LEDGER_BINDING
from broker.enlisting.enlistment import JoinableTransaction
from broker.enlisting.sqlalchemy_events import watch
from broker.enlisting.sqlalchemy_join import SqlalchemyTransaction, doom, in_turn
from broker.enlisting.targets import in_a_thread, is_async, session_now, sync_part, target_of
from broker.errors import TransactionError
from broker.format import properties as names
from broker.ledger import Ledger
from broker.local_transaction import AsyncTransaction, LocalTransaction, PlainTransaction, SessionTransaction
from broker.log_fields import event, fields_of_half
from broker.message import Message
from broker.producing.destination import Destinations, SendResult
from broker.producing.named_transaction import coroutine_function, doom_named, expected, named_target, send_async
from broker.producing.send_arguments import (
    SendOptions,
    check_message,
    check_producer,
    checked_batch,
    checked_topics,
    local_transaction_of,
)
from broker.store.write.uniquekey import new_unique_key
from broker.transaction.service import Half, LocalTransactionState

if TYPE_CHECKING:
    import sqlite3

    import psycopg
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
    from sqlalchemy.orm import Session, scoped_session

    from broker.enlisting.connection_transaction import ConnectionTransaction
    from broker.enlisting.targets import AsyncTarget, SyncTarget, Target

    PlainConnection = sqlite3.Connection | psycopg.Connection[Any]

_log = logging.getLogger("broker")


class Producer:
    """Sends for one producer group. Threads may share it; `store.producer(group)` makes one.

    `group` has 1 to 255 ASCII letters, digits and the signs % | _ -. `topics` are the topics that a transactional
    producer sends to, made here (of type TRANSACTION) if they are not there yet: a wrong name fails now and not in the
    middle of a business transaction. `ledger` and `resolver` are who can say later how a local transaction ended: a
    Ledger, or an application's function or object with `check_local_transaction(message)`. Without either the producer
    sends plain messages only.

    Raises MessageRejected for an impossible name; TransactionError for a group that is used for both kinds of messages,
    a transactional producer without topics or with a topic of another type, what is not a ledger, what is not a
    resolver, and a ledger whose database is another one than it was; NotPermitted, StoreError, ClusterError where a
    topic cannot be made.
    """

    def __init__(
        self,
        store: Destinations,
        group: str,
        *,
        topics: Sequence[str] = (),
        ledger: BoundLedger | None = None,
        resolver: Any = None,
    ) -> None:
        check_producer(group, ledger, resolver)
        self.store, self.group, self.ledger, self.resolver = store, group, ledger, resolver
        self.topics: frozenset[str] = checked_topics(topics)
        """The topics of a transactional producer; empty of a plain one that named none."""
        self._destination = observing.destination(store.destination(group), group)
        if self.is_transactional:
            if not self.topics:
                text = "name the topics that the transactional producer sends to"
                raise TransactionError(f"{text}: store.producer(group, topics=[...], ...)")
            self._destination.open_transactional(self.topics, ledger, resolver)
            if isinstance(ledger, Ledger):
                watch(ledger.session_engine)
        else:
            self._destination.open_plain()

    def __repr__(self) -> str:
        return f"<broker.Producer {self.group!r} of {self.store.path!r}>"

    @property
    def is_transactional(self) -> bool:
        """Whether it has a ledger or a resolver, and so sends half messages only."""
        return self.ledger is not None or self.resolver is not None

    # Send

    def send(
        self,
        message: Message,
        transaction: LocalTransaction | Target | PlainConnection | None = None,
        *,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | int | None = None,
        delay: timedelta | float | None = None,
    ) -> SendResult:
        """Send a message: stored, and as durable as the store's sync mode says, when this returns.

        With a `transaction` it is a half message, which is delivered when that commits. This is a SQLAlchemy session or
        connection, or what `begin_transaction` returned: the message joins the transaction that the session is in,
        whichever code commits it, is fsynced just before COMMIT, and goes when it is rolled back, to a savepoint too.
        If the send fails, that transaction (or savepoint) can only be rolled back. A plain connection of sqlite3 or
        psycopg stands for the transaction that `begin_transaction` began on it.

        Messages with the same `sharding_key` go to the same queue and are consumed in the order of sending;
        transactional ones in the order of their commits. None: the queues take turns. Of the delays at most one, up to
        366 days (a cluster: as its brokers allow): `deliver_at` (a datetime with a time zone, or milliseconds since
        1970) and `delay` (a timedelta, or seconds) deliver later, never before the commit; `delay_level` 1 to 18
        delivers by RocketMQ's table from 1 s to 2 h, counted from the commit. None: at once.

        Raises MessageRejected for a message, key or delay that is not one, or that the topic does not take;
        NotPermitted for a store or a topic that is not to be written, and at `in_doubt_max`; TransactionError when the
        producer or the transaction cannot take the message; StoreFull without room; SyncFailed when the fsync failed:
        then the message may be stored; StoreError for a store that was closed, lost files or failed an fsync before;
        of a cluster ClusterError when a broker refuses or does not answer, NotInCluster for a delayed half message,
        and for `deliver_at` and `delay` at a broker before 5.0.
        """
        running = transaction if transaction is not None or self.ledger is None else self.ledger.running_transaction()
        options = SendOptions(sharding_key, delay_level, deliver_at, delay)
        if running is not None:
            return SendResult.of_half(self._send_half(message, running, options))
        self._check_plain()
        check_message(message)
        unique_key = new_unique_key(time.time_ns() // 1_000_000)
        extra = {**options.properties(), names.UNIQ_KEY: unique_key}
        return self._destination.send(message, extra, options.sharding_key)

    @coroutine_function
    def send_async(
        self,
        message: Message,
        transaction: LocalTransaction | Target | PlainConnection | None = None,
        *,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        deliver_at: datetime | int | None = None,
        delay: timedelta | float | None = None,
    ) -> Coroutine[Any, Any, SendResult]:
        """The same without blocking the event loop while the disk writes; for AsyncSession and AsyncConnection.

        The arguments and the errors are those of `send`. Without `await` the session's transaction cannot commit. With
        a DjangoLedger the call itself raises TransactionError: `atomic()` belongs to a thread, so `send` is for it.
        """
        options = SendOptions(sharding_key, delay_level, deliver_at, delay)
        transaction = cast(Any, session_now(transaction))  # not that of the task in which gather() runs it
        return send_async(expected(transaction, self.ledger), partial(self._send_async, message, transaction, options))

    async def _send_async(
        self,
        message: Message,
        transaction: LocalTransaction | Target | PlainConnection | None,
        options: SendOptions,
    ) -> SendResult:
        if self._joined(transaction) is not None:
            return self.send(message, transaction, **options._asdict())  # its connection belongs to this thread
        if transaction is None or isinstance(transaction, PlainTransaction):
            return await asyncio.to_thread(partial(self.send, message, transaction, **options._asdict()))
        begun = transaction if isinstance(transaction, LocalTransaction) else None
        target = self._named(message, transaction)
        if not is_async(target):
            return self.send(message, transaction, **options._asdict())

        def work(inner: Any) -> Half:
            waits = [in_a_thread] if self._destination.prepare_waits else []
            return self._send_in(message, self._joinable(inner), begun, options, *waits)

        async with in_turn(sync_part(cast("AsyncTarget", target))):
            return SendResult.of_half(await cast(Any, target).run_sync(work))

    def send_batch(self, messages: Sequence[Message]) -> list[SendResult]:
        """Send messages of one topic together: all of them or none, one behind the other in one queue.

        Returns a result for each, in their order; of a cluster none for no messages. Raises MessageRejected for a batch
        that is empty, has several topics, more than 4 MiB of bodies (at a cluster: with properties) or more than fit in
        a segment; TransactionError for a transactional producer; else what `send` raises. RocketMQ: MessageBatch.
        """
        self._check_plain()
        messages = checked_batch(messages)
        for message in messages:
            check_message(message)
        return self._destination.send_batch(messages)

    # Send together with a local transaction

    @overload
    def begin_transaction(self, session: None = None, *, immunity_s: int | None = None) -> PlainTransaction: ...

    @overload
    def begin_transaction(
        self, session: Session | Connection | scoped_session[Any], *, immunity_s: int | None = None
    ) -> SessionTransaction: ...

    @overload
    def begin_transaction(
        self,
        session: AsyncSession | AsyncConnection | async_scoped_session[Any],
        *,
        immunity_s: int | None = None,
    ) -> AsyncTransaction: ...

    @overload
    def begin_transaction(
        self, session: PlainConnection, *, immunity_s: int | None = None
    ) -> ConnectionTransaction: ...

    def begin_transaction(self, session: Any = None, *, immunity_s: int | None = None) -> LocalTransaction:
        """Begin a transaction of messages that ends as a database session's does: leave the block, and both commit.

        With a session it is sugar over `send(message, session)`: leaving the block calls the session's commit() or
        rollback(). With a plain connection of sqlite3 or psycopg, and a ConnectionLedger, it is the only way. Without
        either call `commit()` or `rollback()`, or leave the block; check-back asks the resolver if the process dies
        before. `immunity_s`, whole seconds, keeps check-back away from its messages for so long; None: as the policy
        says. Raises TransactionError when the producer has no ledger (with a session) or no resolver (without), for a
        session or connection that no message can join, and for an impossible `immunity_s`.
        """
        if session is None:
            self._check_resolver("begin_transaction() without a session")
            return PlainTransaction(self._destination.transactions, self.group, immunity_s)
        bound = self._ledger_of_sessions()
        begun: LocalTransaction | None = bound.begin(session, self.group, immunity_s)
        if begun is not None:
            return begun
        ledger, target = _of_sqlalchemy(bound), target_of(session)
        if is_async(target):
            return AsyncTransaction(self.group, immunity_s, ledger, cast("AsyncTarget", target))
        return SessionTransaction(self.group, immunity_s, ledger, cast("SyncTarget", target))

    def send_message_in_transaction(self, message: Message, listener: Any = None, arg: Any = None) -> SendResult:
        """Store a half message, run the local transaction, end it: RocketMQ's way.

        `listener.execute_local_transaction(message, arg)` runs the local transaction and says how it ended; what it
        raises, and None, mean UNKNOW: check-back will ask. Without a listener the producer's resolver is it. Raises
        TransactionError without a resolver or an `execute_local_transaction`, and for one that is async, else what
        `send` raises: then the half message was not stored, or nobody knows, and nothing was run.
        RocketMQ: DefaultMQProducerImpl.sendMessageInTransaction (5.3.3).
        """
        self._check_resolver("send_message_in_transaction()")
        execute = local_transaction_of(listener or self.resolver)
        transaction = self.begin_transaction()
        half = self._send_half(message, transaction, SendOptions())
        try:
            local_state = execute(message, arg)
        except Exception:  # noqa: BLE001 - whatever it raises, it did not say how it ended
            text, fields = "the local transaction of %s raised: check-back will ask", fields_of_half(half)
            _log.warning(text, half.message_id, exc_info=True, extra=event("local-transaction-raised", **fields))
            local_state = LocalTransactionState.UNKNOW
        if local_state is LocalTransactionState.COMMIT_MESSAGE:
            transaction.commit()
        elif local_state is LocalTransactionState.ROLLBACK_MESSAGE:
            transaction.rollback()
        else:
            local_state = LocalTransactionState.UNKNOW
            transaction.leave()
        return SendResult.of_half(half, local_state)

    def _send_half(
        self,
        message: Message,
        transaction: LocalTransaction | JoinableTransaction | Target | PlainConnection,
        options: SendOptions,
    ) -> Half:
        begun = transaction if isinstance(transaction, LocalTransaction) else None
        if isinstance(begun, SessionTransaction):
            return self._send_in(message, self._joinable(begun.target), begun, options)
        if isinstance(begun, PlainTransaction):
            with begun.sending():
                self._check_half(message, begun)
                extra = begun.properties_for(message, options.properties())
                half = self._destination.prepare(message, extra, options.sharding_key, wait=True)
            begun.halves.append(half)
            return half
        joined = self._joined(transaction)
        if joined is not None:
            return self._send_in(message, joined, begun, options)
        target = self._named(message, transaction)
        if is_async(target):
            text = f"{type(target).__name__} is async: await producer.send_async(message, session)"
            doom(sync_part(cast("AsyncTarget", target)), text)
            raise TransactionError(text)
        return self._send_in(message, self._joinable(cast("SyncTarget", target)), begun, options)

    def _named(self, message: Message, transaction: object) -> SyncTarget | AsyncTarget:
        """The session or connection that a send names. Raises TransactionError, and dooms what else it may mean."""
        try:
            return named_target(cast("LocalTransaction | Target", transaction))
        except TransactionError as error:
            doom_named(self.ledger, transaction, error)
            check_message(message)  # send("topic", b"body")
            raise

    def _joined(self, transaction: object) -> JoinableTransaction | None:
        """The transaction itself, where it was begun or is known to the ledger; None for what is SQLAlchemy's."""
        if self.ledger is not None and (found := self.ledger.joinable(transaction)) is not None:
            return found
        return transaction if isinstance(transaction, JoinableTransaction) else None

    def _joinable(self, target: SyncTarget) -> JoinableTransaction:
        """The transaction of a session or a connection. Without its ledger it cannot be committed any more."""
        try:
            return SqlalchemyTransaction(target, _of_sqlalchemy(self._ledger_of_sessions()))
        except TransactionError as error:
            doom(target, f"TransactionError: {error}")
            raise

    def _send_in(
        self,
        message: Message,
        transaction: JoinableTransaction,
        begun: LocalTransaction | None,
        options: SendOptions,
        run: Callable[[Callable[[], Half]], Half] | None = None,
    ) -> Half:
        """Store a half message in a database transaction; in that of an async session within its greenlet.

        `run` runs what may wait for the disk; None: this thread waits.
        """
        with transaction.sending():
            ledger = self._ledger_of_sessions()
            self._check_half(message, begun)
            extra = options.properties()
            store_id = self._destination.store_id
            extra[LEDGER_BINDING] = ledger.binding(store_id).binding_id  # before the first half message
            branch = transaction.branch(self.group, self._destination.transactions, store_id=store_id)
            extra |= branch.properties
            if begun is not None:
                extra = begun.properties_for(message, extra)
            key, wait = options.sharding_key, transaction.waits_for_disk
            if run is None:
                half = self._destination.prepare(message, extra, key, wait=wait)
            else:
                half = run(partial(self._destination.prepare, message, extra, key, wait=wait))
            branch.halves.append(half)
        if begun is not None:
            begun.halves.append(half)
        return half

    # What is allowed

    def _check_plain(self) -> None:
        if self.is_transactional:
            text = f"the producer group {self.group} is transactional: send(message, session), or take another"
            raise TransactionError(text)

    def _check_resolver(self, what: str) -> None:
        if self.resolver is None:
            text = f"{what} needs someone who can say later how it ended: store.producer(group, resolver=...)"
            raise TransactionError(text)

    def _ledger_of_sessions(self) -> BoundLedger:
        if self.ledger is None:
            raise TransactionError("a message in a session's transaction needs a ledger: store.producer(ledger=...)")
        return self.ledger

    def _check_half(self, message: Message, begun: LocalTransaction | None) -> None:
        check_message(message)
        if begun is not None:
            begun.check_active()
            if begun.group != self.group:
                raise TransactionError(f"the transaction is of producer group {begun.group}, not {self.group}")
        if message.topic not in self.topics:
            bound = ", ".join(sorted(self.topics))
            raise TransactionError(f"the topic {message.topic} is not one that the producer was made for: {bound}")


def _of_sqlalchemy(ledger: BoundLedger) -> Ledger:
    """Raises TransactionError for a ledger that knows no sessions."""
    if not isinstance(ledger, Ledger):
        text = "the producer's ledger is for plain connections of sqlite3 and psycopg"
        raise TransactionError(f"{text}: give it broker.Ledger(engine) for sessions of SQLAlchemy")
    return ledger
