"""### Check-back

Asks how the transactions in doubt ended: the application's ledger, or the resolver that the store's settings name, and
ends them. Starts when a transaction is due: the triggerer looks every 30 seconds unless the settings say otherwise, and
an idle store has no runs but one an hour, in case that the triggerer does not look. One task works through all that are
due, in batches; a pass that finds nothing writes nothing.

**It fails**: after one retry the next pass is the next attempt. Red for minutes: look at the log of `check_back`.
Mostly the application's database does not answer, or the store is locked by a recovery, or it crashed, and nobody
recovers it: its settings have no path by which that is seen, `recover_after_crash` is paused, or no triggerer runs.
Trigger that DAG. Where attempts are killed, for their memory or by a resolver, each leaves a crash to recover from: the
log names a command that shows what ends them. Transactions wait meanwhile; nothing is lost. There is one alert for a
trouble that lasts, again after `ask_again_after_s`, and one when it is over.

**It is green, and some stay in doubt**: nobody knows how they ended. After the policy's limit they are parked:
trigger `resolve_parked`.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zlib import crc32

from airflow.sdk import DAG, Asset, AssetWatcher

from recovery.airflow.operators import CheckBackOperator
from recovery.airflow.settings import StoreSettings
from recovery.airflow.triggers import DueTrigger
from recovery.airflow.versions import asset_or_every
from recovery.airflow.workflows.wiring import alerted_once, merged, shared

_WEIGHT = 6  # it takes seconds: before a rebuild and a verification, which may take hours, and behind a recovery


def make(store: StoreSettings, **overrides: Any) -> DAG:
    """The DAG of a store; `overrides` are arguments of `DAG`."""
    # One retry, for a worker that was killed: after that the next pass comes sooner. A pass that hangs for ten minutes
    # waits for something that never comes.
    limits = {"most": timedelta(minutes=10), "within": timedelta(minutes=5)}
    wiring = shared(store, "check_back", retries=1, weight=_WEIGHT, **limits)
    due = due_asset(store)
    with DAG(**merged({"schedule": schedule(store, due), "doc_md": __doc__, **wiring}, overrides)) as dag:
        watched: dict[str, Any] = {"fail_unanswered": True, "is_watched": bool(store.path)}
        watched["recovered_by"] = f"{store.name}.recover_after_crash"
        CheckBackOperator(task_id="check_back", **watched, **alerted_once(store, due), **store.target())
    return dag


def schedule(store: StoreSettings, due: Asset) -> Any:
    """When something is due, and every `backstop_s` seconds; every `check_back_every_s` seconds without a watcher."""
    if not due.watchers:
        return timedelta(seconds=store.check_back_every_s)
    return asset_or_every(due, store.backstop_s, crc32(store.name.encode()))


def due_asset(store: StoreSettings) -> Asset:
    """The asset that has an event when something is due, if it is watched.

    A watcher needs the path itself: a connection is not read while a DAG file is parsed.
    """
    uri = f"checkback://{store.name}/due"
    if not (store.watch and store.path):
        return Asset(uri)
    knows = not (store.connection or store.catalog)  # which policy counts, and what was asked already
    trigger = DueTrigger(
        path=store.path,
        policy=dict(store.policy) if knows else None,
        poll_s=store.check_back_every_s,
        metrics_as=store.name,
    )
    return Asset(uri, watchers=[AssetWatcher(name=f"{store.name} due", trigger=trigger)])
