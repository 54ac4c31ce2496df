"""What a session's messages cost a store: when they are on its disk, how often it is fsynced, where a delay waits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, func, select, text
from sqlalchemy.engine.interfaces import PoolProxiedConnection
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import broker
from broker.errors import StoreError, TransactionError
from broker.ledger import Ledger
from broker.live import LiveStore
from tests.producer.delivered import delivered

pytestmark = pytest.mark.usefixtures("each_engine")


def producer_of(store: LiveStore, ledger: Ledger) -> broker.Producer:
    return store.producer("shop", topics=["orders"], ledger=ledger)


def test_the_half_message_is_on_disk_before_commit(
    store: LiveStore, ledger: Ledger, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the moment of COMMIT the log is durable beyond it."""
    durable = []
    commit = engine.dialect.do_commit

    def watched(connection: PoolProxiedConnection) -> None:
        durable.append(store.visible_end >= transaction.halves[-1].end)
        commit(connection)

    producer = producer_of(store, ledger)
    monkeypatch.setattr(engine.dialect, "do_commit", watched)
    for _ in range(20):
        with Session(engine) as session, producer.begin_transaction(session) as transaction:
            producer.send(broker.Message("orders", b"1"), transaction)
    assert durable == [True] * 20


def test_all_messages_of_a_transaction_cost_one_forced_write(
    store: LiveStore, ledger: Ledger, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing is forced for one that is rolled back."""
    forced, log = [], store.writer.syncer.log
    sync = log.sync

    def counted(start: int, stop: int) -> None:
        if threading.current_thread() is threading.main_thread():  # upkeep forces what nobody waits for
            forced.append((start, stop))
        sync(start, stop)

    monkeypatch.setattr(log, "sync", counted)
    producer = producer_of(store, ledger)
    with Session(engine) as session, producer.begin_transaction(session) as transaction:
        for _ in range(50):
            producer.send(broker.Message("orders", b"1"), transaction)
    assert len(forced) <= 1
    forced.clear()
    with Session(engine) as session:
        transaction = producer.begin_transaction(session)
        producer.send(broker.Message("orders", b"2"), transaction)
        transaction.rollback()
    assert forced == []
    assert delivered(store) == [b"1"] * 50


@pytest.mark.parametrize("driver", ["sqlite+aiosqlite", "postgresql+psycopg", "mariadb+aiomysql"])
def test_an_async_session_may_delay(
    store: LiveStore, driver: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if driver.startswith("sqlite"):
        url = f"{driver}:///{tmp_path / 'async.db'}"
    else:
        url = request.getfixturevalue(f"{'postgres' if 'psycopg' in driver else 'mariadb'}_url").set(drivername=driver)

    async def business() -> tuple[int, list[int]]:
        engine = create_async_engine(url)
        ledger = Ledger(engine)
        await ledger.create_all_async()
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
        producer = producer_of(store, ledger)
        async with AsyncSession(engine) as session, producer.begin_transaction(session) as transaction:
            await session.execute(text("INSERT INTO orders (id) VALUES (1)"))
            await producer.send_async(broker.Message("orders", b"1"), transaction)
        with pytest.raises(ZeroDivisionError):
            await _fail_inside(engine, producer)
        async with AsyncSession(engine) as session, producer.begin_transaction(session) as transaction:
            await session.execute(text("INSERT INTO orders (id) VALUES (3)"))
            await producer.send_async(broker.Message("orders", b"3"), transaction, delay_level=4)
            assert store.queue_range("SCHEDULE_TOPIC_XXXX", 3) == (0, 0)
        async with AsyncSession(engine) as session:
            saved = [number for (number,) in await session.execute(text("SELECT id FROM orders"))]
        await engine.dispose()
        return len(store.transactions.in_doubt_slots()), saved

    assert asyncio.run(business()) == (0, [1, 3])
    assert delivered(store) == [b"1"]
    assert store.queue_range("SCHEDULE_TOPIC_XXXX", 3) == (0, 1)


async def _fail_inside(engine: object, producer: broker.Producer) -> None:
    async with AsyncSession(engine) as session, producer.begin_transaction(session) as transaction:  # type: ignore[arg-type]
        await session.execute(text("INSERT INTO orders (id) VALUES (2)"))
        await producer.send_async(broker.Message("orders", b"2"), transaction)
        raise ZeroDivisionError


@pytest.mark.parametrize("sync", ["each", "group", "os"])
@pytest.mark.parametrize("kind", ["session", "connection", "plain"])
def test_a_store_that_is_closed_within_a_transaction(tmp_path: Path, kind: str, sync: str) -> None:
    """Nothing is saved where the half messages may not be on disk, of which `os` says nothing."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    Ledger(engine).create_all()
    store = broker.open(tmp_path / "shop.store", sync=sync)
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        own = kind == "plain"
        ledger: Any = broker.ConnectionLedger(lambda: sqlite3.connect(tmp_path / "shop.db")) if own else Ledger(engine)
        producer = store.producer("shop", topics=["orders"], ledger=ledger)
        target: Any = Session(engine) if kind == "session" else engine.connect()
        ending: Any = producer.begin_transaction(connection) if own else target
        producer.send(broker.Message("orders", b"1"), ending)
        store.close()
        with pytest.raises(StoreError, match="was closed") if sync != "os" else contextlib.nullcontext():
            ending.commit()
        target.close()
    with engine.connect() as asked:
        assert asked.execute(select(func.count()).select_from(Ledger(engine).rows)).scalar_one() == (sync == "os")
    engine.dispose()
    with broker.open(tmp_path / "shop.store") as again:
        assert len(again.transactions.in_doubt_slots()) == 1


def _in_a_forked_child(work: Callable[[], object]) -> int:
    """0 when `work` returned there, 1 when it raised."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def shop_engine(tmp_path: Path) -> Iterator[Engine]:
    """On SQLite, which does not see that the child's ROLLBACK comes from another process: nothing is written yet."""
    made = create_engine(f"sqlite:///{tmp_path}/shop.db")
    Ledger(made).create_all()
    yield made
    made.dispose()


def test_a_forked_child_ends_no_message_of_its_parent(store: LiveStore, shop_engine: Engine) -> None:
    """It has a copy of the session, and closes it: by `scoped_session.remove`, or when `sys.exit` leaves the block."""
    producer = producer_of(store, Ledger(shop_engine))
    with Session(shop_engine) as session:
        producer.send(broker.Message("orders", b"1"), session)
        assert _in_a_forked_child(session.close) == 0
        session.commit()
    assert delivered(store) == [b"1"]


def test_in_a_forked_child_the_session_takes_no_message_and_does_not_commit(
    store: LiveStore, shop_engine: Engine
) -> None:
    producer = producer_of(store, Ledger(shop_engine))

    def go_on() -> None:
        for step in (lambda: producer.send(broker.Message("orders", b"2"), session), session.commit):
            with pytest.raises(TransactionError, match="forked this one: end it there"):
                step()

    with Session(shop_engine) as session:
        producer.send(broker.Message("orders", b"1"), session)
        assert _in_a_forked_child(go_on) == 0
        session.rollback()
    assert delivered(store) == []


def test_a_forked_child_that_leaves_a_plain_transaction_decides_nothing(store: LiveStore) -> None:
    producer = store.producer("web", topics=["orders"], resolver=lambda _: None)
    with producer.begin_transaction() as transaction:
        producer.send(broker.Message("orders", b"1"), transaction)
        assert _in_a_forked_child(lambda: transaction.__exit__(SystemExit, SystemExit(), None)) == 0
    assert delivered(store) == [b"1"]
