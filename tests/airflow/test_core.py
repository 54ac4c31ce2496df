"""What works in every Airflow from 3.0 on, each in its way: `make airflow-matrix` runs this with older ones."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery.airflow.bundle import dags_folder
from recovery.airflow.provider import get_provider_info
from recovery.airflow.triggers import CrashTrigger, DueTrigger
from recovery.airflow.versions import HAS_APPROVALS, HAS_DEADLINES, HAS_RETRY_POLICIES, version
from recovery.airflow.workflows.store_dags import StoreDags
from recovery.jobs import tasks
from tests.airflow.bags import DagBag, DagSerialization
from tests.jobs.shops import ANSWERS, LATE_MS, bodies, killed_shop, shop, spoil_slot


class Ended:
    """The task instance of an operator that is called directly."""

    def __init__(self, **pulled: Any) -> None:
        self.pulled, self.pushed = pulled, dict[str, Any]()

    def xcom_pull(self, task_ids: str = "", **_options: Any) -> Any:
        return self.pulled.get(task_ids)

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = value


class LateRun:
    """A run that was due a minute from now."""

    @property
    def run_after(self) -> Any:
        from datetime import UTC, datetime, timedelta

        return datetime.now(UTC) + timedelta(milliseconds=LATE_MS)


def execute(dag: Any, task: str, **pulled: Any) -> Any:
    """One task of a DAG, without a worker."""
    operator = dag.get_task(task)
    operator.outlets = []
    return operator.execute({"dag_run": LateRun(), "ti": Ended(**pulled), "outlet_events": {}})


def test_the_bundle_parses_and_every_dag_survives_serialization(
    database: None, looked_after: Callable[..., None]
) -> None:
    """One DAG less where there are no approvals."""
    looked_after(shop={"path": "/nowhere"}, typo={"path": "/x", "ask": "true"})
    bag = DagBag(dags_folder())
    assert not bag.import_errors
    assert len(bag.dags) == (8 if HAS_APPROVALS else 7)
    for dag in bag.dags.values():
        again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
        assert again.max_active_runs == 1 or again.dag_id == "checkback.doctor"  # which reads alone
        assert len(again.doc_md) > 200


def test_what_this_version_has_is_used() -> None:
    """And what it has not is left out."""
    assert tuple(version() >= (3, n) for n in (1, 2, 3)) == (HAS_APPROVALS, HAS_DEADLINES, HAS_RETRY_POLICIES)
    dag = StoreDags("shop", path="/nowhere", only=["check_back"])["check_back"]
    assert bool(getattr(dag, "deadline", None)) == HAS_DEADLINES
    assert bool(getattr(dag.get_task("check_back"), "retry_policy", None)) == HAS_RETRY_POLICIES


def test_every_class_of_the_provider_loads() -> None:
    """The approvals only where there are any."""
    info = get_provider_info()
    for room in ("operators", "sensors", "hooks", "triggers", "bundles"):
        for one in info[room]:
            for module in one["python-modules"]:
                __import__(module)


@pytest.mark.usefixtures("quiet", "database")
def test_each_work_is_done(tmp_path: Path) -> None:
    """Check-back, a rebuild of exactly what was compared, a verification, a recovery."""
    path = shop(tmp_path / "shop")
    dags = StoreDags("shop", path=str(path), resolver=ANSWERS, engine="local")
    assert execute(dags["check_back"], "check_back")["committed"] == 5
    assert sorted(bodies(path)) == [b"order %d" % number for number in (0, 2, 4, 6, 8)]
    spoil_slot(path, 3)
    dags["rebuild_state_table"].get_task("compare").ask = False  # type: ignore[attr-defined]
    compared = execute(dags["rebuild_state_table"], "compare")
    assert (compared["question"], compared["needed"]) == ("go on", True)
    rebuild = dags["rebuild_state_table"].get_task("rebuild")
    rebuild.expected, rebuild.answer, rebuild.question = compared["plan_id"], None, compared["question"]
    assert execute(dags["rebuild_state_table"], "rebuild")["applied"]
    assert execute(dags["verify_store"], "verify")["ok"]
    killed = killed_shop(tmp_path / "killed")
    recover = StoreDags("killed", path=str(killed), only=["recover_after_crash"])["recover_after_crash"]
    recover.get_task("plan").ask = False  # type: ignore[attr-defined]
    task = recover.get_task("recover")
    planned = execute(recover, "plan")
    task.expected, task.question = planned["plan_id"], planned["question"]
    task.answer, task.broker_is_stopped = None, False
    execute(recover, "recover")
    assert tasks.crashed(str(killed)) is None


@pytest.mark.skipif(HAS_APPROVALS, reason="this Airflow has approvals")
@pytest.mark.usefixtures("quiet", "database")
def test_without_approvals_the_task_says_what_to_do() -> None:
    """Red, with the command."""
    from recovery.airflow.versions import AirflowFailException

    approve = StoreDags("shop", path="/x", only=["rebuild_state_table"])["rebuild_state_table"].get_task("approve")
    approve.question = "ask"
    with pytest.raises(AirflowFailException, match="checkback rebuild STORE --apply"):
        approve.execute({"ti": Ended()})


def test_triggers_look(tmp_path: Path) -> None:
    """A crash, a transaction that is due; nothing in a store in order."""
    path = str(shop(tmp_path / "shop", orders=2))
    assert CrashTrigger(path=path).look() is None
    assert DueTrigger(path=path, policy={"*": {"first_check_after": "0s"}}).look()["due"] == 2  # type: ignore[index]
    assert CrashTrigger(path=str(killed_shop(tmp_path / "killed"))).look()["since_ms"] <= time.time() * 1000  # type: ignore[index]


def test_the_page_asks_who_is_there(api: Any, looked_after: Callable[..., None], tmp_path: Path) -> None:
    """401 without a login, the stores with one, and which DAGs Airflow does not know."""
    looked_after(shop={"path": str(shop(tmp_path / "shop", orders=3))})
    assert api.get("/checkback/api/stores", headers={"Authorization": ""}).status_code == 401
    (line,) = api.get("/checkback/api/stores").json()
    assert (line["counts"]["in_doubt"], line["error"]) == (3, None)
    assert {*line["unknown"], *line["paused"]} <= set(line["dags"])
    assert api.get("/checkback/api/stores/shop").json()["consumers"] == []
    assert "Stores of transactional" in api.get("/checkback/").text
