"""Alerts: what is wrong with a store, or waits for a person, goes to the log and to where an HTTP connection leads.

on_failure_callback=[StoreAlert(store="shop", connection="oncall")]
"""

from __future__ import annotations

import base64
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from http.client import HTTPException
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from airflow.sdk import BaseNotifier, Context, Variable

from recovery.airflow.hook import WEB_SCHEMES, http_address
from recovery.airflow.versions import HAS_DEADLINES, AirflowException, BaseHook
from recovery.humanize import moment, span

_TIMEOUT_S = 10.0
_log = logging.getLogger(__name__)
_TROUBLE = "trouble"  # the name of a note in an asset's state


class StoreAlert(BaseNotifier):
    """Says that a task about a store failed, and why.

    `connection` is an Airflow connection of type http: one JSON object is posted there, with the fields `text` (a
    sentence, which is what Slack and its kin show), `store`, `dag`, `task`, `run`, `error` and `url` (of the task's
    log). Without it the sentence stands in the log alone. A redirect is not followed: it would carry the login along.

    With `again_s` a failure of one kind is posted once while run after run fails, and again after so many seconds;
    `WorksAgain` ends it. That is noted in the state of the asset that is the task's only inlet; before Airflow 3.3
    there is none, and each failure is posted. A task whose failure another run has posted says so by `is_alerted`.
    """

    template_fields: Sequence[str] = ("store", "text")
    is_of_failure = True

    def __init__(
        self, *, store: str, connection: str | None = None, text: str = "", again_s: float | None = None
    ) -> None:
        super().__init__()
        self.store, self.connection, self.text, self.again_s = store, connection, text, again_s

    def notify(self, context: Context) -> None:
        """Say it. An alert that cannot be delivered is itself an error in the log, and nothing else.

        Airflow fails a task that asks a person when its notifier raises: nobody could approve while the hook is down.
        """
        alert = self.alert(context)
        self.log.error("%s", alert.get("text", alert))  # a class of a user's own posts what its endpoint wants
        if self.connection and self._is_heard(context, alert) and self.is_of_failure and HAS_DEADLINES:
            _note_alerted(self.facts(context)["dag"])

    def _is_heard(self, context: Context, alert: Mapping[str, Any]) -> bool:
        """Post it, unless that was done for the same trouble; whether an alert of it is out."""
        if getattr(context.get("task"), "is_alerted", False):
            self.log.info("no alert is sent: another run sent one")
            return True
        note = self._note(context)
        kind, now_s = type(context.get("exception")).__name__, time.time()
        if self.again_s is not None and note.get("kind") == kind and 0 <= now_s - note["at_s"] < self.again_s:
            self.log.info("no alert is sent: one of this trouble was sent at %s UTC", moment(int(note["at_s"] * 1000)))
            return True
        is_taken = self.post(alert)
        if is_taken and self.again_s is not None:
            self._keep(context, {"kind": kind, "at_s": now_s, "since_s": note.get("since_s", now_s)})
        return is_taken

    def post(self, alert: Mapping[str, Any]) -> bool:
        """Post it where the connection leads; whether it was taken."""
        assert self.connection is not None
        try:
            post(self.connection, alert)
        except (OSError, ValueError, HTTPException, AirflowException) as error:
            self.log.error("the alert cannot be delivered by %s: %s", self.connection, error)  # noqa: TRY400
            return False
        return True

    def _note(self, context: Context) -> dict[str, Any]:
        """What was posted last about a trouble that goes on: its `kind`, `at_s`, and `since_s`. Empty without one."""
        state: Any = context.get("asset_state_store")
        try:
            found = None if state is None else state.get(_TROUBLE)
        except Exception as error:  # noqa: BLE001 - whatever the API server answers, an alert goes out
            self.log.warning("it is not known whether an alert was sent: %s", error)
            return {}
        return found if isinstance(found, dict) and {"kind", "at_s", "since_s"} <= set(found) else {}

    def _keep(self, context: Context, note: dict[str, Any] | None) -> None:
        """Keep a note, or none any more."""
        state: Any = context.get("asset_state_store")
        if state is None:
            return
        try:
            _ = state.delete(_TROUBLE) if note is None else state.set(_TROUBLE, note)
        except Exception as error:  # noqa: BLE001 - it went out
            self.log.warning("it is not noted whether an alert was sent: %s", error)

    def alert(self, context: Context) -> dict[str, Any]:
        """What is said."""
        facts = self.facts(context)
        text = self.text or f"checkback, store {self.store}: {facts['dag']}.{facts['task']} failed: {facts['error']}"
        return {"text": text, **facts}

    def facts(self, context: Context) -> dict[str, Any]:
        """Which task of which run it is about, and its error."""
        instance = context.get("task_instance")
        dag, task = getattr(instance, "dag_id", ""), getattr(instance, "task_id", "")
        error = context.get("exception") or context.get("reason") or "its process was killed, or could not start"
        text = str(error) or type(error).__name__
        run, url = getattr(instance, "run_id", ""), getattr(instance, "log_url", "") or ""
        return {"store": self.store, "dag": dag, "task": task, "run": run, "error": text, "url": url}


class WorksAgain(StoreAlert):
    """Says that the trouble is over that a StoreAlert with `again_s` reported: for the callback `on_success_callback`.

    A task that found nothing to try says so by its attribute `is_inconclusive`.
    """

    def notify(self, context: Context) -> None:
        """Say it, once."""
        if not self.connection or getattr(context.get("task"), "is_inconclusive", False):
            return
        if note := self._note(context):
            facts = {**self.facts(context), "error": ""}
            lasted = span(max(time.time() - note["since_s"], 0))
            text = f"checkback, store {self.store}: {facts['dag']}.{facts['task']} works again, after {lasted}"
            self.log.info("%s", text)
            if self.post({"text": text, **facts}):
                self._keep(context, None)


class ApprovalAlert(StoreAlert):
    """Says that a question about a store waits for a person's answer, and where."""

    is_of_failure = False

    def alert(self, context: Context) -> dict[str, Any]:
        """What is said: the question, and the page on which it is answered."""
        from airflow.providers.standard.operators.hitl import HITLOperator

        task = context.get("task")
        try:
            url = HITLOperator.generate_link_to_ui_from_context(context=context)
        except (KeyError, ValueError, AttributeError):
            url = ""  # no base URL is configured
        facts = {**self.facts(context), "error": "", "url": url}
        subject = getattr(task, "subject", "") or "a question"
        where = f": {url}" if url else ", on Airflow's page of required actions"
        text = f"checkback, store {self.store}: an answer is needed, {subject!r}{where}"
        return {"text": text, "subject": subject, "body": getattr(task, "body", None) or "", **facts}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """None: the redirect is an error, and nothing is sent to `newurl`."""


def post(conn_id: str, alert: Mapping[str, Any]) -> None:
    """One POST of JSON to a connection of type http.

    Raises OSError when it is not taken, ValueError for a URL of another scheme or without a host.
    """
    connection = BaseHook.get_connection(conn_id)
    url = http_address(connection)
    if url.partition("://")[0].lower() not in WEB_SCHEMES:
        raise ValueError(
            f"the connection {conn_id} leads to {url.partition('://')[0]}:, and alerts go to http(s) alone"
        )
    url, login = _without_login(url)
    headers = {"Content-Type": "application/json"}
    user = f"{connection.login}:{connection.password or ''}" if connection.login else login
    if user:
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    request = urllib.request.Request(url, json.dumps(alert).encode(), headers)  # noqa: S310 - the scheme was checked
    opener = urllib.request.build_opener(_NoRedirect)
    with opener.open(request, timeout=_TIMEOUT_S):
        pass


def _without_login(url: str) -> tuple[str, str]:
    """A URL, and the USER:PASSWORD that stood in it: in the field for the host, say. urllib takes both for the host."""
    parts = urlsplit(url)
    login, _, place = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=place)), unquote(login)


async def deadline_missed_async(
    *,
    store: str,
    what: str,
    connection: str | None = None,
    until_s: float | None = None,
    context: Mapping[str, Any] | None = None,
) -> None:
    """What a DAG's deadline calls, in the triggerer: `deadline_missed`, in a thread.

    What an executor calls may read no connection and no Variable of Airflow's database (3.3.2): its token is refused.
    The thread is one of asgiref: from another one a triggerer of 3.2 reads the answer in another event loop, which
    fails, and leaves the answer to its own next request.
    """
    from asgiref.sync import sync_to_async

    in_thread = sync_to_async(deadline_missed, thread_sensitive=False)
    await in_thread(store=store, what=what, connection=connection, until_s=until_s, context=context)


def deadline_missed(
    *, store: str, what: str, connection: str | None = None, until_s: float | None = None, context: Any = None
) -> None:
    """A run missed its deadline: an error in the log of the process that runs this, and the store's alert.

    `until_s` seconds after the run was queued its next deadline is due. Where a scheduler did not run for hours several
    are missed at once: the last of them says it.

    Airflow takes back the deadline of a run that succeeded, and not that of one that failed. Of that one it says so
    where no alert did: a task whose process alone is killed, for its memory, has none (3.3.2), the callback of one that
    was killed with its supervisor is lost with the DAG processor, and an alert is with its endpoint.
    """
    run = context.get("dag_run") if isinstance(context, Mapping) else None
    if isinstance(run, Mapping) and until_s is not None and _queued_for_s(run) >= until_s:
        return
    state = run.get("state") if isinstance(run, Mapping) else None
    if run is not None and state in ("failed", "success"):
        if state == "success" or not connection or _is_alerted(run):
            return
        where = f"look at its run {run.get('dag_run_id')} in Airflow"
        what = f"{run.get('dag_id')} failed, and no alert of that was delivered: {where}"
    text = f"checkback, store {store}: {what}"
    _log.error("%s", text)
    if connection:
        post(connection, {"text": text, "store": store, "error": what})
        if isinstance(run, Mapping) and state == "failed":  # a run that waits for an answer has several deadlines
            _note_alerted(str(run.get("dag_id")))


def _queued_for_s(run: Mapping[str, Any]) -> float:
    """How long ago a run was queued, in seconds; 0 where Airflow does not say when."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(str(run.get("queued_at")))).total_seconds()
    except (ValueError, TypeError):
        return 0.0


# When the last failure of a DAG was alerted, in a Variable: a deadline reads nothing else of Airflow. It is a time, and
# no run, since the deadline of one may come when others have failed. A DAG has one run at a time.


def _variable(dag_id: object) -> str:
    return f"checkback.alerted.{dag_id}"


def _note_alerted(dag_id: str) -> None:
    try:
        about = "When its last failure was alerted, for its deadline"
        Variable.set(_variable(dag_id), datetime.now(UTC).isoformat(), description=about)
    except Exception as error:  # noqa: BLE001 - it went out; the deadline says it once more
        _log.warning("it is not noted that an alert was sent: %s", error)


def _is_alerted(run: Mapping[str, Any]) -> bool:
    """Whether an alert of the run's DAG went out after the run had begun."""
    try:
        noted = Variable.get(_variable(run.get("dag_id")), default=None)
        return noted is not None and datetime.fromisoformat(noted) >= datetime.fromisoformat(str(run["start_date"]))
    except Exception as error:  # noqa: BLE001 - whatever the API server answers, an alert goes out
        _log.warning("it is not known whether an alert was sent: %s", error)
        return False
