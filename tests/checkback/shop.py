"""The shop over a store of this process, as the tests of check-back run it: its rounds, its policy, its disk."""

from __future__ import annotations

import time
from pathlib import Path

from broker.ledger import Ledger
from broker.live import LiveStore, open_live
from broker.store.disk.files import Disk
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.round import CheckBack, RoundReport
from tests.backends.embedded import LAYOUT, Embedded
from tests.backends.shop import BackendShop

LATER_MS = 60_000  # after the first check is due


def open_store(path: Path, disk: Disk | None = None) -> LiveStore:
    return open_live(path, layout=LAYOUT, sync="group", disk=disk)


class Shop(BackendShop):
    """Check-back goes round by round; the store may be opened again, and be on another disk."""

    def __init__(self, path: Path, ledger: Ledger, resolvers_ledger: Ledger, disk: Disk | None = None) -> None:
        self.path = path
        self.store = open_store(path, disk)
        self.policy = Policy(Rule(jitter=0.0))
        self._checks: list[CheckBack] = []
        super().__init__(Embedded(path, self.store), ledger, resolvers_ledger)

    def check(self) -> CheckBack:
        resolver = LedgerResolver(self.resolvers_ledger, LedgerEvidence(self.store), lock_timeout_ms=50)
        check = CheckBack(self.store, resolver, policy=self.policy)
        self._checks.append(check)
        return check

    def check_back(self, later_ms: int = LATER_MS) -> RoundReport:
        """One round, a minute from now by default."""
        return self.check().round(self.now_ms() + later_ms)

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def reopen(self) -> None:
        """As another process would find it."""
        self.close()
        self.store = open_store(self.path)
        self.backend = Embedded(self.path, self.store)

    def close(self) -> None:
        for check in self._checks:
            check.catalog.close()
        self._checks.clear()
        self.store.close()
