"""What the test button of a connection, and `checkback airflow doctor`, find in a store's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

import broker
from recovery.jobs.checks import check_settings
from tests.jobs.shops import SMALL


def bound_shop(directory: Path) -> tuple[str, str]:
    """A store whose producer has opened its ledger, and the URL of that."""
    directory.mkdir()
    path, url = str(directory / "store"), f"sqlite:///{directory}/shop.db"
    ledger = broker.Ledger(create_engine(url))
    ledger.create_all()
    with broker.open(path, layout=SMALL) as store:
        store.producer("shop", topics=["orders"], ledger=ledger)
    return path, url


def test_a_ledger_is_the_stores_own(tmp_path: Path) -> None:
    """Another store's database has the table, too; check-back would decide nothing by it."""
    path, url = bound_shop(tmp_path / "shop")
    _, other = bound_shop(tmp_path / "other")
    assert "in doubt" in check_settings(path, ledger=url)
    with pytest.raises(broker.BrokerError, match=r"other/shop\.db.* is not bound to this store .*shop/shop\.db"):
        check_settings(path, ledger=other)
    resolvers = {"shop": {"ledger": url}, "billing": {"ledger": other}}
    assert "in doubt" in check_settings(path, resolvers=resolvers), "no producer of billing has opened its own yet"
    fresh = str(tmp_path / "fresh")
    broker.open(fresh, layout=SMALL).close()
    assert "in doubt" in check_settings(fresh, ledger=other), "none has opened any"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"policy": {"*": {"intervall": "30s"}}}, "no 'intervall'"),
        ({"resolvers": {"shop": 5}}, "resolvers.shop names one of ledger, http, call"),
        ({"resolver": "http://[::1"}, "http is an http.s. URL with a host"),
        ({"ledger": "sqlite:///typo.db"}, "there is no database at typo.db"),
    ],
)
def test_a_mistake_is_one_sentence_and_makes_no_file(
    settings: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a SQLite file with a typo in its name an empty one was made, which then was there."""
    path = str(tmp_path / "store")
    broker.open(path, layout=SMALL).close()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(broker.BrokerError, match=why):
        check_settings(path, **settings)
    assert not (tmp_path / "typo.db").exists()
