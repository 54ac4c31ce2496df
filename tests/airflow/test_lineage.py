"""What OpenLineage's own provider makes of our tasks and assets."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from airflow.providers.openlineage.extractors import ExtractorManager
from airflow.sdk import Asset, BaseOperator
from airflow.utils.state import TaskInstanceState
from openlineage.client.serde import Serde

from recovery.airflow.assets import verified
from recovery.airflow.operators import CheckBackOperator, VerifyOperator
from tests.airflow.dag_runs import context
from tests.jobs.shops import ANSWERS, shop, spoil_slot


def extracted(operator: BaseOperator) -> dict[str, Any]:
    """What goes into the event of a task that is done, as its JSON has it."""
    made = ExtractorManager().extract_metadata(
        SimpleNamespace(run_id="manual"), operator, TaskInstanceState.SUCCESS, None
    )
    said: dict[str, Any] = {"inputs": made.inputs, "outputs": made.outputs}
    return {name: [Serde.to_dict(dataset) for dataset in datasets] for name, datasets in said.items()}


def names(datasets: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["namespace"], one["name"]) for one in datasets]


def test_a_verification_says_what_it_read_and_found(tmp_path: Path) -> None:
    """The log with its size and an assertion for each kind of finding; what was published is the output."""
    path = shop(tmp_path / "shop", orders=2)
    spoil_slot(path, 1)
    operator = VerifyOperator(task_id="verify", path=str(path), engine="local", outlets=[verified("shop")])
    found = operator.execute(context())
    event = extracted(operator)
    (log,) = event["inputs"]
    assert (log["namespace"], log["name"]) == ("file", f"{path}/commitlog")
    facets = log["inputFacets"]
    said = {one["assertion"]: one["success"] for one in facets["dataQualityAssertions"]["assertions"]}
    assert said == {"no findings": False, "no slot-wrong-state": False}
    assert facets["dataQualityMetrics"]["rowCount"] == found["records"] > 0
    assert facets["dataQualityMetrics"]["bytes"] == found["bytes"]
    assert names(event["outputs"]) == [("checkback://shop", "verified")]


def test_every_task_of_a_store_says_which_log_it_read(tmp_path: Path) -> None:
    path = shop(tmp_path / "shop", orders=1)
    operator = CheckBackOperator(task_id="ask", path=str(path), resolver=ANSWERS)
    operator.execute(context())
    assert names(extracted(operator)["inputs"]) == [("file", f"{path}/commitlog")]
    assert extracted(operator)["outputs"] == []


def test_anybodys_task_that_waits_for_a_store_has_it_as_input() -> None:
    """The provider finds our converter by the scheme of the asset."""
    waits = BaseOperator(task_id="after", inlets=[Asset("checkback://shop/verified")])
    assert names(extracted(waits)["inputs"]) == [("checkback://shop", "verified")]
