"""What a ledger answers for a process that is gone, wherever its messages went: to a store, or to a cluster's broker.

A whole transaction that commits too late: tests/checkback/test_races.py.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, event, make_url
from sqlalchemy.exc import DBAPIError, IntegrityError

from broker.database.ledger_binding import LEDGER_BINDING, RememberedLedgers, put_binding
from broker.enlisting.ledger_key import LEDGER_KEY, new_key
from broker.enlisting.sqlalchemy_rows import rows_of
from broker.ledger import COMMITTED, ROLLED_BACK, Ledger, executor
from broker.transaction.events import TransactionState
from recovery.checkback.ledgers.database_errors import answer
from recovery.checkback.ledgers.proof import CommittedKey, WrongLedger
from recovery.checkback.protocol import Outcome
from tests.backends.shop import BackendShop, announce, save
from tests.ledger.proven import resolver_of

STORE_ID = "0" * 31 + "1"


def rows(shop: BackendShop) -> list[tuple[int, str]]:
    """The decisions of the ledger, each with who made it; empty: the application."""
    with shop.ledger.engine.connect() as connection:
        return sorted((row.state, row.decided_by or "") for row in connection.execute(shop.ledger.rows.select()))


def test_a_row_commits_and_one_that_is_missing_becomes_a_tombstone(backend_shop: BackendShop) -> None:
    """Which keeps the row of a late COMMIT out, and the order that is saved with it."""
    backend_shop.buy_and_vanish(1, 2)
    backend_shop.buy_and_vanish(3, saved=False)
    assert rows(backend_shop) == [(COMMITTED, "")] * 2
    backend_shop.settle()
    assert (backend_shop.orders(), backend_shop.announced(), backend_shop.in_doubt()) == ([1, 2], [1, 2], 0)
    by = "checkback answer" if backend_shop.backend.is_cluster else "check-back"
    assert rows(backend_shop) == [(COMMITTED, ""), (COMMITTED, ""), (ROLLED_BACK, by)]

    ledger = backend_shop.ledger
    with ledger.engine.connect() as connection:
        (tombstone,) = connection.execute(ledger.rows.select().where(ledger.rows.c.state == ROLLED_BACK)).all()
    with backend_shop.session() as session:
        save(session, 3)
        with pytest.raises(IntegrityError):
            ledger.insert(session, tombstone.ledger_key, "shop", tombstone.store_id)
    assert backend_shop.orders() == [1, 2]


def test_a_transaction_that_runs_gets_no_tombstone_and_commits(backend_shop: BackendShop) -> None:
    """Check-back asks while the row, or SQLite's database, is locked. The process that answers is another one."""
    with backend_shop.backend.another() as client, backend_shop.session() as session:
        producer = backend_shop.producer(client)
        transaction = producer.begin_transaction(session)
        save(session, 1)
        announce(producer, transaction, 1)
        assert backend_shop.backend.is_running([backend_shop.resolvers_ledger])
        transaction.commit()
    backend_shop.settle()
    assert rows(backend_shop) == [(COMMITTED, "")]
    assert (backend_shop.orders(), backend_shop.announced(), backend_shop.in_doubt()) == ([1], [1], 0)


@pytest.mark.parametrize(
    ("state", "outcome"),
    [("55P03", Outcome.RUNNING), ("42P01", Outcome.REFUSED), ("42501", Outcome.REFUSED), ("53300", Outcome.DOWN)],
)
def test_an_error_of_pg8000_is_known_by_its_state(state: str, outcome: Outcome) -> None:
    """A transaction that still ran was a database that does not answer, and after three nothing was asked for 30 s."""
    cause = Exception({"S": "ERROR", "C": state, "M": "in words", "F": "index.c"})
    found = answer(DBAPIError("INSERT", None, cause), make_url("postgresql+pg8000:///shop"))
    assert found.outcome is outcome
    assert "in words" in found.why
    assert "index.c" not in found.why


def test_a_database_that_is_bound_again_behind_the_proof_gets_no_tombstone(ledger: Ledger) -> None:
    """The transaction of the tombstone looks once more: the row says whose ledger it is now."""
    resolver = resolver_of(ledger, STORE_ID)
    with resolver._connection() as connection:
        assert resolver._prove(connection) == ledger.binding(STORE_ID).binding_id
        with ledger.engine.begin() as another:
            put_binding(executor(another), ledger.bindings_name, replace(ledger.binding(STORE_ID), binding_id="f" * 32))
        answered = resolver.decide(new_key(1), "shop", ROLLED_BACK, "check-back", connection)
    assert answered.outcome is Outcome.REFUSED
    with ledger.engine.connect() as after:
        assert after.execute(ledger.rows.select()).all() == []


@pytest.mark.parametrize("count", [1, 3])
def test_keys_below_the_mark_get_no_tombstone(ledger: Ledger, count: int) -> None:
    """Their rows may have been removed: "rolled back" would discard what committed. SQLite decides many together."""
    resolver = resolver_of(ledger, STORE_ID)
    keys = dict.fromkeys([new_key(1000 + number) for number in range(count)], "shop")
    late = new_key(2000)
    resolver.expire(2000)
    answers = resolver.answers({**keys, late: "shop"})
    assert {answers[key].outcome for key in keys} == {Outcome.UNKNOWN}
    assert answers[late].outcome is Outcome.ROLLED_BACK, "the mark itself is not below it"
    with ledger.engine.connect() as after:
        assert [row.ledger_key for row in after.execute(ledger.rows.select())] == [late]


def test_a_tombstone_is_not_the_row_of_a_transaction_that_the_store_knows_as_committed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an old copy has it where check-back went on with it: that it has a row proves nothing."""
    resolver, key = resolver_of(ledger, STORE_ID), new_key(1_700_000_000_000)
    assert resolver.answers({key: "shop"})[key].outcome is Outcome.ROLLED_BACK
    monkeypatch.setattr(resolver._evidence, "committed", lambda _: [CommittedKey(key, 0)])
    with pytest.raises(WrongLedger, match="lacks 1 of the last 1 committed transactions"):
        resolver.binding_id()


def test_no_row_goes_from_a_database_that_is_not_the_ledger(ledger: Ledger) -> None:
    """Nor is anything noted there: its own store would find that its committed transactions are gone."""
    resolver = resolver_of(ledger, STORE_ID)
    with ledger.engine.begin() as another:
        ledger.insert(another, new_key(1000), "shop", STORE_ID)
        put_binding(executor(another), ledger.bindings_name, replace(ledger.binding(STORE_ID), binding_id="f" * 32))
    with pytest.raises(WrongLedger):
        resolver.expire(2000)
    with ledger.engine.connect() as after:
        assert len(after.execute(ledger.rows.select()).all()) == 1
        assert after.execute(ledger.marks.select()).all() == []


def test_a_half_message_of_another_ledger_is_neither_looked_up_nor_settled_here(ledger: Ledger) -> None:
    """That this one has no row says nothing of it; a person would settle it against what its own says."""
    resolver = resolver_of(ledger, STORE_ID)
    half: Any = SimpleNamespace(
        properties={LEDGER_KEY: new_key(1_700_000_000_000), LEDGER_BINDING: "f" * 32}, producer_group="shop"
    )
    answers = resolver.peek(half), resolver.settle(half, ROLLED_BACK, "a person")
    assert [one.outcome for one in answers] == [Outcome.REFUSED] * 2
    with ledger.engine.connect() as after:
        assert after.execute(ledger.rows.select()).all() == []


def test_a_half_message_that_names_no_ledger_is_looked_up_by_its_key(ledger: Ledger) -> None:
    """Of a producer before bindings: a row that is there is right in any database."""
    resolver, key = resolver_of(ledger, STORE_ID), new_key(1_700_000_000_000)
    half: Any = SimpleNamespace(properties={LEDGER_KEY: key}, producer_group="shop")
    assert resolver.peek(half).outcome is Outcome.UNKNOWN
    with ledger.engine.begin() as connection:
        ledger.insert(connection, key, "shop", STORE_ID)
    assert resolver.peek(half).outcome is Outcome.COMMITTED


_LEFT = {
    "postgresql": ("CREATE SCHEMA elsewhere", "SET search_path TO elsewhere", "SELECT current_setting('search_path')"),
    "mariadb": ("CREATE DATABASE elsewhere", "USE elsewhere", "SELECT DATABASE()"),
}


def test_a_connection_that_the_application_left_elsewhere_is_asked_where_the_ledger_is(ledger: Ledger) -> None:
    """In a thread of the application check-back has its pool: it decided nothing until the connection was gone."""
    if ledger.dialect not in _LEFT:
        pytest.skip("SQLite's connections go nowhere")
    made, moved, place = _LEFT[ledger.dialect]
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql(made)
        connection.exec_driver_sql(moved)
        connection.commit()
    resolver = resolver_of(ledger, STORE_ID)  # a producer that opens meanwhile binds the ledger in its own place, too
    keys = [new_key(1_700_000_000_000), new_key(1_700_000_000_000)]
    answers = resolver.answers(dict.fromkeys(keys, "shop"))
    assert [one.outcome for one in answers.values()] == [Outcome.ROLLED_BACK] * 2
    assert ledger.state_of({LEDGER_KEY: keys[0]}) is TransactionState.ROLLED_BACK  # as a member of a cluster's group
    assert resolver.expire(1) == 0
    with ledger.engine.connect() as connection:
        assert connection.exec_driver_sql(place).scalar() == "elsewhere"  # as the application left it
        connection.exec_driver_sql(f"DROP {made.split()[1]} elsewhere")
        connection.commit()


@pytest.mark.parametrize("when", ["connect", "begin"])
def test_where_the_application_leads_each_connection_is_where_the_ledger_is(postgres_url: URL, when: str) -> None:
    """By SET ROLE, as with accounts for a day: such a producer's sends were all refused."""
    root, engine = create_engine(postgres_url), create_engine(postgres_url)
    with root.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE owning; CREATE SCHEMA owning AUTHORIZATION owning")
    event.listen(engine, when, lambda connection, *_: _execute(connection, "SET ROLE owning"))
    ledger = Ledger(engine)
    ledger.create_all()
    ledger.bind(STORE_ID, RememberedLedgers())
    assert ledger.binding(STORE_ID)
    answers = resolver_of(ledger, STORE_ID).answers({new_key(1_700_000_000_000): "shop"})
    assert [one.outcome for one in answers.values()] == [Outcome.ROLLED_BACK]
    engine.dispose()
    with root.begin() as connection:
        connection.exec_driver_sql("DROP OWNED BY owning CASCADE; DROP ROLE owning")
    root.dispose()


def test_on_mysql_a_row_is_read_where_it_was_written(mariadb_url: URL) -> None:
    """In the database of the URL, where USE leads connections, too: a committed transaction was decided as rolled back.

    It had no row in the ledger of the other database.
    """
    engine, root = create_engine(mariadb_url), create_engine(mariadb_url)
    other = create_engine(mariadb_url.set(database="elsewhere"))
    with root.begin() as connection:
        connection.exec_driver_sql("CREATE DATABASE elsewhere")
    Ledger(root).create_all()
    Ledger(other).create_all()
    event.listen(engine, "connect", lambda connection, *_: _execute(connection, "USE elsewhere"))
    ledger, key = Ledger(engine), new_key(1_700_000_000_000)
    with engine.begin() as connection:
        rows_of(ledger).insert(connection, key, "shop", STORE_ID)
    answers = resolver_of(ledger, STORE_ID).answers({key: "shop"})
    assert [one.outcome for one in answers.values()] == [Outcome.COMMITTED]
    with root.begin() as connection:
        connection.exec_driver_sql("DROP DATABASE elsewhere")
    for one in (engine, root, other):
        one.dispose()


def _execute(connection: Any, statement: str) -> None:
    """On a connection of SQLAlchemy, or of a driver."""
    if hasattr(connection, "exec_driver_sql"):
        connection.exec_driver_sql(statement)
    else:
        with contextlib.closing(connection.cursor()) as cursor:
            cursor.execute(statement)
        connection.commit()


@pytest.mark.parametrize(
    ("limit", "is_first_held", "why"),
    [("_DECIDING_S", False, "not asked this time"), ("_WAITING_S", True, "others were waited for")],
)
def test_a_slow_database_holds_up_one_batch_and_no_more(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch, limit: str, is_first_held: bool, why: str
) -> None:
    """What was decided by then is kept; the rest is still running, has no tombstone, and is asked the next time."""
    engine = create_engine(postgres_url)
    ledger = Ledger(engine)
    ledger.create_all()
    resolver, keys = resolver_of(ledger, STORE_ID), [new_key(1_700_000_000_000) for _ in range(3)]
    asked = dict.fromkeys(keys, "shop")
    with engine.connect() as running, monkeypatch.context() as slow:
        if is_first_held:
            ledger.insert(running, keys[0], "shop", STORE_ID)
        slow.setattr(f"recovery.checkback.ledger_resolver.{limit}", -1.0)
        first, *rest = resolver.answers(asked).values()
        running.rollback()
    assert first.outcome is (Outcome.RUNNING if is_first_held else Outcome.ROLLED_BACK)
    assert why not in first.why
    assert [(one.outcome, why in one.why) for one in rest] == [(Outcome.RUNNING, True)] * 2
    with engine.connect() as after:
        assert len(after.execute(ledger.rows.select()).all()) == (0 if is_first_held else 1)
    assert {one.outcome for one in resolver.answers(asked).values()} == {Outcome.ROLLED_BACK}
    engine.dispose()
