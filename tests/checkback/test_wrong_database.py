"""Check-back against each kind of wrong database decides nothing: exit 2, one sentence; then the right one decides.

In each case the transaction in doubt is the store's very first: nothing but its binding says where it belongs.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine, make_url, select, text

import broker
from broker.ledger import Ledger
from recovery.checkback.catalog import Catalog, attempts_of
from recovery.checkback.ledgers.doctor import examine
from recovery.checkback.ledgers.proof import named_by
from recovery.checkback.round import CheckBack
from recovery.cli.shared import FINDINGS, USAGE, WELL
from tests.backends.shop import raiser
from tests.checkback.other_databases import another, numbers, restore, shown, tables_in
from tests.checkback.shop import Shop
from tests.cli.command import command

Made = tuple[URL, tuple[str, ...]]  # the wrong database, and further options


# The kinds of wrong databases


def fresh(_shop: Shop, url: URL, tmp_path: Path) -> Made:
    """Nothing was ever made in it; of SQLite not even the file is there."""
    return another(url, tmp_path), ()


def staging(_shop: Shop, url: URL, tmp_path: Path) -> Made:
    """The tables are there, and empty."""
    other = another(url, tmp_path)
    tables_in(other).engine.dispose()
    return other, ()


def of_another_store(_shop: Shop, url: URL, tmp_path: Path) -> Made:
    """The ledger of another store."""
    other = another(url, tmp_path)
    ledger = tables_in(other)
    ledger.binding("7" * 32)
    ledger.engine.dispose()
    return other, ()


def bound_again(shop: Shop, url: URL, tmp_path: Path) -> Made:
    """A copy of the store was opened with it: the same store id, another binding."""
    other = another(url, tmp_path)
    ledger = tables_in(other)
    ledger.binding(shop.store.store_id)
    ledger.engine.dispose()
    return other, ()


def copy(shop: Shop, url: URL, tmp_path: Path) -> Made:
    """A dump of the right one, restored elsewhere; SQLite: a copy of its file."""
    other = another(url, tmp_path)
    if url.get_backend_name() == "sqlite":
        shutil.copy(str(url.database), str(other.database))
    else:
        restore(shop.ledger.engine, tables_in(other))
    empty(other)
    return other, ()


def other_schema(shop: Shop, url: URL, tmp_path: Path) -> Made:
    """The right server and the right database, and the schema of another tenant, made from a dump of the first."""
    if url.get_backend_name() == "sqlite":
        pytest.skip("SQLite has no schemas in one file")
    schema = f"tenant{next(numbers)}"
    with shop.ledger.engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    restore(shop.ledger.engine, ledger := tables_in(url, schema))
    with ledger.engine.begin() as connection:
        connection.execute(ledger.rows.delete())
    ledger.engine.dispose()
    return url, ("--schema", schema)


def read_only(_shop: Shop, url: URL, tmp_path: Path) -> Made:
    """A user who may read everything and write nothing; SQLite: a file that is opened for reading."""
    user = f"reader{next(numbers)}"
    if url.get_backend_name() == "sqlite":
        return make_url(f"sqlite:///file:{url.database}?mode=ro&uri=true"), ()
    engine = create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        if url.get_backend_name() == "postgresql":
            connection.execute(text(f"CREATE USER {user}"))
            connection.execute(text(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {user}"))
        else:
            connection.execute(text(f"CREATE USER {user}@localhost"))
            connection.execute(text(f"GRANT SELECT ON {url.database}.* TO {user}@localhost"))
    engine.dispose()
    return url.set(username=user), ()


def read_only_server(_shop: Shop, url: URL, tmp_path: Path) -> Made:
    """A server, or a session, that takes no writes."""
    if url.get_backend_name() != "postgresql":
        pytest.skip("its setting is the whole server's: see test_a_replica_of_mariadb")
    return url.update_query_dict({"options": "-c default_transaction_read_only=on"}), ()


def empty(url: URL) -> None:
    """Without the row of the transaction in doubt: the copy was made before it committed."""
    ledger = Ledger(create_engine(url))
    with ledger.engine.begin() as connection:
        connection.execute(ledger.rows.delete())
    ledger.engine.dispose()


KINDS = [fresh, staging, of_another_store, bound_again, copy, other_schema, read_only, read_only_server]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_wrong_database_decides_nothing(
    shop: Shop,
    run_due: Callable[..., tuple[int, str, str]],
    url: URL,
    tmp_path: Path,
    kind: Callable[[Shop, URL, Path], Made],
) -> None:
    """Two messages in doubt: one whose transaction committed, one that rolled back, which only a tombstone decides."""
    shop.buy_and_vanish(1)
    shop.buy_and_vanish(2, saved=False)
    wrong, options = kind(shop, url, tmp_path)
    code, out, error = run_due("check-back", shop.path, "--ledger", shown(wrong), *options)
    by_row = kind is read_only  # the right database, whose rows answer; only a tombstone cannot go in
    assert (code, shop.in_doubt(), shop.announced()) == (USAGE, 2 - by_row, [1] * by_row), out + error
    assert error.count("\n") == 1, error
    assert "nothing was decided" in error
    assert "Traceback" not in out + error
    if kind is fresh and url.get_backend_name() == "sqlite":
        assert not Path(str(wrong.database)).exists()
    code, out, error = run_due("check-back", shop.path, "--ledger", shown(url))
    assert (code, shop.in_doubt(), shop.announced()) == (WELL, 0, [1]), out + error


@pytest.mark.parametrize("kind", [fresh, staging, copy], ids=lambda kind: kind.__name__)
def test_a_wrong_database_does_not_pass_while_nothing_is_due(
    shop: Shop,
    run_due: Callable[..., tuple[int, str, str]],
    url: URL,
    tmp_path: Path,
    kind: Callable[[Shop, URL, Path], Made],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It exited with 0 before the first check was due, and when the command was run again at once."""
    shop.buy_and_vanish(1)
    wrong, _ = kind(shop, url, tmp_path)
    monkeypatch.setattr(CheckBack, "now_ms", lambda _self: shop.now_ms())
    code, out, error = run_due("check-back", shop.path, "--ledger", shown(wrong))
    assert "1 in doubt, 0 asked" in out
    assert (code, error.count("nothing was decided"), shop.in_doubt()) == (USAGE, 1, 1), error
    assert run_due("check-back", shop.path, "--ledger", shown(url))[0] == WELL


def test_a_ledger_that_nobody_used_yet_is_not_wrong_where_nothing_waits_for_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A new deployment, in which the first transaction is of a producer with a resolver of its own."""
    path, url = tmp_path / "store", f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    Ledger(engine).create_all()
    engine.dispose()
    with broker.open(path, layout=broker.StoreLayout.small()) as store:
        producer = store.producer("mail", topics=["mails"], resolver=lambda _message: None)
        producer.send(broker.Message("mails", b"1"), producer.begin_transaction())
    ran = command(capsys, "check-back", path, "--ledger", url)
    assert (ran.code, "1 in doubt, 0 asked" in ran.out) == (WELL, True), ran.err


def test_both_identities_are_named(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL, tmp_path: Path
) -> None:
    """Who reads it at night knows which database was meant, and which was named."""
    shop.buy_and_vanish(1)
    wrong, _ = copy(shop, url, tmp_path)
    _, _, error = run_due("check-back", shop.path, "--ledger", shown(wrong))
    for one in (url, wrong):
        assert str(one.database) in error, error
    assert "checkback ledger rebind" in error


def test_a_table_that_is_missing_is_named(shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL) -> None:
    shop.buy_and_vanish(1, saved=False)
    for name in ("checkback_ledger_mark", "checkback_ledger_binding", "checkback_ledger"):
        with shop.ledger.engine.begin() as connection:
            connection.execute(text(f"DROP TABLE {name}"))
        code, _, error = run_due("check-back", shop.path, "--ledger", shown(url))
        assert (code, error.count("\n"), shop.in_doubt()) == (USAGE, 1, 1), error
        assert "table" in error


def test_a_database_that_is_down_is_named_and_nothing_is_decided(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL, tmp_path: Path
) -> None:
    """The right database, away for a while: that is no refusal (exit 1), and its reason is printed."""
    shop.buy_and_vanish(1, saved=False)
    secret = url.set(password="secret word")  # noqa: S106 - it must not be printed
    down, where = {
        "sqlite": (url.set(database=str(tmp_path)), str(tmp_path)),
        "postgresql": (secret.set(query={"host": str(tmp_path)}), str(tmp_path)),
        # By TCP: PyMySQL leaves a unix socket open that nobody listens to.
        "mariadb": (secret.set(query={}, host="127.0.0.1", port=9), "127.0.0.1"),
    }[url.get_backend_name()]
    code, out, _ = run_due("check-back", shop.path, "--ledger", shown(down))
    assert (code, shop.in_doubt()) == (FINDINGS, 1)
    assert "1 not asked: the ledger's database" in out
    assert str(down.database) in out
    assert where in out
    assert "secret" not in out
    (attempt,) = attempts_of(str(shop.path)).values()
    assert (attempt.outcome, attempt.checks) == ("down", 0)
    assert "does not answer" in attempt.why


# Persons, and what they did


def test_a_person_without_a_name_on_this_machine_is_named_by_number(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container the user often has no line in /etc/passwd."""
    shop.buy_and_vanish(1)
    (half,) = shop.store.transactions.in_doubt()
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", raiser(KeyError("uid not found")))
    words = ("--ledger", shown(url), "--why", "ticket 12")
    assert run_due("ledger", "accept", shop.path, *words)[0] == WELL
    assert run_due("resolve", shop.path, half.message_id, "--commit", *words)[0] == WELL
    catalog = Catalog.open(str(shop.path), shop.store.store_id)
    assert catalog.decisions()[0]["decided_by"].startswith(f"{os.getuid()} at ")
    catalog.close()


@pytest.mark.usefixtures("each_engine")
def test_what_a_person_committed_is_no_sign_of_a_lost_row(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL
) -> None:
    """Its row was never there: it was announced without its ledger."""
    shop.buy_and_vanish(1, saved=False)
    (half,) = shop.store.transactions.in_doubt()
    words = ("--commit", "--why", "paid", "--without-ledger")
    assert run_due("resolve", shop.path, half.message_id, *words)[0] == WELL
    shop.buy_and_vanish(2, saved=False)
    code, out, error = run_due("check-back", shop.path, "--ledger", shown(url))
    assert (code, shop.in_doubt()) == (WELL, 0), out + error


# What a person may say


def test_a_ledger_that_was_moved_is_bound_again(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL, tmp_path: Path
) -> None:
    """Dumped and restored elsewhere, while a transaction is in doubt: refused for all, until a person says so."""
    shop.buy(1)
    shop.buy_and_vanish(2)
    moved = another(url, tmp_path)
    if url.get_backend_name() == "sqlite":
        shutil.copy(str(url.database), str(moved.database))
    else:
        restore(shop.ledger.engine, tables_in(moved))
    engine = create_engine(moved)
    with pytest.raises(Exception, match="checkback ledger rebind"):
        shop.store.producer("shop", topics=["orders"], ledger=Ledger(engine))
    words = ("ledger", "rebind", shop.path, "--ledger", shown(moved))
    assert run_due(*words)[0] == USAGE
    code, out, _ = run_due(*words, "--why", "new host", "--dry-run")
    assert (code, "would be" in out) == (WELL, True)
    assert run_due("check-back", shop.path, "--ledger", shown(moved))[0] == USAGE
    code, out, error = run_due(*words, "--why", "new host", "--by", "ada")
    assert code == WELL, out + error
    shop.store.producer("shop", topics=["orders"], ledger=Ledger(engine))
    assert run_due("check-back", shop.path, "--ledger", shown(url))[0] == USAGE  # the old one is not asked any more
    assert run_due("check-back", shop.path, "--ledger", shown(moved))[0] == WELL
    assert shop.announced() == [1, 2]
    engine.dispose()


def test_the_producer_is_refused_before_anything_is_saved(shop: Shop, url: URL, tmp_path: Path) -> None:
    """A copy with the same binding: neither a topic nor a half message is made."""
    shop.buy(1)
    wrong, _ = copy(shop, url, tmp_path)
    engine = create_engine(wrong)
    with pytest.raises(Exception, match="was bound to"):
        shop.store.producer("shop", topics=["newcomer"], ledger=Ledger(engine))
    assert shop.store.topic("newcomer") is None
    engine.dispose()


def test_the_doctor_says_what_is_wrong_and_what_to_do(
    shop: Shop, run_due: Callable[..., tuple[int, str, str]], url: URL, tmp_path: Path
) -> None:
    shop.buy(1)
    shop.buy_and_vanish(2)
    code, out, error = run_due("ledger", "doctor", shop.path, "--ledger", shown(url))
    assert code == WELL, out + error
    assert "not ok" not in out
    assert "ok     round trip" in out
    with shop.ledger.engine.connect() as connection:
        assert len(connection.execute(select(shop.ledger.rows)).all()) == 2
    wrong, _ = copy(shop, url, tmp_path)
    code, out, _ = run_due("ledger", "doctor", shop.path, "--ledger", shown(wrong))
    assert code == FINDINGS
    assert "not ok identity" in out
    assert re.search("not ok known rows: .* lacks 1 of the last 1", out), "it said that all are there, until the rebind"
    (rebind,) = re.findall("next: checkback (ledger rebind .*) TEXT", out)
    assert run_due(*shlex.split(rebind), "moved")[0] == WELL, "it names the store and the database, to be copied"


_SOCKET = "--ledger 'postgresql+psycopg:///shop?host=%2Frun%2Fpg' --schema eu"


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("sqlite:////srv/my shop.db", {}, "--ledger 'sqlite:////srv/my shop.db'"),
        ("postgresql+psycopg:///shop?host=/run/pg", {"schema": "eu"}, _SOCKET),
        ("postgresql+psycopg://shop:secret@db/shop", {"table": "money"}, "--ledger URL --table money"),
        ("postgresql+psycopg:///shop?password=secret", {}, "--ledger URL"),
        ("postgresql+psycopg://", {}, "--ledger URL"),  # as beside a `creator`
    ],
)
def test_a_step_names_the_ledger_and_no_secret(url: str, options: dict[str, str], words: str) -> None:
    """The advice had `STORE --ledger URL`, and left a schema and the name of a table out."""
    assert named_by(Ledger(create_engine(url), **options)) == words


@pytest.mark.parametrize(("lock", "name"), [("EXCLUSIVE", "database"), ("IMMEDIATE", "round trip")])
def test_the_doctor_gives_a_database_that_is_locked_no_other_user(tmp_path: Path, lock: str, name: str) -> None:
    """Who had locked it was another process that wrote: its user had all permissions."""
    engine = create_engine(f"sqlite:///{tmp_path}/shop.db", connect_args={"timeout": 0.1})
    ledger = Ledger(engine)
    ledger.create_all()
    with broker.open(tmp_path / "store") as store:
        store.producer("shop", topics=["orders"], ledger=ledger)
        with closing(sqlite3.connect(tmp_path / "shop.db", isolation_level=None)) as writing:
            writing.execute(f"BEGIN {lock}")
            (wrong,) = (line for line in examine(store, Ledger(engine)) if not line.ok)
    assert (wrong.name, wrong.next_step) == (name, "run this again when no long transaction holds it")
    engine.dispose()


def test_a_replica_of_mariadb_is_refused(mariadb_url: URL, tmp_path: Path) -> None:
    """`read_only` says so, even to a user who could write all the same."""
    engine = create_engine(mariadb_url)
    ledger = Ledger(engine)
    ledger.create_all()
    with engine.connect() as connection:
        before = connection.execute(text("SELECT @@global.read_only")).scalar()
        connection.execute(text("SET GLOBAL read_only = 1"))
        try:
            shop = Shop(tmp_path / "store", ledger, ledger)
            shop.buy_and_vanish(1, saved=False)
            report = shop.check_back()
            assert (report.refused, shop.in_doubt()) == (1, 1)
            assert "read-only replica" in next(iter(report.refusals))
            shop.close()
        finally:
            connection.execute(text(f"SET GLOBAL read_only = {before}"))
    engine.dispose()
