"""Check-back's side of a ledger without a store: what a store would know of it, in memory."""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from broker.database.ledger_binding import RememberedLedgers
from broker.ledger import Ledger
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import CommittedKey, LedgerEvidence


class NoStore(LedgerEvidence):
    """A store in which nothing ended yet."""

    def __init__(self, store_id: str) -> None:
        self.store_id = store_id
        self.known = RememberedLedgers()

    def committed(self, _binding_id: str) -> list[CommittedKey]:
        return []

    def is_by_hand(self, _commitlog_offset: int) -> bool:
        return False


def resolver_of(ledger: Ledger, store_id: str, *, lock_timeout_ms: int = 100, by: str = "check-back") -> LedgerResolver:
    """Who asks a ledger that a producer has opened, if its database is there."""
    evidence = NoStore(store_id)
    with suppress(SQLAlchemyError, Exception):
        evidence.known.remember(ledger.binding(store_id), ledger.rows.name)
    return LedgerResolver(ledger, evidence, lock_timeout_ms=lock_timeout_ms, by=by)
