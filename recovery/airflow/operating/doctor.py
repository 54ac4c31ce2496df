"""What `checkback airflow doctor` checks, where Airflow's configuration and database are: each with the next step.

    for one in examine(run_s=90): print(one.state, one.what, one.next_step)

Settings, connections with a round trip to the ledgers, components that run, paused DAGs, pools, Java; and which process
sees each store's directory: this one, a worker and the triggerer (by the DAG `checkback.doctor`), and the API server.
"""

from __future__ import annotations

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from shlex import quote
from typing import Any
from urllib.parse import urlsplit

import airflow

from broker.errors import BrokerError
from broker.store.disk.paths import Paths
from recovery.airflow.hook import CheckbackHook, http_address, spark_connection, with_secrets
from recovery.airflow.operating.sight import look_at, why_not_seen
from recovery.airflow.operating.standing import standing_of
from recovery.airflow.settings import WHOLE_FILE, StoreList, StoreSettings, configured, in_one_directory
from recovery.airflow.versions import AirflowException, BaseHook, check_version, conf
from recovery.hanging import DoesNotAnswer, within_time

OK, WARN, WRONG = "ok", "warn", "wrong"
JOBS = {"SchedulerJob": "scheduler", "DagProcessorJob": "DAG processor", "TriggererJob": "triggerer"}
_OVER = ("success", "failed", "upstream_failed", "skipped", "removed")
_FRESH_S = 60.0
_POLL_S = 1.0
_HTTP_S = 60.0  # of stores whose disks hang the page waits for each
_BUNDLE = "recovery.airflow.bundle.CheckbackDagBundle"


@dataclass(frozen=True, slots=True)
class Examined:
    """One thing that was checked."""

    state: str  # ok, warn, wrong
    what: str
    next_step: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Sighted:
    """A task of the DAG `checkback.doctor`, and what it saw; None where it did not say."""

    task: str
    state: str | None
    queue: str
    sight: dict[str, Any] | None


def _verdict(is_ok: bool, what: str, next_step: str) -> Examined:
    """Fine, or wrong with the next step."""
    return Examined(OK, what) if is_ok else Examined(WRONG, what, next_step)


def examine(*, run_s: float = 90.0, url: str = "", token: str = "") -> Iterator[Examined]:
    """Everything, in the order in which it is to be repaired.

    `run_s` is how long the DAG `checkback.doctor` may take, 0 leaves it out; with `token`, a token of Airflow's API,
    the API server at `url` is asked what it sees.
    """
    check_version()
    yield Examined(OK, f"Airflow {airflow.__version__}")
    listed = configured()
    hanging = _hanging(listed.stores)
    yield from _settings(listed)
    try:
        yield from _components()
        yield from _dags(listed.stores)
        yield from _pools(listed.stores)
        is_reached = True
    except Exception as error:  # noqa: BLE001 - whatever the driver of Airflow's database raises
        step = "run this where the scheduler runs, with its environment; `airflow db check` says more"
        yield Examined(WRONG, f"Airflow's database cannot be read: {' '.join(str(error).split()):.200}", step)
        is_reached = False
    for store in listed.stores:
        yield from _store(store) if store.name not in hanging else [_hangs(store.name, hanging[store.name])]
    yield from _alerts(listed)
    yield from _engines(listed.stores)
    if run_s and is_reached and listed.stores:
        yield from _sights(run_s)
    yield from _api_server(listed.stores, url or conf.get("api", "base_url", fallback="") or "", token)


def _hanging(stores: Sequence[StoreSettings]) -> dict[str, str]:
    """Why a store does not answer, by its name: its disk hangs, and no other look at it would come back."""
    found: dict[str, str] = {}
    for store in stores:
        try:
            path = store.path or CheckbackHook(store.connection or "").path
            within_time(path, partial(look_at, path))
        except DoesNotAnswer as error:
            found[store.name] = str(error)
        except (BrokerError, AirflowException):  # of the connection, which is examined below
            continue
    return found


def _hangs(name: str, why: str) -> Examined:
    return Examined(WRONG, f"{name}, this process: {why}", "see to its disk; nothing else of it is checked")


def _settings(listed: StoreList) -> Iterator[Examined]:
    stores, where = listed.stores, (conf.get("checkback", "stores", fallback="") or "").strip()
    if not where:
        step = "set AIRFLOW__CHECKBACK__STORES to the path of a TOML file, for every component of Airflow"
        yield Examined(WRONG, "the setting [checkback] stores is empty: no store is looked after", step)
        return
    for one in listed.broken:
        step = "correct it; `checkback settings --check FILE` checks the file before it is installed"
        yield Examined(WRONG, f"{'the file' if one.name == WHOLE_FILE else one.name}: {one.why}", step)
    for name, earlier in in_one_directory(stores):
        yield Examined(WARN, f"{name}: its path is that of {earlier}", "give it the path of its own store")
    shown = "JSON" if where.startswith("{") else where
    yield Examined(OK if stores else WARN, f"settings: {shown}, {len(stores)} stores")
    if _BUNDLE not in (conf.get("dag_processor", "dag_bundle_config_list", fallback="") or ""):
        step = "add it to AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST (docs/airflow.md), or use StoreDags"
        yield Examined(WARN, "the DAG bundle of checkback is not configured here", step)


def _components() -> Iterator[Examined]:
    """Whether scheduler, DAG processor and triggerer run, by their heartbeats."""
    from airflow.jobs.job import Job
    from airflow.utils.session import create_session
    from sqlalchemy import func, select

    with create_session() as session:
        query = select(Job.job_type, func.max(Job.latest_heartbeat)).where(Job.state == "running")
        rows = session.execute(query.group_by(Job.job_type)).all()
    beats: dict[str, datetime] = {str(kind): beat for kind, beat in rows}
    for kind, name in JOBS.items():
        beat = beats.get(kind)
        is_fresh = beat is not None and datetime.now(UTC) - beat < timedelta(seconds=_FRESH_S)
        step = f"start `airflow {name.lower().replace(' ', '-')}`"
        yield _verdict(is_fresh, f"{name}: {'runs' if is_fresh else 'has no heartbeat'}", step)


def _dags(stores: Sequence[StoreSettings]) -> Iterator[Examined]:
    for name, standing in standing_of({store.name: store.work for store in stores}).items():
        if standing["unknown"]:
            step = (
                "wait until the DAG processor has read the files; `airflow dags list-import-errors` says why it cannot"
            )
            yield Examined(WARN, f"{name}: Airflow does not know {', '.join(standing['unknown'])}", step)
        if standing["paused"]:
            step = f"`airflow dags unpause --treat-dag-id-as-regex --yes '^{name}[.]'`, or the button on the page"
            yield Examined(WARN, f"{name}: paused, so they do not run: {', '.join(standing['paused'])}", step)
        if standing["asks"]:
            text = "1 question waits" if standing["asks"] == 1 else f"{standing['asks']} questions wait"
            yield Examined(WARN, f"{name}: {text} for an answer", "see Required Actions in Airflow")


def _pools(stores: Sequence[StoreSettings]) -> Iterator[Examined]:
    from airflow.models.pool import Pool
    from airflow.utils.session import create_session
    from sqlalchemy import select

    wanted = {store.pool for store in stores if store.pool}
    with create_session() as session:
        slots = {str(name): int(count) for name, count in session.execute(select(Pool.pool, Pool.slots)).all()}
    for name in sorted(wanted):
        step = f"`airflow pools set {name} 1 'one Spark job at a time'`: its tasks wait until then"
        yield _verdict(name in slots, f"pool {name}: {slots.get(name, 'missing')} slots", step)


def _store(store: StoreSettings) -> Iterator[Examined]:
    """What this process sees of a store, and the round trip to what answers for its transactions."""
    from recovery.jobs.checks import check_settings

    names = ("ledger", "ledger_connection", "resolver", "resolver_connection", "resolvers", "catalog", "policy")
    given = {name: value for name in names if (value := getattr(store, name))}
    try:
        found = CheckbackHook(store.connection).settings if store.connection else {}
        asked = with_secrets({**found, **given, **({"path": store.path} if store.path else {})})
        began = time.monotonic()
        sentence = check_settings(**asked)
        took_ms = (time.monotonic() - began) * 1000
    except (BrokerError, OSError, AirflowException) as error:
        step = "correct the settings or the connection; the button Test of the connection checks the same"
        yield Examined(WRONG, f"{store.name}: {error}", step)
        return
    yield Examined(OK, f"{store.name}: {sentence} ({took_ms:.0f} ms)")
    yield from _copy(store, str(asked["path"]))
    is_ours = os.path.exists(Paths(str(asked["path"])).store_json)  # else its broker checks back
    if is_ours and not store.copy and not any(asked.get(name) for name in ("ledger", "resolver", "resolvers")):
        step = "give its settings a ledger_connection, a ledger or a resolver"
        yield Examined(WARN, f"{store.name}: nobody is named who answers for its transactions", step)
    if is_ours and not store.copy and not store.path:
        step = "give its settings the path, too: a watcher cannot read a connection"
        yield Examined(WARN, f"{store.name}: nothing watches for a crash", step)
    why = why_not_seen(str(asked["path"]))
    if why:
        yield Examined(WRONG, f"{store.name}, this process: {why}", "give this user the right to read and write there")


def _alerts(listed: StoreList) -> Iterator[Examined]:
    """Whether something listens where alerts go; none is sent. Of the URL no more than the host is shown.

    A store with a mistake has alerts, too: they say that it is not looked after.
    """
    from recovery.jobs.checks import check_http

    named = [*(one.alerts for one in listed.stores), *(one.alerts for one in listed.broken)]
    for conn_id in sorted({name for name in named if name}):
        try:
            parts = urlsplit(http_address(BaseHook.get_connection(conn_id)))
            check_http(f"{parts.scheme}://{parts.netloc}", f"the connection {conn_id}")
        except (BrokerError, AirflowException, ValueError) as error:
            step = "correct the setting `alerts` or the connection, of type http: until then no alert arrives"
            yield Examined(WRONG, f"alerts: {error}", step)
            continue
        yield Examined(OK, f"alerts: something listens where the connection {conn_id} leads")


def _copy(store: StoreSettings, path: str) -> Iterator[Examined]:
    """Whether a copy is one, is followed, and is called one."""
    from recovery.following.standing import copy_standing

    found = copy_standing(path)
    if found is None and store.copy:
        step = f"start `checkback follow MASTER {quote(path)}`, or remove `copy`"
        yield Examined(WRONG, f"{store.name} is not a copy", step)
    elif found is not None and not store.copy:
        step = "add `copy = true` to its settings: nothing can be written to it, so its other DAGs fail"
        yield Examined(WRONG, f"{store.name} is a copy of {found.master}", step)
    elif found is not None and found.is_followed:
        yield Examined(OK, f"{store.name} follows {found.master}")
    elif found is not None:
        step = f"start `checkback follow {found.master} {quote(path)}`, where its files are"
        yield Examined(WARN, f"{store.name}: nobody follows {found.master} now", step)


def _engines(stores: Sequence[StoreSettings]) -> Iterator[Examined]:
    from recovery.spark.sessions import SparkNotReady, check_java

    master, _ = spark_connection("auto")
    must = [store.name for store in stores if store.engine == "spark"]
    if not must and master is None:
        yield Examined(OK, "engine: local; no connection checkback_spark")
        return
    try:
        check_java()
        yield Examined(OK, f"engine: Spark at {master or 'local[*]'}")
    except SparkNotReady as error:
        step = 'install Java 17 or newer on the workers, or set engine = "local"'
        yield Examined(WRONG if must else WARN, f"engine: {error}", step)


def _sights(run_s: float) -> Iterator[Examined]:
    """What workers and the triggerer see, by a run of the DAG `checkback.doctor`."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.utils.types import DagRunTriggeredByType

    from recovery.airflow.workflows.doctor import DAG_ID

    try:
        run = trigger_dag(DAG_ID, triggered_by=DagRunTriggeredByType.CLI)
    except AirflowException as error:
        yield Examined(WARN, f"workers and triggerer: {error}", "configure the DAG bundle, and run this again")
        return
    yield from of_looks(*_looks(DAG_ID, str(run.run_id), run_s) if run is not None else ([], False), run_s, DAG_ID)


def of_looks(looks: Sequence[Sighted], is_over: bool, run_s: float, dag_id: str) -> Iterator[Examined]:
    """What the tasks of a run saw; of one that waits for a worker who is to serve it. Pure."""
    step = "the worker or the triggerer must mount that directory at the same path, with the same user"
    if not any(one.state for one in looks):
        late = f"workers and triggerer: the run of {dag_id} did not begin in {run_s:.0f} s"
        yield Examined(WARN, late, f"look at it in Airflow: is {dag_id} paused, or do earlier runs wait?")
        return
    for look in looks:
        log = f"read the log of {look.task} in {dag_id}"
        if look.sight is not None:
            component = f"{look.task} on {look.sight['host']}, user {look.sight['uid']}"
            yield from _seen(component, look.sight["stores"], step)
        elif is_over or look.state in _OVER:
            yield Examined(WRONG, f"{look.task}: its task failed", log)
        else:
            late = f"{look.task}: its task did not end in {run_s:.0f} s, it is {look.state or 'not queued yet'}"
            who = "the triggerer" if look.state == "deferred" else f"a worker of the queue {look.queue}"
            yield Examined(WARN, late, log if look.state == "running" else f"see whether {who} runs, and is free")


def _seen(component: str, stores: Mapping[str, str], step: str) -> Iterator[Examined]:
    """What a component sees, from the reasons why it does not see a store: one line for all that it sees."""
    wrong = {name: why for name, why in stores.items() if why}
    if len(wrong) < len(stores):
        yield Examined(OK, f"{component}: sees {len(stores) - len(wrong)} of {len(stores)} stores")
    for name, why in wrong.items():
        yield Examined(WRONG, f"{name}, {component}: {why}", step)


def _looks(dag_id: str, run_id: str, run_s: float) -> tuple[list[Sighted], bool]:
    """The tasks of a run when it is over, or has taken too long, and whether it is over."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    task, value = TaskInstance, XComModel
    run = select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)
    tasks = select(task.task_id, task.state, task.queue).where(task.dag_id == dag_id, task.run_id == run_id)
    values = select(value.task_id, value.value).where(value.dag_id == dag_id, value.run_id == run_id)
    deadline = time.monotonic() + run_s
    while True:
        is_late = time.monotonic() >= deadline
        with create_session() as session:
            is_over = session.scalar(run) in ("success", "failed")
            if is_over or is_late:
                found = session.execute(tasks.order_by(task.task_id)).all()  # first: a task says it, then ends
                rows = session.execute(values.where(value.key == "return_value")).all()
                seen = {name: json.loads(text) if isinstance(text, str) else text for name, text in rows}
                return [Sighted(name, state, queue, seen.get(name)) for name, state, queue in found], is_over
        time.sleep(_POLL_S)


def _api_server(stores: Sequence[StoreSettings], url: str, token: str) -> Iterator[Examined]:
    """What the API server sees: it shows the page."""
    if not token:
        step = f"open {url.rstrip('/') or 'the API server'}/checkback/, or give CHECKBACK_AIRFLOW_TOKEN"
        yield Examined(WARN, "API server: not asked what it sees", step)
        return
    address = f"{url.rstrip('/')}/checkback/api/stores"
    if not address.startswith(("http://", "https://")):
        yield Examined(WRONG, f"API server: {address} is not an http(s) URL", "give --url, as http://127.0.0.1:8080")
        return
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=_HTTP_S) as answer:  # noqa: S310 - the scheme was checked
            lines = {line["name"]: line["error"] for line in json.load(answer)}
    except (OSError, ValueError) as error:
        yield Examined(WRONG, f"API server at {url}: {error}", "is it running, and is the token of a user of it?")
        return
    missing = "it does not show the store: other settings, or this user may not read its DAGs"
    step = "the API server must mount the directory at the same path, with the same user"
    yield from _seen("API server", {store.name: lines.get(store.name, missing) or "" for store in stores}, step)
