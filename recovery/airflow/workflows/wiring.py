"""What the DAGs share: retries, time-outs, deadlines, alerts and names, each with its reason.

- One run of a DAG at a time for a store (`max_active_runs`), and no catching up: each run looks at what is there now.
- A store that is locked is tried again soon; one that is corrupt is not, for trying does not repair it.
- Spark has a pool, where one is set: two sessions on one machine would get into each other's way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Asset, Param

from recovery.airflow.alerts import ApprovalAlert, StoreAlert, WorksAgain
from recovery.airflow.settings import StoreSettings
from recovery.airflow.versions import HAS_APPROVALS, HAS_SEVERAL_DEADLINES, deadline, retry_policy

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_REMINDERS = 7


def shared(store: StoreSettings, work: str, **limits: Any) -> dict[str, Any]:
    """The arguments of a store's DAG; `limits` as for `shared_of`."""
    return shared_of(store.name, work, alerts=store.alerts, **limits)


def reminders(store: StoreSettings) -> list[timedelta]:
    """When it is said again that a run waits for an answer: every `ask_again_after_s`, a few times at the most."""
    step_s = max(store.ask_again_after_s, store.answer_within_s / (_REMINDERS + 1))
    times = [step_s * number for number in range(1, _REMINDERS + 1)]
    return [timedelta(seconds=time_s) for time_s in times if time_s < store.answer_within_s]


def shared_of(
    name: str,
    work: str,
    *,
    alerts: str | None = None,
    retries: int = 3,
    most: timedelta = timedelta(hours=6),
    within: timedelta | None = None,
    again: Sequence[timedelta] = (),
    weight: int = 1,
) -> dict[str, Any]:
    """The arguments of a DAG. `most`: of one task; `within`: a run that takes longer is an alert.

    And another one at each of the times `again`, which are those of a run that waits for a person's answer. `weight`:
    where workers are scarce Airflow first starts a task with a higher sum of its own and of those behind it.
    """
    alert = StoreAlert(store=name, connection=alerts)
    tasks = {
        "retries": retries,
        "retry_delay": timedelta(seconds=10),
        **retry_policy(),
        "execution_timeout": most,
        "priority_weight": weight,
        "on_failure_callback": [alert],
    }
    found: dict[str, Any] = {
        "dag_id": f"{name}.{work}",
        "start_date": BEGIN,
        "catchup": False,
        "max_active_runs": 1,
        "default_args": tasks,
        "tags": ["checkback", f"store:{name}"],
    }
    if within is not None:
        step = "see whether it waits for an answer, on Airflow's page of required actions" if again else (
            f"look at the runs of {name}.{work} in Airflow: a task waits for a worker, or its log says for what"
        )  # fmt: skip
        times = [within, *(one for one in again if one > within and HAS_SEVERAL_DEADLINES)]
        calls: list[tuple[timedelta, dict[str, Any]]] = [
            (time, {"store": name, "what": f"{work} is not done after {time}: {step}", "connection": alerts})
            for time in times
        ]
        for (_, call), later in zip(calls, times[1:], strict=False):
            call["until_s"] = later.total_seconds()
        found |= deadline(calls, "recovery.airflow.alerts.deadline_missed_async")
    return found


def merged(ours: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a DAG with what a user's DAG file changes.

    Of `default_args` and `params` each value for itself: an owner takes no alert away, and another field of a form not
    the one that says whether a person is asked.
    """
    for name in ("default_args", "params"):
        if not isinstance(overrides.get(name, {}), Mapping):
            raise TypeError(f"{name} is a table, not {overrides[name]!r:.40}")
    both = [name for name in ("default_args", "params") if ours.get(name) and overrides.get(name)]
    return {**ours, **overrides, **{name: {**ours[name], **overrides[name]} for name in both}}


def answering(store: StoreSettings) -> dict[str, Any]:
    """The arguments of a task that waits for a person: for how long, who may answer, and where it is announced."""
    if not HAS_APPROVALS:
        return {}
    arguments: dict[str, Any] = {
        "response_timeout": timedelta(seconds=store.answer_within_s),
        "execution_timeout": None,
        "notifiers": [ApprovalAlert(store=store.name, connection=store.alerts)],
    }
    if store.approvers:
        arguments["assigned_users"] = [{"id": name, "name": name} for name in store.approvers]
    return arguments


def alerted_once(store: StoreSettings, asset: Asset) -> dict[str, Any]:
    """The arguments of a task that may fail in run after run: one alert, reminders, and one when it works again.

    A reminder comes after `ask_again_after_s`. The state of `asset` has what was alerted.
    """
    failed = StoreAlert(store=store.name, connection=store.alerts, again_s=store.ask_again_after_s)
    again = WorksAgain(store=store.name, connection=store.alerts)
    return {"on_failure_callback": [failed], "on_success_callback": [again], "inlets": [asset]}


def result_of(task_id: str, name: str) -> str:
    """The template of a value in a task's result; empty where it has none, as a task that a person marked as done."""
    return f"{{{{ (ti.xcom_pull('{task_id}') or {{}}).get('{name}', '') }}}}"


def engine_pool(store: StoreSettings) -> dict[str, Any]:
    """The pool of a task that may start Spark; the default pool where none is set."""
    return {"pool": store.pool} if store.pool else {}


def asked_first(must: bool) -> bool | str:
    """Whether a person approves: always where the settings want it, else as the form says.

    By the form alone each user who may start the DAG could do without the person whom the settings name.
    """
    return must or "{{ params.ask }}"


def ask_param(store: StoreSettings) -> Param:
    """The tick box of a form: whether a person approves before anything is changed."""
    return Param(store.ask, type="boolean", title="Ask first", description="Wait for approval before anything changes.")
