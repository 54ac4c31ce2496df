"""The shop over a network: its store is served, and its producer is that of `broker.connect`."""

from __future__ import annotations

import time
from pathlib import Path

import broker
from broker.ledger import Ledger
from broker.producer import Producer
from recovery.answering.group_answering import answering
from recovery.checkback.round import RoundReport
from tests.checkback.shop import LATER_MS, Shop

OFTEN = {"check_interval_s": 0.05, "transaction_timeout_s": 0.1, "check_max": 1_000_000}
_SETTLED_S = 20.0


class ServedShop(Shop):
    """A shop whose broker is somewhere else, as its producer sees it."""

    def __init__(self, path: Path, ledger: Ledger, resolvers_ledger: Ledger) -> None:
        super().__init__(path, ledger, resolvers_ledger)
        self._server = broker.serve(self.store, "127.0.0.1:0", **OFTEN)  # type: ignore[arg-type]
        self._cluster = broker.connect(f"rocketmq://{self._server.address}")

    def producer(self) -> Producer:
        return self._cluster.producer("shop", topics=["orders", "stock"], ledger=self.ledger)

    def check_back(self, later_ms: int = LATER_MS) -> RoundReport:  # noqa: ARG002 - the broker has its own clock
        """Until the broker has no doubt any more."""
        with answering(self._cluster, "shop", [self.resolvers_ledger]):
            deadline = time.monotonic() + _SETTLED_S
            while self.in_doubt() and time.monotonic() < deadline:
                time.sleep(0.02)
        return RoundReport(in_doubt=self.in_doubt())

    def close(self) -> None:
        self._cluster.close()
        self._server.close()
        super().close()
