"""The page inside Airflow's UI: stores, what is in doubt and parked, the story of one transaction, the last report.

A user who may see Airflow's website may see it, and of it the stores whose DAG `verify_store` that user may read:
FastAPI apps of plugins have no login by themselves. It shows keys and properties of messages, never their bodies. It
changes nothing: to act it starts DAGs, through Airflow's own API and with the rights of the user who clicks.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from airflow.sdk.exceptions import AirflowException
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from broker.errors import BrokerError
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.maintain.retention_registry import read_history
from recovery.airflow.settings import BrokenStore, StoreSettings, broken_stores, stores
from recovery.jobs.setup import LATEST_RETENTION, last_report
from recovery.views.overview import overview, story

PAGE = Path(__file__).with_name("page.html")
WORK = ("check_back", "verify_store", "rebuild_state_table", "recover_after_crash", "resolve_parked", "retention")
LISTED = 200
_UNREADABLE = (BrokerError, OSError, AirflowException)  # Airflow's: a connection that is not there


def make_app() -> FastAPI:
    """The app; every route asks Airflow first who is there."""
    logged_in = Depends(requires_access_view(AccessView.WEBSITE))
    app = FastAPI(title="checkback", dependencies=[logged_in], docs_url=None, redoc_url=None, openapi_url=None)
    app.get("/", response_class=HTMLResponse)(show_page)
    app.get("/api/stores")(list_stores)
    app.get("/api/stores/{name}")(show_store)
    app.get("/api/stores/{name}/transactions/{commitlog_offset}")(show_transaction)
    return app


def show_page() -> str:
    """One file of HTML; its script asks for the rest."""
    return PAGE.read_text(encoding="utf-8")


def list_stores(user: GetUserDep) -> list[dict[str, Any]]:
    """Each store of the settings in a line; one that cannot be read, or whose settings are wrong, says why."""
    lines = [_line(store) for store in stores() if _may_see(user, store.name)]
    return [*lines, *(_broken(store) for store in broken_stores())]


def show_store(name: str, user: GetUserDep) -> dict[str, Any]:
    """One store: its waiting transactions and its last verification."""
    store = _named(name, user)
    try:
        path = path_of(store)
        seen = overview(path, _now_ms(), limit=LISTED).as_json()
    except _UNREADABLE as error:
        raise HTTPException(409, str(error)) from None
    report, retention = last_report(path), retained(path)
    facts = {"report": report and _short(report), "retention": retention, "dags": dags_of(name)}
    return {"name": name, "path": path, **seen, **facts}


def show_transaction(name: str, commitlog_offset: int, user: GetUserDep) -> dict[str, Any]:
    """All that the store says about one transaction, in order."""
    try:
        steps = story(path_of(_named(name, user)), commitlog_offset)
    except _UNREADABLE as error:
        raise HTTPException(409, str(error)) from None
    if not steps:
        raise HTTPException(404, f"no half message begins at CommitLog offset {commitlog_offset}")
    return {"name": name, "commitlog_offset": commitlog_offset, "steps": steps}


def dags_of(name: str) -> dict[str, str]:
    """The DAGs of a store, by their work."""
    return {work: f"{name}.{work}" for work in WORK}


def retained(path: str) -> dict[str, Any]:
    """What retention did last, who has yet to read what, what pins segments that are due; and what went unread ever."""
    last, history = last_report(path, LATEST_RETENTION) or {}, read_history(Disk(), Paths(path))
    shown = {name: last.get(name, [])[:LISTED] for name in ("pins", "unread")}
    removed = {"now_ms": last.get("now_ms"), "segments": len(last.get("segments", [])), "bytes": last.get("bytes", 0)}
    return {**removed, **shown, "removed_unread": history.get("unread", {}), "removed_bytes": history.get("bytes", 0)}


def path_of(store: StoreSettings) -> str:
    """Where a store is, from its settings or its connection. Raises BadSettings."""
    if store.path or not store.connection:
        return store.path
    from recovery.airflow.hook import CheckbackHook

    return CheckbackHook(store.connection).path


def _line(store: StoreSettings) -> dict[str, Any]:
    from recovery.jobs.recovering import crashed

    line: dict[str, Any] = {"name": store.name, "path": store.path, "dags": dags_of(store.name), "error": None}
    try:
        path = path_of(store)
        seen, report = overview(path, _now_ms(), limit=LISTED), last_report(path)
        facts = {"path": path, "counts": seen.counts, "oldest_s": seen.oldest_s, "crashed": bool(crashed(path))}
        return {**line, **facts, "report": report and _short(report)}
    except _UNREADABLE as error:
        return {**line, "error": str(error)}


def _broken(store: BrokenStore) -> dict[str, Any]:
    """The line of a store that is not looked after."""
    return {"name": store.name, "path": "", "dags": {"settings": f"{store.name}.settings"}, "error": store.why}


def _may_see(user: Any, name: str) -> bool:
    """Whether Airflow lets the user read the store's DAGs."""
    details = DagDetails(id=f"{name}.verify_store")
    return bool(get_auth_manager().is_authorized_dag(method="GET", details=details, user=user))


def _short(report: dict[str, Any]) -> dict[str, Any]:
    return {**report, "findings": report["findings"][:20]}


def _named(name: str, user: Any) -> StoreSettings:
    for store in stores():
        if store.name == name and _may_see(user, name):
            return store
    raise HTTPException(404, f"the settings name no store {name!r}")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
