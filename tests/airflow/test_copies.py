"""A copy that `checkback follow` keeps, in Airflow: shown and verified, on Spark too, and written by nobody."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import broker
from recovery.airflow.bundle import dags_folder
from recovery.airflow.operating.doctor import OK, WARN, WRONG, examine
from recovery.airflow.settings import BadSettings
from recovery.airflow.workflows.store_dags import StoreDags
from recovery.following.follower import Follower, FollowOptions
from recovery.jobs import tasks
from recovery.jobs.setup import last_report
from tests.airflow.bags import DagBag
from tests.airflow.dag_runs import run
from tests.following.masters import SEGMENT, follow_once, served, traffic
from tests.jobs.shops import tree

ORDERS = 60


@pytest.fixture(params=["state-table", "half-op"])
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Two thirds of its transactions are ended."""
    with served(tmp_path / "master", request.param) as (store, address):
        traffic(store, ORDERS)
        follow_once(address, tmp_path / "copy", start="first", segment_bytes=SEGMENT)
    return tmp_path / "copy"


def test_it_is_on_the_page_and_has_one_dag(copy: Path, looked_after: Callable[..., None], api: TestClient) -> None:
    looked_after(audit={"path": copy, "copy": True}, shop={"path": copy.parent / "master"})
    bag = DagBag(dags_folder())
    assert not bag.import_errors
    assert {dag_id for dag_id in bag.dags if dag_id.startswith("audit.")} == {"audit.verify_store"}
    line, other = api.get("/checkback/api/stores").json()
    assert (line["counts"]["in_doubt"], line["dags"], line["unknown"]) == (
        ORDERS // 3, {"verify_store": "audit.verify_store"}, ["verify_store"],
    )  # fmt: skip
    assert other["copy"] is None
    shown = api.get("/checkback/api/stores/audit").json()
    assert {**shown["copy"], "master": ""} == {"master": "", "is_followed": False, "lost_bytes": 0, "losses": 0}
    first = shown["in_doubt"][0]["commitlog_offset"]
    steps = api.get(f"/checkback/api/stores/audit/transactions/{first}").json()["steps"]
    assert steps[0]["what"] in ("prepared", "half")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("copy", "engine"),
    [("state-table", "local"), ("half-op", "local"), ("half-op", "spark"), ("state-table", "spark")],
    indirect=["copy"],
)
@pytest.mark.sample("state-table-local", "half-op-local")
def test_it_is_verified_while_it_is_followed(
    engine: str, copy: Path, looked_after: Callable[..., None], database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report is the master's own, and not a byte of the copy changes by it."""
    if engine == "spark" and not shutil.which("java"):
        pytest.skip("Spark needs Java, and there is none here")
    monkeypatch.setenv("AIRFLOW_CONN_CHECKBACK_SPARK", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    monkeypatch.setenv("CHECKBACK_STATE", str(copy.parent / "state"))
    looked_after(audit={"path": copy, "copy": True, "engine": engine})
    with _followed(copy):
        before = {name: value for name, value in tree(copy).items() if "followed.db" not in str(name)}
        dag = DagBag(dags_folder() / "verify_store.py").dags["audit.verify_store"]
        dag.deadline = None  # as in the fixture `dag`
        states = run(dag)
        after = {name: value for name, value in tree(copy).items() if "followed.db" not in str(name)}
    assert states == {"verify": "success", "no_findings": "success", "run": "success"}
    assert after == before
    report = last_report(str(copy))
    assert report is not None
    expected = tasks.verify(str(copy.parent / "master"), now_ms=1)
    assert report["engine"].startswith(engine)
    same = ("digest", "transactions", "records", "bytes")
    assert {name: report[name] for name in same} == {name: expected[name] for name in same}


def test_the_doctor_says_what_is_wrong_with_a_copy(
    copy: Path, looked_after: Callable[..., None], database: None
) -> None:
    """Followed, not followed, not called a copy, and called one that is none."""
    copies = {"audit": {"path": copy, "copy": True}}
    looked_after(**copies, plain={"path": copy}, shop={"path": copy.parent / "master", "copy": True})
    texts = {(one.state, one.what.split(" 127.")[0]) for one in examine(run_s=0)}
    assert {(WARN, "audit: nobody follows"), (WRONG, "plain is a copy of"), (WRONG, "shop is not a copy")} <= texts
    looked_after(**copies)
    with _followed(copy):
        assert (OK, "audit follows") in {(one.state, one.what.split(" 127.")[0]) for one in examine(run_s=0)}


def test_nothing_writes_to_it(copy: Path) -> None:
    """Not a DAG of one's own, not by its settings, not by the library."""
    with pytest.raises(BadSettings, match="a copy has no DAG 'check_back'"):
        StoreDags("audit", path=str(copy), copy=True, only=["check_back"])
    with pytest.raises(BadSettings, match="leave out ledger"):
        StoreDags("audit", path=str(copy), copy=True, ledger="sqlite:///shop.db")
    with pytest.raises(broker.StoreError, match="a copy that follows a master"):
        broker.open(copy)


@contextlib.contextmanager
def _followed(copy: Path) -> Iterator[None]:
    """A follower in a thread, whose master does not answer."""
    stopped = threading.Event()
    with Follower("127.0.0.1:9", copy, FollowOptions()) as follower:
        thread = threading.Thread(target=follower.run, args=(stopped,))
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()
