"""A producer that is made inside a transaction that writes: nothing is saved, and the sentence says what to do."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import broker


def test_a_producer_that_is_made_inside_a_writing_transaction_is_refused_on_sqlite(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}", connect_args={"timeout": 0.1})
    ledger = broker.Ledger(engine)
    ledger.create_all()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (item TEXT)"))
    with broker.open(tmp_path / "store", layout=broker.StoreLayout.small()) as store:
        with Session(engine) as session:
            session.execute(text("INSERT INTO orders VALUES ('lamp')"))
            producer = store.producer("shop", topics=["orders"], ledger=ledger)
            with pytest.raises(broker.TransactionError, match="when the program starts"):
                producer.send(broker.Message("orders", b"lamp"), session)
            with pytest.raises(broker.TransactionError):
                session.commit()
        assert store.transactions.in_doubt_slots() == []
        with Session(engine) as session, session.begin():
            assert session.execute(text("SELECT count(*) FROM orders")).scalar() == 0
            producer.send(broker.Message("orders", b"lamp"), session)
        store.sync_now()
        assert [record.body for record in store.records()] == [b"lamp", b"lamp"]  # the half message, and its commit
    engine.dispose()
