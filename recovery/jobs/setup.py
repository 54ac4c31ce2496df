"""What tasks stand on: leases on a store, reports that are kept, a store opened with its resolver.

    with alone("shop.store", "verify"): ...
    with opened("shop.store", ledger="postgresql+psycopg:///shop") as shop: shop.store, shop.resolvers

Each kind of work has a lease of its own, a lock in STORE/checkback/leases: a rebuild does not wait for a verification.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import broker
from broker.errors import BrokerError, StoreLocked
from broker.store.disk.append_lock import AppendLock
from broker.store.disk.paths import Paths

if TYPE_CHECKING:
    from broker.live import LiveStore
    from broker.store.maintain.retention import Retention
    from recovery.checkback.catalog import Catalog
    from recovery.checkback.config import Resolvers, Setup
    from recovery.checkback.policy import Policy

REPORTS = "reports"
LATEST = "verify-latest.json"
LATEST_RETENTION = "retain-latest.json"
NEVER = "never"
_RUN = re.compile(r"[a-z]+-(\d+)\.json")  # the report of the run of a time in ms


@dataclass(frozen=True, slots=True)
class Opened:
    """A store, open for writing, with its resolver."""

    store: LiveStore
    resolvers: Resolvers
    policy: Policy
    catalog: Catalog


@contextlib.contextmanager
def opened(path: str, catalog: str | None = None, *, must_answer: bool = True, **asked: Any) -> Iterator[Opened]:
    """Open a store and its catalog (a URL, or by default the file in the store), and close both.

    Raises NotAStore where there is none (opening for writing would make one), and BrokerError when nobody is named who
    could answer, unless `must_answer` is false.
    """
    from recovery.checkback.catalog import Catalog

    made = setup(**asked)
    if must_answer and not made.resolvers:
        text = "nobody is named who could answer: give the store's settings a ledger (a SQLAlchemy URL) or a resolver"
        raise BrokerError(f"{path}: {text}")
    with broker.open(path, create=False) as store, made.open(store) as resolvers:
        kept = Catalog.open(path, store.store_id, catalog)
        try:
            yield Opened(store, resolvers, made.policy, kept)
        finally:
            kept.close()


def setup(
    *,
    ledger: str | None = None,
    resolver: str | None = None,
    resolvers: Mapping[str, Mapping[str, Any]] | None = None,
    policy: Mapping[str, Any] | None = None,
) -> Setup:
    """Who is asked, and when. `resolvers` is by producer group; `ledger` (a SQLAlchemy URL) or `resolver`

    (module:function, or a URL) is for all groups that it does not name. Raises BrokerError.
    """
    from recovery.checkback.config import EVERY_GROUP, Setup, check_spec
    from recovery.checkback.policy import parse_policy

    found = {group: dict(spec) for group, spec in (resolvers or {}).items()}
    if ledger:
        found.setdefault(EVERY_GROUP, {"ledger": ledger})
    elif resolver:
        found.setdefault(EVERY_GROUP, {"http" if "://" in resolver else "call": resolver})
    for group, spec in found.items():
        check_spec(spec, f"resolvers.{group}")
    return Setup(parse_policy(policy or {}), found)


def parse_retention(
    keep: str | None,
    max_bytes: str | int | None,
    free_bytes: str | int | None,
    gone_after: str | None,
    *,
    even_unread: bool,
) -> Retention:
    """A retention from text: durations as 72h, sizes as 20GiB; `gone_after` may be never. Raises BrokerError."""
    from broker.store.maintain.retention import GONE_AFTER_S
    from recovery.checkback.policy import parse_duration
    from recovery.humanize import parse_size

    try:
        gone_after_s = GONE_AFTER_S if gone_after in (None, NEVER) else parse_duration(gone_after) / 1000
        return broker.Retention(
            keep_s=parse_duration(keep) / 1000 if keep else None,
            max_bytes=parse_size(max_bytes) if max_bytes else None,
            free_bytes=parse_size(free_bytes) if free_bytes else None,
            gone_after_s=None if gone_after == NEVER else gone_after_s,
            even_unread=even_unread,
        )
    except ValueError as error:
        raise BrokerError(f"this retention cannot be: {error}") from None


def keep_report(path: str, name: str, report: Mapping[str, Any], latest: str = LATEST) -> str | None:
    """Write a report to STORE/checkback/reports and say where; None for a store in which this user may not write.

    Call it under the lease of the work: what `latest` names is written by that work alone.
    """
    folder = os.path.join(Paths(path).own, REPORTS)
    try:
        os.makedirs(folder, exist_ok=True)
        for each in (name, latest):
            _write_whole(os.path.join(folder, each), os.path.join(folder, f".{latest}.new"), report)
    except OSError:
        return None
    return os.path.join(folder, name)


def remove_reports(path: str, before_ms: int) -> int:
    """Remove the reports of runs before a time; the latest of each kind has a copy under a name of its own."""
    folder = os.path.join(Paths(path).own, REPORTS)
    old = []
    with contextlib.suppress(FileNotFoundError):
        old = [name for name in os.listdir(folder) if (said := _RUN.fullmatch(name)) and int(said[1]) < before_ms]
    for name in old:
        os.remove(os.path.join(folder, name))
    return len(old)


def _write_whole(path: str, beside: str, report: Mapping[str, Any]) -> None:
    """A reader sees the old one or the new one; what a killed run left beside it is written over."""
    with open(beside, "w", encoding="utf-8") as file:
        json.dump(report, file)
    os.replace(beside, path)


@contextlib.contextmanager
def alone(path: str, work: str) -> Iterator[None]:
    """Hold the lease for one kind of work. Raises StoreLocked when another process does, NotAStore without a store."""
    broker.open(path, read_only=True).close()
    folder = os.path.join(Paths(path).own, "leases")
    try:
        os.makedirs(folder, exist_ok=True)
        lease = AppendLock(os.path.join(folder, work))
    except (OSError, BrokerError):  # a store that this user may only read: there is nothing to get in the way of
        yield
        return
    if not lease.try_acquire():
        lease.close()
        raise StoreLocked(f"{path}: another {work} is at work on it; wait until it is done", path=path)
    try:
        yield
    finally:
        lease.release()
        lease.close()


def last_report(path: str, latest: str = LATEST) -> dict[str, Any] | None:
    """The last report of a kind, as `recovery.jobs.tasks` kept it; by default of the verification. None without one."""
    try:
        with open(os.path.join(Paths(path).own, REPORTS, latest), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
