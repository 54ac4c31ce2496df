"""What is posted to a store's `alerts`: failures, questions that wait, runs that are late; and where it never goes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Connection
from asgiref.sync import async_to_sync

from recovery.airflow import alerts
from recovery.airflow.alerts import ApprovalAlert, StoreAlert, WorksAgain, deadline_missed, post
from recovery.airflow.hook import http_address
from recovery.airflow.settings import StoreSettings
from recovery.airflow.versions import (
    HAS_APPROVALS,
    HAS_DEADLINES,
    HAS_SEVERAL_DEADLINES,
    AirflowFailException,
    BaseHook,
)
from recovery.airflow.workflows.store_dags import StoreDags
from recovery.airflow.workflows.wiring import answering


class Instance:
    """A task instance, as a callback gets it."""

    dag_id, task_id, run_id, log_url = "shop.verify_store", "no_findings", "r1", "http://airflow/log"


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """`listener("oncall", redirect="http://...")`: a server behind a connection with a login; what came to it."""
    servers: list[tuple[HTTPServer, threading.Thread]] = []

    def listen(conn_id: str, redirect: str = "") -> list[dict[str, Any]]:
        got: list[dict[str, Any]] = []

        class Taking(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                got.append({**json.loads(body), "login": self.headers["Authorization"]})
                self.send_response(302 if redirect else 200)
                if redirect:
                    self.send_header("Location", redirect)
                self.end_headers()

            def do_GET(self) -> None:
                got.append({"stolen": self.headers["Authorization"]})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        server = HTTPServer(("127.0.0.1", 0), Taking)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        servers.append((server, thread))
        value = {"conn_type": "http", "host": "127.0.0.1", "port": server.server_port, "login": "a", "password": "b"}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(value))
        return got

    yield listen
    for server, thread in servers:
        server.shutdown()
        server.server_close()
        thread.join(10)


def context(**more: Any) -> Any:
    return {"task_instance": Instance(), **more}


def test_a_redirect_gets_neither_the_login_nor_the_alert(listener: Callable[..., list[dict[str, Any]]]) -> None:
    """Else whoever answers for the host could send the login elsewhere, and the alert would count as delivered."""
    other = listener("other")
    port = json.loads(os.environ["AIRFLOW_CONN_OTHER"])["port"]
    listener("oncall", redirect=f"http://127.0.0.1:{port}/steal")
    with pytest.raises(OSError, match="302"):
        post("oncall", {"text": "x"})
    assert other == []


def test_an_alert_goes_to_http_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that leads to a file reads or writes none."""
    monkeypatch.setenv("AIRFLOW_CONN_ONCALL", json.dumps({"conn_type": "http", "host": "file:///etc/passwd"}))
    with pytest.raises(ValueError, match=r"leads to file:"):
        post("oncall", {"text": "x"})


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"host": "hooks.example", "extra": '{"endpoint": "services/T0"}'}, "http://hooks.example/services/T0"),
        ({"host": "hooks.example", "extra": '{"endpoint": "?token=1"}'}, "http://hooks.example?token=1"),
        ({"host": "https://hooks.example/services", "port": 8443}, "https://hooks.example:8443/services"),
        (
            {"host": "https://hooks.example/a/", "port": 8443, "extra": '{"endpoint": "b"}'},
            "https://hooks.example:8443/a/b",
        ),
        ({"host": "::1", "port": 8080, "extra": '{"endpoint": "/x"}'}, "http://[::1]:8080/x"),
        ({"host": "hooks.example", "conn_type": "https"}, "https://hooks.example"),
        ({"host": "hooks.example", "schema": "https"}, "https://hooks.example"),
    ],
)
def test_a_connection_leads_to_its_own_host(given: dict[str, Any], url: str) -> None:
    """An endpoint without a slash made another host of it, which got the alert and the login."""
    assert http_address(Connection(conn_id="oncall", **{"conn_type": "http", **given})) == url


@pytest.mark.parametrize(
    "url", ["https://hooks.example/services/T0/B0", "http://127.0.0.1:9000/hook", "https://hooks.example"]
)
def test_a_connection_that_is_a_url_leads_there(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow reads the path as the schema: no alert arrived, and the doctor found the host and said that it would."""
    monkeypatch.setenv("AIRFLOW_CONN_ONCALL", url)
    assert http_address(BaseHook.get_connection("oncall")) == url


def test_a_failure_without_a_message_still_says_something(listener: Callable[..., list[dict[str, Any]]]) -> None:
    """The kind of the error, or that its process is gone; and a link to the log."""
    got = listener("oncall")
    alert = StoreAlert(store="shop", connection="oncall")
    alert.notify(context(exception=AirflowFailException()))
    alert.notify(context())
    assert got[0]["text"].endswith("failed: AirflowFailException")
    assert got[1]["text"].endswith("failed: its process was killed, or could not start")
    assert got[0]["url"] == "http://airflow/log"


class State:
    """Airflow's state of an asset, which outlives runs."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.values.get(key)

    def set(self, key: str, value: Any) -> None:
        self.values[key] = json.loads(json.dumps(value))

    def delete(self, key: str) -> None:
        self.values.pop(key, None)


def test_a_trouble_that_lasts_is_told_once_and_so_is_its_end(listener: Callable[..., list[dict[str, Any]]]) -> None:
    """A check-back whose database was down for a night called the operator every two minutes."""
    got, state = listener("oncall"), State()
    failed = StoreAlert(store="shop", connection="oncall", again_s=3600.0)
    well = WorksAgain(store="shop", connection="oncall")

    def after(alert: StoreAlert, **more: Any) -> int:
        alert.notify(context(asset_state_store=state, **more))
        return len(got)

    assert after(well) == 0
    assert [after(failed, exception=OSError(str(number))) for number in range(3)] == [1, 1, 1]
    assert after(failed, exception=ValueError("another trouble")) == 2
    state.values["trouble"] |= {"at_s": time.time() - 3700, "since_s": time.time() - 7300}
    assert after(failed, exception=ValueError("it lasts")) == 3
    asked_nobody = type("Task", (), {"is_inconclusive": True})()
    assert after(well, task=asked_nobody) == 3, "it is not known whether it works"
    assert [after(well), after(well)] == [4, 4]
    assert got[3]["text"] == "checkback, store shop: shop.verify_store.no_findings works again, after 2 h 1 min"
    assert after(failed, exception=OSError("once more")) == 5


@pytest.mark.parametrize("work", ["check_back", "recover_after_crash"])
def test_a_check_back_that_works_again_says_so(listener: Callable[..., list[dict[str, Any]]], work: str) -> None:
    """In a recovery it did not, and a new trouble of the same kind was taken for the old one: it had no alert."""
    got, state = listener("oncall"), State()
    task = StoreDags("shop", path="/x", only=[work], alerts="oncall")[work].get_task("check_back")
    killed, works = task.on_failure_callback[0], task.on_success_callback[0]
    for alert in (killed, works, killed):
        alert.notify(context(asset_state_store=state))
    assert [" works again" in one["text"] for one in got] == [False, True, False]


@pytest.mark.parametrize("state", [None, object()])
def test_without_a_state_each_failure_is_told(listener: Callable[..., list[dict[str, Any]]], state: Any) -> None:
    """Before Airflow 3.3, and where the API server does not answer; and as long as an alert does not arrive."""
    got = listener("oncall")
    alert = StoreAlert(store="shop", connection="oncall", again_s=3600.0)
    for _ in range(2):
        alert.notify(context(exception=OSError("down"), **({"asset_state_store": state} if state else {})))
    assert len(got) == 2
    kept = State()
    deaf = StoreAlert(store="shop", connection="deaf", again_s=3600.0)
    deaf.notify(context(exception=OSError("down"), asset_state_store=kept))
    assert kept.values == {}


def test_a_login_may_stand_in_the_host(
    listener: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The doctor said that something listens there, and no alert arrived: "Name or service not known"."""
    got = listener("oncall")
    port = json.loads(os.environ["AIRFLOW_CONN_ONCALL"])["port"]
    host = f"http://ada:s%40cret@127.0.0.1:{port}/hook"
    monkeypatch.setenv("AIRFLOW_CONN_ONCALL", json.dumps({"conn_type": "http", "host": host}))
    post("oncall", {"text": "x"})
    assert [base64.b64decode(one["login"].removeprefix("Basic ")) for one in got] == [b"ada:s@cret"]


def test_what_another_run_has_posted_is_not_posted_again(listener: Callable[..., list[dict[str, Any]]]) -> None:
    """A run that waited behind a question was a second alert of its rejection."""
    got = listener("oncall")
    task = SimpleNamespace(is_alerted=True)
    StoreAlert(store="shop", connection="oncall").notify({"task": task, "task_instance": Instance()})  # type: ignore[typeddict-item]
    assert got == []


def test_a_question_is_announced(listener: Callable[..., list[dict[str, Any]]]) -> None:
    """Which store, what is asked, and all that one needs to decide."""
    got = listener("oncall")
    task = type("Task", (), {"subject": "Recover shop after a crash?", "body": "**In doubt**: 3 transactions"})()
    ApprovalAlert(store="shop", connection="oncall").notify(context(task=task))
    assert (got[0]["store"], got[0]["body"]) == ("shop", "**In doubt**: 3 transactions")
    assert "an answer is needed, 'Recover shop after a crash?'" in got[0]["text"]


@pytest.mark.parametrize("host", [None, "127.0.0.1:1", "ftp://127.0.0.1", "a b"])
def test_an_alert_that_cannot_be_delivered_stops_no_question(host: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such connection, nobody listens, no URL of http: an error in the log, and the person is asked."""
    if host:
        monkeypatch.setenv("AIRFLOW_CONN_DEAF", json.dumps({"conn_type": "http", "host": host}))
    said: list[str] = []
    alert = ApprovalAlert(store="shop", connection="deaf")
    monkeypatch.setattr(alert.log, "error", lambda text, *values: said.append(text % values))
    alert(context(task=type("Task", (), {"subject": "Recover shop after a crash?", "body": ""})()))
    assert "an answer is needed" in said[0]
    assert "the alert cannot be delivered by deaf: " in said[1]


def test_a_late_run_is_an_alert(listener: Callable[..., list[dict[str, Any]]]) -> None:
    """What a deadline of Airflow's calls."""
    got = listener("oncall")
    deadline_missed(store="shop", what="check_back is not done after 0:05:00", connection="oncall")
    assert got[0]["text"] == "checkback, store shop: check_back is not done after 0:05:00"
    running = {"dag_run": {"dag_id": "shop.check_back", "state": "running"}}
    deadline_missed(store="shop", what="check_back is not done after 0:05:00", connection="oncall", context=running)
    assert len(got) == 2


@pytest.mark.skipif(not HAS_DEADLINES, reason="this Airflow has no deadlines")
def test_a_deadline_calls_the_triggerer(listener: Callable[..., list[dict[str, Any]]]) -> None:
    """An executor's process may read no connection of Airflow's database: the alert of a late run never arrived."""
    (late,) = StoreDags("shop", path="/x", only=["check_back"], alerts="oncall")["check_back"].deadline
    assert type(late.callback).__name__ == "AsyncCallback"
    got, call = listener("oncall"), resolve_name(late.callback.path)
    asyncio.run(call(**late.callback.kwargs, context={"dag_run": {"dag_id": "shop.check_back", "state": "running"}}))
    assert got[0]["text"].startswith("checkback, store shop: check_back is not done after 0:05:00: look at the runs of")


@pytest.mark.skipif(not HAS_DEADLINES, reason="this Airflow has no deadlines")
def test_a_deadline_is_served_by_the_triggerers_own_loop(
    listener: Callable[..., list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 3.2.0 an answer that another loop waited for was lost, and the triggerer's next request got it, and failed."""
    got, known, loops = listener("oncall"), BaseHook.get_connection, list[object]()

    async def answer() -> None:
        loops.append(asyncio.get_running_loop())

    def as_in_3_2(name: str) -> Any:
        async_to_sync(answer)()
        return known(name)

    async def triggerer() -> None:
        loops.append(asyncio.get_running_loop())
        await alerts.deadline_missed_async(store="shop", what="late", connection="oncall")

    monkeypatch.setattr(BaseHook, "get_connection", as_in_3_2)
    asyncio.run(triggerer())
    assert (len(got), loops[0]) == (1, loops[1])


@pytest.mark.skipif(not HAS_SEVERAL_DEADLINES, reason="one deadline of a DAG before Airflow 3.3")
@pytest.mark.parametrize(("hours", "said"), [(1, "0:30:00"), (7, "6:00:00"), (13, "12:00:00"), (40, "18:00:00")])
def test_deadlines_that_are_missed_at_once_are_one_alert(
    listener: Callable[..., list[dict[str, Any]]], hours: int, said: str
) -> None:
    """A scheduler that had been down for a day posted each reminder of a question within a second."""
    got, queued = listener("oncall"), datetime.now(UTC) - timedelta(hours=hours)
    made: Any = StoreDags("shop", path="/x", only=["recover_after_crash"], alerts="oncall")["recover_after_crash"]
    run = {"dag_id": made.dag_id, "state": "running", "queued_at": f"{queued:%FT%T.%fZ}"}
    for late in (one for one in made.deadline if one.interval < timedelta(hours=hours)):
        asyncio.run(resolve_name(late.callback.path)(**late.callback.kwargs, context={"dag_run": run}))
    assert [f"is not done after {said}: " in one["text"] for one in got] == [True]


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Airflow's Variables."""
    kept: dict[str, Any] = {}

    class Kept:
        @staticmethod
        def get(key: str, default: Any) -> Any:
            return kept.get(key, default)

        @staticmethod
        def set(key: str, value: Any, **_: str) -> None:
            kept[key] = value

    monkeypatch.setattr(alerts, "Variable", Kept)
    return kept


def missed(began: datetime, state: str = "failed") -> None:
    """What the deadline of a run calls."""
    run = {"dag_id": "shop.verify_store", "dag_run_id": "r1", "state": state, "start_date": f"{began:%FT%T.%fZ}"}
    what = "verify_store is not done after 6:00:00"
    deadline_missed(store="shop", what=what, connection="oncall", context={"dag_run": run})


@pytest.mark.skipif(not HAS_DEADLINES, reason="this Airflow has no deadlines")
def test_a_run_that_failed_in_time_is_not_late(
    listener: Callable[..., list[dict[str, Any]]], variables: dict[str, Any]
) -> None:
    """Each failure had a second alert at its deadline, hours later for a verification, which was not true."""
    got, began = listener("oncall"), datetime.now(UTC)
    alert = StoreAlert(store="shop", connection="oncall")
    alert.notify(context(exception=OSError("down")))
    missed(began)
    missed(began - timedelta(minutes=3))  # an earlier one of a trouble that lasts
    missed(datetime.now(UTC), "success")
    assert (len(got), list(variables)) == (1, ["checkback.alerted.shop.verify_store"])


@pytest.mark.skipif(not HAS_DEADLINES, reason="this Airflow has no deadlines")
def test_a_failure_that_nobody_heard_of_is_said_at_the_deadline(
    listener: Callable[..., list[dict[str, Any]]], variables: dict[str, Any]
) -> None:
    """The callback of a killed task is lost with the DAG processor, and an alert while its endpoint is down."""
    began = datetime.now(UTC)
    StoreAlert(store="shop", connection="deaf").notify(context(exception=OSError("down")))
    got = listener("oncall")
    ApprovalAlert(store="shop", connection="oncall").notify(context(task=SimpleNamespace(subject="?", body="")))
    assert variables == {}, "a question is no failure"
    missed(began)
    text = "checkback, store shop: shop.verify_store failed, and no alert of that was delivered: look at its run r1"
    assert got[1]["text"] == f"{text} in Airflow"
    missed(began)  # the next deadline of the run: a recovery has several
    assert len(got) == 2, "it was said at the first"
    StoreAlert(store="shop", connection="oncall").notify(context(exception=OSError("down")))
    missed(datetime.now(UTC))
    assert len(got) == 4, "the alert was of a run before"


@pytest.mark.skipif(not HAS_DEADLINES, reason="this Airflow has no deadlines")
def test_an_alert_in_another_form(listener: Callable[..., list[dict[str, Any]]], variables: dict[str, Any]) -> None:
    """A class of a user's own whose alert has no `dag` had a KeyError behind its post, and was said once more later."""

    class Blocks(StoreAlert):
        def alert(self, context: Any) -> dict[str, Any]:
            return {"blocks": [self.facts(context)["task"]]}

    got, began = listener("oncall"), datetime.now(UTC)
    Blocks(store="shop", connection="oncall").notify(context(exception=OSError("down")))
    missed(began)
    assert [one.get("blocks") for one in got] == [["no_findings"]]


@pytest.mark.skipif(not HAS_APPROVALS, reason="this Airflow has no approvals")
def test_who_may_answer_and_where_it_is_announced() -> None:
    """By the store's settings; without `approvers` whoever Airflow lets answer."""
    told = answering(StoreSettings(name="shop", path="/x", alerts="oncall", approvers=["ada"], answer_within_s=60.0))
    (alert,) = told["notifiers"]
    assert (type(alert), alert.connection) == (ApprovalAlert, "oncall")
    assert told["assigned_users"] == [{"id": "ada", "name": "ada"}]
    assert told["response_timeout"].total_seconds() == 60
    assert "assigned_users" not in answering(StoreSettings(name="shop", path="/x"))
