"""App: an application in one object. What it stores in, what it sends, and which functions handle what it receives.

    app = broker.App("shop.store", engine=create_engine("sqlite:///shop.db"), topics=["orders"])

    @app.on("orders", group="billing")
    def charge(order: Order, session: Session) -> None:
        session.add(Charge(order_id=order.id))         # once for each order, whatever is killed

    with app.transaction() as session:
        session.add(...)
        app.send("orders", Order(id=1, item="lamp"))   # both, or neither

`checkback work shop:app` runs the handlers. `import shop` opens nothing: the store opens at its first use.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack, cast

from broker.app.bodies import BodyCodec, TopicBody
from broker.app.handlers import Handler, HandlerGroup, groups_of
from broker.app.outgoing import Outgoing, SendKeywords, check_keywords, outgoing
from broker.app.retry import Retry
from broker.app.scope import Scopes, check_kind, note_in
from broker.app.sent_keys import SentKeys
from broker.consuming.arguments import check_flag
from broker.database.arguments import check_engines
from broker.database.dedup import Processed
from broker.database.tables import make_tables
from broker.enlisting.sqlalchemy_checks import check_same_database
from broker.enlisting.sqlalchemy_events import watch
from broker.enlisting.targets import session_now
from broker.errors import BrokerError, MessageRejected, TransactionError
from broker.format.topics import check_send_topic
from broker.ledger import Ledger
from broker.live import LiveStore, check_options, open_live
from broker.producer import Producer
from broker.producing.destination import SendResult
from broker.producing.named_transaction import coroutine_function, send_async
from broker.producing.send_arguments import check_group, checked_topics
from broker.store.disk.paths import path_of_store
from broker.store.disk.thread_lock import ThreadLock

if TYPE_CHECKING:
    from sqlalchemy import Engine, MetaData
    from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
    from sqlalchemy.orm import Session

    from broker.app.handler_runs import HandlerRuns
    from broker.app.worker import Workers
    from broker.database.arguments import AsyncSessionOrConnection, SessionOrConnection, SomeAsyncSession, SomeSession

_Function = TypeVar("_Function", bound=Callable[..., Any])
_OPTIONS = {"sync", "layout", "transactions", "create", "retention", "in_doubt_max"}  # of broker.open
_MIXED = "MIXED"  # a topic that takes plain, delayed, ordered and transactional messages


class App:
    """An application. Threads share it; it opens its store and database when it is used."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        engine: Engine | None = None,
        async_engine: AsyncEngine | None = None,
        name: str | None = None,
        topics: Sequence[str] = (),
        create_tables: bool = True,
        **options: Any,
    ) -> None:
        """`path` is the store, `engine` the database whose transactions messages join and handlers write in.

        Handlers and sends that are async use `async_engine`, to the same database. `name` is the producer group, and
        the source of its events; None: the store's name without its suffix. `topics` are those that it sends to,
        besides the ones that `topic()` and `on()` name: a send to any other is refused. `create_tables=False` leaves
        the tables to a migration (`metadata`). Other options are `sync`, `layout`, `transactions`, `create`,
        `retention` and `in_doubt_max` of `broker.open`. Raises BrokerError for other options and other types, for an
        `async_engine` that is none, without an `engine` or of another database, and what Ledger refuses;
        MessageRejected for an impossible `name` or topics that are not text.
        """
        if unknown := options.keys() - _OPTIONS:
            text = f"broker.App has no option {min(unknown)!r}; besides its own it takes"
            raise BrokerError(f"{text} {', '.join(sorted(_OPTIONS))}")
        check_options(**options)
        self.path, self.engine, self.async_engine = path_of_store(path), engine, async_engine
        self.name: str = Path(self.path).stem if name is None else name
        """The producer group, and the source of its events."""
        check_group(self.name, ", so the store's name cannot be it: App(path, name=...)" if name is None else "")
        check_engines(engine, async_engine)
        check_flag("create_tables", create_tables)
        self._ledger = None if engine is None else Ledger(engine)
        if engine is not None and async_engine is not None:
            check_same_database(engine, async_engine)
        self.processed, self.sent_keys = Processed(), SentKeys()
        self._topics: dict[str, TopicBody] = {topic: TopicBody() for topic in checked_topics(topics)}
        self._handlers: list[Handler] = []
        self._create_tables, self._options = create_tables, options
        self._scopes, self._lock = Scopes(), ThreadLock()
        self._store: LiveStore | None = None
        self._producers: tuple[frozenset[str], Producer | None, Producer] | None = None

    def __repr__(self) -> str:
        return f"<broker.App {self.name!r} of {self.path!r}, {len(self._handlers)} handlers>"

    def __reduce__(self) -> NoReturn:
        raise BrokerError("an application is not copied and goes to no other process: import its module there")

    # Declare

    def topic(
        self,
        topic: str,
        body_type: Any = None,
        *,
        event_type: str = "",
        version: int | None = None,
        upgrade: Callable[[int, Any], Any] | None = None,
        codec: BodyCodec | None = None,
    ) -> None:
        """Declare a topic, and what its bodies are: a dataclass, a model, any type that JSON has, bytes or str.

        A send of anything else is refused; `body_type` None takes whatever is sent. `event_type` is that of its
        CloudEvents, by default the class of the value. `version` of the schema, from 1 (None: there is none), goes with
        each message; `upgrade(version, value)` brings the JSON of an older one to this one. `codec` is for other
        formats. Raises BrokerError for a topic that was declared before and for arguments that do not fit,
        MessageRejected for an impossible name.
        """
        check_send_topic(topic)
        if self._topics.get(topic, TopicBody()) != TopicBody():
            raise BrokerError(f"the topic {topic} was declared before: declare it once")
        self._topics[topic] = TopicBody(body_type, event_type, version, upgrade, codec)

    def on(
        self,
        topic: str,
        *,
        group: str,
        tags: str = "*",
        retry: Retry | None = None,
        concurrency: int = 1,
        ordered: bool = False,
        start: str | int | datetime = "first",
    ) -> Callable[[_Function], _Function]:
        """Declare that a function handles the messages of a topic for a consumer group.

        The function receives the body as its first parameter is annotated, and by annotation a SQLAlchemy session and
        the `ReceivedMessage`. With a session, what it writes and sends is one transaction with the note that the
        message was processed: it takes effect once. Without one it may run again. What it raises is retried as
        `retry` says (None: `Retry()`), and logged. `tags` and `start` are as of `LiveStore.consumer`. `concurrency` is
        the number of threads of a process, 1 to 1,000; an `ordered` group has one message of each queue at a time.
        Raises, where it decorates, BrokerError for a function or arguments that cannot work, MessageRejected for an
        impossible name and tags that select nothing.
        """

        def declare(function: _Function) -> _Function:
            policy = Retry() if retry is None else retry  # 0 is not taken for None
            handler = Handler(function, topic, group, tags, policy, concurrency, ordered, start)
            self._check_session(handler)
            groups_of([*self._handlers, handler])
            self._handlers.append(handler)
            self._topics.setdefault(topic, TopicBody())
            return function

        return declare

    def _check_session(self, handler: Handler) -> None:
        if handler.parameters.session is None:
            return
        if handler.is_async and self.async_engine is None:
            step = "App(async_engine=create_async_engine(...))"
            raise BrokerError(f"{handler.name} is async and takes a session: {step}")
        if self.engine is None:
            raise BrokerError(f"{handler.name} takes a session: App(engine=create_engine(...))")

    @property
    def groups(self) -> list[HandlerGroup]:
        """The handlers by consumer group, in the order of their declaration."""
        return groups_of(self._handlers)

    def body_of(self, topic: str) -> TopicBody:
        """What the bodies of a topic are; of one that was not declared, whatever is sent."""
        return self._topics.get(topic) or TopicBody()

    # Open and close

    def start(self) -> Self:
        """Open the store, make the tables that are missing, bind ledger and store. Called by what needs it.

        Returns the application. With SQLite call it before the first transaction of a session that the application
        opened itself. Raises what `broker.open`, Producer and the database raise.
        """
        with self._lock:
            if self._store is None:
                self._store = open_live(self.path, **self._options)
            topics = frozenset(self._topics)
            if self._producers is None or self._producers[0] != topics:
                self._producers = (topics, *self._open_producers(self._store, sorted(topics)))
        return self

    def _open_producers(self, store: LiveStore, topics: list[str]) -> tuple[Producer | None, Producer]:
        """The transactional producer, and the plain one, whose group must be another."""
        for topic in topics:
            if store.topic(topic) is None:
                store.create_topic(topic, message_type=_MIXED, change=False)
        plain = store.producer(self.name if self._ledger is None else f"{self.name}-plain")
        if self._ledger is None or self.engine is None:
            return None, plain
        if self._create_tables:
            for metadata in self.metadata:
                make_tables(metadata, self.engine)
        if self.async_engine is not None:
            watch(self.async_engine.sync_engine)  # before its first savepoint
        return store.producer(self.name, topics=topics, ledger=self._ledger) if topics else None, plain

    @property
    def store(self) -> LiveStore:
        """The store, open. Raises what `start` raises."""
        self.start()
        assert self._store is not None
        return self._store

    @property
    def producer(self) -> Producer:
        """The producer of messages in transactions.

        Raises TransactionError for an application without an engine or without topics, and what `start` raises.
        """
        self.start()
        assert self._producers is not None
        if (found := self._producers[1]) is None:
            missing = "engine=create_engine(...)" if self.engine is None else "topics=[...]"
            raise TransactionError(f"{self!r} has no transactions of messages: App(path, {missing})")
        return found

    @property
    def sends(self) -> bool:
        """Whether it declares topics, which its transactions may send to."""
        return bool(self._topics)

    @property
    def metadata(self) -> list[MetaData]:
        """The tables in its database, for Alembic: `[Base.metadata, *app.metadata]`. Empty without an engine."""
        return [] if self._ledger is None else [self._ledger.metadata, self.processed.metadata, self.sent_keys.metadata]

    def close(self) -> None:
        """Release the store. It opens again at its next use. Raises what `LiveStore.close` raises."""
        with self._lock:
            store, self._store, self._producers = self._store, None, None
            if store is not None:
                store.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Send

    @contextlib.contextmanager
    def transaction(self, session: SomeSession | None = None) -> Iterator[Session]:
        """A block of one database transaction, whose sends are delivered when it is committed: at its end.

        An exception rolls both back. A `session` that is given is committed or rolled back, and stays open; None: a new
        one. Raises what `producer` raises, and at its end what `SessionTransaction.commit` raises: UnknownOutcome when
        COMMIT itself failed, which check-back will find out.
        """
        producer = self.producer
        with contextlib.ExitStack() as stack:
            if session is None:
                from sqlalchemy.orm import Session as NewSession

                session = stack.enter_context(NewSession(self.engine))
            check_kind(session, is_async=False)
            with producer.begin_transaction(session), self._scopes.entered(session):
                yield cast("Session", session)

    @contextlib.asynccontextmanager
    async def transaction_async(self, session: SomeAsyncSession | None = None) -> AsyncIterator[AsyncSession]:
        """The same for an AsyncSession; its sends are `await app.send_async(...)`.

        Raises TransactionError without a session and an `async_engine`, else what `transaction` raises.
        """
        producer = self.producer
        async with contextlib.AsyncExitStack() as stack:
            if session is None:
                from sqlalchemy.ext.asyncio import AsyncSession as NewSession

                if self.async_engine is None:
                    raise TransactionError(f"{self!r} has no async_engine: App(async_engine=create_async_engine(...))")
                session = await stack.enter_async_context(NewSession(self.async_engine))
            check_kind(session, is_async=True)
            async with producer.begin_transaction(session):
                with self._scopes.entered(session):
                    yield cast("AsyncSession", session)

    def send(
        self, topic: str, value: Any, session: SessionOrConnection | None = None, **options: Unpack[SendKeywords]
    ) -> SendResult | None:
        """Send a value: in the transaction of the session, of the handler or of the `transaction()` block it is in.

        Without any of them it is refused where the application has a database: see `send_now`. The options are those
        of SendKeywords. With `dedup_key` the topic gets one message for that key within `dedup_window`, whatever
        process sends it, and None is returned for a repeated one. Raises MessageRejected for a topic that it does not
        declare and a value that the topic does not take; TransactionError outside a transaction, and for a `dedup_key`
        without a database; and what `start`, `Producer.send` and the database raise.
        """
        session = self._scopes.session() if session is None else session
        with self._scopes.failing_makes_commit_impossible(session):
            event = self._event(topic, value, options)
            if session is None:
                self._check_no_database(event.dedup_key)
                return self._plain().send(event.message, **event.placing)
            producer, key = self.producer, event.dedup_key
            if key is not None and not hasattr(session, "run_sync"):  # the send refuses an AsyncSession
                is_new = self.sent_keys.first_time(cast(Any, session), topic, key, event.window_ms)
                if not is_new:
                    return None
            return producer.send(event.message, session, **event.placing)

    @coroutine_function
    def send_async(
        self, topic: str, value: Any, session: AsyncSessionOrConnection | None = None, **options: Unpack[SendKeywords]
    ) -> Coroutine[Any, Any, SendResult | None]:
        """`send` without blocking the event loop. An AsyncSession cannot commit before it is done. Raises as `send`."""
        target = session_now(session)
        return send_async(self._scopes.expected(target), partial(self._send_async, topic, value, target, options))

    async def _send_async(self, topic: str, value: Any, session: Any, options: SendKeywords) -> SendResult | None:
        session = self._scopes.session() if session is None else session
        with self._scopes.failing_makes_commit_impossible(session):
            event = self._event(topic, value, options)
            if session is None:
                self._check_no_database(event.dedup_key)
                return await self._plain().send_async(event.message, **event.placing)
            producer, key = self.producer, event.dedup_key
            if key is not None:
                note = partial(self.sent_keys.first_time, topic=topic, key=key, window_ms=event.window_ms)
                if not await note_in(session, note):
                    return None
            return await producer.send_async(event.message, session, **event.placing)

    def send_now(self, topic: str, value: Any, **options: Unpack[SendKeywords]) -> SendResult:
        """Send a value in no transaction. Raises what `send` does, and TransactionError for a `dedup_key`."""
        event = self._event(topic, value, options)
        if event.dedup_key is not None:
            raise TransactionError("send_now() has no transaction to keep a dedup_key in: use app.send()")
        return self._plain().send(event.message, **event.placing)

    def _plain(self) -> Producer:
        self.start()
        assert self._producers is not None
        return self._producers[2]

    def _check_no_database(self, dedup_key: str | None) -> None:
        if self._ledger is not None:
            text = "app.send() outside a transaction: give it the session, or send in `with app.transaction()`"
            raise TransactionError(f"{text}; a message that no transaction decides is app.send_now()")
        if dedup_key is not None:
            raise TransactionError("a dedup_key is kept in the application's database: App(engine=create_engine(...))")

    def _event(self, topic: str, value: Any, options: SendKeywords) -> Outgoing:
        declared = self._topics.get(topic) if isinstance(cast(object, topic), str) else None
        if declared is None:
            known = ", ".join(sorted(self._topics)) or "none"
            raise MessageRejected(f"{self!r} does not send to the topic {topic!r:.60}: it declares {known}")
        try:
            return outgoing(topic, value, declared, self.name, **options)
        except TypeError:
            check_keywords(options)
            raise

    # Work

    def workers(self, groups: Sequence[HandlerGroup] | None = None, *, runs: HandlerRuns | None = None) -> Workers:
        """The handlers' threads in this process, of all groups (None) or of some; not started yet.

        `checkback work` runs them in production. `runs` counts what the handlers do; None: nothing does. Raises
        BrokerError for what are not groups, as `groups` has them.
        """
        from broker.app.worker import Workers

        return Workers(self, groups, runs=runs)

    def entered(self, session: Any) -> contextlib.AbstractContextManager[None]:
        """Within the block, `send` joins the session's transaction; the block neither commits nor rolls back."""
        return self._scopes.entered(session)
