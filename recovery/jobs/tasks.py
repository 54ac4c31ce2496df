"""What Airflow's tasks call: plain functions, JSON in and out; a retry gives the same answer.

    verify("shop.store", now_ms=...)      {"ok": true, "counts": {}, "digest": "...", "report": ".../verify-17….json"}

`now_ms` is the run's own time, never the clock's. Each kind of work has a lease on the store (a lock in
STORE/checkback/leases, which the system releases when its holder dies): two runs at once do not get into each
other's way. Nothing heavy is imported before it is needed, so that a trigger's look stays cheap.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

import broker
from broker.errors import BrokerError, StoreError
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.disk.store_lock import is_held
from broker.store.recover.survey import survey
from broker.transaction.events import TransactionState
from recovery.jobs.approvals import parked_subject, parked_text
from recovery.jobs.rebuilding import compare_table as compare_table
from recovery.jobs.rebuilding import rebuild_table as rebuild_table
from recovery.jobs.recovering import crashed as crashed
from recovery.jobs.recovering import plan_recovery as plan_recovery
from recovery.jobs.recovering import recover as recover
from recovery.jobs.setup import LATEST_RETENTION, alone, keep_report, opened, remove_reports, spark_for, verified

FINDINGS_SHOWN = 50  # in a task's result, and entries that were not judged; the report has all
LATE_LOOKED_AT = 1_000  # transactions in doubt, at each look of a trigger
REASONS_SHOWN = 3  # in a task's error; the catalog and the page have all
PARKED_AT_ONCE = 20  # a page's worth: a person decides about each
_NOTHING_RETAINED: dict[str, Any] = {"segments": 0, "pins": [], "ledger_rows_stay": []}


# Looking


def in_doubt_longer(path: str, older_than_s: float, now_ms: int) -> dict[str, Any] | None:
    """How many transactions are in doubt for longer than that, and the oldest of them; None when there is none.

    The oldest `LATE_LOOKED_AT` are looked at: where all of those are late, `omitted` says how many more are in doubt.
    """
    from recovery.views.overview import overview

    seen = overview(path, now_ms, limit=LATE_LOOKED_AT, parked_limit=0)
    late = [one for one in seen.in_doubt if one.age_s >= older_than_s]
    if not late:
        return None
    oldest = max(late, key=lambda one: one.age_s)
    omitted = seen.omitted if len(late) == len(seen.in_doubt) else 0
    return {
        "count": len(late),
        "omitted": omitted,
        "commitlog_offset": oldest.commitlog_offset,
        "age_s": oldest.age_s,
    }


def queue_ends(path: str, topic: str) -> dict[str, int]:
    """Where the durable messages of each queue of a topic end, by queue id (as text: JSON); empty while there is none.

    As consumers see it: while a process has the store open, what it has not yet flushed to disk does not count.
    """
    with broker.open(path, read_only=True) as store:
        bound = survey(path, Disk()).durable if is_held(Paths(path).lock) else None
        return {str(queue): _queue_end(store, topic, queue, bound) for queue in store.queues(topic)}


def _queue_end(store: broker.Store, topic: str, queue_id: int, bound: int | None) -> int:
    """The queue offset behind the last message that begins below `bound`, a CommitLog offset."""
    first, end = store.queue_range(topic, queue_id)
    queue = store.consumequeues.queue(topic, queue_id)
    if bound is None or queue is None:
        return end

    def is_beyond(queue_offset: int) -> bool:
        unit = queue.get(queue_offset)
        return unit is None or unit.commitlog_offset >= bound

    return first + bisect_left(range(first, end), True, key=is_beyond)


# Verification


def verify(
    path: str,
    *,
    now_ms: int,
    engine: str = "local",
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Compare everything in a store, and keep the report (`recovery.jobs.setup.keep_report`).

    `engine`, `master` and `conf` as for `spark_for`. The report says when it was due (`now_ms`) and when it was done
    (`done_ms`). Raises StoreError when there is nothing to verify, StoreLocked when another run is at it.
    """
    with alone(path, "verify"):
        with spark_for(engine, master, conf) as spark:
            report = verified(path, spark)
        times = {"now_ms": now_ms, "done_ms": time.time_ns() // 1_000_000}
        kept = keep_report(path, f"verify-{now_ms}.json", {**times, **report})
    shown = report["findings"][:FINDINGS_SHOWN]
    names = (
        "ok",
        "live",
        "generation",
        "records",
        "bytes",
        "seconds",
        "transactions",
        "digest",
        "counts",
    )
    facts = {name: report.get(name) for name in (*names, "spark_ui")}
    facts["not_judged"] = report["not_judged"][:FINDINGS_SHOWN]
    facts |= {"path": path, "engine": report["engine"], "done_ms": times["done_ms"]}
    return {**facts, "findings": shown, "report": kept}


# Check-back, and what a person decides


def check_back(path: str, *, now_ms: int, catalog: str | None = None, **asked: Any) -> dict[str, Any]:
    """One round of check-back, in numbers (`RoundReport`); `did` says whether there was anything to look at.

    `asked` says who is asked and when: ledger, resolver, resolvers, policy (`recovery.jobs.setup.setup`). A store in
    which all is settled is not even opened for writing; one that crashed is left to the recovery. Two rounds at once do
    not ask twice: the second does nothing. Raises WrongLedger, after the others were asked, when a database is not
    certainly the ledger.
    """
    from recovery.views.overview import overview

    counts = overview(path, now_ms, limit=0, parked_limit=0).counts
    if not counts["in_doubt"]:
        return {"did": "nothing is in doubt", "in_doubt": 0, "parked": counts["parked"]}
    if not os.path.exists(Paths(path).store_json):
        return {"did": "another program wrote it, and its broker checks back", **counts}
    if crashed(path):
        return {"did": "it crashed, and is recovered first", **counts}
    from recovery.checkback.leader import LeaderLock
    from recovery.checkback.ledgers.proof import WrongLedger
    from recovery.checkback.round import CheckBack

    with opened(path, catalog, **asked) as shop:
        lease = LeaderLock(path, asks=shop.resolvers.asks)
        if not lease.try_take():
            return {"did": f"{lease.leader() or 'another process'} is asking", **counts}
        try:
            service = CheckBack(shop.store, shop.resolvers.router, policy=shop.policy, catalog=shop.catalog)
            report = service.round(now_ms)
            wrong = [*report.refusals] or (shop.resolvers.wrong() if report.waiting else [])
            if wrong:  # also before anything is due: a run that is green would say that the database is right
                raise WrongLedger(wrong[0])
            return {"did": "a round", **report.as_json()}
        finally:
            lease.release()


class Unanswered(BrokerError):
    """Somebody could not be asked how transactions ended, or their ends could not be written."""


def unanswered(path: str, report: Mapping[str, Any]) -> Unanswered | None:
    """Why a round of check-back, of which `report` came, could not ask, or not write; None when it could."""
    reasons = [f"{total} not asked: {why}" for why, total in (report.get("not_asked") or {}).items()]
    reasons += report.get("errors") or []
    text = "They stay in doubt until they are answered, and nothing is lost"
    return Unanswered(f"{path}: {'; '.join(reasons[:REASONS_SHOWN])}. {text}") if reasons else None


def parked(
    path: str, *, now_ms: int, name: str = "", only: int | None = None, limit: int = PARKED_AT_ONCE
) -> list[dict[str, Any]]:
    """The parked transactions, longest parked first, each with what a person needs to decide about it.

    `name` is what people call the store. `only` is the CommitLog offset of one half message; one that is not parked
    (any more) is none. Raises StoreError for a store that another program wrote: no decision could be carried out.
    """
    from recovery.views.overview import overview

    _check_is_ours(path)
    found = overview(path, now_ms, limit=0, parked_limit=limit if only is None else None).parked
    chosen = [one for one in found if only in (None, one.commitlog_offset)][:limit]
    return [
        {
            "commitlog_offset": one.commitlog_offset,
            "subject": parked_subject(name or os.path.basename(path), one),
            "body": parked_text(path, one),
        }
        for one in chosen
    ]


def _check_is_ours(path: str) -> None:
    """Raises StoreError for a store that another program wrote: a take-over of it would be another thing to decide."""
    broker.open(path, read_only=True).close()
    if not os.path.exists(Paths(path).store_json):
        text = "another program wrote it, and its broker alone can end its transactions: nothing was done"
        raise StoreError(f"{path}: {text}. Have one checked again by RocketMQ's resumeCheckHalfMessage", path=path)


def resolve(
    path: str,
    *,
    commitlog_offset: int,
    decision: str,
    now_ms: int,
    why: str = "",
    by: str = "",
    catalog: str | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Do what a person decided about a half message: commit, rollback, ask-again or leave.

    Doing it again changes nothing; when another decision came first that one stands, and `why` says so. A transaction
    whose outcome is in a ledger is decided there first: without that ledger it is refused.
    """
    if decision == "leave":
        return {"commitlog_offset": commitlog_offset, "result": "unchanged", "why": "left as it is"}
    from recovery.checkback import manual as by_hand

    _check_is_ours(path)
    reason, by = why.strip() or "no reason was given", by.strip() or "somebody in Airflow"
    with opened(path, catalog, must_answer=False, **asked) as shop:
        half = shop.store.transactions.half(commitlog_offset)
        if decision == "ask-again":
            (found,) = by_hand.recheck(shop.store, [half], why=reason, catalog=shop.catalog)
        else:
            state = TransactionState.COMMITTED if decision == "commit" else TransactionState.ROLLED_BACK
            ledger, kept = shop.resolvers.ledger_of(half.producer_group), shop.catalog
            (found,) = by_hand.resolve(
                shop.store, [half], state, why=reason, by=by, now_ms=now_ms, ledger=ledger, catalog=kept
            )
    return found.as_json()


# Retention


def retain(
    path: str,
    *,
    now_ms: int,
    keep: str,
    max_bytes: str | int | None = None,
    free_bytes: str | int | None = None,
    gone_after: str | None = None,
    even_unread: bool = False,
    catalog: str | None = None,
    **asked: Any,
) -> dict[str, Any]:
    """Remove what is older than `keep` (as 72h): segments, ledger rows, reports; and the ended from the catalog.

    Above `max_bytes` (as 20GiB) of the store, or below `free_bytes` of its disk, the oldest segments go however young.
    What somebody has yet to read stays, unless `even_unread`: `pins` says what, `pins_omitted` how many half messages
    more, `unread` how much, by group and topic. A database that does not answer, or is not the ledger, keeps its rows,
    and stops nothing else: `ledger_rows_stay` says why.
    Processes that have the store open with a retention of their own are heard: the most careful counts. A store that
    another program wrote is left alone, as `did` says.
    """
    from broker.store.maintain.retention import most_careful
    from recovery.checkback.ledger_retention import expire_ledgers
    from recovery.durations import parse_duration
    from recovery.jobs.setup import parse_retention

    wanted = parse_retention(keep, max_bytes, free_bytes, gone_after, even_unread=even_unread)
    broker.open(path, read_only=True).close()  # where no store is, none was written by anybody
    if not os.path.exists(Paths(path).store_json):
        return {"did": "another program wrote it, and its broker removes what is old", **_NOTHING_RETAINED}
    with alone(path, "retention"), opened(path, catalog, must_answer=False, **asked) as shop:
        also = shop.store.retention
        done = shop.store.retain(most_careful([wanted, also]) if also else wanted, now_ms=now_ms)
        rows, staying = expire_ledgers(shop.store, shop.resolvers.ledgers.values(), now_ms)
        slot_of, service = shop.store.writer.dispatcher.slot, shop.store.transactions
        in_doubt = {slot_of(slot).commitlog_offset for slot in service.in_doubt_slots()}
        forgotten = [at for at in shop.catalog.known() if at not in in_doubt]
        shop.catalog.remember((), forgotten)
        reports = remove_reports(path, now_ms - parse_duration(keep))
        summary = done.as_json()
        rest: dict[str, Any] = {"ledger_rows": rows, "ledger_rows_stay": staying, "catalog_rows": len(forgotten)}
        rest |= {"reports": reports, "now_ms": now_ms}
        kept = keep_report(path, f"retain-{now_ms}.json", {**summary, **rest}, latest=LATEST_RETENTION)
    counts = {"segments": len(done.segments), "derived_files": len(done.derived), "begin_offset": done.begin}
    names = ("bytes", "due", "used_bytes", "disk_free_bytes", "pins", "pins_omitted", "unread", "unread_gone")
    return {"did": "a retention", **counts, **{name: summary[name] for name in names}, **rest, "report": kept}
