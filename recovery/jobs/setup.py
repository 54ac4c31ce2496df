"""What tasks stand on: leases on a store, reports that are kept, a store opened with its resolver.

    with alone("shop.store", "verify"): ...
    with opened("shop.store", ledger="postgresql+psycopg:///shop") as shop: shop.store, shop.resolvers

Each kind of work has a lease of its own, a lock in STORE/checkback/leases: a rebuild does not wait for a verification.
The leases and reports of a store that another program wrote are not in it: see `state_directory`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import broker
from broker.errors import BrokerError, StoreError, StoreLocked
from broker.log_fields import event
from broker.store.disk.append_lock import AppendLock
from broker.store.disk.files import Disk
from broker.store.disk.opening import give_directory
from broker.store.disk.paths import Paths

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from broker.live import LiveStore
    from broker.store.maintain.retention import Retention
    from recovery.checkback.catalog import Catalog
    from recovery.checkback.config import Resolvers, Setup
    from recovery.checkback.policy import Policy

ENGINES = ("auto", "local", "spark")
LOCAL_SPARK = "local[*]"
REPORTS = "reports"
LATEST = "verify-latest.json"
LATEST_RETENTION = "retain-latest.json"
LATEST_REJECTION = "reject-latest.json"
NEVER = "never"
_OWNERS, _GROUPS = 0o700, 0o2770
_RUN = re.compile(r"[a-z]+-(\d+)\.json")  # the report of the run of a time in ms


_log = logging.getLogger("recovery")


def state_directory(path: str) -> str:
    """Where leases and reports of a store are: in it, or, of a store that another program wrote, in a place of ours.

    That is a directory for each store under `CHECKBACK_STATE`, or under `$XDG_STATE_HOME/checkback` (by default
    `~/.local/state/checkback`): nothing is written into a directory that is not ours. Raises StoreError where the user
    has no such place.
    """
    paths = Paths(path)
    if os.path.exists(paths.store_json):
        return paths.own
    real = os.path.realpath(path)
    name = f"{os.path.basename(real)}-{hashlib.sha256(real.encode()).hexdigest()[:16]}"
    return os.path.join(_state_home(), "stores", name)


def _state_home() -> str:
    """Raises StoreError for a user without a home directory: `~` itself would be made, wherever the process stands."""
    home = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    found = os.path.expanduser(os.environ.get("CHECKBACK_STATE") or os.path.join(home, "checkback"))
    if found.startswith("~"):
        raise StoreError(f"user {os.getuid()} has no home directory: set CHECKBACK_STATE to a directory for reports")
    return found


@contextlib.contextmanager
def spark_for(engine: str, master: str | None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession | None]:
    """The Spark session that a piece of work runs in, stopped after it; None where the local engine does it.

    `engine` is local, spark, or auto: Spark where `master` names one and a session starts there, else the local engine,
    with a warning. The local engine also takes what comes while another task's Spark has this machine (`local[*]`).
    Raises SparkNotReady when the engine must be Spark and cannot, BrokerError for another engine.
    """
    if engine not in ENGINES:
        raise BrokerError(f"engine cannot be {engine!r:.40}: it is one of {', '.join(ENGINES)}")
    if engine == "local" or (engine == "auto" and master is None):
        yield None
        return
    from recovery.spark.sessions import SparkNotReady, running

    with contextlib.ExitStack() as stack:
        session: SparkSession | None = None
        is_here = engine == "auto" and master is not None and master.startswith("local")
        if is_here and not stack.enter_context(_machine_taken()):
            yield None
            return
        try:
            session = stack.enter_context(running(master or LOCAL_SPARK, config=conf))
        except SparkNotReady as error:
            if engine != "auto":
                raise
            _log.warning("Spark is not used, the local engine does the work: %s", error, extra=event("spark-unused"))
        yield session


@contextlib.contextmanager
def _machine_taken() -> Iterator[bool]:
    """Whether no other task had a Spark on this machine, so that this one may: none else gets one in this block.

    Each would have a JVM of a gigabyte and all processors: as many as Airflow has slots.
    """
    try:
        directory = _state_home()
        _make_private(directory)
        lease = AppendLock(os.path.join(directory, "local-spark"))
    except (OSError, BrokerError):  # no place to say so
        yield True
        return
    is_ours = lease.try_acquire()
    try:
        yield is_ours
    finally:
        if is_ours:
            lease.release()
        lease.close()


def verified(path: str, spark: SparkSession | None) -> dict[str, Any]:
    """The report of a verification by the local engine, or by a Spark session; `engine` says by which."""
    if spark is None:
        from recovery.verify.verifier import verify as verify_locally

        return {**verify_locally(path).as_json(), "engine": "local"}
    from recovery.spark import verification

    facts = {"engine": f"spark ({spark.sparkContext.master})", "spark_ui": spark.sparkContext.uiWebUrl}
    return {**verification.verify(spark, path).as_json(), **facts}


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
    """Who is asked, and when. Raises BrokerError.

    `resolvers` is by producer group; `ledger` (a SQLAlchemy URL) or `resolver` (module:function, or a URL) is for all
    groups that it does not name.
    """
    from recovery.checkback.config import EVERY_GROUP, Setup
    from recovery.checkback.policy import parse_policy
    from recovery.checkback.specs import check_spec

    found = dict(resolvers or {})
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
    from recovery.durations import parse_duration
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
    """Write a report to the store's `state_directory`; its path. None, and an error in the log, when it cannot.

    Call it under the lease of the work: what `latest` names is written by that work alone. The report says when it was
    due (`now_ms`) and when it was done (`done_ms`): after a pause the two are days apart.
    """
    try:
        return write_report(path, name, report, latest)
    except StoreError as error:
        _log.error("%s: the report %s cannot be kept: %s", path, name, error, extra=event("report-not-kept"))
        return None


def write_report(path: str, name: str, report: Mapping[str, Any], latest: str = LATEST) -> str:
    """As `keep_report`. Raises StoreError, with the reason, when it cannot."""
    report = {"done_ms": time.time_ns() // 1_000_000, **report}
    directory = os.path.join(state_directory(path), REPORTS)
    try:
        _make_private(directory)
        for each in (name, latest):
            _write_whole(os.path.join(directory, each), os.path.join(directory, f".{latest}.new"), report)
    except OSError as error:
        is_in_it = os.path.exists(Paths(path).store_json)
        step = "" if is_in_it else ". CHECKBACK_STATE names another place for reports"
        raise StoreError(f"{directory}: {error.strerror}{step}", path=path) from error
    return os.path.join(directory, name)


def remove_reports(path: str, before_ms: int) -> int:
    """Remove the reports of runs before a time; the latest of each kind has a copy under a name of its own."""
    directory = os.path.join(state_directory(path), REPORTS)
    old = []
    with contextlib.suppress(FileNotFoundError):
        old = [name for name in os.listdir(directory) if (run := _RUN.fullmatch(name)) and int(run[1]) < before_ms]
    for name in old:
        os.remove(os.path.join(directory, name))
    return len(old)


def _write_whole(path: str, beside: str, report: Mapping[str, Any]) -> None:
    """A reader sees the old one or the new one; what a killed run left beside it is written over."""
    disk = Disk()
    with os.fdopen(disk.open_lock(beside), "w", encoding="utf-8") as file:  # which belongs to the store's owner
        file.truncate()
        json.dump(report, file)
    disk.rename(beside, path, durable=False)


def _make_private(directory: str) -> None:
    """A directory for the user of the store alone; what root makes in the store of another user is that user's.

    In a store that a group shares it is the group's: each of its users is to see the reports, and to wait for a lease.
    """
    if not os.path.isdir(directory):
        mode = _GROUPS if _is_shared(os.path.dirname(directory)) else _OWNERS
        os.makedirs(directory, mode=mode & 0o777, exist_ok=True)
        give_directory(directory, mode)


def _is_shared(directory: str) -> bool:
    """Whether it was made for a group: `chmod 2775`, and what is made in it takes that over."""
    shared = stat.S_ISGID | stat.S_IWGRP
    return os.path.isdir(directory) and os.stat(directory).st_mode & shared == shared


@contextlib.contextmanager
def alone(path: str, work: str) -> Iterator[None]:
    """Hold the lease for one kind of work. Raises StoreLocked when another process does, NotAStore without a store."""
    broker.open(path, read_only=True).close()
    try:
        directory = os.path.join(state_directory(path), "leases")
        _make_private(directory)
        lease = AppendLock(os.path.join(directory, work))
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
        with open(os.path.join(state_directory(path), REPORTS, latest), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError, StoreError):
        return None
    return found if isinstance(found, dict) else None
