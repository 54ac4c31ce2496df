"""CheckService: rounds of check-back at an interval, by one process among all that would ask the same.

    with for_producers(store, [producer]):               # a thread of the application
        serve()

RocketMQ's own check thread: TransactionalMessageCheckService (5.3.3), which waits an interval before its first round,
too. An application with this thread is served without Airflow and without a second program.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, Self

from broker.errors import BrokerError
from broker.live import LiveStore
from broker.log_fields import event
from broker.producer import Producer
from recovery.checkback.leader import LeaderLock
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledger_retention import KEEP_MS, keeper
from recovery.checkback.ledgers.proof import LedgerEvidence
from recovery.checkback.ledgers.routing import Ledgers
from recovery.checkback.policy import Policy
from recovery.checkback.protocol import Resolver
from recovery.checkback.resolvers import Breaker, CallableResolver, Router
from recovery.checkback.round import CheckBack, RoundReport
from recovery.checkback.time_limit import Bounded

INTERVAL_S = 30.0
"""Seconds between two rounds. RocketMQ: transactionCheckInterval."""
_HOUR_MS = 3_600_000

_log = logging.getLogger("recovery")


@dataclass(slots=True)
class Status:
    """How the service does."""

    leads: bool = False
    """Whether this process runs the rounds now."""
    rounds: int = 0
    """How many rounds were finished."""
    failures: int = 0
    """How many rounds ended with an error."""
    last_error: str = ""
    """The sentence of the last of them; empty: there was none."""
    last_round_ms: int | None = None
    """When the last finished round began, in milliseconds since 1970; None: there was none."""
    last_report: dict[str, Any] | None = None
    """Its report, as `RoundReport.as_json` gives it."""

    def as_json(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return asdict(self)


class CheckService:
    """Runs a round every `interval_s` seconds while this process leads; otherwise it waits for its turn to lead.

    `housekeeping(now_ms)` runs once an hour after a round, for the retention of ledger rows; None: nothing does.
    `clock_ms` is by default that of the store. A round that fails is logged, shows in `status`, and is tried again
    after the interval. In a `with` block it runs in a thread.
    RocketMQ: TransactionalMessageCheckService (5.3.3).
    """

    def __init__(
        self,
        check: CheckBack,
        lease: LeaderLock,
        *,
        interval_s: float = INTERVAL_S,
        housekeeping: Callable[[int], object] | None = None,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self._check, self._lease, self._interval_s = check, lease, interval_s
        self._housekeeping, self._clock_ms = housekeeping, clock_ms or check.now_ms
        self._kept_house_ms: int | None = None
        self._said_that_it_waits = False
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.status: Status = Status()
        """How it does, kept up to date."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Run in a thread of this process, the first round after one interval. Started twice, it runs once."""
        if self._thread is None:
            self._stopped.clear()
            thread = threading.Thread(target=self._wait_and_run, name="checkback-check", daemon=True)
            thread.start()
            self._thread = thread  # last: one that the system did not give is asked for again

    def stop(self) -> None:
        """End the thread after the round that it is in, and let another process lead."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self._lease.release()
        self._check.catalog.close()

    def _wait_and_run(self) -> None:
        if not self._stopped.wait(self._interval_s):
            self.run()

    def run(self, on_round: Callable[[RoundReport], object] = lambda _: None) -> None:
        """Run rounds until `stop` is called from another thread; `on_round(report)` hears of each finished one.

        Raises only what `on_round` raises.
        """
        while True:
            report = self.run_once()
            if report is not None:
                on_round(report)
            if self._stopped.wait(self._interval_s):
                return

    def run_once(self) -> RoundReport | None:
        """Run one round, if this process leads; None when another does, or when it failed: see `status`."""
        try:
            now_ms = self._clock_ms()
            self.status.leads = self._lease.try_take()
            if not self.status.leads:
                self._say_that_it_waits()
                return None
            self._said_that_it_waits = False
            report = self._check.round(now_ms)
            self._keep_house(now_ms)
        except Exception as error:  # noqa: BLE001 - a thread that dies would settle nothing any more
            self.status.failures += 1
            self.status.last_error = (
                str(error) if isinstance(error, BrokerError) else f"{type(error).__name__}: {error}"
            )
            _log.warning(
                "a round of check-back failed, and is tried again: %s",
                self.status.last_error,
                extra=event("check-round-failed"),
            )
            return None
        self.status.rounds += 1
        self.status.last_round_ms, self.status.last_report = now_ms, report.as_json()
        return report

    def _say_that_it_waits(self) -> None:
        """Once, until it leads."""
        leader = self._lease.leader()
        if leader is not None and not self._said_that_it_waits:
            self._said_that_it_waits = True
            _log.info("%s: this process waits until it ends", leader, extra=event("check-waits"))

    def _keep_house(self, now_ms: int) -> None:
        if self._housekeeping is None or (self._kept_house_ms is not None and now_ms - self._kept_house_ms < _HOUR_MS):
            return
        self._housekeeping(now_ms)
        self._kept_house_ms = now_ms


def for_producers(
    store: LiveStore,
    producers: Sequence[Producer],
    *,
    policy: Policy | None = None,
    interval_s: float = INTERVAL_S,
    keep_ledger_ms: int = KEEP_MS,
) -> CheckService:
    """The service of an application: its transactional producers answer, by their ledger or their resolver.

    Producers of the same group anywhere are answered for, too. The transactions of other groups are left to those that
    ask for them, and of those that ask the same one process leads. `policy` None is `Policy()`, `interval_s` seconds
    lie between rounds, ledger rows that are older than `keep_ledger_ms` (30 days) are removed once an hour. Start it,
    or use it in a `with` statement. Raises BrokerError for a catalog that cannot be used, and what `with_engine` of a
    ledger raises.
    """
    evidence = LedgerEvidence(store)
    of_group: dict[str, list[LedgerResolver]] = {}
    for one in producers:
        if one.ledger is not None:
            of_group.setdefault(one.group, []).append(LedgerResolver(one.ledger.with_engine(), evidence))
    ledgers = [ledger for each in of_group.values() for ledger in each]
    by_ledger = {group: Breaker(Bounded(Ledgers(each))) for group, each in of_group.items()}
    asked = {one.group: Breaker(CallableResolver(one.resolver)) for one in producers if one.resolver is not None}
    router = Router(asked, by_ledger=by_ledger)

    asks = _asks(of_group, asked)
    check = CheckBack(store, router, policy=policy, groups=asks.keys())
    keep_house = keeper(store, ledgers, keep_ledger_ms)
    return CheckService(check, LeaderLock(store.path, asks=asks), interval_s=interval_s, housekeeping=keep_house)


def _asks(ledgers: Mapping[str, Sequence[LedgerResolver]], asked: Mapping[str, Resolver]) -> dict[str, str]:
    """Who is asked for each producer group, in words. A group may have a ledger for each tenant, in other processes."""
    said: dict[str, list[str]] = {group: [repr(resolver)] for group, resolver in asked.items()}
    for group, each in ledgers.items():
        said.setdefault(group, []).extend(sorted(f"{one!r}, {one.ledger.rows.fullname}" for one in each))
    return {group: "; ".join(words) for group, words in said.items()}
