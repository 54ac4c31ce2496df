"""PostgreSQL: roles and search_paths may lead to a ledger that check-back does not read; `"$user"` follows SET ROLE."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

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


@pytest.mark.parametrize("table", ["ShopLedger", "shop ledger"])
def test_a_table_whose_name_needs_quotes_is_found_by_another_search_path(
    store: LiveStore, shop: Engine, table: str
) -> None:
    ledger = Ledger(shop, table=table)
    ledger.create_all()
    producer = store.producer("shop", topics=["orders"], ledger=ledger)
    with Session(shop) as session:
        session.execute(text("SET LOCAL search_path TO pg_catalog, public"))
        producer.send(MESSAGE, session)
        session.commit()
    check_delivered(store)


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("how", ["role", "search_path", "schema_translate_map"])
def test_what_is_chosen_behind_the_send_moves_no_row(store: LiveStore, shop: Engine, how: str, nested: bool) -> None:
    """Before COMMIT the row is looked for where it went: in the ledger of the role it would seem to be gone."""
    role = f"clerk_{shop.url.database}"
    producer = store.producer("shop", topics=["orders"], ledger=Ledger(shop))
    with Session(shop) as session:
        with session.begin_nested() if nested else contextlib.nullcontext():
            producer.send(MESSAGE, session)
        if how == "schema_translate_map":
            session.connection().execution_options(schema_translate_map={None: role})
        else:
            session.execute(text(f"SET LOCAL {how} TO {role}"))
        session.commit()
    check_delivered(store)


@pytest.mark.parametrize("of_engine", [True, False])
def test_one_ledger_for_the_schemas_of_all_tenants(store: LiveStore, shop: Engine, *, of_engine: bool) -> None:
    """A schema_translate_map moves the application's tables, and was refused: the row goes where it always does."""
    role, ledger = f"clerk_{shop.url.database}", Ledger(shop)
    producer = store.producer("shop", topics=["orders"], ledger=ledger)
    options: dict[str, Any] = {"schema_translate_map": {None: role}}
    with Session(shop.execution_options(**options) if of_engine else shop) as session:
        session.connection(execution_options={} if of_engine else options)
        with session.begin_nested():
            producer.send(MESSAGE, session)
        session.commit()
    check_delivered(store)
    with shop.connect() as connection:
        assert len(connection.execute(ledger.rows.select()).all()) == 1


def test_a_ledger_whose_own_engine_moves_its_table_is_refused(store: LiveStore, shop: Engine) -> None:
    """Check-back would read the table there, and the row goes to the other one."""
    moved = Ledger(shop.execution_options(schema_translate_map={None: f"clerk_{shop.url.database}"}))
    producer = store.producer("shop", topics=["orders"], ledger=moved)
    with Session(shop) as session, pytest.raises(TransactionError, match="of the ledger's engine moves its table"):
        producer.send(MESSAGE, session)


def test_a_role_that_a_connection_takes_behind_the_send_moves_no_row(store: LiveStore, shop: Engine) -> None:
    conninfo = f"host={shop.url.query['host']} user=shop dbname={shop.url.database}"
    ledger = broker.ConnectionLedger(lambda: psycopg.connect(conninfo))
    producer = store.producer("shop", topics=["orders"], ledger=ledger)
    with psycopg.connect(conninfo) as connection, producer.begin_transaction(connection):
        producer.send(MESSAGE, connection)
        connection.execute(f"SET LOCAL ROLE clerk_{shop.url.database}")
    check_delivered(store)


def check_delivered(store: LiveStore) -> None:
    with store.consumer("billing", "orders") as consumer:
        assert consumer.receive(timeout_s=5) is not None
