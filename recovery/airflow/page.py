"""The page inside Airflow's UI: stores, what is in doubt and parked, the story of one transaction, the last report.

A user who may see Airflow's website may see it, and of it the stores whose DAG `verify_store` that user may read:
FastAPI apps of plugins have no login by themselves. It shows keys and properties of messages, never their bodies. It
changes nothing: to act it starts DAGs, through Airflow's own API and with the rights of the user who clicks.
"""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse

from recovery.airflow.operating.standing import standing_of
from recovery.airflow.settings import BrokenStore, StoreSettings, broken_stores, stores
from recovery.airflow.versions import AirflowException
from recovery.page import facts

_UNREADABLE = (*facts.UNREADABLE, AirflowException)  # Airflow's: a connection that is not there


def make_app() -> FastAPI:
    """The app; every route asks Airflow first who is there."""
    logged_in = Depends(requires_access_view(AccessView.WEBSITE))
    app = FastAPI(title="checkback", dependencies=[logged_in], docs_url=None, redoc_url=None, openapi_url=None)
    app.get("/", response_class=HTMLResponse)(show_page)
    app.get("/api/stores")(list_stores)
    app.get("/api/stores/{name}")(show_store)
    app.get("/api/stores/{name}/transactions/{commitlog_offset}")(show_transaction)
    app.get("/api/stores/{name}/report")(show_report)
    app.get("/api/stores/{name}/dlq/{group}")(show_dead_letters)
    return app


def show_page() -> str:
    """One file of HTML; its script asks for the rest."""
    return facts.page({"kind": "airflow"})


def list_stores(user: GetUserDep) -> list[dict[str, Any]]:
    """Each store of the settings in a line; one that cannot be read, or whose settings are wrong, says why."""
    seen = [store for store in stores() if _may_see(user, store.name)]
    standing = standing_of({store.name: store.work for store in seen})
    lines = [_line(store, standing[store.name]) for store in seen]
    return [*lines, *(_broken(store) for store in broken_stores() if _may_see(user, store.name, "settings"))]


def show_store(name: str, user: GetUserDep) -> dict[str, Any]:
    """One store: its waiting transactions and its last verification."""
    store = _named(name, user)
    try:
        found = facts.store_of(name, path_of(store))
    except _UNREADABLE as error:
        raise HTTPException(409, str(error)) from None
    return {**found, "dags": dags_of(store), **standing_of({name: store.work})[name], "may": _rights(user, store)}


def show_transaction(name: str, commitlog_offset: int, user: GetUserDep) -> dict[str, Any]:
    """All that the store says about one transaction, in order."""
    try:
        found = facts.transaction_of(name, path_of(_named(name, user)), commitlog_offset)
    except _UNREADABLE as error:
        raise HTTPException(409, str(error)) from None
    if found is None:
        raise HTTPException(404, f"no half message begins at CommitLog offset {commitlog_offset}")
    return found


def show_report(name: str, user: GetUserDep) -> dict[str, Any]:
    """The whole last verification."""
    try:
        found = facts.report_of(path_of(_named(name, user)))
    except _UNREADABLE as error:
        raise HTTPException(409, str(error)) from None
    if found is None:
        raise HTTPException(404, f"{name} was not verified yet")
    return found


def show_dead_letters(name: str, group: str, user: GetUserDep) -> dict[str, Any]:
    """The dead letters of a consumer group."""
    try:
        return facts.dead_letters_of(name, path_of(_named(name, user)), group)
    except _UNREADABLE as error:
        raise HTTPException(409, str(error)) from None


def dags_of(store: StoreSettings) -> dict[str, str]:
    """The DAGs of a store, by their work."""
    return {work: f"{store.name}.{work}" for work in store.work}


def path_of(store: StoreSettings) -> str:
    """Where a store is, from its settings or its connection. Raises BadSettings."""
    if store.path or not store.connection:
        return store.path
    from recovery.airflow.hook import CheckbackHook

    return CheckbackHook(store.connection).path


def _line(store: StoreSettings, standing: dict[str, Any]) -> dict[str, Any]:
    dags = {"dags": dags_of(store), **standing}
    try:
        return {**facts.line_of(store.name, path_of(store)), **dags}
    except _UNREADABLE as error:
        return {"name": store.name, "path": store.path, "error": str(error), **dags}


def _broken(store: BrokenStore) -> dict[str, Any]:
    """The line of a store that is not looked after."""
    dags = {"settings": f"{store.name}.settings"}
    return {"name": store.name, "path": "", "dags": dags, "error": store.why, "paused": [], "unknown": [], "asks": 0}


def _may_see(user: Any, name: str, *also: str) -> bool:
    """Whether Airflow lets the user read the store's DAG `verify_store`, or one of `also`."""
    return any(_is_allowed(user, "GET", f"{name}.{work}") for work in ("verify_store", *also))


def _rights(user: Any, store: StoreSettings) -> dict[str, Any]:
    """What Airflow lets the user do with the store's DAGs, so that the page offers nothing that would be refused."""
    dags = dags_of(store)
    return {
        "start": [work for work, dag_id in dags.items() if _is_allowed(user, "POST", dag_id, DagAccessEntity.RUN)],
        "unpause": all(_is_allowed(user, "PUT", dag_id) for dag_id in dags.values()),
    }


def _is_allowed(user: Any, method: Any, dag_id: str, entity: DagAccessEntity | None = None) -> bool:
    details = DagDetails(id=dag_id)
    return bool(get_auth_manager().is_authorized_dag(method=method, access_entity=entity, details=details, user=user))


def _named(name: str, user: Any) -> StoreSettings:
    for store in stores():
        if store.name == name and _may_see(user, name):
            return store
    raise HTTPException(404, f"the settings name no store {name!r}")
