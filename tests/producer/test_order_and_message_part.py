"""Programs in which an order and its message could part, and right ones that were refused: what a review found."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import sqlite3
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session

import broker
from broker.enlisting.enlistment import Doom, Enlistment
from broker.errors import BrokerError, TransactionError

pytestmark = pytest.mark.filterwarnings("ignore:coroutine")


class Shop:
    """Orders in SQLite, and a producer beside them."""

    def __init__(self, place: Path, sync: str = "os") -> None:
        self.file, self.engine = place / "shop.db", create_engine(f"sqlite:///{place}/shop.db")
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE orders (item TEXT)"))
        self.ledger = broker.Ledger(self.engine)
        self.ledger.create_all()
        self.store = broker.open(place / "store", sync=sync, layout=broker.StoreLayout.small())
        self.producer = self.store.producer("shop", topics=["orders"], ledger=self.ledger)
        self.async_engine = create_async_engine(f"sqlite+aiosqlite:///{place}/shop.db")

    def async_producer(self) -> broker.Producer:
        return self.store.producer("async", topics=["orders"], ledger=broker.Ledger(self.async_engine))

    def orders(self) -> list[str]:
        with self.engine.connect() as connection:
            return sorted(item for (item,) in connection.execute(text("SELECT item FROM orders")))

    def delivered(self) -> list[str]:
        found = []
        for queue in self.store.queues("orders"):
            for number in range(*self.store.queue_range("orders", queue)):
                message = self.store.message("orders", queue, number)
                assert message is not None
                found.append(message.body.decode())
        return sorted(found)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """A coroutine that nothing awaited is garbage in circles: it is found here, and not in the next test that fails."""
    yield
    gc.collect()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.store.close()


def save(target: Any, item: str) -> Any:
    return target.execute(text("INSERT INTO orders VALUES (:item)"), {"item": item})


def message(item: str = "lamp") -> broker.Message:
    return broker.Message("orders", item.encode())


# An order without its message: a session joins a connection that sent before


@pytest.mark.parametrize("mode", ["conditional_savepoint", "create_savepoint"])
@pytest.mark.parametrize("ends", ["commit", "close"])
def test_a_session_that_joins_a_connection_in_which_something_was_sent(shop: Shop, mode: Any, ends: str) -> None:
    try:
        with shop.engine.begin() as connection:
            save(connection, "lamp")
            shop.producer.send(message(), connection)
            with Session(connection, join_transaction_mode=mode) as session:
                shop.producer.send(message("desk"), session)  # the refusal "outer transaction" is right, too
                getattr(session, ends)()
    except TransactionError:
        pass
    assert set(shop.orders()) <= set(shop.delivered())


# A task that has begun to send, and has not finished, when the session commits


def test_a_task_that_still_sends_at_commit(tmp_path: Path) -> None:
    shop = Shop(tmp_path, sync="each")
    producer = shop.async_producer()
    real = shop.store.writer.settle

    def slow(end: int) -> None:
        time.sleep(0.2)
        real(end)

    async def work() -> None:
        async with AsyncSession(shop.async_engine) as session:
            await save(session, "first")
            await producer.send_async(message("first"), session)
            await session.commit()
            shop.store.writer.settle = slow  # type: ignore[method-assign]
            await save(session, "lamp")
            task = asyncio.create_task(producer.send_async(message(), session))
            await asyncio.sleep(0)
            try:
                await session.commit()
            except TransactionError:
                await session.rollback()
            await asyncio.gather(task, return_exceptions=True)
        await shop.async_engine.dispose()

    asyncio.run(work())
    assert shop.orders() == shop.delivered()
    shop.store.close()


# gather() of sends in a session that belongs to the task


def test_gather_with_a_session_of_the_task(shop: Shop) -> None:
    producer = shop.async_producer()

    async def work() -> None:
        session = async_scoped_session(async_sessionmaker(shop.async_engine), scopefunc=asyncio.current_task)
        await save(session, "lamp")
        await asyncio.gather(producer.send_async(message(), session))
        await session.commit()
        await session.remove()
        await shop.async_engine.dispose()

    asyncio.run(work())
    assert shop.orders() == shop.delivered() == ["lamp"]


# A forgotten await, and a refused send_async, on a plain connection


def test_a_forgotten_await_on_a_plain_connection(shop: Shop) -> None:
    ledger = broker.ConnectionLedger(lambda: sqlite3.connect(shop.file))
    producer = shop.store.producer("plain", topics=["orders"], ledger=ledger)
    connection = sqlite3.connect(shop.file)
    with (  # noqa: PT012
        pytest.raises(TransactionError, match="nothing awaited"),
        producer.begin_transaction(connection) as transaction,
    ):
        connection.execute("INSERT INTO orders VALUES ('lamp')")
        producer.send_async(message(), transaction)
    connection.close()
    assert shop.orders() == []


def test_a_forgotten_await_with_a_resolver(shop: Shop) -> None:
    producer = shop.store.producer("asked", topics=["orders"], resolver=lambda _: None)
    with pytest.raises(TransactionError, match="nothing awaited"), producer.begin_transaction() as transaction:
        producer.send_async(message(), transaction)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_send_on_a_plain_connection_that_is_refused(shop: Shop, is_async: bool) -> None:
    connection = sqlite3.connect(shop.file)
    connection.execute("INSERT INTO orders VALUES ('lamp')")
    with pytest.raises(TransactionError, match="ledger of its kind"):  # noqa: PT012
        if is_async:
            asyncio.run(shop.producer.send_async(message(), connection))
        else:
            shop.producer.send(message(), connection)
    with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
        connection.commit()
    connection.close()


def test_a_send_in_a_transaction_that_is_over_on_a_plain_connection(shop: Shop) -> None:
    ledger = broker.ConnectionLedger(lambda: sqlite3.connect(shop.file))
    producer = shop.store.producer("plain", topics=["orders"], ledger=ledger)
    connection = sqlite3.connect(shop.file)
    with producer.begin_transaction(connection) as transaction:
        producer.send(message(), transaction)
    connection.execute("INSERT INTO orders VALUES ('desk')")
    with pytest.raises(TransactionError, match="is over"):
        producer.send(message("desk"), transaction)
    with pytest.raises(sqlite3.DatabaseError):
        connection.commit()
    connection.close()


# The first send of a process, in a savepoint of an AsyncSession of an App


@pytest.mark.parametrize("awaits", [True, False])
def test_the_first_send_of_an_app_in_a_savepoint(tmp_path: Path, awaits: bool) -> None:
    url = f"sqlite:///{tmp_path}/shop.db"
    engine, async_engine = create_engine(url), create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (item TEXT)"))
    app = broker.App(
        tmp_path / "store", engine=engine, async_engine=async_engine, topics=["orders"],
        layout=broker.StoreLayout.small(),
    ).start()  # fmt: skip

    async def work() -> None:
        try:
            async with AsyncSession(async_engine) as session:
                await save(session, "lamp")
                async with session.begin_nested():
                    sending = app.send_async("orders", b"lamp", session)
                    if awaits:
                        await sending
                await session.commit()
        finally:
            await async_engine.dispose()

    if awaits:
        asyncio.run(work())
    else:
        with pytest.raises(TransactionError, match="nothing awaited"):
            asyncio.run(work())
    app.close()


# A connection that the session takes after the send that failed


@pytest.mark.parametrize("is_awaited", [True, False])
def test_a_commit_past_the_session_on_a_connection_that_it_took_later(shop: Shop, is_awaited: bool) -> None:
    with Session(shop.engine) as session:
        if is_awaited:
            with pytest.raises(BrokerError):
                shop.producer.send(None, session)  # type: ignore[arg-type]
        else:
            shop.producer.send_async(message(), session)
        save(session, "lamp")
        with pytest.raises(TransactionError):
            session.connection().commit()
    assert shop.orders() == []


@pytest.mark.parametrize("send_first", [True, False])
def test_an_event_of_the_commit_that_sends_beside_another_database(shop: Shop, send_first: bool) -> None:
    """As Flask-SQLAlchemy's bind keys, and a model's events: the first send comes behind the check before COMMIT."""
    elsewhere = create_engine(f"sqlite:///{shop.file}.elsewhere")

    class Routing(Session):
        def get_bind(self, *_: Any, clause: Any = None, **_named: Any) -> Engine:
            return shop.engine if getattr(clause, "table", None) is shop.ledger.rows else elsewhere

    def place_order(session: Session) -> None:
        if send_first:
            shop.producer.send(message(), session)
        session.execute(text("CREATE TABLE orders (item TEXT)"))
        if not send_first:
            shop.producer.send(message(), session)

    with Routing() as session:
        event.listen(session, "before_commit", place_order)
        session.begin()
        with pytest.raises(TransactionError, match="also has a connection to"):
            session.commit()
        session.rollback()
    assert shop.delivered() == []


# Correct programs that are refused


def test_a_doom_does_not_outlive_a_two_phase_transaction(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    socket = request.getfixturevalue("postgres_socket")
    engine: Engine = create_engine(f"postgresql+psycopg://shop@/postgres?host={socket}")
    ledger = broker.Ledger(engine, table="ledger_reviewed")
    ledger.create_all()
    with (
        broker.open(tmp_path / "store", sync="os", layout=broker.StoreLayout.small()) as store,
        engine.connect() as connection,
    ):
        producer = store.producer("shop", topics=["orders"], ledger=ledger)
        twophase = connection.begin_twophase()
        with pytest.raises(TransactionError, match="two-phase"):
            producer.send(message(), connection)
        twophase.rollback()
        connection.execute(text("SELECT 1"))
        connection.commit()  # another transaction, in which nothing failed
    engine.dispose()


def test_a_coroutine_that_is_made_before_the_transaction_begins(shop: Shop) -> None:
    producer = shop.async_producer()

    async def work() -> None:
        async with AsyncSession(shop.async_engine) as session:
            later = producer.send_async(message(), session)
            async with session.begin():
                await save(session, "lamp")
                await later
        await shop.async_engine.dispose()

    asyncio.run(work())
    assert shop.orders() == shop.delivered() == ["lamp"]


def test_a_block_that_is_left_in_another_context(tmp_path: Path) -> None:
    """A dependency of FastAPI that is a generator, `def`: each step runs in a copy of the context, in a thread."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (item TEXT)"))
    app = broker.App(tmp_path / "store", engine=engine, topics=["orders"], layout=broker.StoreLayout.small()).start()
    block = app.transaction()
    session = contextvars.copy_context().run(block.__enter__)
    save(session, "lamp")
    app.send("orders", b"lamp", session)
    contextvars.copy_context().run(block.__exit__, None, None, None)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT item FROM orders")).all() == [("lamp",)]
    app.close()


def test_an_import_in_another_thread_disturbs_nobody(tmp_path: Path) -> None:
    import subprocess

    program = inspect.getsource(_Importing) + f"\n_Importing.run({str(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "processed" in done.stdout, done.stderr[-500:]


class _Importing:
    @staticmethod
    def run(place: str) -> None:
        import importlib.abc
        import sys
        import threading
        import time

        from sqlalchemy import create_engine
        from sqlalchemy.orm import Session

        import broker

        inside = threading.Event()

        class Slow(importlib.abc.MetaPathFinder):
            def find_spec(self, name: str, *_: object) -> None:
                if name == "sqlalchemy.ext.asyncio.engine":
                    inside.set()
                    time.sleep(1)

        sys.meta_path.insert(0, Slow())
        engine = create_engine(f"sqlite:///{place}/shop.db")
        processed = broker.Processed()
        processed.create_all(engine)
        with broker.open(f"{place}/store", layout=broker.StoreLayout.small()) as store:
            store.producer("web").send(broker.Message("orders", b"lamp"))
            with store.consumer("billing", "orders", processed=processed) as consumer:
                message = consumer.receive()
                threading.Thread(target=__import__, args=("sqlalchemy.ext.asyncio",)).start()
                inside.wait()
                with Session(engine) as session, consumer.process(message, session):
                    print("processed")


def test_a_transaction_remembers_no_send_that_is_done() -> None:
    enlistment = Enlistment()
    for _ in range(100):
        send = Doom("it still runs")
        enlistment.doom(send)
        send.is_lifted = True
    kept = vars(enlistment).values()
    assert sum(len(one) for one in kept if isinstance(one, list)) == 1


def test_cursors_of_ours_are_not_kept_by_a_connection(shop: Shop) -> None:
    ledger = broker.ConnectionLedger(lambda: sqlite3.connect(shop.file))
    producer = shop.store.producer("plain", topics=["orders"], ledger=ledger)
    connection = sqlite3.connect(shop.file)
    cursor = connection.cursor()  # the application keeps one: only connection.cursor() sweeps the list

    def kept() -> int:
        gc.collect()
        return sum(type(one) is weakref.ref for one in gc.get_objects())  # isinstance() would wake other tests' proxies

    before = kept()
    for _ in range(400):
        with producer.begin_transaction(connection) as transaction:
            cursor.execute("INSERT INTO orders VALUES ('lamp')")
            producer.send(message(), transaction)
    assert kept() - before < 1000
    connection.close()
