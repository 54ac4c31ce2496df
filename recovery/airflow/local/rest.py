"""Airflow's REST API, as far as `checkback up` needs it: is it healthy, start a DAG, how did the last runs end.

Airflow itself is not imported: that would cost two seconds, and its processes are others.
"""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from broker.errors import BrokerError

COMPONENTS = ("metadatabase", "scheduler", "triggerer", "dag_processor")
ASKS = "awaiting_input"  # of a task; Airflow calls its run "running"
_TIMEOUT_S = 30.0
_POLL_S = 0.5
_PAGE = 100  # [api] maximum_page_limit, by default


class NoAnswer(BrokerError):
    """Airflow does not answer as it should."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a DAG."""

    dag_id: str
    run_id: str
    state: str
    ended: str | None

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.state in ("success", "failed")


class Rest:
    """One Airflow. `login` gives (user, password) once they are known."""

    def __init__(self, url: str, login: Callable[[], tuple[str, str] | None]) -> None:
        self._url, self._login = url, login
        self._token = ""

    def unhealthy(self) -> list[str]:
        """The components that are not healthy (yet); all of them while nothing answers."""
        try:
            found = self._request("GET", "/api/v2/monitor/health")
        except NoAnswer:
            return ["api_server"]
        return [name for name in COMPONENTS if found.get(name, {}).get("status") != "healthy"]

    def dag_ids(self) -> list[str]:
        """The DAGs that are known by now; Airflow gives a page of them at a time, of a size that it chooses."""
        found: list[str] = []
        while page := self.ask("GET", f"/api/v2/dags?limit={_PAGE}&offset={len(found)}&order_by=dag_id")["dags"]:
            found += [dag["dag_id"] for dag in page]
        return found

    def trigger(self, dag_id: str, conf: dict[str, Any] | None = None) -> str:
        """Start a run; its id."""
        body = {"logical_date": None, "conf": conf or {}}
        return str(self.ask("POST", f"/api/v2/dags/{dag_id}/dagRuns", body)["dag_run_id"])

    def run(self, dag_id: str, run_id: str) -> Run:
        """How a run stands."""
        return _run(self.ask("GET", f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}"))

    def last_runs(self, limit: int = 50) -> dict[str, Run]:
        """The last run of each DAG that ran lately; one in which a task waits for a person has the state ASKS."""
        found = self.ask("GET", f"/api/v2/dags/~/dagRuns?order_by=-run_after&limit={limit}")
        runs: dict[str, Run] = {}
        for one in found["dag_runs"]:
            runs.setdefault(one["dag_id"], _run(one))
        questions = self.ask("GET", f"/api/v2/dags/~/dagRuns/~/hitlDetails?response_received=false&state={ASKS}")
        for task in (question["task_instance"] for question in questions["hitl_details"]):
            run = runs.get(task["dag_id"])
            if run is not None and run.run_id == task["dag_run_id"]:
                runs[run.dag_id] = replace(run, state=ASKS)
        return runs

    def wait(self, dag_id: str, run_id: str, timeout_s: float) -> Run:
        """The run when it is over. Raises NoAnswer when it takes longer."""
        deadline, state = time.monotonic() + timeout_s, "unknown"
        while time.monotonic() < deadline:
            with contextlib.suppress(NoAnswer):  # it is busy: the run goes on meanwhile
                run = self.run(dag_id, run_id)
                if run.is_over:
                    return run
                state = run.state
            time.sleep(_POLL_S)
        raise NoAnswer(f"{dag_id} is still {state} after {timeout_s:.0f} s: look at it in Airflow's UI")

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        """One request as the user that is logged in. Raises NoAnswer."""
        return self._request(method, path, body, self.token)

    @property
    def token(self) -> str:
        """What shows who we are; the user interface keeps it in the cookie `_token`. Raises NoAnswer."""
        self._token = self._token or self._log_in()
        return self._token

    def _log_in(self) -> str:
        login = self._login()
        if login is None:
            raise NoAnswer("Airflow has not made its password yet")
        user, password = login
        answer = self._request("POST", "/auth/token", {"username": user, "password": password})
        return str(answer["access_token"])

    def _request(self, method: str, path: str, body: Any = None, token: str = "") -> Any:
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers, method=method)  # noqa: S310 - our own server
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310
                return json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                reply = error.read(500).decode("utf-8", "replace")
            raise NoAnswer(f"Airflow answers {error.code} to {method} {path}: {reply}") from None
        except (OSError, ValueError) as error:
            raise NoAnswer(f"Airflow does not answer {method} {path}: {error}") from None


def _run(found: dict[str, Any]) -> Run:
    return Run(found["dag_id"], found["dag_run_id"], found["state"], found.get("end_date"))
