"""A transaction of messages that ends as a database session's does: sessions, async sessions, and their misuse."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.engine.interfaces import PoolProxiedConnection
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import broker
from broker.enlisting.ledger_key import LEDGER_KEY
from broker.ledger import Ledger
from broker.live import LiveStore
from broker.local_transaction import SessionTransaction
from broker.transaction.events import TransactionState
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


def test_all_messages_of_a_transaction_name_one_ledger_row(store: LiveStore, ledger: Ledger, engine: Engine) -> None:
    producer = producer_of(store, ledger)
    with Session(engine) as session, producer.begin_transaction(session) as transaction:
        for _ in range(3):
            producer.send(broker.Message("orders", b"1"), transaction)
    keys = {half.properties[LEDGER_KEY] for half in transaction.halves}
    with engine.connect() as connection:
        rows = connection.execute(ledger.rows.select()).all()
    assert keys == {row.ledger_key for row in rows}
    assert [(row.state, row.producer_group) for row in rows] == [(TransactionState.COMMITTED, "shop")]


def test_commit_and_rollback_can_be_called_without_a_block(store: LiveStore, ledger: Ledger, engine: Engine) -> None:
    producer = producer_of(store, ledger)
    with Session(engine) as session:
        for number, end in ((b"1", SessionTransaction.commit), (b"2", SessionTransaction.rollback)):
            transaction = producer.begin_transaction(session)
            producer.send(broker.Message("orders", number), transaction)
            end(transaction)
    assert delivered(store) == [b"1"]


def test_one_session_may_do_many_transactions(store: LiveStore, ledger: Ledger, engine: Engine) -> None:
    producer = producer_of(store, ledger)
    with Session(engine) as session:
        for number in range(5):
            with producer.begin_transaction(session) as transaction:
                producer.send(broker.Message("orders", b"%d" % number), transaction)
    assert sorted(delivered(store)) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_message_costs_the_database_no_more_than_its_row(store: LiveStore, ledger: Ledger, engine: Engine) -> None:
    """An INSERT, and where that came early a SELECT that it is still there; nothing for the second message."""
    producer, statements = producer_of(store, ledger), []
    event.listen(engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2].split()[0]))
    for turn in range(2):  # what is asked once for a process, is asked in the first
        statements.clear()
        with Session(engine) as session:
            producer.send(broker.Message("orders", b"1"), session)
            producer.send(broker.Message("orders", b"2"), session)
            session.commit()
        if turn:
            assert statements == (["INSERT", "SELECT"] if ledger.holds_a_lock else ["INSERT"])


def test_what_the_session_did_before_belongs_to_it(store: LiveStore, ledger: Ledger, engine: Engine) -> None:
    """A session that has begun already: its rows and the messages share one COMMIT."""
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id INTEGER PRIMARY KEY)"))
    producer = producer_of(store, ledger)
    with Session(engine) as session:
        session.execute(text("INSERT INTO orders (id) VALUES (1)"))
        with producer.begin_transaction(session) as transaction:
            producer.send(broker.Message("orders", b"1"), transaction)
        assert session.execute(text("SELECT count(*) FROM orders")).scalar() == 1


def test_a_transaction_without_messages_is_a_plain_one(store: LiveStore, ledger: Ledger, engine: Engine) -> None:
    producer = producer_of(store, ledger)
    with Session(engine) as session, producer.begin_transaction(session):
        pass
    assert len(store.transactions.in_doubt_slots()) == 0


@pytest.mark.parametrize("driver", ["sqlite+aiosqlite", "postgresql+psycopg", "mariadb+aiomysql"])
def test_an_async_session_does_the_same(
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


def test_plain_messages_can_be_sent_from_a_coroutine(store: LiveStore) -> None:
    producer = store.producer("web")

    async def send() -> None:
        await asyncio.gather(*(producer.send_async(broker.Message("carts", b"%d" % number)) for number in range(8)))

    asyncio.run(send())
    assert sorted(delivered(store, "carts")) == [b"%d" % number for number in range(8)]
