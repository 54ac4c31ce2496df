"""A ledger whose tables are of another user than the one who works with them: what is lacking is said, and no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, Engine, create_engine
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

import broker
from broker.database.ledger_binding import RememberedLedgers
from broker.enlisting.ledger_key import new_key
from broker.errors import TransactionError
from broker.ledger import Ledger
from recovery.checkback.ledgers.doctor import examine
from recovery.checkback.protocol import Outcome
from tests.ledger.proven import resolver_of

STORE_ID = "c" * 32
_TABLES = "checkback_ledger, checkback_ledger_binding, checkback_ledger_mark"

_BLIND = """ALTER TABLE checkback_ledger ENABLE ROW LEVEL SECURITY;
    CREATE POLICY blind ON checkback_ledger FOR INSERT TO clerk WITH CHECK (true)"""


@pytest.fixture
def owner(postgres_url: URL) -> Iterator[Engine]:
    """The engine of who made the tables, and a user `clerk` without any permission."""
    engine = create_engine(postgres_url)
    Ledger(engine).create_all()
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE clerk LOGIN")
    yield engine
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP OWNED BY clerk CASCADE; DROP ROLE clerk")
    engine.dispose()


@pytest.fixture
def clerks(owner: Engine) -> Iterator[Ledger]:
    engine = create_engine(owner.url.set(username="clerk"))
    yield Ledger(engine)
    engine.dispose()


def _execute(owner: Engine, statements: str) -> None:
    with owner.begin() as connection:
        connection.exec_driver_sql(statements)


def test_who_may_select_and_insert_decides_and_removes_no_rows(owner: Engine, clerks: Ledger) -> None:
    """It said that the database takes no tombstone, behind tombstones that it had taken."""
    _execute(owner, f"GRANT SELECT, INSERT ON {_TABLES} TO clerk")
    clerks.bind(STORE_ID, RememberedLedgers())
    resolver = resolver_of(clerks, STORE_ID)
    (answer,) = resolver.answers({new_key(1_700_000_000_000): "shop"}).values()
    assert answer.outcome is Outcome.ROLLED_BACK
    with pytest.raises(ProgrammingError, match="permission denied") as refused:
        resolver.expire(1)
    why = resolver.trouble(refused.value).why
    assert "checkback_ledger_mark" in why
    assert "to remove old rows UPDATE and DELETE" in why
    assert "tombstone" not in why


def test_who_may_do_nothing_is_not_advised_to_make_the_tables(owner: Engine, clerks: Ledger) -> None:
    clerks.bind(STORE_ID, RememberedLedgers())
    with pytest.raises(TransactionError, match="needs SELECT and INSERT") as refused:
        clerks.binding(STORE_ID)
    assert "create_all" not in str(refused.value)
    _execute(owner, f"GRANT SELECT, INSERT ON {_TABLES} TO clerk")
    _execute(owner, "ALTER ROLE clerk SET default_transaction_read_only = on")
    clerks.engine.dispose()
    with pytest.raises(TransactionError, match="must be able to write"):
        clerks.binding(STORE_ID)


def test_the_doctor_names_the_permission(owner: Engine, clerks: Ledger, tmp_path: Path) -> None:
    with broker.open(tmp_path / "store") as store:
        store.producer("shop", topics=["orders"], ledger=Ledger(owner))
        *_, last = examine(store, clerks)
    assert (last.name, last.ok, last.next_step) == ("database", False, "")
    assert "permission denied for table" in last.text
    assert "needs SELECT and INSERT" in last.text


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ("ALTER TABLE checkback_ledger DROP CONSTRAINT checkback_ledger_pkey", "a second row"),
        ("CREATE RULE none AS ON INSERT TO checkback_ledger DO INSTEAD NOTHING", "is not found"),
        (_BLIND, "is not found"),
    ],
)
def test_the_doctor_takes_no_hidden_row_for_a_missing_key(
    owner: Engine, clerks: Ledger, tmp_path: Path, damage: str, text: str
) -> None:
    """It said that the primary key is missing, which was there."""
    with broker.open(tmp_path / "store") as store:
        store.producer("shop", topics=["orders"], ledger=Ledger(owner))
        _execute(owner, f"GRANT SELECT, INSERT ON {_TABLES} TO clerk")
        _execute(owner, damage)
        found = {line.name: line for line in examine(store, clerks)}
    assert not found["round trip"].ok
    assert text in found["round trip"].text


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_table_that_takes_no_row_is_a_sentence(owner: Engine, tmp_path: Path, is_plain: bool) -> None:
    """The send raised NoResultFound, of SQLAlchemy, and on a plain connection: list index out of range."""
    _execute(
        owner,
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
        "CREATE TRIGGER nothing BEFORE INSERT ON checkback_ledger FOR EACH ROW EXECUTE FUNCTION nothing()",
    )
    conninfo = f"host={owner.url.query['host']} user=shop dbname={owner.url.database}"
    with broker.open(tmp_path / "store") as store:
        if is_plain:
            ledger = broker.ConnectionLedger(lambda: psycopg.connect(conninfo))
            producer = store.producer("shop", topics=["orders"], ledger=ledger)
            with (
                psycopg.connect(conninfo) as connection,
                pytest.raises(TransactionError, match="a trigger or a rule"),
                producer.begin_transaction(connection) as transaction,
            ):
                producer.send(broker.Message("orders", b"1"), transaction)
            return
        producer = store.producer("shop", topics=["orders"], ledger=Ledger(owner))
        with Session(owner) as session:
            with pytest.raises(TransactionError, match="a trigger or a rule"):
                producer.send(broker.Message("orders", b"1"), session)
            with pytest.raises(TransactionError):
                session.commit()
