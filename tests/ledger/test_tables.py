"""Tables that several processes make at the same moment: each finds them there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, MetaData, Table, create_engine, event, select, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

import broker
import recovery.checkback.catalog
from broker.app.sent_keys import SentKeys
from broker.database.dedup import Processed, insert_once
from broker.errors import BrokerError, TransactionError
from broker.ledger import Ledger
from recovery.checkback.catalog import Catalog
from recovery.checkback.ledgers.doctor import examine, gathered
from recovery.checkback.ledgers.proof import LedgerEvidence, judge

STORE = "5" * 32


def ledger(engine: Engine) -> tuple[MetaData, Callable[[], object]]:
    made = Ledger(engine)
    return made.metadata, made.create_all


def processed(engine: Engine) -> tuple[MetaData, Callable[[], object]]:
    made = Processed()
    return made.metadata, lambda: made.create_all(engine)


def catalog(engine: Engine) -> tuple[MetaData, Callable[[], object]]:
    return recovery.checkback.catalog.metadata, lambda: Catalog(engine, STORE)


@pytest.mark.parametrize("kind", [ledger, processed])
def test_alembic_finds_them_as_their_metadata_says(
    engine: Engine, kind: Callable[[Engine], tuple[MetaData, Callable[[], object]]]
) -> None:
    """A second `alembic revision --autogenerate` is empty; without the metadata it would drop them."""
    autogenerate = pytest.importorskip("alembic.autogenerate")
    migration = pytest.importorskip("alembic.runtime.migration")
    metadata, create_all = kind(engine)
    create_all()
    with engine.connect() as connection:
        context = migration.MigrationContext.configure(connection, opts={"compare_type": True})
        assert autogenerate.compare_metadata(context, [MetaData(), metadata]) == []
        lost = {change[1].name for change in autogenerate.compare_metadata(context, MetaData())}
    assert set(metadata.tables) <= lost


@contextmanager
def beaten(metadata: MetaData, rival: Engine) -> Iterator[set[str]]:
    """Another process makes each table between the look that finds none and the making; gives their names."""
    names = set[str]()

    def between(table: Table, _connection: object, **_: object) -> None:
        if table.name not in names:
            names.add(table.name)
            table.create(rival)

    for table in metadata.sorted_tables:
        event.listen(table, "before_create", between)
    try:
        yield names
    finally:
        for table in metadata.sorted_tables:
            event.remove(table, "before_create", between)


@pytest.mark.parametrize("tables", [ledger, processed, catalog])
def test_another_process_makes_the_tables_first(
    engine: Engine, other_engine: Engine, tables: Callable[[Engine], tuple[MetaData, Callable[[], object]]]
) -> None:
    metadata, make = tables(engine)
    with beaten(metadata, other_engine) as names:
        make()
    assert names == {table.name for table in metadata.sorted_tables}
    make()


def test_another_process_is_first_while_a_coroutine_makes_them(url: URL, other_engine: Engine) -> None:
    drivers = {"sqlite": "sqlite+aiosqlite", "mariadb+pymysql": "mariadb+aiomysql"}

    async def make() -> None:
        engine = create_async_engine(url.set(drivername=drivers.get(url.drivername, url.drivername)))
        late = Ledger(engine)
        with beaten(late.metadata, other_engine) as names:
            await late.create_all_async()
        assert len(names) == 3
        await late.create_all_async()
        await engine.dispose()

    asyncio.run(make())


def test_a_table_that_nobody_made_is_named(engine: Engine) -> None:
    """With the next step: a handler waits for its database, and its log would say "no such table" alone."""
    rows = Processed(table="never_made").rows
    row = {"consumer_group": "billing", "message_key": "k", "processed_ms": 1}
    with Session(engine) as session, pytest.raises(BrokerError, match=r"the table never_made is not .*create_all"):
        insert_once(session, rows, row)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE made_otherwise (message_key VARCHAR(9))"))
    with Session(engine) as session, pytest.raises(DatabaseError):  # anything else is said by the database
        insert_once(session, Processed(table="made_otherwise").rows, row)


def test_a_row_goes_with_the_rollback_on_a_server_that_prefers_another_engine(mariadb_url: URL) -> None:
    """One that stayed would deliver the message of an order that was rolled back."""
    engine = create_engine(mariadb_url, connect_args={"init_command": "SET default_storage_engine = Aria"})
    ledger = Ledger(engine)
    for made in (ledger, Processed(), SentKeys()):
        made.metadata.create_all(engine)
    with engine.connect() as connection:
        ledger.insert(connection, "0" * 32, "shop", STORE)
        connection.rollback()
        assert connection.execute(select(ledger.rows)).all() == []
        engines = "SELECT DISTINCT engine FROM information_schema.tables WHERE table_schema = DATABASE()"
        assert connection.execute(text(engines)).scalars().all() == ["InnoDB"]
    engine.dispose()


@pytest.mark.parametrize(
    ("base", "made", "step"),
    [
        ("mariadb", "ENGINE=MyISAM", "ENGINE=InnoDB"),
        ("mariadb", "ENGINE=Aria", "ENGINE=InnoDB"),
        ("mariadb", "ENGINE=MEMORY", "ENGINE=InnoDB"),
        ("postgres", "SET UNLOGGED", "SET LOGGED"),
    ],
)
def test_a_table_whose_rows_say_nothing_of_their_transactions_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, base: str, made: str, step: str
) -> None:
    """A message of an order that was rolled back was delivered: its row stayed in the table."""
    engine = create_engine(request.getfixturevalue(f"{base}_url"))
    Ledger(engine).create_all()
    with broker.open(tmp_path / "store") as store:
        store.producer("shop", topics=["orders"], ledger=Ledger(engine))
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE checkback_ledger {made}"))
        with pytest.raises(TransactionError, match=rf"ledger's table .*ALTER TABLE checkback_ledger {step}$"):
            store.producer("shop", topics=["orders"], ledger=Ledger(engine))
        assert judge(gathered(Ledger(engine), LedgerEvidence(store))).endswith(f"ALTER TABLE checkback_ledger {step}")
        lines = {line.name: line for line in examine(store, Ledger(engine))}
        assert lines["identity"].next_step == f"ALTER TABLE checkback_ledger {step}"
        with engine.begin() as connection:
            connection.execute(text(f"ALTER TABLE checkback_ledger {step}"))
        store.producer("shop", topics=["orders"], ledger=Ledger(engine))
    engine.dispose()


@pytest.mark.parametrize("table", ["led.ger", "led`ger", "ledger"])
def test_a_table_of_any_name_is_refused_so(mariadb_url: URL, tmp_path: Path, table: str) -> None:
    """Of a name with a dot or a quote nothing was found, and a message without its order was delivered."""
    engine = create_engine(mariadb_url)
    schemas = (None, engine.url.database)
    Ledger(engine, table=table).create_all()
    with engine.begin() as connection:
        connection.execute(text(f"ALTER TABLE `{table.replace('`', '``')}` ENGINE=MyISAM"))
    with broker.open(tmp_path / "store") as store:
        for ledger in (Ledger(engine, table=table, schema=schema) for schema in schemas):
            with pytest.raises(TransactionError, match="is a table of MyISAM"):
                store.producer("shop", topics=["orders"], ledger=ledger)
    engine.dispose()
