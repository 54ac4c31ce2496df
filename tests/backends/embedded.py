"""A store in this process."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

import broker
from broker.errors import StoreFull
from broker.ledger import Ledger
from broker.live import LiveStore
from broker.store.read.layout import StoreLayout
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.round import CheckBack
from tests.backends.backend import Client
from tests.producer.delivered import delivered

LAYOUT = StoreLayout(1 << 22, 20 * 4000, 24 * 4000, 20 * 4000, 1000, 4000)
LATER_MS = 86_400_000  # after every check is due


class Embedded:
    """`broker.open`."""

    name, is_cluster, is_real, soon_s = "embedded", False, False, 20.0

    def __init__(self, path: Path, client: LiveStore | None = None) -> None:
        self._path = path
        self.client: LiveStore = client or broker.open(path, sync="group", layout=LAYOUT)

    def close(self) -> None:
        self.client.close()

    @contextmanager
    def another(self) -> Iterator[LiveStore]:
        with broker.open(self._path, sync="group") as other:
            yield other

    def delivered(self, topic: str = "orders") -> list[bytes]:
        return delivered(self.client, topic)

    def in_doubt(self) -> int:
        return len(self.client.transactions.in_doubt_slots())

    @contextmanager
    def lost_ends(self) -> Iterator[None]:
        def lost(*_: object, **__: object) -> NoReturn:
            raise StoreFull("the end is lost")

        with pytest.MonkeyPatch.context() as patch:
            for end in ("commit", "rollback"):
                patch.setattr(type(self.client.transactions), end, lost)
            yield

    def check_back(self, ledgers: Sequence[Ledger], group: str = "shop", client: Client | None = None) -> None:
        """Some rounds, each a day later than the one before."""
        for later in (1, 2, 3):
            self._round(ledgers, group, client, later * LATER_MS)

    def is_running(self, ledgers: Sequence[Ledger], group: str = "shop") -> bool:
        return self._round(ledgers, group, None, LATER_MS) > 0

    def _round(self, ledgers: Sequence[Ledger], _group: str, client: Client | None, later_ms: int) -> int:
        """Of all groups; how many transactions run."""
        store, running = self.client if client is None else client, 0
        assert isinstance(store, LiveStore)
        for ledger in ledgers:
            resolver = LedgerResolver(ledger, LedgerEvidence(store), lock_timeout_ms=50)
            check = CheckBack(store, resolver, policy=Policy(Rule(jitter=0.0)))
            with closing(check.catalog):
                running += check.round(time.time_ns() // 1_000_000 + later_ms).running
        return running
