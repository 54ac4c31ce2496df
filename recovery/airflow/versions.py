"""What this version of Airflow has, and what takes its place where it has not: 3.0 to 3.3 differ in what DAGs may use.

| since | what | before |
|---|---|---|
| 3.1 | approvals, a link to the page | an approval is a red task that names the command to run; `checkback page` |
| 3.2 | deadlines that call a function | no alert for a run that takes too long, or whose failure nobody heard of |
| 3.2 | a task may read whether a DAG is paused | a recovery that waits in a paused DAG counts as under way |
| 3.3 | several deadlines | a question that waits is alerted at the one deadline, and not again |
| 3.3 | retry policies | three retries whatever the error |
| 3.3 | state of assets and of tasks | a triggerer that starts again reports all again; each failure alerts |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import airflow
from airflow.providers.common.compat.sdk import AirflowException as AirflowException
from airflow.providers.common.compat.sdk import AirflowFailException as AirflowFailException
from airflow.providers.common.compat.sdk import AirflowNotFoundException as AirflowNotFoundException
from airflow.providers.common.compat.sdk import AirflowSkipException as AirflowSkipException
from airflow.providers.common.compat.sdk import BaseHook as BaseHook
from airflow.providers.common.compat.sdk import BaseSensorOperator as BaseSensorOperator
from airflow.providers.common.compat.sdk import PokeReturnValue as PokeReturnValue
from airflow.providers.common.compat.sdk import conf as conf
from airflow.sdk import Asset

from broker.errors import BrokerError

OLDEST = (3, 0)
_HOUR_S = 3_600.0


def version() -> tuple[int, int]:
    """Of Airflow: (3, 3)."""
    major, minor = airflow.__version__.split(".")[:2]
    return int(major), int(minor)


HAS_APPROVALS = version() >= (3, 1)
HAS_DEADLINES = version() >= (3, 2)
HAS_SEVERAL_DEADLINES = version() >= (3, 3)
HAS_RETRY_POLICIES = version() >= (3, 3)


def mask(secret: str) -> None:
    """Airflow's logs, and what it renders, show *** instead of it."""
    _masker()(secret)


def _masker() -> Callable[[str], None]:
    try:
        from airflow.sdk.log import mask_secret
    except ImportError:  # 3.0
        from airflow.sdk.execution_time.secrets_masker import mask_secret
    masker: Callable[[str], None] = mask_secret
    return masker


def asset_or_every(asset: Asset, every_s: float, spread: int) -> Any:
    """A schedule: when an asset has an event, and in any case every so many seconds.

    An hour begins at minute `spread` of 60, so that many stores do not start at once.
    """
    if version() >= (3, 2):
        from airflow.sdk import AssetOrTimeSchedule, CronTriggerTimetable, DeltaTriggerTimetable
    else:
        from airflow.timetables.assets import AssetOrTimeSchedule
        from airflow.timetables.trigger import CronTriggerTimetable, DeltaTriggerTimetable
    hourly = every_s == _HOUR_S
    cron = CronTriggerTimetable(f"{spread % 60} * * * *", timezone="UTC") if hourly else None
    return AssetOrTimeSchedule(timetable=cron or DeltaTriggerTimetable(timedelta(seconds=every_s)), assets=[asset])


def retry_policy() -> dict[str, Any]:
    """The argument of tasks that says which errors are worth another attempt; none where Airflow has no policies."""
    if not HAS_RETRY_POLICIES:
        return {}
    from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule

    rules = [
        RetryRule("broker.errors.StoreLocked", RetryAction.RETRY, timedelta(seconds=30), "the store is locked"),
        RetryRule("broker.errors.StoreFull", RetryAction.RETRY, timedelta(minutes=5), "the disk is full"),
        RetryRule("broker.errors.CorruptStore", RetryAction.FAIL, None, "the store is corrupt"),
        RetryRule("broker.errors.BrokerError", RetryAction.FAIL, None, "trying again would not help"),
    ]
    return {"retry_policy": ExceptionRetryPolicy(rules)}


def deadline(calls: Sequence[tuple[timedelta, dict[str, Any]]], callback: str) -> dict[str, Any]:
    """The argument of a DAG by which the triggerer awaits a function, with arguments, when a run takes too long.

    Before Airflow 3.3 at the first of them alone; none where Airflow cannot.
    """
    if not HAS_DEADLINES:
        return {}
    from airflow.sdk.definitions.callback import AsyncCallback
    from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

    queued = DeadlineReference.DAGRUN_QUEUED_AT
    alerts = [DeadlineAlert(queued, within, AsyncCallback(callback, arguments)) for within, arguments in calls]
    return {"deadline": alerts if HAS_SEVERAL_DEADLINES else alerts[0]}


def is_paused(ti: Any, dag_id: str) -> bool:
    """Whether a DAG is paused, by the task instance that is running; False where it cannot say."""
    return bool(getattr(ti.get_dag(dag_id), "is_paused", False)) if hasattr(ti, "get_dag") else False


def check_version() -> None:
    """Raises BrokerError for an Airflow that is too old."""
    if version() < OLDEST:
        raise BrokerError(f"Airflow {airflow.__version__} is too old: 3.0 or newer is needed")


def has_executor(name: str) -> bool:
    """Whether tasks may name this executor: one of [core] executor, by alias, class or module path.

    True where that is not known: executors of teams are a matter of the DAG's bundle.
    """
    try:
        from airflow.exceptions import UnknownExecutorException
        from airflow.executors.executor_loader import ExecutorLoader
    except ImportError:  # a worker has the Task SDK alone
        return True
    if conf.getboolean("core", "multi_team", fallback=False):
        return True
    try:
        ExecutorLoader.lookup_executor_name_by_str(name)
    except UnknownExecutorException:
        return False
    return True


def stats() -> Any:
    """Airflow's metrics: an object, or since 3.3 a module, with `gauge` and `incr`."""
    from airflow.providers.common.compat.sdk import Stats

    return Stats
