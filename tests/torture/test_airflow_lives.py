"""Airflow for real: scheduler, triggerer, DAG processor and API server run, and each way to start our work is walked.

A minute or two: started once for all tests here, in the order in which they stand.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

import broker
from recovery.airflow.local.rest import ASKS, NoAnswer, Rest, Run
from recovery.airflow.local.standalone import Standalone
from recovery.jobs import tasks
from recovery.verify.verifier import verify
from tests.house.tree import ROOT
from tests.jobs.shops import ANSWERS, SMALL, bodies, in_child, killed_shop, park, prepare, shop, spoil_slot

READY_S, RUN_S = 300.0, 120.0
# Airflow 3.3.2 asks again when the answer comes before its executor has said that the asking task paused.
THINKS_S = 5.0
ARRIVES_S = 10.0
CHECK_BACK_S = 4.0
CHECK_BACK_10_000_S = 20.0

# A user's own DAGs; docs/airflow.md shows them.
MINE = """
from airflow.sdk import DAG, Asset, AssetWatcher, task
from recovery.airflow.sensors import MessageSensor
from recovery.airflow.triggers import MessageTrigger

STORE = {path!r}
watcher = AssetWatcher(name="news", trigger=MessageTrigger(path=STORE, topic="news"))
arrived = Asset("checkback://news/arrived", watchers=[watcher])

with DAG("on_news", schedule=[arrived]):
    @task
    def read(triggering_asset_events):
        (event,) = [event for events in triggering_asset_events.values() for event in events]
        return event.extra["payload"]["count"]
    read()

with DAG("waits_for_news", schedule=None):
    MessageSensor(task_id="wait", path=STORE, topic="news", poke_interval=0.5, deferrable=True)
"""


@dataclass
class Alive:
    """Airflow, and the stores it looks after."""

    airflow: Standalone
    rest: Rest
    sold: Path  # closed well, ten orders in doubt
    crashing: Path
    news: Path

    def until(self, is_so: Callable[[], Any], timeout_s: float = RUN_S) -> Any:
        """What `is_so` says as soon as it says anything."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            try:
                if found := is_so():
                    return found
            except NoAnswer:
                pass
            time.sleep(0.2)
        raise AssertionError(Path(self.airflow.log).read_text()[-3000:])

    def finished(self, dag_id: str) -> Run | None:
        """The last run of a DAG, when it is over."""
        run = self.rest.last_runs().get(dag_id)
        return run if run is not None and run.is_over else None


pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def alive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Alive]:
    directory = tmp_path_factory.mktemp("alive")
    names = {"sold": shop(directory / "sold"), "crashing": directory / "crashing", "news": directory / "news"}
    with broker.open(str(names["news"]), layout=SMALL) as store:
        store.append(broker.Message("news", b"old"))
    with broker.open(str(names["crashing"]), layout=SMALL):
        pass
    settings = directory / "stores.json"
    never = {f"{work}_schedule": "never" for work in ("verify", "rebuild", "retention")}
    shared = {"resolver": ANSWERS, "engine": "local", "policy": {"*": {"first_check_after": "0s"}}, **never}
    asked = {name: {"path": str(path), "check_back_every_s": 3600, **shared} for name, path in names.items()}
    settings.write_text(json.dumps({"stores": asked}))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    airflow = Standalone(
        str(directory / "airflow"),
        port,
        str(settings),
        PYTHONPATH=str(ROOT),
        AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL="5",
    )
    (directory / "airflow/dags").mkdir(parents=True)
    (directory / "airflow/dags/mine.py").write_text(MINE.format(path=str(names["news"])))
    rest = Rest(airflow.url, airflow.login)
    with airflow:
        one = Alive(airflow, rest, **names)
        one.until(lambda: not rest.unhealthy(), READY_S)
        one.until(lambda: {"sold.check_back", "on_news"} <= set(rest.dag_ids()))
        yield one
    assert not airflow.left(), "Airflow left processes behind"


def test_a_run_is_started_by_rest(alive: Alive) -> None:
    """Check-back: five orders committed, five rolled back, each once."""
    run = alive.rest.trigger("sold.check_back")
    assert alive.rest.wait("sold.check_back", run, RUN_S).state == "success"
    assert sorted(bodies(alive.sold)) == [b"order %d" % number for number in (0, 2, 4, 6, 8)]


def test_a_round_over_nothing_is_quick(alive: Alive) -> None:
    """From the queue to the end; the best of three, since other things run too."""
    spent = []
    for _ in range(3):
        began = time.monotonic()
        run = alive.rest.trigger("sold.check_back")
        assert alive.rest.wait("sold.check_back", run, RUN_S).state == "success"
        spent.append(time.monotonic() - began)
    print(f"a check-back run over nothing: {min(spent):.1f} s")
    assert min(spent) < 3 * CHECK_BACK_S


def test_a_round_over_ten_thousand_is_quick(alive: Alive) -> None:
    """From the queue to the end, with nothing left."""
    with broker.open(str(alive.sold)) as store:
        prepare(store, range(10_000, 20_000))
    began = time.monotonic()
    run = alive.rest.trigger("sold.check_back")
    assert alive.rest.wait("sold.check_back", run, RUN_S).state == "success"
    spent = time.monotonic() - began
    print(f"a check-back run over 10,000 in doubt: {spent:.1f} s")
    assert spent < 3 * CHECK_BACK_10_000_S
    with broker.open(str(alive.sold)) as store:
        assert len(store.transactions.in_doubt_slots()) == 0


def test_a_crash_starts_its_recovery(alive: Alive) -> None:
    """Nobody triggers it: the file abort without an owner does."""
    shutil.rmtree(alive.crashing)
    killed_shop(alive.crashing)
    assert alive.until(lambda: alive.finished("crashing.recover_after_crash")).state == "success"
    assert tasks.crashed(str(alive.crashing)) is None
    assert sorted(bodies(alive.crashing)) == sorted(b"order %d" % number for number in (0, 2, 4, 6, 8, 11))


def test_a_person_decides_by_rest(alive: Alive) -> None:
    """The task waits for input; the answer is done."""
    with broker.open(str(alive.sold)) as store:
        prepare(store, range(100, 101))
    (offset,) = park(alive.sold)
    alive.rest.trigger("sold.resolve_parked")
    question = commit_what_is_parked(alive)
    assert alive.until(lambda: alive.finished("sold.resolve_parked")).state == "success"
    assert b"order 100" in bodies(alive.sold)
    assert str(offset) in question["subject"]


def commit_what_is_parked(alive: Alive) -> dict[str, Any]:
    """Answer the question that waits, and give it."""
    path = "/api/v2/dags/~/dagRuns/~/hitlDetails?response_received=false&state=awaiting_input"
    (question,) = alive.until(lambda: alive.rest.ask("GET", path)["hitl_details"], READY_S)
    task = question["task_instance"]
    assert alive.rest.last_runs()[task["dag_id"]].state == ASKS
    time.sleep(THINKS_S)
    where = f"/api/v2/dags/{task['dag_id']}/dagRuns/{task['dag_run_id']}/taskInstances/{task['task_id']}"
    said = {"chosen_options": ["Commit"], "params_input": {"why": "paid in cash"}}
    alive.rest.ask("PATCH", f"{where}/{task['map_index']}/hitlDetails", said)
    return dict(question)


def test_a_message_starts_a_dag_and_ends_a_deferral(alive: Alive) -> None:
    """Under ten seconds from the append to the run."""
    waiting = alive.rest.trigger("waits_for_news")
    path = f"/api/v2/dags/waits_for_news/dagRuns/{waiting}/taskInstances/wait"
    alive.until(lambda: alive.rest.ask("GET", path)["state"] == "deferred")
    time.sleep(2)  # the triggerer takes up the watcher; it has no sign of having done so
    with broker.open(str(alive.news)) as store:
        store.append(broker.Message("news", b"new"))
    began = time.monotonic()
    alive.until(lambda: alive.rest.last_runs().get("on_news"))
    spent = time.monotonic() - began
    print(f"from a message to the run of a DAG: {spent:.1f} s")
    assert spent < ARRIVES_S
    assert alive.until(lambda: alive.finished("on_news")).state == "success"
    assert alive.rest.wait("waits_for_news", waiting, RUN_S).state == "success"


def test_a_killed_task_loses_and_doubles_nothing(alive: Alive) -> None:
    """SIGKILL in the middle of a round; the next round does the rest."""
    with broker.open(str(alive.sold)) as store:
        prepare(store, range(200, 260))

    def half_a_round() -> None:
        from tests.jobs import shops

        asked = 0

        def answer(message: Any) -> str:
            nonlocal asked
            asked += 1
            if asked == 30:
                os.kill(os.getpid(), 9)
            return shops.answer(message)

        shops.die_halfway = answer  # type: ignore[attr-defined]
        policy = {"*": {"first_check_after": "0s"}}
        tasks.check_back(
            str(alive.sold), now_ms=time.time_ns() // 1_000_000, resolver=f"{shops.__name__}:die_halfway", policy=policy
        )

    assert os.WTERMSIG(in_child(half_a_round)) == 9
    alive.until(lambda: tasks.crashed(str(alive.sold)) is None)
    run = alive.rest.trigger("sold.check_back")
    assert alive.rest.wait("sold.check_back", run, RUN_S).state == "success"
    found = bodies(alive.sold)
    assert len(found) == len(set(found))
    assert {b"order %d" % number for number in range(200, 260, 2)} <= set(found)
    assert verify(alive.sold).ok  # the task would be refused while the DAG that a crash starts verifies


def test_the_page_asks_who_is_there(alive: Alive) -> None:
    """No token, no page; with one the stores are there."""
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{alive.airflow.url}/checkback/api/stores")  # noqa: S310
    with refused.value as error:
        assert error.code == 401
    stores = alive.rest.ask("GET", "/checkback/api/stores")
    assert [store["name"] for store in stores] == ["sold", "crashing", "news"]


def test_the_doctor_asks_every_process_what_it_sees(alive: Alive) -> None:
    """A worker, the triggerer, the API server; its result is JSON, whatever Airflow logs."""
    environment = {**alive.airflow.environment, "CHECKBACK_AIRFLOW_TOKEN": alive.rest.token}
    words = [sys.executable, "-m", "recovery.cli", "airflow", "doctor", "--json", "--seconds", str(int(RUN_S))]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=READY_S, check=False)
    found = json.loads(done.stdout)
    sees = {one["what"].split(" on ")[0].split(":")[0] for one in found if "sees 3 of 3 stores" in one["what"]}
    assert sees == {"worker", "triggerer", "API server"}, found
    assert done.returncode == 0, [one for one in found if one["state"] == "wrong"]


@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium here")
def test_the_page_is_seen_in_a_browser(alive: Alive, tmp_path: Path) -> None:
    """Framed in Airflow's own interface, with every store in it."""
    from tests.airflow.browser import look

    text = look(
        f"{alive.airflow.url}/plugin/checkback",
        tmp_path / "stores.png",
        "Stores of transactional messages",
        alive.rest.token,
    )
    assert all(name in text for name in ("sold", "crashing", "news"))
    assert (tmp_path / "stores.png").stat().st_size > 10_000


def kill_everything(alive: Alive) -> None:
    """SIGKILL for every process of Airflow, and start it again."""
    while left := alive.airflow.left():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    alive.airflow.stop()
    alive.airflow.start()
    alive.until(lambda: not alive.rest.unhealthy(), READY_S)


def test_killing_all_of_airflow_loses_and_doubles_nothing(alive: Alive) -> None:
    """SIGKILL for every process at once, while a round runs; started again, it does what was left."""
    with broker.open(str(alive.sold)) as store:
        prepare(store, range(1000, 3000))
    before = len(bodies(alive.sold))
    alive.rest.trigger("sold.check_back")
    alive.until(lambda: len(bodies(alive.sold)) > before)  # the round is at work
    kill_everything(alive)
    alive.until(lambda: tasks.crashed(str(alive.sold)) is None, READY_S)
    run = alive.rest.trigger("sold.check_back")
    assert alive.rest.wait("sold.check_back", run, READY_S).state == "success"
    found = bodies(alive.sold)
    assert len(found) == len(set(found))
    assert {b"order %d" % number for number in range(1000, 3000, 2)} <= set(found)
    assert verify(alive.sold).ok


def begin(alive: Alive, work: str) -> tuple[str, str]:
    """Have something for a DAG to do, and start it: the DAG and its run."""
    if work == "recover_after_crash":  # starts by itself
        dag_id = "crashing.recover_after_crash"
        known = {run.run_id for run in alive.rest.last_runs().values()}
        shutil.rmtree(alive.crashing)
        killed_shop(alive.crashing)

        def news() -> Run | None:
            run = alive.rest.last_runs().get(dag_id)
            return run if run is not None and run.run_id not in known else None

        return dag_id, alive.until(news).run_id
    if work == "resolve_parked":
        with broker.open(str(alive.sold)) as store:
            prepare(store, range(5000, 5001))
        park(alive.sold)
    if work == "rebuild_state_table":
        spoil_slot(alive.sold, 3)
    conf = {"ask": False} if work == "rebuild_state_table" else {}
    return f"sold.{work}", alive.rest.trigger(f"sold.{work}", conf)


@pytest.mark.parametrize(
    "work", ["verify_store", "rebuild_state_table", "retention", "recover_after_crash", "resolve_parked"]
)
def test_killing_all_of_airflow_in_the_middle_of(alive: Alive, work: str) -> None:
    """While a task of the run is at work. The run itself goes on afterwards, and comes to its end."""
    path = alive.crashing if work == "recover_after_crash" else alive.sold
    dag_id, run_id = begin(alive, work)
    instances = f"/api/v2/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances"
    alive.until(
        lambda: any(one["state"] == "running" for one in alive.rest.ask("GET", instances)["task_instances"]), RUN_S
    )
    kill_everything(alive)
    if work == "resolve_parked":
        commit_what_is_parked(alive)
    ended = alive.until(lambda: (found := alive.rest.run(dag_id, run_id)).is_over and found, READY_S)
    assert ended.state == "success"
    found = bodies(path)
    assert len(found) == len(set(found))
    if work == "resolve_parked":
        assert b"order 5000" in found
    assert tasks.crashed(str(path)) is None
    assert verify(path).ok
