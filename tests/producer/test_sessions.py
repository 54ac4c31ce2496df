"""A transaction of messages that ends as a database session's does: one row for all of them, and what that costs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Delete, Engine, Update, create_engine, event, text
from sqlalchemy.orm import Session

import broker
from broker.enlisting.ledger_key import LEDGER_KEY
from broker.errors import TransactionError
from broker.live import LiveStore
from broker.local_transaction import SessionTransaction
from broker.transaction.events import TransactionState
from tests.backends.shop import BackendShop, announce, save


def test_all_messages_of_a_transaction_name_one_ledger_row(backend_shop: BackendShop) -> None:
    transaction = backend_shop.buy(1, topics=("orders", "stock", "orders"))
    keys = {half.properties[LEDGER_KEY] for half in transaction.halves}
    with backend_shop.ledger.engine.connect() as connection:
        rows = connection.execute(backend_shop.ledger.rows.select()).all()
    assert keys == {row.ledger_key for row in rows}
    assert [(row.state, row.producer_group) for row in rows] == [(TransactionState.COMMITTED, "shop")]
    assert {row.store_id for row in rows} == {backend_shop.backend.client.store_id}


def test_one_session_may_do_many_transactions(backend_shop: BackendShop) -> None:
    """By calls, by blocks, and without any message."""
    producer = backend_shop.producer()
    with backend_shop.session() as session:
        for number, end in ((1, SessionTransaction.commit), (2, SessionTransaction.rollback)):
            transaction = producer.begin_transaction(session)
            save(session, number)
            announce(producer, transaction, number)
            end(transaction)
        for number in (3, 4):
            save(session, number)  # before the block begins: it belongs to it
            with producer.begin_transaction(session) as transaction:
                announce(producer, transaction, number)
        with producer.begin_transaction(session):
            pass
    assert backend_shop.orders() == backend_shop.announced() == [1, 3, 4]
    assert backend_shop.in_doubt() == 0


def test_a_session_of_flask_finds_a_ledger_by_its_bind_key(store: LiveStore, tmp_path: Path) -> None:
    """As docs/frameworks.md says: Flask-SQLAlchemy's session chooses an engine by the table's metadata."""
    flask, flask_sqlalchemy = pytest.importorskip("flask"), pytest.importorskip("flask_sqlalchemy")
    app = flask.Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{tmp_path}/default.db"
    app.config["SQLALCHEMY_BINDS"] = {"sales": f"sqlite:///{tmp_path}/sales.db"}
    db = flask_sqlalchemy.SQLAlchemy(app)
    with app.app_context():
        ledger = broker.Ledger(db.engines["sales"])
        ledger.create_all()
        ledger.metadata.info["bind_key"] = "sales"
        store.producer("shop", topics=["orders"], ledger=ledger).send(broker.Message("orders", b"1"), db.session)
        db.session.commit()
        db.session.remove()
        for engine in db.engines.values():
            engine.dispose()
    assert store.queues("orders")


def test_a_session_that_reads_from_a_follower_writes_its_row_to_the_leader(
    backend_shop: BackendShop, tmp_path: Path
) -> None:
    """As SQLAlchemy's documents route a session: it was refused, since the ledger was looked for where it reads."""
    follower = create_engine(f"sqlite:///{tmp_path}/follower.db")

    class Routing(Session):
        def get_bind(self, *_: Any, clause: Any = None, **_named: Any) -> Engine:
            is_written = self._flushing or isinstance(clause, (Update, Delete)) or "INSERT" in str(clause)
            return backend_shop.ledger.engine if is_written else follower

    producer = backend_shop.producer()
    with Routing() as session:
        producer.send(broker.Message("orders", b"1"), session)
        save(session, 1)
        session.commit()
        session.execute(text("SELECT 1"))
        producer.send(broker.Message("orders", b"2"), session)
        with pytest.raises(TransactionError, match="also has a connection to"):
            session.commit()
    follower.dispose()
    assert backend_shop.orders() == backend_shop.announced() == [1]


def test_a_message_costs_the_database_no_more_than_its_row(backend_shop: BackendShop) -> None:
    """An INSERT, and where that came early a SELECT that it is still there; nothing for the second message."""
    producer, statements = backend_shop.producer(), []
    engine, me = backend_shop.ledger.engine, threading.get_ident()

    def note(*arguments: Any) -> None:
        if threading.get_ident() == me:  # on a slow machine a check of its broker is answered beside it
            statements.append(arguments[2].split()[0])

    event.listen(engine, "before_cursor_execute", note)
    for turn in range(2):  # what is asked once for a process, is asked in the first
        statements.clear()
        with backend_shop.session() as session:
            producer.send(broker.Message("orders", b"1"), session)
            producer.send(broker.Message("orders", b"2"), session)
            session.commit()
        if turn:
            assert statements == (["INSERT", "SELECT"] if backend_shop.ledger.holds_a_lock else ["INSERT"])
