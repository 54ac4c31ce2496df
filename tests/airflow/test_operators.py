"""Operators called directly: what they take from a connection, what they publish, and what is templated."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from recovery.airflow import approval, operators
from recovery.airflow.approval import AskOperator
from recovery.airflow.assets import verified
from recovery.airflow.operators import CheckBackOperator, NoFindingsOperator, VerifyOperator, question, spark_master
from tests.airflow.dag_runs import context
from tests.jobs.shops import ANSWERS, bodies, shop, spoil_slot

pytestmark = pytest.mark.usefixtures("quiet")

OURS = [
    kind
    for module in (operators, approval)
    for _, kind in inspect.getmembers(module, inspect.isclass)
    if issubclass(kind, BaseOperator) and kind.__module__ == module.__name__
]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_what_is_templated_is_an_argument(kind: type[BaseOperator]) -> None:
    """Airflow renders only what is kept under the argument's own name."""
    taken = {name for one in kind.__mro__ if "__init__" in vars(one) for name in inspect.signature(one).parameters}
    assert set(kind.template_fields) <= taken


def test_a_connection_says_which_store_and_who_is_asked(connection: Callable[..., str], tmp_path: Path) -> None:
    """What is given to the operator goes before it."""
    path = shop(tmp_path / "shop", orders=2)
    connection("shop", path=path, resolver="nobody:nothing")
    found = CheckBackOperator(task_id="ask", connection="shop", resolver=ANSWERS).execute(context())
    assert (found["committed"], found["rolled_back"]) == (1, 1)
    assert bodies(path) == [b"order 0"]
    json.dumps(found)


def test_a_verification_is_published_with_its_summary(tmp_path: Path) -> None:
    """On the asset's event; the findings themselves are in the report."""
    path = shop(tmp_path / "shop", orders=2)
    spoil_slot(path, 1)
    asset, seen = verified("shop"), context()
    found = VerifyOperator(task_id="verify", path=str(path), engine="local", outlets=[asset]).execute(seen)
    event = seen["outlet_events"][asset]
    assert (event.extra["ok"], event.extra["counts"]) == (False, {"slot-wrong-state": 1})
    assert Path(event.extra["report"]).exists()
    pulled = type("Instance", (), {"xcom_pull": lambda self, task_ids: found})()
    with pytest.raises(AirflowFailException, match="1 slot-wrong-state"):
        NoFindingsOperator(task_id="no_findings").execute(context(ti=pulled))


def test_an_approval_may_not_be_needed() -> None:
    """Nothing to do skips what follows; go on asks nobody."""
    with pytest.raises(AirflowSkipException):
        AskOperator(task_id="ask", subject="?", question="nothing to do").execute(context())
    assert AskOperator(task_id="ask", subject="?", question="go on").execute(context()) is None
    assert (question(False, True), question(True, True), question(True, False)) == ("nothing to do", "ask", "go on")


def test_sparks_master_comes_from_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the local engine does it."""
    assert spark_master() is None
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "spark://master", "port": 7077}')
    assert spark_master() == "spark://master:7077"
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[*]"}')
    assert spark_master() == "local[*]"
