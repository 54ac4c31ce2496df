"""One run of a DAG, or of one of its operators, in this process."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import DAG, Asset


def run(dag: DAG, conf: dict[str, Any] | None = None, **options: Any) -> dict[str, str]:
    """One run in this process; the state of each task, and of the run under "run"."""
    ran = dag.test(run_conf=conf, **options)
    states = {instance.task_id: str(instance.state) for instance in ran.get_task_instances()}
    return {**states, "run": str(ran.state)}


class Ran:
    """A run that was due at the end of time: everything in the store is old by then."""

    run_after = datetime(2100, 1, 1, tzinfo=UTC)


class Events(dict[Asset, Any]):
    """The events of a task's outlets."""

    def __missing__(self, asset: Asset) -> Any:
        event = type("Event", (), {"extra": {}})()
        self[asset] = event
        return event


def context(**more: Any) -> Any:
    return {"dag_run": Ran(), "outlet_events": Events(), **more}
