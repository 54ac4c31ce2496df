"""PostgreSQL: `"$user"` in the search_path follows SET ROLE, and may lead to a ledger that check-back does not read."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from sqlalchemy import URL, Engine, create_engine, text
from sqlalchemy.orm import Session

import broker
from broker.errors import TransactionError
from broker.ledger import Ledger
from broker.live import LiveStore

MESSAGE = broker.Message("orders", b"1")


@pytest.fixture
def shop(postgres_url: URL) -> Iterator[Engine]:
    """A database in which a role has a schema of its own, made by a migration of every schema."""
    engine = create_engine(postgres_url)
    role = f"clerk_{postgres_url.database}"
    with engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} SUPERUSER"))
        connection.execute(text(f"CREATE SCHEMA {role}"))
    for schema in (None, role):
        Ledger(engine, schema=schema).create_all()
    yield engine
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {role} CASCADE"))
        connection.execute(text(f"DROP ROLE {role}"))
    engine.dispose()


def test_a_session_that_takes_a_role(store: LiveStore, shop: Engine) -> None:
    producer = store.producer("shop", topics=["orders"], ledger=Ledger(shop))
    with Session(shop) as session:
        producer.send(MESSAGE, session)
        session.commit()
        session.execute(text(f"SET LOCAL ROLE clerk_{shop.url.database}"))
        with pytest.raises(TransactionError, match="role or search_path leads to the table"):
            producer.send(MESSAGE, session)


def test_a_connection_that_takes_a_role(store: LiveStore, shop: Engine) -> None:
    conninfo = f"host={shop.url.query['host']} user=shop dbname={shop.url.database}"
    ledger = broker.ConnectionLedger(lambda: psycopg.connect(conninfo))
    producer = store.producer("shop", topics=["orders"], ledger=ledger)
    with psycopg.connect(conninfo) as connection:
        with producer.begin_transaction(connection):
            producer.send(MESSAGE, connection)
        connection.execute(f"SET ROLE clerk_{shop.url.database}")
        with (
            pytest.raises(TransactionError, match="role or search_path leads to the table"),
            producer.begin_transaction(connection),
        ):
            producer.send(MESSAGE, connection)
        connection.rollback()
