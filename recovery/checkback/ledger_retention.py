"""Retention of ledger rows: which rows nobody will ask for again.

A row is needed until the end of its transaction is on disk, and a tombstone as long as the local transaction might
still commit. So rows go by the time in their key: older than `keep_ms`, which must be longer than any local transaction
takes, and older than every transaction of the store that is in doubt, parked ones included. What was ended before the
look is flushed to disk first. Keys below that time are never answered "rolled back" again: see LedgerResolver.expire.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from shlex import quote

from sqlalchemy.exc import SQLAlchemyError

from broker.database.ledger_binding import KnownLedgers
from broker.enlisting.ledger_key import LEDGER_KEY, key_time_ms
from broker.errors import CorruptStore, TransactionError
from broker.live import LiveStore
from broker.log_fields import event
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import WrongLedger
from recovery.checkback.protocol import reason_alone
from recovery.humanize import moment

KEEP_MS = 30 * 86_400_000

_log = logging.getLogger("recovery")


def low_water_ms(store: LiveStore, now_ms: int, keep_ms: int = KEEP_MS) -> int:
    """The time below which no row is needed any more; 0 when a half message in doubt cannot be read."""
    damaged: list[CorruptStore] = []
    keys = [half.properties.get(LEDGER_KEY) for half in store.transactions.in_doubt(damaged=damaged)]
    times = [made for key in keys if key and (made := key_time_ms(key)) is not None]
    store.sync_now()  # after the look: what was not in doubt then has its end on disk now
    return 0 if damaged else min([now_ms - keep_ms, *times])  # any row may be the one that it names


def lowered_mark_ms(store: LiveStore, mark_ms: int, now_ms: int) -> int:
    """What a mark in the future is set to: now, or above the keys in doubt that are below it.

    The row of such a one may have been removed, and a tombstone would roll back what committed. What ended is not asked
    for again. Raises TransactionError where nothing can be taken back, CorruptStore for a half message that cannot be
    read.
    """
    keys = (half.properties.get(LEDGER_KEY, "") for half in store.transactions.in_doubt())
    low_ms = max([now_ms, *(made + 1 for key in keys if (made := key_time_ms(key) or 0) < mark_ms)])
    if low_ms >= mark_ms:
        text = f"rows from before {moment(mark_ms)} UTC count as removed, and one in doubt was begun just before that"
        raise TransactionError(f"{text}. Resolve it first: checkback pending {quote(store.path)} lists it")
    return low_ms


def expire_ledger(store: LiveStore, resolver: LedgerResolver, now_ms: int, keep_ms: int = KEEP_MS) -> int:
    """Remove the rows that nobody will ask for again; returns how many went."""
    low_ms = low_water_ms(store, now_ms, keep_ms)
    newest_ms = resolver.newest_below(low_ms)
    # The mark is behind what goes, and no further: a clock that is ahead for once would put it above all keys to come.
    return resolver.expire(0 if newest_ms is None else min(low_ms, newest_ms + 1))


def expire_ledgers(
    store: LiveStore, ledgers: Iterable[LedgerResolver], now_ms: int, keep_ms: int = KEEP_MS
) -> tuple[int, list[str]]:
    """The same of several: how many rows went, and of each database that takes no part now, why its rows stay.

    The store has rows in the databases that its producers were bound to, and knows these. Where each of them took part,
    another one has none: it is that of a group that has not sent yet.
    """
    gone, staying = 0, list[str]()
    left = {one.binding.binding_id for one in KnownLedgers(store.path, store.writer.disk).all()}
    for ledger in ledgers if left else ():
        try:
            binding_id = ledger.binding_id()
            gone += expire_ledger(store, ledger, now_ms, keep_ms)
            left.discard(binding_id)
        except (SQLAlchemyError, WrongLedger) as error:
            staying.append(f"old rows of {ledger!r} stay: {reason_alone(ledger.trouble(error).why)}")
    return gone, staying if left else []


def keeper(store: LiveStore, ledgers: Iterable[LedgerResolver], keep_ms: int = KEEP_MS) -> Callable[[int], None]:
    """What removes old rows of these ledgers, at a time by the store's clock.

    A database that takes no part now is logged and left for the next time: the round before was one all the same.
    """
    listed = list(ledgers)

    def keep_house(now_ms: int) -> None:
        # Keys are of the wall clock. The store's goes on from where that was once, if it was set back.
        now_ms = min(now_ms, time.time_ns() // 1_000_000)
        for why in expire_ledgers(store, listed, now_ms, keep_ms)[1]:
            _log.warning("%s", why, extra=event("ledger-rows-stay", store=store.path))

    return keep_house
