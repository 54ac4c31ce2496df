"""The URL of a database on the command line: one that needs an event loop is refused, and one that is none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import broker
from broker.errors import BrokerError
from recovery.checkback.ledgers.engines import check_url, engine_of
from recovery.cli.shared import USAGE
from tests.cli.command import command

LOOPS = {
    "sqlite+aiosqlite:///shop.db": "sqlite",
    "postgresql+asyncpg://ada:secret@127.0.0.1:1/shop": "postgresql+psycopg",
    "mysql+aiomysql://ada:secret@127.0.0.1:1/shop": "mysql+pymysql",
    "mariadb+asyncmy://ada:secret@127.0.0.1:1/shop": "mariadb+pymysql",
}
VERBS = {
    "check-back": "check-back {store} --ledger {url}",
    "check-back with a file": "check-back {store} --config {config}",
    "check-back with a catalog": "check-back {store} --catalog {url}",
    "resolve": "resolve {store} 0 --commit --ledger {url}",
    "ledger doctor": "ledger doctor {store} --ledger {url}",
    "ledger rebind": "ledger rebind {store} --ledger {url} --why moved",
    "ledger accept": "ledger accept {store} --ledger {url} --why restored",
    "answer": "answer 127.0.0.1:1 --group shop --ledger {url}",
    "answer --bind": "answer 127.0.0.1:1 --ledger {url} --bind",
    "move": "move {store} rocketmq://127.0.0.1:1 --ledger {url}",
    "page": "page {store} --ledger {url}",
    "up": "up {store} --ledger {url} --home {store}-home --port 1",
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    broker.open(tmp_path / "shop.store").close()
    return tmp_path / "shop.store"


@pytest.mark.parametrize("url", LOOPS)
@pytest.mark.parametrize("verb", ["check-back", "ledger doctor"])
def test_a_url_that_needs_an_event_loop_is_refused(
    verb: str, url: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence names the one to write; the driver need not be installed."""
    ran = command(capsys, *VERBS[verb].format(store=store, url=url, config="").split())
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (USAGE, "", 1)
    assert f"{url.partition(':')[0]} needs an event loop" in ran.err
    assert f"write {LOOPS[url]}:// instead" in ran.err
    assert "secret" not in ran.err


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_refuses_it(verb: str, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, config = "sqlite+aiosqlite:///shop.db", store.parent / "check-back.toml"
    config.write_text(f'[resolvers.shop]\nledger = "{url}"\n')
    ran = command(capsys, *VERBS[verb].format(store=store, url=url, config=config).split())
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (USAGE, "", 1)
    assert "write sqlite:// instead" in ran.err


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("shop.db", "the ledger's database is not a SQLAlchemy URL"),
        ("postgresql+psycopg://ada:secret@127.0.0.1:port/shop", "the ledger's database is not a SQLAlchemy URL"),
        ("postgresql+psycopg://ada:pass@secret@127.0.0.1/shop", "an @ in the user or the password: write %40 for it"),
        ("nosql://x", "nosql://, which SQLAlchemy does not know"),
        ("postgres://ada:secret@127.0.0.1/shop", r"SQLAlchemy does not know. Write sqlite://, postgresql\+psycopg://"),
    ],
)
def test_what_is_no_url_is_refused(url: str, sentence: str) -> None:
    with pytest.raises(BrokerError, match=sentence) as caught:
        engine_of(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("postgresql+psycopg://ada:secret@127.0.0.1/shop", "psycopg", r"psycopg\[binary\]"),
        ("mysql+pymysql://ada:secret@127.0.0.1/shop", "pymysql", "pymysql"),
    ],
)
def test_a_driver_that_is_not_installed_is_named(
    url: str, module: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extras of checkback bring none: "No module named 'psycopg'" left the next step to the user."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BrokerError, match=f"127.0.0.1/shop cannot be used: .*Run: pip install '{package}'$") as caught:
        engine_of(url)
    assert "secret" not in str(caught.value)


def test_a_url_is_checked_without_its_driver() -> None:
    assert check_url("mssql+pyodbc://x/shop").drivername == "mssql+pyodbc"
    with pytest.raises(BrokerError, match="name another driver"):
        check_url("mssql+aioodbc://x/shop")
