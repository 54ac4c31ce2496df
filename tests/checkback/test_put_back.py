"""A backup that was put back in place of the ledger's database: refused until a person says so, whatever comes next."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import URL, Engine, insert, select, text
from sqlalchemy.schema import CreateTable

from broker.database.statements import MYSQL_DIALECTS
from broker.ledger import Ledger
from recovery.checkback.ledgers import proof
from recovery.cli.shared import FINDINGS, USAGE, WELL
from tests.checkback.other_databases import shown
from tests.checkback.shop import Shop


def backup(shop: Shop, url: URL, tmp_path: Path) -> Callable[[], None]:
    """A backup as of now; call what this returns to put it back in the same place."""
    if url.get_backend_name() == "sqlite":
        kept = (tmp_path / "backup.db").as_posix()
        shutil.copy(str(url.database), kept)

        def put_back() -> None:
            with closing(sqlite3.connect(kept)) as old, closing(sqlite3.connect(str(url.database))) as live:
                old.backup(live)

        return put_back
    with shop.ledger.engine.connect() as connection:
        tables = [shop.ledger.rows, shop.ledger.bindings]
        rows = [[dict(row) for row in connection.execute(select(table)).mappings()] for table in tables]

    def put_rows_back() -> None:
        with shop.ledger.engine.begin() as connection:
            connection.execute(text("DELETE FROM orders"))
            for table, found in zip(tables, rows, strict=True):
                connection.execute(table.delete())
                if found:
                    connection.execute(insert(table), found)

    return put_rows_back


def test_a_backup_that_was_put_back_is_refused_until_a_person_says_so(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL, tmp_path: Path
) -> None:
    """It lacks a transaction that the store knows as committed; so it may lack the one in doubt, too."""
    shop.buy(1)
    put_back = backup(shop, url, tmp_path)
    shop.buy(2)
    shop.buy_and_vanish(3)
    put_back()
    code, _, error = run_due("check-back", shop.path, "--ledger", shown(url))
    assert (code, shop.in_doubt()) == (USAGE, 1)
    assert "lacks 1 of the last 2" in error
    assert run_due("ledger", "accept", shop.path, "--ledger", shown(url))[0] == USAGE  # nobody says why
    assert shop.in_doubt() == 1
    assert run_due("ledger", "accept", shop.path, "--ledger", shown(url), "--why", "backup of Monday")[0] == WELL
    shop.buy(4)
    assert run_due("check-back", shop.path, "--ledger", shown(url))[0] == WELL
    assert (shop.in_doubt(), shop.announced()) == (0, [1, 2, 4])


def test_a_backup_is_refused_however_long_the_application_goes_on_with_it(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest transactions were those of the restored database then, and lacked nothing: nobody had said so."""
    monkeypatch.setattr(proof, "_KNOWN_KEYS", 2)
    shop.buy(1)
    put_back = backup(shop, url, tmp_path)
    shop.buy(2)
    shop.buy_and_vanish(3)
    put_back()
    assert run_due("check-back", shop.path, "--ledger", shown(url))[0] == USAGE
    for number in (4, 5, 6):
        shop.buy(number)
    code, _, error = run_due("check-back", shop.path, "--ledger", shown(url))
    assert (code, shop.in_doubt()) == (USAGE, 1)
    assert "lacks 1 of the last 3" in error
    assert run_due("ledger", "accept", shop.path, "--ledger", shown(url), "--why", "backup of Monday")[0] == WELL
    assert run_due("check-back", shop.path, "--ledger", shown(url))[0] == WELL
    assert (shop.in_doubt(), shop.announced()) == (0, [1, 2, 4, 5, 6])


def test_a_backup_from_before_the_stores_first_transaction_is_refused(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL, tmp_path: Path
) -> None:
    """No transaction is known; but the producer was opened once more than the database knows."""
    shop.producer()
    put_back = backup(shop, url, tmp_path)
    shop.ledger = Ledger(shop.ledger.engine)  # as another process
    shop.buy_and_vanish(1)
    put_back()
    code, _, error = run_due("check-back", shop.path, "--ledger", shown(url))
    assert (code, shop.in_doubt()) == (USAGE, 1)
    assert "is older than the store" in error


def test_an_application_that_starts_on_a_backup_does_not_make_it_look_right(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL, tmp_path: Path
) -> None:
    """Its start was counted there, and the count was that of the store again."""
    shop.producer()
    put_back = backup(shop, url, tmp_path)
    shop.ledger = Ledger(shop.ledger.engine)  # as another process
    shop.buy_and_vanish(1)
    put_back()
    for number in (2, 3):
        shop.ledger = Ledger(shop.ledger.engine)
        shop.buy(number)
    code, _, error = run_due("check-back", shop.path, "--ledger", shown(url))
    assert (code, shop.in_doubt()) == (USAGE, 1)
    assert "is older than the store" in error
    assert run_due("ledger", "accept", shop.path, "--ledger", shown(url), "--why", "backup of Monday")[0] == WELL
    shop.ledger = Ledger(shop.ledger.engine)
    shop.buy(4)
    assert run_due("check-back", shop.path, "--ledger", shown(url))[0] == WELL
    assert (shop.in_doubt(), shop.announced()) == (0, [2, 3, 4])


def test_a_table_that_was_put_back_without_its_key_takes_no_tombstone(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL
) -> None:
    """The order was rolled back, and saved behind that: its row went in beside the tombstone. What is saved is sent."""
    shop.buy_and_vanish(1, saved=False)
    shop.buy_and_vanish(2)
    with shop.ledger.engine.begin() as connection:
        connection.execute(text("CREATE TABLE dumped AS SELECT * FROM checkback_ledger"))
        connection.execute(text("DROP TABLE checkback_ledger"))
        connection.execute(text("ALTER TABLE dumped RENAME TO checkback_ledger"))
    half, _ = shop.store.transactions.in_doubt()
    words = ("resolve", shop.path, half.message_id, "--rollback", "--why", "gone", "--ledger", shown(url))
    for wanted, verb in ((USAGE, ("check-back", shop.path, "--ledger", shown(url))), (FINDINGS, words)):
        code, out, error = run_due(*verb)
        assert (code, shop.in_doubt(), "has no primary key" in out + error) == (wanted, 1, True), out + error
        assert shop.announced() == [2]
    _, out, _ = run_due("ledger", "doctor", shop.path, "--ledger", shown(url))
    (step,) = re.findall("next: .*: (CREATE UNIQUE INDEX .*)", out)
    with shop.ledger.engine.begin() as connection:
        connection.execute(text(step))
    assert (run_due("check-back", shop.path, "--ledger", shown(url))[0], shop.in_doubt()) == (WELL, 0)


def test_a_table_that_was_put_back_with_names_in_capitals_has_its_key(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL
) -> None:
    """SQLite and MariaDB take them for the same, and it was said that the table has no key, or does not answer."""
    if (kind := url.get_backend_name()) == "postgresql":
        pytest.skip("to it they are other names")
    shop.buy_and_vanish(1, saved=False)
    with shop.ledger.engine.begin() as connection:
        connection.execute(text("ALTER TABLE checkback_ledger RENAME COLUMN ledger_key TO LEDGER_KEY"))
        if kind == "sqlite":  # in one step it refuses the same name
            connection.execute(text("ALTER TABLE checkback_ledger RENAME TO moved"))
            connection.execute(text("ALTER TABLE moved RENAME TO CHECKBACK_LEDGER"))
    assert (run_due("check-back", shop.path, "--ledger", shown(url))[0], shop.in_doubt()) == (WELL, 0)


@pytest.mark.parametrize(
    ("column", "key"),
    [
        ("LEDGER_KEY", "PRIMARY KEY (LEDGER_KEY)"),
        ("ledger_key", "UNIQUE (ledger_key)"),
        ("ledger_key", "PRIMARY KEY (store_id, ledger_key)"),
    ],
)
def test_a_table_that_was_made_otherwise_takes_a_tombstone(shop: Shop, column: str, key: str) -> None:
    """No second row of the key goes in, but check-back said that it has no primary key, and settled nothing."""
    made = str(CreateTable(shop.ledger.rows).compile(shop.ledger.engine))
    made = made.replace("PRIMARY KEY (ledger_key)", key).replace("ledger_key VARCHAR", f"{column} VARCHAR")
    made = made.replace("WITHOUT ROWID", "")
    with shop.ledger.engine.begin() as connection:
        connection.execute(text("DROP TABLE checkback_ledger"))
        connection.execute(text(made))
    shop.buy_and_vanish(1, saved=False)
    assert (shop.check_back().rolled_back, shop.in_doubt()) == (1, 0)


def test_a_unique_index_of_some_rows_alone_is_no_key(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL
) -> None:
    """It was taken for one: the tombstone went in beside it, and so did the row of a late commit."""
    if url.get_backend_name() in MYSQL_DIALECTS:
        pytest.skip("it has no such indexes")
    shop.buy_and_vanish(1, saved=False)
    with shop.ledger.engine.begin() as connection:
        connection.execute(text("CREATE TABLE dumped AS SELECT * FROM checkback_ledger"))
        connection.execute(text("DROP TABLE checkback_ledger"))
        connection.execute(text("ALTER TABLE dumped RENAME TO checkback_ledger"))
        connection.execute(text("CREATE UNIQUE INDEX saved ON checkback_ledger (ledger_key) WHERE state = 8"))
    code, _, error = run_due("check-back", shop.path, "--ledger", shown(url))
    assert (code, shop.in_doubt(), "has no primary key" in error) == (USAGE, 1, True)


def test_the_step_for_a_lost_key_runs_whatever_the_table_is_called(engine: Engine) -> None:
    """The name of the index was not quoted, and no database took the statement that was advised."""
    Ledger(engine, table="a").create_all()
    renamed, quote = Ledger(engine, table="my-ledger"), engine.dialect.identifier_preparer.quote
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE dumped AS SELECT * FROM a"))
        connection.execute(text(f"ALTER TABLE dumped RENAME TO {quote('my-ledger')}"))
        step = proof.key_trouble(connection, renamed).rpartition(": ")[2]
        connection.execute(text(step))
        assert not proof.key_trouble(connection, renamed)


def test_a_view_of_the_table_takes_a_tombstone(shop: Shop, url: URL) -> None:
    """The table was renamed, and its old name is a view: of such a one no key is seen."""
    if url.get_backend_name() not in MYSQL_DIALECTS:
        pytest.skip("an application's own row goes into no view there")
    with shop.ledger.engine.begin() as connection:
        connection.execute(text("ALTER TABLE checkback_ledger RENAME TO renamed"))
        connection.execute(text("CREATE VIEW checkback_ledger AS SELECT * FROM renamed"))
    shop.buy_and_vanish(1, saved=False)
    assert (shop.check_back().rolled_back, shop.in_doubt()) == (1, 0)
    with shop.ledger.engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM renamed")).scalar() == 1, "what was tried is gone"
        connection.execute(text("DROP VIEW checkback_ledger"))
        connection.execute(text("ALTER TABLE renamed RENAME TO checkback_ledger"))
