"""Ledger rows go when nobody will ask for them again, and not a moment earlier."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import func, select

from broker.enlisting.ledger_key import KEY_SIZE
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledger_retention import KEEP_MS, expire_ledger
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.protocol import Outcome
from recovery.checkback.round import CheckBack
from recovery.checkback.service import for_producers
from tests.checkback.shop import Shop

pytestmark = pytest.mark.usefixtures("each_engine")

DAY_MS = 86_400_000


def resolver(shop: Shop) -> LedgerResolver:
    return LedgerResolver(shop.resolvers_ledger, LedgerEvidence(shop.store))


def rows(shop: Shop) -> int:
    with shop.ledger.engine.connect() as connection:
        return connection.execute(select(func.count()).select_from(shop.ledger.rows)).scalar() or 0


def test_young_rows_stay(shop: Shop) -> None:
    shop.buy(1)
    assert expire_ledger(shop.store, resolver(shop), shop.now_ms() + KEEP_MS - DAY_MS) == 0
    assert rows(shop) == 1


def test_old_rows_of_ended_transactions_go(shop: Shop) -> None:
    shop.buy(1)
    assert expire_ledger(shop.store, resolver(shop), shop.now_ms() + KEEP_MS + DAY_MS) == 1
    assert rows(shop) == 0


def test_the_row_of_a_transaction_in_doubt_stays_however_old(shop: Shop) -> None:
    """Parked or not: as long as somebody may ask, the row is there; and so are all younger ones."""
    shop.buy_and_vanish(1)
    shop.buy(2)
    (half,) = shop.store.transactions.in_doubt()
    shop.store.transactions.park(half, "a year ago")
    later_ms = shop.now_ms() + 10 * KEEP_MS
    assert expire_ledger(shop.store, resolver(shop), later_ms) == 0
    shop.store.transactions.unpark(half, "asked again")
    assert shop.check_back(10 * KEEP_MS).committed == 1
    assert expire_ledger(shop.store, resolver(shop), later_ms) == 2
    assert shop.announced() == [1, 2]


def test_ends_are_on_disk_before_a_row_goes(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An end is not forced when it is written. First the look, then the force: what was ended by then is safe."""
    shop.buy(1)
    order: list[str] = []
    in_doubt, sync_now, expire = shop.store.transactions.in_doubt, shop.store.sync_now, LedgerResolver.expire
    monkeypatch.setattr(shop.store.transactions, "in_doubt", lambda **_: order.append("look") or in_doubt())
    monkeypatch.setattr(shop.store, "sync_now", lambda: order.append("force") or sync_now())
    monkeypatch.setattr(LedgerResolver, "expire", lambda *arguments: order.append("remove") or expire(*arguments))
    assert expire_ledger(shop.store, resolver(shop), shop.now_ms() + KEEP_MS + DAY_MS) == 1
    assert order == ["look", "force", "remove"]


def test_a_key_of_the_time_up_to_which_rows_went_is_decided_and_an_older_one_never(shop: Shop) -> None:
    """A later run that keeps rows for longer brings none of them back."""
    shop.buy(1)
    asked, mark_ms = resolver(shop), shop.now_ms()
    asked.expire(mark_ms)
    asked.expire(mark_ms - DAY_MS)
    old, *young = (f"{mark_ms + later_ms:012x}".ljust(KEY_SIZE, "a") for later_ms in (-1, 0, 1, 2))
    alone = {key: asked.answers({key: "shop"})[key].outcome for key in (old, young[0])}
    together = {key: answer.outcome for key, answer in asked.answers(dict.fromkeys([old, *young[1:]], "shop")).items()}
    assert alone == {old: Outcome.UNKNOWN, young[0]: Outcome.ROLLED_BACK}
    assert together == {old: Outcome.UNKNOWN, **dict.fromkeys(young[1:], Outcome.ROLLED_BACK)}


def test_a_transaction_older_than_what_is_kept_is_parked_for_a_person(shop: Shop) -> None:
    """A store that was restored from an old backup asks for rows that are gone: nobody guesses."""
    shop.buy_and_vanish(1)
    resolver(shop).expire(shop.now_ms() + DAY_MS)
    for number in range(1, 20):
        report = shop.check_back(number * DAY_MS)
        assert (report.committed, report.rolled_back) == (0, 0)
    assert report.parked == 1
    (parked,) = shop.store.transactions.parked()
    assert parked == next(iter(shop.store.transactions.in_doubt())).commitlog_offset


def test_a_clock_that_was_once_set_forward_makes_no_row_old(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store's clock goes on from there, and keys are of the wall clock: no row would be young, and no missing one
    rolled back, until that is there again."""
    ahead_ms = 2 * KEEP_MS
    monkeypatch.setattr(CheckBack, "now_ms", lambda _self: shop.now_ms() + ahead_ms)
    shop.buy(1)
    service = for_producers(shop.store, [shop.producer()])
    assert service.run_once() is not None
    assert rows(shop) == 1
    shop.buy_and_vanish(2, saved=False)
    report = service.run_once()
    service.stop()
    assert report is not None
    assert report.rolled_back == 1


def test_a_clock_that_is_ahead_for_once_leaves_later_transactions_to_check_back(shop: Shop) -> None:
    """The mark was put a year ahead: until then no missing row was rolled back, and each was parked for a person."""
    shop.buy(1)
    assert expire_ledger(shop.store, resolver(shop), shop.now_ms() + 12 * KEEP_MS) == 1
    assert expire_ledger(shop.store, resolver(shop), shop.now_ms() + 12 * KEEP_MS) == 0
    time.sleep(0.002)  # keys are of whole milliseconds
    shop.buy_and_vanish(2, saved=False)
    assert shop.check_back(DAY_MS).rolled_back == 1
