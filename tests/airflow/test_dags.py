"""The DAGs themselves: they parse, cheaply, for any number of stores, and each does its work with the real engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from fastapi.testclient import TestClient

from recovery.airflow.bundle import dags_folder
from recovery.airflow.settings import broken_stores
from recovery.airflow.versions import AirflowFailException, AirflowSkipException
from recovery.jobs import tasks
from recovery.views.overview import overview, story
from tests.airflow.bags import DagBag, DagSerialization
from tests.airflow.dag_runs import context, run
from tests.airflow.people import somebody
from tests.jobs.shops import bodies, killed_shop, park, shop, spoil_slot

WORK = {"check_back", "recover_after_crash", "rebuild_state_table", "resolve_parked", "retention", "verify_store"}
PARSE_CALLS = 300_000  # of Python functions, Airflow's among them: about half a second

# Airflow's own import is not counted: what our six files cost on top of it, and what they load. Calls are counted,
# since a busy or slow machine makes as many.
PROBE = """
import sys
import airflow.sdk
from tests.airflow.bags import DagBag, DagSerialization
from recovery.airflow.bundle import dags_folder
calls = 0
def count(frame, event, argument):
    global calls
    calls += event == "call"
sys.setprofile(count)
bag = DagBag(dags_folder())
sys.setprofile(None)
assert not bag.import_errors, bag.import_errors
costly = ("pyspark", "pyarrow", "numpy", "broker.ledger", "recovery.checkback.catalog")
heavy = [name for name in costly if name in sys.modules]
print(calls, len(bag.dags), *heavy)
"""


def probe(count: int) -> tuple[int, int, list[str]]:
    stores = {f"s{number}": {"path": f"/nowhere/{number}"} for number in range(count)}
    environment = {**os.environ, "AIRFLOW__CHECKBACK__STORES": json.dumps({"stores": stores})}
    ran = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True, env=environment)
    calls, found, *heavy = ran.stdout.strip().splitlines()[-1].split()
    return int(calls), int(found), heavy


def test_parsing_is_cheap_and_loads_nothing_heavy() -> None:
    """Ten stores cost no more than PARSE_CALLS on top of Airflow's import; no Spark, Arrow, NumPy or SQL models."""
    calls, found, heavy = probe(10)
    assert found == 10 * len(WORK) + 1
    assert not heavy
    assert calls < PARSE_CALLS


@pytest.mark.torture
def test_a_hundred_stores_cost_ten_times_as_much_as_ten() -> None:
    """At most: what does not depend on their number is in both."""
    (ten, _, _), (hundred, found, _) = probe(10), probe(100)
    assert found == 100 * len(WORK) + 1
    assert hundred < 10 * ten


def test_an_executor_that_is_not_there_takes_no_other_dag_away(looked_after: Callable[..., None]) -> None:
    """Airflow refuses the DAGs of that store; the doctor has tasks for all, and would go with them."""
    looked_after(shop={"path": "/nowhere", "executor": "CelryExecutor"}, other={"path": "/elsewhere"})
    bag = DagBag(dags_folder())
    assert not bag.import_errors
    assert set(bag.dags) == {*(f"other.{work}" for work in WORK), "shop.settings", "checkback.doctor"}
    (broken,) = broken_stores()
    assert "this Airflow has no executor 'CelryExecutor': name one of its setting [core] executor" in broken.why


def test_every_dag_survives_serialization(looked_after: Callable[..., None]) -> None:
    """The scheduler knows a DAG only by its JSON; the runbook, the tags and one run at a time are in it."""
    looked_after(shop={"path": "/nowhere", "pool": "spark"}, other={"connection": "other"})
    bag = DagBag(dags_folder())
    assert not bag.import_errors
    assert set(bag.dags) == {*(f"{store}.{work}" for store in ("shop", "other") for work in WORK), "checkback.doctor"}
    for one in bag.dags.values():
        again = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(one))))
        assert again.max_active_runs == 1 or again.dag_id == "checkback.doctor"  # which reads alone
        assert not again.catchup
        assert len(again.doc_md) > 200
        assert "checkback" in again.tags


def test_the_dag_files_are_wiring_only() -> None:
    """At most 70 lines, and no function of their own but a task group."""
    files = sorted(dags_folder().glob("*.py"))
    assert {file.stem for file in files} == WORK | {"settings", "doctor"}
    for file in files:
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 70


def test_no_stores_no_dags(looked_after: Callable[..., None]) -> None:
    """A setting that is empty is no error."""
    looked_after()
    bag = DagBag(dags_folder())
    assert (bag.dags, bag.import_errors) == ({}, {})


def test_check_back_ends_what_the_application_knows(dag: Callable[..., DAG], tmp_path: Path) -> None:
    """Ten in doubt: five committed, five rolled back; a second run finds nothing."""
    path = shop(tmp_path / "shop")
    check_back = dag("check_back", path=path, policy={"*": {"first_check_after": "0s"}})
    for _ in range(2):
        assert run(check_back) == {"check_back": "success", "run": "success"}
    assert sorted(bodies(path)) == [b"order %d" % number for number in (0, 2, 4, 6, 8)]


def test_check_back_is_red_while_nobody_answers_and_a_recovery_goes_on(dag: Callable[..., DAG], tmp_path: Path) -> None:
    """After a power cut the database may come up later than the store, which is verified all the same."""
    asked: dict[str, Any] = {"resolver": "http://127.0.0.1:1/", "policy": {"*": {"first_check_after": "0s"}}}
    path = killed_shop(tmp_path / "shop", orders=2)
    recovered = run(dag("recover_after_crash", path=path, **asked), {"ask": False})
    assert (recovered["check_back"], recovered["verify"], recovered["run"]) == ("success", "success", "success")
    check_back = dag("check_back", path=shop(tmp_path / "other"), **asked)
    assert run(check_back) == {"check_back": "failed", "run": "failed"}
    (inlet,) = check_back.get_task("check_back").inlets
    assert inlet.watchers, "of two assets with one name in a DAG Airflow takes the last"


def test_check_back_goes_before_what_takes_long(dag: Callable[..., DAG], tmp_path: Path) -> None:
    """It was last where workers are scarce: the nightly verifications of all stores came first, and each rebuild."""
    works = ("check_back", "verify_store", "rebuild_state_table", "retention", "recover_after_crash")
    weights = {
        f"{work}.{task.task_id}": sum(one.priority_weight for one in [task, *task.get_flat_relatives(upstream=False)])
        for work in works
        for task in dag(work, path=str(tmp_path / "store")).tasks
    }
    ours = weights.pop("check_back.check_back")
    first = {"recover_after_crash.plan", "recover_after_crash.approve", "recover_after_crash.recover"}
    assert {name for name, weight in weights.items() if weight >= ours} == first


def test_verification_of_a_sound_store_is_green(dag: Callable[..., DAG], tmp_path: Path) -> None:
    """And its report is kept."""
    path = shop(tmp_path / "shop")
    assert run(dag("verify_store", path=path)) == {"verify": "success", "no_findings": "success", "run": "success"}
    assert (path / "checkback/reports/verify-latest.json").exists()


def test_a_planted_wrong_slot_is_red_and_mended_after_approval(
    dag: Callable[..., DAG], tmp_path: Path, api: TestClient
) -> None:
    """The verification fails on it; the rebuild asks; rejected, nothing changes; approved, it is right again."""
    path = shop(tmp_path / "shop")
    spoil_slot(path, 3)
    red = {"verify": "success", "no_findings": "failed", "run": "failed"}
    assert run(dag("verify_store", path=path)) == red
    rebuild = dag("rebuild_state_table", path=path)
    with somebody(api, lambda question: ("Reject", "")) as person:
        assert run(rebuild)["rebuild"] == "skipped"
    body = person.questions[0]["body"]
    for text in (
        str(path),
        "statetable",
        "slot 3",
        "`orders`, key `3`",
        "**What cannot be undone**",
        "**Approve**",
        "**Reject**",
    ):
        assert text in body, body
    assert not tasks.verify(str(path), now_ms=1)["ok"]
    with somebody(api, lambda question: ("Approve", "")):
        assert run(rebuild)["rebuild"] == "success"
    assert tasks.verify(str(path), now_ms=2)["ok"]
    report = json.loads((path / "checkback/reports/rebuild-latest.json").read_text())
    assert (report["applied"], report["approved_by"]) == (True, "admin")


def test_an_approval_of_a_rebuild_is_for_the_differences_that_were_shown(
    dag: Callable[..., DAG], tmp_path: Path, api: TestClient
) -> None:
    """Another slot is wrong by the time of the answer: nothing is exchanged, the run is red, and it is asked again."""
    path = shop(tmp_path / "shop")
    spoil_slot(path, 3)

    def answer(_question: dict[str, Any]) -> tuple[str, str]:
        spoil_slot(path, 4)
        return "Approve", ""

    rebuild = dag("rebuild_state_table", path=path)
    with somebody(api, answer) as person:
        states = run(rebuild)
    assert (states["rebuild"], states["done"], states["run"]) == ("failed", "upstream_failed", "failed")
    assert states["ask_again"] == "success"
    assert tasks.verify(str(path), now_ms=1)["counts"] == {"slot-wrong-state": 2}
    (again,) = api.get("/api/v2/dags/shop.rebuild_state_table/dagRuns?state=queued").json()["dag_runs"]
    assert again["conf"] == {}
    assert len(person.questions) == 1


def test_a_rebuild_without_a_difference_is_green_and_does_nothing(dag: Callable[..., DAG], tmp_path: Path) -> None:
    """What follows the comparison is skipped."""
    states = run(dag("rebuild_state_table", path=shop(tmp_path / "shop")))
    skipped = dict.fromkeys(("approve", "rebuild", "ask_again", "done"), "skipped")
    assert states == {"compare": "success", **skipped, "run": "success"}


def test_a_killed_store_is_recovered_asked_about_and_verified(dag: Callable[..., DAG], tmp_path: Path) -> None:
    """Without being asked for approval, since it is our own store and the settings do not want it."""
    path = killed_shop(tmp_path / "shop")
    recover = dag("recover_after_crash", path=path, policy={"*": {"first_check_after": "0s"}})
    states = run(recover, {"ask": False})
    assert states.pop("ask_again") == "skipped"
    assert set(states.values()) == {"success"}
    assert tasks.crashed(str(path)) is None
    assert sorted(bodies(path)) == sorted(b"order %d" % number for number in (0, 2, 4, 6, 8, 11))
    again = run(recover)
    assert (again["plan"], again["approve"], again["recover"]) == ("success", "skipped", "skipped")


def test_a_recovery_is_verified_although_nobody_could_be_asked(dag: Callable[..., DAG], tmp_path: Path) -> None:
    """As where the ledger's database is away since the same power cut: what the recovery left was not looked at."""
    path = killed_shop(tmp_path / "shop")
    recover = dag("recover_after_crash", path=path, resolver="tests.jobs.shops:not_there")
    recover.get_task("check_back").retries = 0
    states = run(recover, {"ask": False})
    assert (states["check_back"], states["run"]) == ("failed", "failed")
    assert (states["verify"], states["no_findings"], states["in_order"]) == ("success", "success", "success")


def test_recovery_asks_first_when_the_form_says_so(dag: Callable[..., DAG], tmp_path: Path, api: TestClient) -> None:
    """Rejected, nothing is changed."""
    path = killed_shop(tmp_path / "shop")
    with somebody(api, lambda question: ("Reject", "")) as person:
        states = run(dag("recover_after_crash", path=path), {"ask": True})
    assert (states["plan"], states["recover"]) == ("success", "skipped")
    assert (states["in_order"], states["run"]) == ("failed", "failed"), "nobody would see that it is not served"
    (question,) = person.questions
    for text in (str(path), "**In doubt**: 10 transactions", "**Approve**", "**Reject**"):
        assert text in question["body"]
    assert tasks.crashed(str(path))


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("name", "task", "error"),
    [
        ("retention", "retain", AirflowSkipException),
        ("rebuild_state_table", "compare", AirflowFailException),
        ("rebuild_state_table", "rebuild", AirflowFailException),
        ("resolve_parked", "each.resolve", AirflowFailException),
    ],
)
def test_no_other_dag_recovers_what_a_person_approves(
    dag: Callable[..., DAG], tmp_path: Path, name: str, task: str, error: type[Exception]
) -> None:
    """Each opens the store to write, which recovers it: the retention of the night made the question needless."""
    path = killed_shop(tmp_path / "shop", orders=1)
    operator: Any = dag(name, path=path, ask=True).get_task(task)
    operator.parked, operator.answer = {"commitlog_offset": 0}, {"chosen_options": ["Commit"]}
    operator.question = "go on"
    with pytest.raises(error, match="its recovery needs an approval: nothing was done"):
        operator.execute(context())
    assert tasks.crashed(str(path))


@pytest.mark.parametrize(("name", "task"), [("recover_after_crash", "plan"), ("rebuild_state_table", "compare")])
def test_the_form_does_not_do_without_those_who_approve(dag: Callable[..., DAG], name: str, task: str) -> None:
    """Else each user who may start the DAG could untick the box, and needed none of the `approvers`."""
    for approvers, asks in (["ada"], True), ([], "{{ params.ask }}"):
        made: Any = dag(name, path="/srv/shop", ask=True, approvers=approvers).get_task(task)
        assert made.ask == asks


def test_an_approval_is_for_the_plan_that_was_shown(dag: Callable[..., DAG], tmp_path: Path, api: TestClient) -> None:
    """The store changes between the question and the answer: nothing is done."""
    path = killed_shop(tmp_path / "shop")

    def answer(_question: dict[str, Any]) -> tuple[str, str]:
        (path / "checkpoint").unlink()
        (path / "checkback/checkpoint").unlink(missing_ok=True)
        (path / "checkback/control").unlink()
        return "Approve", ""

    with somebody(api, answer):
        states = run(dag("recover_after_crash", path=path), {"ask": True})
    assert (states["recover"], states["run"]) == ("failed", "failed")
    assert tasks.crashed(str(path))


def test_a_mistake_in_one_store_stops_no_other(looked_after: Callable[..., None]) -> None:
    """Six DAGs for the one, for the other one that fails with the reason."""
    looked_after(shop={"path": "/nowhere"}, typo={"path": "/nowhere/else", "ask": "true"})
    bag = DagBag(dags_folder())
    assert not bag.import_errors
    assert set(bag.dags) == {*(f"shop.{work}" for work in WORK), "typo.settings", "checkback.doctor"}
    assert run(bag.dags["typo.settings"]) == {"check": "failed", "run": "failed"}


def test_a_store_of_rocketmq_always_asks_first(
    dag: Callable[..., DAG], golden_copy: Callable[[str], Path], api: TestClient
) -> None:
    """And only where the settings allow a take-over: its broker may well be running."""
    path = golden_copy("rocketmq-3.1.5-killed")
    assert tasks.crashed(str(path)) is None, "its broker may run where we cannot see it"
    with somebody(api, lambda question: ("Reject", "")) as person:
        states = run(dag("recover_after_crash", path=path), {"ask": False})
    assert (states["approve"], states["run"], person.questions) == ("skipped", "success", [])
    with somebody(api, lambda question: ("Reject", "")) as person:
        states = run(dag("recover_after_crash", path=path, take_over=True), {"ask": False})
    (question,) = person.questions
    assert question["subject"].startswith("Take shop over, which another program wrote?")
    assert question["body"].startswith("**Another program wrote this store, and this cannot be undone.**")
    assert states["recover"] == "skipped"
    assert not (path / "checkback").exists(), "nothing is written into a store that is not ours"


def test_a_person_decides_about_each_parked_transaction(
    dag: Callable[..., DAG], tmp_path: Path, api: TestClient
) -> None:
    """Four are parked, four questions: each answer is done, with its why."""
    path = shop(tmp_path / "shop", orders=4)
    offsets = park(path)
    wanted = dict(zip(map(str, offsets), ("Commit", "Roll back", "Ask again", "Leave"), strict=True))

    def answer(question: dict[str, Any]) -> tuple[str, str]:
        (offset,) = [one for one in wanted if f"half message {one} " in question["subject"]]
        return wanted[offset], "looked it up"

    with somebody(api, answer) as person:
        assert run(dag("resolve_parked", path=path))["run"] == "success"
    assert len(person.questions) == 4
    for text in (str(path), "topic `orders`, key `0`, group `shop`", "**Commit**", "cannot be undone", "**Leave**"):
        assert any(text in question["body"] for question in person.questions), text
    assert all(question["subject"].startswith("shop: ") for question in person.questions)
    assert bodies(path) == [b"order 0"]
    counts = overview(str(path), 0).counts
    assert counts == {"in_doubt": 1, "committed": 1, "rolled_back": 1, "parked": 1}
    end = story(str(path), offsets[0])[-1]
    assert (end["why"], end["by"]) == ("looked it up", "airflow:admin")


def test_the_form_may_name_one_parked_transaction(dag: Callable[..., DAG], tmp_path: Path, api: TestClient) -> None:
    """Then nothing is asked about the others."""
    path = shop(tmp_path / "shop", orders=3)
    offsets = park(path)
    with somebody(api, lambda question: ("Commit", "it is paid")) as person:
        assert run(dag("resolve_parked", path=path), {"commitlog_offset": offsets[1]})["run"] == "success"
    assert len(person.questions) == 1
    assert bodies(path) == [b"order 1"]


@pytest.mark.parametrize("typed", [-1, 2**63, 10**30, 1e30, 289.5, "289", True])
def test_the_form_takes_no_number_that_no_offset_is(dag: Callable[..., DAG], typed: Any) -> None:
    """One of 65 bits ended Airflow's DAG processor: MessagePack, by which it sends the run's alert, cannot hold it."""
    params = dag("resolve_parked", path="/srv/shop").params
    for right in None, 0, 289, 2**63 - 1:
        params["commitlog_offset"] = right
    with pytest.raises(ValueError, match="commitlog_offset"):
        params["commitlog_offset"] = typed


def test_now_is_the_runs_own_time() -> None:
    """Not the clock's: a retry asks the same."""
    from recovery.airflow.operators.store import now_ms

    class Ran:
        run_after = datetime(2026, 1, 1, tzinfo=UTC)

    assert now_ms({"dag_run": Ran()}) == 1767225600000  # type: ignore[typeddict-item]
