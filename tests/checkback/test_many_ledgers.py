"""A half message is asked of the ledger that it names: many ledgers in one database, and half messages of before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from sqlalchemy import URL, select, text

from broker.database.ledger_binding import LEDGER_BINDING
from broker.ledger import Ledger
from broker.transaction.events import TransactionState
from recovery.checkback.catalog import attempts_of
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.manual import resolve
from recovery.cli.shared import USAGE, WELL
from tests.checkback.other_databases import numbers, shown, tables_in
from tests.checkback.shop import Shop

# Many ledgers, and half messages of before


@pytest.fixture
def tenants(shop: Shop, url: URL) -> Iterator[list[Ledger]]:
    """A ledger in a schema of its own for each of two tenants."""
    if url.get_backend_name() == "sqlite":
        pytest.skip("SQLite has no schemas in one file")
    found = []
    for number in range(2):
        schema = f"of{next(numbers)}_{number}"
        with shop.ledger.engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        found.append(tables_in(url, schema))
    yield found
    for ledger in found:
        ledger.engine.dispose()


def test_each_half_message_is_asked_of_the_ledger_that_it_names(
    shop: Shop,
    run_due: Callable[..., tuple[int, str, str]],
    url: URL,
    tenants: list[Ledger],
) -> None:
    """Two tenants in one producer group: with one schema named the other's is refused, with both each is decided."""
    for number, ledger in enumerate(tenants, 1):
        shop.ledger = ledger
        shop.buy_and_vanish(number)
    first, second = (str(ledger.rows.schema) for ledger in tenants)
    code, out, error = run_due("check-back", shop.path, "--ledger", shown(url), "--schema", first)
    assert (code, shop.in_doubt(), shop.announced()) == (USAGE, 1, [1]), out + error
    assert "names the ledger" in error
    words = ("check-back", shop.path, "--ledger", shown(url), "--schema", first, "--schema", second)
    code, out, error = run_due(*words)
    assert (code, shop.in_doubt(), shop.announced()) == (WELL, 0, [1, 2]), out + error


def test_a_half_message_without_a_binding_is_not_decided_without_its_row(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, run_due: Callable[..., tuple[int, str, str]], url: URL
) -> None:
    """It names no database: its row decides where there is one, and nothing else does."""
    with monkeypatch.context() as patch:
        patch.setattr("broker.producer.LEDGER_BINDING", "SOMETHING_ELSE")
        shop.buy_and_vanish(1)
        shop.buy_and_vanish(2, saved=False)
    code, out, error = run_due("check-back", shop.path, "--ledger", shown(url))
    assert (code, shop.in_doubt(), shop.announced()) == (WELL, 1, [1]), out + error
    (attempt,) = attempts_of(str(shop.path)).values()
    assert (attempt.outcome, "checkback resolve" in attempt.why) == ("unknown", True)


@pytest.mark.parametrize("kind", ["of a dry run", "of another ledger"])
def test_no_row_is_put_for_a_decision_that_is_none(shop: Shop, kind: str) -> None:
    """It would be a tombstone: the local transaction, which may still run, could not commit any more."""
    shop.buy_and_vanish(1, saved=False)
    (half,) = shop.store.transactions.in_doubt()
    if kind == "of another ledger":
        half = replace(half, properties={**half.properties, LEDGER_BINDING: "0" * len(half.properties[LEDGER_BINDING])})
    asked = LedgerResolver(shop.resolvers_ledger, LedgerEvidence(shop.store))
    words = {"why": "drill", "by": "ada", "now_ms": shop.now_ms(), "dry_run": kind == "of a dry run"}
    (found,) = resolve(shop.store, [half], TransactionState.ROLLED_BACK, ledger=asked, **words)  # type: ignore[arg-type]
    assert found.result == ("rolled back" if kind == "of a dry run" else "refused")
    with shop.ledger.engine.connect() as connection:
        assert connection.execute(select(shop.ledger.rows)).all() == []
