"""`checkback airflow doctor`: what it finds wrong, and what it says to do next."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import broker
from recovery import hanging
from recovery.airflow.operating.doctor import OK, WARN, WRONG, Sighted, _looks, examine, of_looks
from recovery.airflow.operating.sight import SightOperator, SightTrigger, sight_of, why_not_seen
from recovery.airflow.settings import StoreSettings
from recovery.airflow.workflows import doctor
from tests.jobs.shops import ANSWERS, shop


@pytest.mark.usefixtures("database")
def test_each_thing_that_is_wrong_has_a_next_step(looked_after: Callable[..., None], tmp_path: Path) -> None:
    """A store in order, one that is missing, a mistake, a pool that nobody made; Airflow itself does not run here."""
    looked_after(
        shop={"path": shop(tmp_path / "shop", orders=3), "resolver": ANSWERS, "pool": "nobody_made_it"},
        gone={"path": tmp_path / "gone"},
        typo={"path": "/x", "ask": "true"},
        copied={"path": f"{tmp_path}/gone/"},
    )
    found = list(examine(run_s=0))
    assert "copied: its path is that of gone" in [one.what for one in found]
    assert all(one.next_step for one in found if one.state != OK)
    wrong = " | ".join(one.what for one in found if one.state == WRONG)
    for text in ("ask cannot be 'true'", "scheduler: has no heartbeat", "pool nobody_made_it", "no such directory"):
        assert text in wrong, wrong
    assert any(one.state == OK and "3 transactions in doubt" in one.what for one in found)


@pytest.mark.usefixtures("database")
def test_a_store_whose_disk_hangs_keeps_nobody_from_the_others(
    looked_after: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the doctor, nor the tasks by which a worker and the triggerer look, which had no end."""
    places = {name: str(shop(tmp_path / name, orders=3)) for name in ("hangs", "works")}
    looked_after(**{name: {"path": path, "resolver": ANSWERS} for name, path in places.items()})
    answers, opened = threading.Event(), broker.open

    def slow(path: str, **options: Any) -> Any:
        _ = path != places["hangs"] or answers.wait(60)
        return opened(path, **options)

    monkeypatch.setattr(broker, "open", slow)
    monkeypatch.setattr(hanging, "WITHIN_S", 0.3)
    try:
        found = {one.what: one for one in examine(run_s=0)}
        seen = asyncio.run(anext(SightTrigger(places).run())).payload["stores"]
    finally:
        answers.set()
    (wrong,) = [one for what, one in found.items() if what.startswith("hangs, this process:")]
    assert (wrong.state, "its disk hangs" in wrong.what) == (WRONG, True)
    assert "shown" not in wrong.what, "nothing is shown here: that is the page's"
    assert any(what.startswith("works: ") and "3 transactions in doubt" in what for what in found)
    assert ("its disk hangs" in seen["hangs"], seen["works"]) == (True, "")
    tasks = doctor.make([StoreSettings(name="works", path=places["works"])]).tasks
    assert all(task.execution_timeout for task in tasks)


@pytest.mark.usefixtures("database")
def test_a_store_without_a_path_has_nothing_that_watches_for_a_crash(
    looked_after: Callable[..., None], connection: Callable[..., str], tmp_path: Path
) -> None:
    """A watcher is made while a DAG file is parsed, where no connection is read."""
    path = shop(tmp_path / "shop", orders=0)
    connection("billing", path=path)
    looked_after(billing={"connection": "billing"}, both={"connection": "billing", "path": path})
    found = [one.what for one in examine(run_s=0) if "watches for a crash" in one.what]
    assert found == ["billing: nothing watches for a crash"]


@pytest.mark.usefixtures("database")
def test_who_answers_is_asked_of_our_own_stores(
    looked_after: Callable[..., None], tmp_path: Path, golden: Callable[[str], Path]
) -> None:
    """Of a store of RocketMQ no ledger is wanted: its broker checks back."""
    looked_after(shop={"path": shop(tmp_path / "shop", orders=1)}, theirs={"path": golden("rocketmq-3.1.5-killed")})
    found = [one.what for one in examine(run_s=0) if "nobody is named who answers" in one.what]
    assert found == ["shop: nobody is named who answers for its transactions"]


@pytest.mark.usefixtures("database")
def test_alerts_that_lead_nowhere_are_found(
    looked_after: Callable[..., None], api_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No such connection, or nobody listens: else it is noticed when nobody is told of something worse."""
    monkeypatch.setenv("AIRFLOW_CONN_DEAF", json.dumps({"conn_type": "http", "host": "http://127.0.0.1:1/SECRETX"}))
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps({"conn_type": "http", "host": api_server}))
    stores = {name: {"path": "/nowhere", "alerts": name} for name in ("hook", "deaf", "nobody_made_it")}
    looked_after(**stores, typo={"path": "/x", "ask": "true", "alerts": "hook"})
    found = {one.what: one.state for one in examine(run_s=0) if one.what.startswith("alerts: ")}
    assert list(found.values()) == [WRONG, OK, WRONG]
    said = " | ".join(found)
    assert "the connection deaf http://127.0.0.1:1 cannot be reached: Connection refused" in said
    assert "nobody_made_it" in said
    assert "SECRETX" not in said


def test_without_settings_it_says_so(looked_after: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """First of all."""
    monkeypatch.delenv("AIRFLOW__CHECKBACK__STORES", raising=False)
    _version, first, *_ = examine(run_s=0)
    assert (first.state, "is empty" in first.what) == (WRONG, True)


def test_what_a_process_sees(tmp_path: Path, golden: Callable[[str], Path]) -> None:
    """Nothing wrong with a store; a sentence where there is none. A foreign store is read only, so that is enough."""
    paths = {"shop": str(shop(tmp_path / "shop", orders=1)), "gone": str(tmp_path / "gone")}
    seen = sight_of(paths)
    assert (seen["uid"], seen["stores"]["shop"]) == (os.getuid(), "")
    assert "no such directory" in seen["stores"]["gone"]
    assert why_not_seen(str(golden("rocketmq-3.1.5-killed"))) == ""

    async def looked() -> Any:
        kind, arguments = SightTrigger(paths).serialize()
        assert kind.endswith("sight.SightTrigger")
        return [event.payload async for event in SightTrigger(**arguments).run()]

    assert asyncio.run(looked()) == [seen]


@pytest.mark.skipif(os.getuid() != 0, reason="root alone can look as another user")
def test_a_directory_of_another_user_is_said() -> None:
    """A process that may read a store of ours and not write there cannot end its transactions."""
    with tempfile.TemporaryDirectory() as directory:  # pytest's own directories are closed to other users
        path = shop(Path(directory) / "shop", orders=1)
        for one in (Path(directory), path, *path.rglob("*")):
            one.chmod(0o755 if one.is_dir() else 0o644)
        child = os.fork()
        if not child:
            os.setuid(65534)
            os._exit(0 if "may not write there" in why_not_seen(str(path)) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.usefixtures("database", "quiet")
def test_one_task_looks_for_the_workers_of_a_queue(tmp_path: Path) -> None:
    """Fifty stores cost two tasks; a queue of its own another one. A connection that is missing is that store's."""
    stores = [StoreSettings(name=f"s{number}", path=str(tmp_path / "gone")) for number in range(50)]
    assert set(doctor.make(stores).task_ids) == {"worker", "triggerer"}
    dag = doctor.make([*stores, StoreSettings(name="far", connection="nobody_made_it", queue="site b")])
    assert set(dag.task_ids) == {"worker", "worker.site_b", "triggerer"}
    far = dag.get_task("worker.site_b")
    assert (far.queue, isinstance(far, SightOperator)) == ("site b", True)
    assert "nobody_made_it" in far.execute({})["stores"]["far"]  # type: ignore[attr-defined]


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert (self.path, self.headers["Authorization"]) == ("/checkback/api/stores", "Bearer it is me")
        lines = [{"name": "shop", "error": None}, {"name": "gone", "error": "no such directory"}]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(lines).encode())

    def log_message(self, *_: Any) -> None: ...


def test_a_task_that_waits_for_a_worker_hides_nothing() -> None:
    """For a queue that no worker serves nothing was said of any other, nor of the queue; nor by a later run."""
    sight = {"host": "vm", "uid": 0, "stores": {"shop": ""}}
    looks = [
        Sighted("triggerer", "success", "default", sight),
        Sighted("worker.hdd", "failed", "hdd", None),
        Sighted("worker.sdd", "queued", "sdd", None),
    ]
    late = "its task did not end in 90 s, it is"
    assert [(one.state, one.what) for one in of_looks(looks, False, 90, doctor.DAG_ID)] == [
        (OK, "triggerer on vm, user 0: sees 1 of 1 stores"),
        (WRONG, "worker.hdd: its task failed"),
        (WARN, f"worker.sdd: {late} queued"),
    ]
    *_, last = of_looks(looks, False, 90, doctor.DAG_ID)
    assert last.next_step == "see whether a worker of the queue sdd runs, and is free"
    (last,) = of_looks([Sighted("triggerer", "deferred", "default", None)], False, 90, doctor.DAG_ID)
    assert (last.what, "the triggerer runs" in last.next_step) == (f"triggerer: {late} deferred", True)
    (last,) = of_looks([Sighted("worker", "running", "default", None)], False, 90, doctor.DAG_ID)
    assert last.next_step == "read the log of worker in checkback.doctor", "a worker has it"
    (last,) = of_looks([Sighted("triggerer", None, "default", None)], False, 90, doctor.DAG_ID)
    assert (last.state, "did not begin in 90 s" in last.what) == (WARN, True)
    assert doctor.make([StoreSettings(name="shop", path="/x")]).max_active_runs > 1


class _EndingSession:
    """Airflow's database, in which a task says what it saw, and ends, behind the first look at it."""

    has_ended = False

    def scalar(self, _: object) -> str:
        return "running"

    def execute(self, statement: object) -> Any:
        ended, self.has_ended = self.has_ended, True
        values = [("worker", {"host": "vm", "uid": 0, "stores": {"shop": ""}})] if ended else []
        tasks = [("worker", "success" if ended else "running", "default")]
        rows = values if "FROM xcom" in str(statement) else tasks
        return SimpleNamespace(all=lambda: rows)


def test_a_task_that_ends_while_the_doctor_looks_did_not_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it saw was read before its state: it had ended, and had not said what it saw."""
    monkeypatch.setattr("airflow.utils.session.create_session", lambda: nullcontext(_EndingSession()))
    (line,) = of_looks(*_looks(doctor.DAG_ID, "manual", 0), 0, doctor.DAG_ID)
    assert (line.state, line.what) == (OK, "worker on vm, user 0: sees 1 of 1 stores")


@pytest.fixture
def api_server() -> Iterator[str]:
    """An API server that sees one of two stores; its URL."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(10)


@pytest.mark.usefixtures("database")
def test_the_api_server_is_asked_what_it_sees(looked_after: Callable[..., None], api_server: str) -> None:
    """One line for all that it sees, one for each that it does not; without a token the next step."""
    looked_after(shop={"path": "/x"}, gone={"path": "/y"}, hidden={"path": "/z"})
    asked = examine(run_s=0, url=api_server, token="it is me")  # noqa: S106
    found = [one for one in asked if "API server" in one.what]
    assert [(one.state, one.what) for one in found[:2]] == [
        (OK, "API server: sees 1 of 3 stores"),
        (WRONG, "gone, API server: no such directory"),
    ]
    assert found[2].what.startswith("hidden, API server: it does not show the store")
    *_, last = examine(run_s=0, url=api_server)
    assert "CHECKBACK_AIRFLOW_TOKEN" in last.next_step
