"""A ledger whose mark is in the future: a clock was ahead when retention removed rows, in an older version say."""

from __future__ import annotations

import time
from collections.abc import Callable
from shlex import quote

import pytest

from broker import Message
from broker.errors import TransactionError
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledger_retention import expire_ledger
from recovery.checkback.ledgers.doctor import accept, examine
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.cli.shared import FINDINGS, WELL
from tests.backends.shop import save
from tests.checkback.other_databases import shown
from tests.checkback.shop import Shop

YEAR_MS = 365 * 86_400_000


def _expire_in_the_future(shop: Shop) -> int:
    """Retention with a clock that was ahead; the mark."""
    mark_ms = shop.now_ms() + YEAR_MS
    LedgerResolver(shop.ledger, LedgerEvidence(shop.store)).expire(mark_ms)
    return mark_ms


def _mark(shop: Shop) -> int:
    with shop.ledger.engine.connect() as connection:
        return int(connection.execute(shop.ledger.marks.select()).one().low_water_ms)


def test_the_doctor_says_that_a_mark_is_in_the_future(shop: Shop, run_due: Callable[..., tuple[int, str, str]]) -> None:
    """Whatever was killed from then on was parked, and nothing said why; no command changed that."""
    url = shown(shop.ledger.engine.url)
    shop.buy(1)
    _expire_in_the_future(shop)
    with shop.session() as session:
        save(session, 9)
        producer = shop.producer()
        producer.send(Message("orders", b"9"), session)
        session.rollback()
    assert shop.in_doubt() == 0, "what is rolled back ends by itself"
    shop.buy_and_vanish(2, saved=False)
    assert shop.check_back().rolled_back == 0, "it is below the mark: unknown"
    code, out, _ = run_due("ledger", "doctor", shop.path, "--ledger", url)
    assert (code, out.count("not ok"), "not ok mark: rows from before " in out) == (FINDINGS, 1, True)
    assert "What is begun before that time, and killed before its COMMIT, is unknown" in out
    step = f"next: checkback ledger accept {shop.path} --ledger {quote(url)} --why TEXT"
    assert step in out
    assert run_due("ledger", "accept", shop.path, "--ledger", url, "--why", "a clock was ahead")[0] == WELL
    assert run_due("ledger", "doctor", shop.path, "--ledger", url)[0] == WELL
    shop.buy_and_vanish(3, saved=False)
    assert (shop.check_back().rolled_back, shop.in_doubt()) == (1, 1), "the new one; the old one stays unknown"


def test_a_mark_stays_above_what_is_in_doubt_of_a_clock_that_was_ahead(shop: Shop) -> None:
    """Its row may have been removed: a tombstone would roll back what committed."""
    shop.buy_and_vanish(1, saved=False)
    mark_ms = _expire_in_the_future(shop)
    early_ms = mark_ms - 2 * YEAR_MS  # by this clock the half message is in the future
    accept(shop.store, shop.ledger, why="a clock", by="me", now_ms=early_ms)
    assert early_ms < _mark(shop) <= shop.now_ms(), "just behind the half message"
    with pytest.raises(TransactionError, match=r"was begun just before that. Resolve it first: checkback pending "):
        accept(shop.store, shop.ledger, why="a clock", by="me", now_ms=early_ms)
    assert all(line.ok for line in examine(shop.store, shop.ledger))


def test_a_mark_is_set_back_though_the_application_worked_while_the_clock_was_ahead(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it sold by that clock was settled, and kept the mark where it was: the doctor named accept, in vain."""
    resolver = LedgerResolver(shop.ledger, LedgerEvidence(shop.store))
    with monkeypatch.context() as ahead:
        ahead.setattr(time, "time_ns", lambda: time.clock_gettime_ns(time.CLOCK_REALTIME) + YEAR_MS * 1_000_000)
        shop.buy(1)
        assert expire_ledger(shop.store, resolver, shop.now_ms(), keep_ms=-1) == 1
        shop.buy(2)
    assert accept(shop.store, shop.ledger, why="a clock", by="me", now_ms=shop.now_ms()).done
    assert all(line.ok for line in examine(shop.store, shop.ledger)), "nor are the rows that went missed"
    shop.buy_and_vanish(4, saved=False)
    assert shop.check_back(2 * YEAR_MS).rolled_back == 1, "the clock of the store goes on from where it was"
