"""A half message in doubt that cannot be read holds up no verb and no other transaction, and no ledger row goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import URL, create_engine

import broker
from broker.ledger import Ledger
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledger_retention import KEEP_MS, expire_ledger
from recovery.checkback.ledgers.doctor import examine
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.cli.shared import CORRUPT, FINDINGS, WELL
from tests.checkback.shop import Shop
from tests.transaction.opened import damage

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shop(tmp_path: Path, sqlite_url: URL) -> Iterator[Shop]:
    """With two transactions in doubt that committed."""
    engine = create_engine(sqlite_url)
    ledger = Ledger(engine)
    ledger.create_all()
    shop = Shop(tmp_path / "store", ledger, ledger)
    shop.buy_and_vanish(1, 2)
    yield shop
    shop.close()
    engine.dispose()


def damaged(shop: Shop, *, parked: bool) -> tuple[broker.Half, broker.Half]:
    """Both half messages: the first cannot be read any more."""
    first, second = shop.store.transactions.in_doubt()
    for half in (first, second) if parked else ():
        shop.store.transactions.park(half, "nobody knew")
    damage(shop.store, first)
    return first, second


def test_a_round_is_reported_with_what_it_did(shop: Shop, run_due: Run, sqlite_url: URL) -> None:
    damaged(shop, parked=False)
    code, out, _ = run_due("check-back", shop.path, "--ledger", sqlite_url)
    assert code == FINDINGS
    assert out.startswith("2 in doubt, 1 asked: 1 committed")
    assert shop.announced() == [2]


def test_no_row_is_removed_while_any_may_be_its_own(shop: Shop) -> None:
    damaged(shop, parked=False)
    resolver = LedgerResolver(shop.ledger, LedgerEvidence(shop.store))
    assert shop.check_back().committed == 1
    assert expire_ledger(shop.store, resolver, shop.now_ms() + 2 * KEEP_MS) == 0


def test_the_doctor_goes_on_and_says_so(shop: Shop) -> None:
    damaged(shop, parked=False)
    lines = {line.name: line for line in examine(shop.store, shop.ledger)}
    assert [name for name, line in lines.items() if not line.ok] == ["damage"]
    assert lines["in doubt"].text == "1 half messages in doubt name this ledger"
    assert lines["damage"].next_step == f"checkback verify {shop.path}"


def test_one_that_is_not_parked_matters_to_no_verb_about_parked_ones(shop: Shop, run_due: Run, sqlite_url: URL) -> None:
    _, second = damaged(shop, parked=False)
    shop.store.transactions.park(second, "nobody knew")
    code, out, _ = run_due("park-list", shop.path)
    assert (code, second.message_id in out) == (WELL, True)
    code, out, _ = run_due("resolve", shop.path, "--all-parked", "--commit", "--why", "paid", "--ledger", sqlite_url)
    assert (code, out) == (WELL, f"{second.message_id} orders: committed\n")


def test_a_parked_one_is_named_behind_the_others(shop: Shop, run_due: Run, sqlite_url: URL) -> None:
    first, second = damaged(shop, parked=True)
    decide = ("resolve", shop.path, "--all-parked", "--commit", "--why", "paid", "--ledger", sqlite_url)
    for words in (("park-list", shop.path), ("recheck", shop.path, "--all-parked", "--dry-run"), decide):
        code, out, err = run_due(*words)
        assert (code, second.message_id in out) == (CORRUPT, True)
        assert f"CommitLog offset {first.commitlog_offset}" in err
    assert shop.announced() == [2]
