"""What operators of Airflow look at: gauges and counters of a store, and the links beside its tasks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from recovery.airflow.operating import metrics
from recovery.airflow.operating.links import HalfMessageLink, ReportLink, SparkUiLink, StorePageLink
from recovery.airflow.operators import VerifyOperator
from recovery.airflow.triggers import DueTrigger
from recovery.airflow.workflows.store_dags import StoreDags
from recovery.jobs import tasks
from tests.airflow.dag_runs import context
from tests.jobs.shops import ANSWERS, LATE_MS, shop


class Sink:
    """Takes the place of Airflow's metrics."""

    def __init__(self) -> None:
        self.gauges, self.counts = dict[str, float](), dict[str, int]()

    def gauge(self, name: str, value: float) -> None:
        self.gauges[name] = value

    def incr(self, name: str, count: int = 1) -> None:
        self.counts[name] = self.counts.get(name, 0) + count


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Sink:
    made = Sink()
    monkeypatch.setattr(metrics, "stats", lambda: made)
    return made


def test_each_look_of_the_triggerer_sends_gauges(tmp_path: Path, sink: Sink) -> None:
    """In doubt, the oldest of them, parked, crashed: by the name of the store."""
    path = shop(tmp_path / "shop", orders=3)
    DueTrigger(path=str(path), metrics_as="shop").look()
    assert (sink.gauges["checkback.in_doubt.shop"], sink.gauges["checkback.crashed.shop"]) == (3, 0)
    assert {"checkback.parked.shop", "checkback.oldest_in_doubt_s.shop"} <= set(sink.gauges)


@pytest.mark.usefixtures("quiet")
def test_what_a_round_decides_and_a_verification_finds_is_sent(tmp_path: Path, sink: Sink) -> None:
    """Counters of the round, a gauge of findings; metrics that cannot be sent stop no work."""
    path = str(shop(tmp_path / "shop", orders=4))
    late = time.time_ns() // 1_000_000 + LATE_MS
    found = tasks.check_back(path, now_ms=late, resolver=ANSWERS)
    metrics.count_round("shop", found)
    assert sink.counts == {"checkback.check_back.shop.committed": 2, "checkback.check_back.shop.rolled_back": 2}
    VerifyOperator(task_id="verify", path=path, store="shop", engine="local").execute(context())
    assert sink.gauges["checkback.findings.shop"] == 0


def test_metrics_that_cannot_be_sent_stop_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the sink raises."""

    def broken() -> Any:
        raise RuntimeError("no StatsD here")

    monkeypatch.setattr(metrics, "stats", broken)
    metrics.send_gauges("shop", {"in_doubt": 1})


def test_links_lead_to_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the store, of its report, of one half message, of Spark while it runs; empty where there is nothing."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "http://airflow:8080")
    dags = StoreDags("shop", path="/srv/shop.store", resolver=ANSWERS)
    verify = dags["verify_store"].get_task("verify")
    assert StorePageLink().get_link(verify, ti_key=None) == "http://airflow:8080/checkback/#shop"
    assert ReportLink().get_link(verify, ti_key=None) == "http://airflow:8080/checkback/api/stores/shop/report"
    assert SparkUiLink().get_link(verify, ti_key=None) == ""
    assert {type(link) for link in verify.operator_extra_links} == {StorePageLink, ReportLink, SparkUiLink}
    resolve = type("Resolve", (), {"store": "shop", "parked": {"commitlog_offset": 203}})()
    assert HalfMessageLink().get_link(resolve, ti_key=None) == "http://airflow:8080/checkback/#shop/203"
    nameless = VerifyOperator(task_id="verify", path="/x")
    assert StorePageLink().get_link(nameless, ti_key=None) == ""
