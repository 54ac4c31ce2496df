"""The engine is a setting: the same DAGs with Spark give the local engine's answers. One JVM serves all tests here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG

from recovery.airflow.operators import CompareTableOperator, RebuildOperator
from recovery.jobs import tasks
from tests.airflow.dag_runs import context, run
from tests.jobs.shops import shop, spoil_slot

pytestmark = [
    pytest.mark.skipif(not shutil.which("java"), reason="Spark needs Java, and there is none here"),
    pytest.mark.timeout(180),
]


@pytest.fixture(autouse=True)
def spark_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's connection to a Spark of this machine."""
    monkeypatch.setenv("AIRFLOW_CONN_CHECKBACK_SPARK", json.dumps({"conn_type": "spark", "host": "local[2]"}))


def test_a_verification_on_spark_is_the_local_one(dag: Callable[..., DAG], tmp_path: Path) -> None:
    """Red because of one wrong slot; report and digest are the local engine's."""
    path = shop(tmp_path / "shop", orders=30)
    spoil_slot(path, 7)
    expected = tasks.verify(str(path), now_ms=1)
    states = run(dag("verify_store", path=path, engine="spark"))
    assert states == {"verify": "success", "no_findings": "failed", "run": "failed"}
    report: dict[str, Any] = json.loads((path / "checkback/reports/verify-latest.json").read_text())
    assert report["engine"] == "spark (local[2])"
    same = ("digest", "counts", "transactions", "records", "findings")
    assert {name: report[name] for name in same} == {name: expected[name] for name in same}


@pytest.mark.usefixtures("quiet")
def test_a_table_is_compared_and_rebuilt_on_spark(tmp_path: Path) -> None:
    """A wrong slot is seen and mended, once."""
    path = shop(tmp_path / "shop", orders=30)
    spoil_slot(path, 7)
    asked = {"path": str(path), "engine": "auto"}
    assert CompareTableOperator(task_id="compare", **asked).execute(context())["question"] == "ask"
    assert RebuildOperator(task_id="rebuild", **asked).execute(context())["applied"]
    assert tasks.verify(str(path), now_ms=1)["ok"]
    assert not RebuildOperator(task_id="again", **asked).execute(context())["applied"]
    assert CompareTableOperator(task_id="compare_again", **asked).execute(context())["question"] == "nothing to do"


def test_a_session_that_was_there_is_left_running(tmp_path: Path) -> None:
    """A task takes it, and does not stop it."""
    from pyspark.sql import SparkSession

    from recovery.spark.sessions import session

    running = session("local[2]")
    assert tasks.verify(str(shop(tmp_path / "shop")), now_ms=1, engine="spark", master="local[2]")["ok"]
    assert SparkSession.getActiveSession() is running
    running.stop()
