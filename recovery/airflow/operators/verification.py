"""Verification: compare everything in a store, and fail when something was found."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import Any

from airflow.sdk import BaseOperator, Context

from recovery.airflow.operating.links import ReportLink, SparkUiLink, StorePageLink
from recovery.airflow.operators.store import StoreOperator, now_ms
from recovery.airflow.versions import AirflowFailException

PUBLISHED = ("ok", "counts", "records", "bytes", "transactions", "digest", "report")  # of a verification


class VerifyOperator(StoreOperator):
    """Compare the log with everything derived from it, keep the report, publish the summary."""

    operator_extra_links = (StorePageLink(), ReportLink(), SparkUiLink())
    spark_ui: str | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """The report without its long lists."""
        from recovery.jobs import tasks

        found = tasks.verify(self.store_path(), now_ms=now_ms(context), **self.engine_settings())
        self.spark_ui = found["spark_ui"]
        self.publish(context, {name: found[name] for name in PUBLISHED})
        if self.store:
            from recovery.airflow.operating.metrics import send_gauges

            send_gauges(self.store, {"findings": sum(found["counts"].values())})
        return found


class NoFindingsOperator(BaseOperator):
    """Fails when a verification found something, so that the run is red and the alert goes out.

    A task of its own: one that fails announces no asset, and what was found is wanted most just then.
    """

    template_fields: Sequence[str] = ("verify_task_id",)
    ui_color = "#fde8e8"

    def __init__(self, *, verify_task_id: str = "verify", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.verify_task_id = verify_task_id

    def execute(self, context: Context) -> None:
        """Raises AirflowFailException with the findings, the kinds first."""
        report = context["ti"].xcom_pull(task_ids=self.verify_task_id)
        if report is None:
            text = f"{self.verify_task_id} has no result: it was marked as done, and did not run. Clear it"
            raise AirflowFailException(text)
        if report["ok"]:
            return
        kinds = ", ".join(f"{count} {kind}" for kind, count in report["counts"].items())
        first = report["findings"][0]["text"] if report["findings"] else ""
        kept = f". The whole report: {report['report']}" if report["report"] else ""
        step = f"What each means, and what to do, says: checkback verify {quote(report['path'])}"
        raise AirflowFailException(f"{kinds}; the first: {first}{kept}. {step}")
