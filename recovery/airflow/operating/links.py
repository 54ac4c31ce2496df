"""Links beside a task in Airflow: the store's page, its whole last report, Spark's UI, one transaction.

Airflow keeps a link as an XCom when the task ends, so each operator has only those that lead somewhere for it.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from recovery.airflow.versions import conf

PAGE = "/checkback/"


class StorePageLink(BaseOperatorLink):
    """The page of the task's store."""

    name = "Store"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Empty for a task that does not know the name of its store."""
        return f"{page_url()}#{quote(operator.store, safe='')}" if operator.store else ""


class ReportLink(BaseOperatorLink):
    """The whole last report of a verification, as JSON."""

    name = "Report"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """As for StorePageLink."""
        return f"{page_url()}api/stores/{quote(operator.store, safe='')}/report" if operator.store else ""


class SparkUiLink(BaseOperatorLink):
    """The UI of the Spark session that did the work, while it runs; behind a history server its applications."""

    name = "Spark UI"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """Empty where the local engine did the work."""
        return str(getattr(operator, "spark_ui", None) or "")


class HalfMessageLink(BaseOperatorLink):
    """The transaction that was decided."""

    name = "Half message"

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        """As for StorePageLink."""
        parked = operator.parked if isinstance(operator.parked, dict) else {}
        where = parked.get("commitlog_offset")
        store = quote(operator.store, safe="")
        return f"{page_url()}#{store}/{where}" if operator.store and where is not None else ""


def page_url() -> str:
    """Where the API server shows the page: `[api] base_url`, or a path on this host."""
    return f"{(conf.get('api', 'base_url', fallback='') or '').rstrip('/')}{PAGE}"
