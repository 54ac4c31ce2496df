"""Alerts: a failed task says what is wrong with a store, in the log and to wherever an HTTP connection leads.

on_failure_callback=[StoreAlert(store="shop", connection="oncall")]
"""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseHook, BaseNotifier, Context

_TIMEOUT_S = 10.0


class StoreAlert(BaseNotifier):
    """Says that a task about a store failed, and why.

    `connection` is an Airflow connection of type http: one JSON object is posted there, with the fields `text` (a
    sentence, which is what Slack and its kin show), `store`, `dag`, `task`, `run` and `error`. Without it the sentence
    stands in the log alone.
    """

    template_fields: Sequence[str] = ("store", "text")

    def __init__(self, *, store: str, connection: str | None = None, text: str = "") -> None:
        super().__init__()
        self.store, self.connection, self.text = store, connection, text

    def notify(self, context: Context) -> None:
        """Say it. An alert that cannot be delivered is itself an error in the log."""
        alert = self.alert(context)
        self.log.error("%s", alert["text"])
        if self.connection:
            self.post(alert)

    def alert(self, context: Context) -> dict[str, Any]:
        """What is said."""
        instance = context.get("task_instance")
        dag, task = getattr(instance, "dag_id", ""), getattr(instance, "task_id", "")
        error = str(context.get("exception") or context.get("reason") or "")
        text = self.text or f"checkback, store {self.store}: {dag}.{task} failed: {error}"
        run = getattr(instance, "run_id", "")
        return {"text": text, "store": self.store, "dag": dag, "task": task, "run": run, "error": error}

    def post(self, alert: dict[str, Any]) -> None:
        """One POST to the connection. Raises OSError when it is not taken."""
        connection = BaseHook.get_connection(str(self.connection))
        host = connection.host or ""
        url = host if "://" in host else f"{connection.schema or 'http'}://{host}"
        if connection.port:
            url = f"{url}:{connection.port}"
        url += str(connection.extra_dejson.get("endpoint", ""))
        headers = {"Content-Type": "application/json"}
        if connection.login:
            user = f"{connection.login}:{connection.password or ''}"
            headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
        request = urllib.request.Request(url, json.dumps(alert).encode(), headers)  # noqa: S310 - the operator's URL
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S):  # noqa: S310
            pass


def deadline_missed(*, store: str, what: str, context: Any = None) -> None:  # noqa: ARG001 - Airflow gives it
    """What a DAG's deadline calls: an error in the log of the process that runs it."""
    import logging

    logging.getLogger(__name__).error("checkback, store %s: %s", store, what)
