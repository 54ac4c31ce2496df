"""Somebody who answers Airflow's questions through its REST API, while `dag.test()` waits for it in another thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fastapi.testclient import TestClient

Answer = Callable[[dict[str, Any]], tuple[str, str] | None]  # of a question: (option, why), or None to think on


class Person:
    """Logged in as Airflow's admin."""

    def __init__(self, client: TestClient) -> None:
        self.client, self.questions, self._stop = client, [], threading.Event()  # type: ignore[var-annotated]

    def work(self, answer: Answer) -> None:
        """Look for questions and answer them, until told to stop."""
        while not self._stop.is_set():
            found = self.client.get("/api/v2/dags/~/dagRuns/~/hitlDetails?response_received=false&state=awaiting_input")
            for question in found.json()["hitl_details"]:
                self._one(question, answer(question))
            time.sleep(0.2)

    def _one(self, question: dict[str, Any], said: tuple[str, str] | None) -> None:
        if said is None:
            return
        option, why = said
        task = question["task_instance"]
        path = f"/api/v2/dags/{task['dag_id']}/dagRuns/{task['dag_run_id']}/taskInstances/{task['task_id']}"
        params = {"why": why} if "why" in question["params"] else {}
        body = {"chosen_options": [option], "params_input": params}
        answered = self.client.patch(f"{path}/{task['map_index']}/hitlDetails", json=body)
        assert answered.status_code in (200, 409), answered.text  # 409: the run of an earlier look
        self.questions.append(question)


@contextmanager
def somebody(client: TestClient, answer: Answer) -> Iterator[Person]:
    """`with somebody(client, lambda question: ("Approve", "")) as person:`; all that was asked is in `questions`."""
    person = Person(client)
    thread = threading.Thread(target=person.work, args=(answer,), daemon=True)
    thread.start()
    try:
        yield person
    finally:
        person._stop.set()
        thread.join(20)
