"""When a person is asked again about a crash: not at once by the next triggerer, and not at once after a rejection."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from fastapi.testclient import TestClient

from recovery.airflow.triggers import CrashTrigger
from recovery.airflow.versions import HAS_SEVERAL_DEADLINES, AirflowFailException, AirflowSkipException
from recovery.airflow.workflows.store_dags import StoreDags
from recovery.jobs.recovering import keep_rejection
from tests.airflow.dag_runs import context, run
from tests.airflow.people import somebody
from tests.airflow.watching import FAST_S, AssetState, first
from tests.jobs.shops import killed_shop


def test_a_crash_is_not_reported_again_by_the_next_triggerer(tmp_path: Path) -> None:
    """Who rejected a recovery is not asked again at once; after `again_s` the same crash is reported again."""
    path, state = str(killed_shop(tmp_path / "shop")), AssetState()

    def started() -> CrashTrigger:
        trigger = CrashTrigger(path=path, again_s=3600.0, poll_s=FAST_S)
        trigger.asset_state_store = state  # type: ignore[assignment]
        return trigger

    async def watch() -> None:
        events = started().run()
        await first(events)
        with pytest.raises(asyncio.TimeoutError):  # the triggerer takes the event, and goes on
            await first(events, 0.5)

    async def nothing() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await first(started().run(), 0.5)

    asyncio.run(watch())
    asyncio.run(nothing())
    (note,) = state.values.values()
    note["at_s"] -= 7200
    asyncio.run(watch())
    (note,) = state.values.values()
    note["at_s"] += 10 * 365 * 86_400.0  # the clock was ahead, and was put right
    asyncio.run(watch())


def test_a_rejection_begins_the_time_to_the_next_report(tmp_path: Path) -> None:
    """Whenever the crash was reported before. A rejection of an older crash is none, and a sensor waits for a crash."""
    path, hour_ms, now_ms = str(killed_shop(tmp_path / "shop")), 3_600_000, time.time_ns() // 1_000_000

    def is_reported(again_s: float | None = 3600.0) -> bool:
        trigger = CrashTrigger(path=path, again_s=again_s)
        found = trigger.look()
        assert found is not None
        return trigger._is_news(found, {})

    os.utime(os.path.join(path, "abort"), (now_ms / 1000 - 86_400,) * 2)
    assert is_reported()
    for rejected_ms, has_passed in (now_ms - 2 * hour_ms, True), (now_ms - hour_ms // 2, False):
        keep_rejection(path, now_ms=now_ms, rejected_ms=rejected_ms, by="ada", run="first")
        assert is_reported() is has_passed
    assert is_reported(again_s=None)
    os.utime(os.path.join(path, "abort"))
    assert is_reported()
    keep_rejection(path, now_ms=now_ms, rejected_ms=now_ms - hour_ms // 2, by="ada", run="of the older crash, cleared")
    assert is_reported()


@pytest.mark.skipif(not HAS_SEVERAL_DEADLINES, reason="one deadline of a DAG before Airflow 3.3")
def test_a_question_that_waits_is_alerted_again() -> None:
    """It was alerted once, and at the run's deadline: the question of a Friday evening was forgotten."""

    def times(**settings: float) -> list[timedelta]:
        made: Any = StoreDags("shop", path="/x", only=["recover_after_crash"], **settings)["recover_after_crash"]
        return [one.interval for one in made.deadline]

    half, hour = timedelta(minutes=30), timedelta(hours=1)
    assert times() == [half, 6 * hour, 12 * hour, 18 * hour]
    assert times(ask_again_after_s=60, answer_within_s=86_400) == [half, *(3 * number * hour for number in range(1, 8))]
    assert times(ask_again_after_s=86_400, answer_within_s=600) == [half]
    last = StoreDags("shop", path="/x", only=["rebuild_state_table"])["rebuild_state_table"].deadline[-1]  # type: ignore[index]
    said = "rebuild_state_table is not done after 18:00:00: see whether it waits for an answer"
    assert last.callback.kwargs["what"].startswith(said)


@pytest.mark.skipif(not HAS_SEVERAL_DEADLINES, reason="one deadline of a DAG before Airflow 3.3")
def test_a_run_that_takes_too_long_has_a_next_step() -> None:
    """Of a check-back on a busy machine the alert was its name and a time."""
    (late,) = StoreDags("shop", path="/x", only=["check_back"])["check_back"].deadline  # type: ignore[misc]
    said = "check_back is not done after 0:05:00: look at the runs of shop.check_back in Airflow: a task waits for a wo"
    assert late.callback.kwargs["what"].startswith(said)


@pytest.mark.usefixtures("quiet")
def test_a_run_that_waited_behind_a_question_does_not_ask_it_again(
    dag: Callable[..., DAG], tmp_path: Path, api: TestClient
) -> None:
    """The watcher reports the crash again while the question waits: who rejected it was asked again at once."""
    path = killed_shop(tmp_path / "shop", orders=1)
    recover = dag("recover_after_crash", path=path, ask=True)
    plan: Any = recover.get_task("plan")
    plan.ask = True
    behind = SimpleNamespace(run_id="behind", run_type="asset_triggered", run_after=datetime.now(UTC))
    assert plan.execute(context(dag_run=behind))["question"] == "ask"
    with somebody(api, lambda question: ("Reject", "")):
        run(recover)
    notes: dict[str, Any] = {}
    ti = SimpleNamespace(
        xcom_push=lambda key, value: notes.update({key: value}), xcom_pull=lambda task_ids, key: notes.get(key)
    )
    with pytest.raises(AirflowSkipException, match=r"admin rejected this recovery at .* again 6 h 0 min after that"):
        plan.execute(context(dag_run=behind, ti=ti))
    in_order: Any = recover.get_task("in_order")
    with pytest.raises(AirflowFailException, match="is as the crash left it"):
        in_order.execute(context(dag_run=behind, ti=ti))
    assert in_order.is_alerted, "the run in which it was rejected has posted that already"
    (report,) = (path / "checkback/reports").glob("reject-1*.json")
    rejected = json.loads(report.read_text())
    behind.run_id = rejected["run"]
    assert plan.execute(context(dag_run=behind))["question"] == "ask", "a person cleared the run that was rejected"
    behind.run_id, behind.run_type = "asked", "manual"
    assert plan.execute(context(dag_run=behind))["question"] == "ask"


@pytest.mark.usefixtures("quiet")
def test_a_run_whose_plan_changed_does_not_have_the_dag_triggered_by_hand(
    dag: Callable[..., DAG], tmp_path: Path
) -> None:
    """It had a second alert, "trigger this DAG again", while it was started again by itself."""
    in_order: Any = dag("recover_after_crash", path=killed_shop(tmp_path / "shop", orders=1)).get_task("in_order")
    notes = {("recover", "plan_changed"): True}
    ti = SimpleNamespace(xcom_pull=lambda task_ids, key: notes.get((task_ids, key)))
    with pytest.raises(AirflowFailException, match=r"this DAG was started again$"):
        in_order.execute(context(ti=ti))
    assert in_order.is_alerted
    notes.clear()
    with pytest.raises(AirflowFailException, match=r"failed.*trigger this DAG again$"):
        in_order.execute(context(ti=ti))
    assert not in_order.is_alerted
