"""DAGs of a store in a DAG file of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from recovery.airflow.settings import BadSettings
from recovery.airflow.versions import HAS_APPROVALS
from recovery.airflow.workflows.store_dags import StoreDags

WORK = {"check_back", "recover_after_crash", "rebuild_state_table", "retention", "verify_store"}
WORK |= {"resolve_parked"} if HAS_APPROVALS else set()


def test_a_store_of_ones_own_has_all_dags_and_what_is_changed() -> None:
    """With settings as in the file of stores; arguments of DAGs go over ours."""
    made = StoreDags("own", path="/srv/own.store", queue="disk1", dags={"verify_store": {"schedule": "0 3 * * *"}})
    assert set(made) == WORK
    assert made["verify_store"].dag_id == "own.verify_store"
    assert made["verify_store"].schedule == "0 3 * * *"
    assert made["check_back"].get_task("check_back").queue == "disk1"
    assert set(StoreDags("own", path="/x", only=["check_back"])) == {"check_back"}


def test_an_owner_or_a_field_of_a_form_takes_nothing_away() -> None:
    """With `owner` in `default_args` no alert went out, and with `params` a recovery asked nobody."""
    changed = {"default_args": {"owner": "payments", "retries": 9}, "params": {"ticket": ""}}
    made = StoreDags("own", path="/srv/own.store", ask=True, dags={"recover_after_crash": changed})
    dag = made["recover_after_crash"]
    plan = dag.get_task("plan")
    assert (plan.owner, plan.retries) == ("payments", 9)
    assert plan.on_failure_callback
    assert plan.execution_timeout == timedelta(hours=6)
    assert (dag.params["ask"], dag.params["ticket"]) == (True, "")


def test_check_back_waits_for_a_watcher_with_a_schedule_behind_it(looked_after: Callable[..., None]) -> None:
    """An idle store has a run an hour; without a watcher, or with a connection, there is one every 30 s."""
    due = StoreDags("own", path="/srv/own.store", only=["check_back"])["check_back"].schedule
    assert type(due).__name__ == "AssetOrTimeSchedule"
    for settings in ({"path": "/srv/own.store", "watch": False}, {"connection": "own"}):
        assert StoreDags("own", only=["check_back"], **settings)["check_back"].schedule == timedelta(seconds=30)
    looked_after(shop={"path": "/srv/shop.store", "watch": False, "check_back_every_s": 5})
    assert StoreDags("shop", only=["check_back"])["check_back"].schedule == timedelta(seconds=5)


def test_a_mistake_is_one_sentence() -> None:
    """That names the call."""
    with pytest.raises(BadSettings, match=r"StoreDags\('own'\): stores.own has no setting 'pth'"):
        StoreDags("own", pth="/x")
    with pytest.raises(BadSettings, match="there is no DAG 'verify'"):
        StoreDags("own", path="/x", only=["verify"])
    with pytest.raises(BadSettings, match=r"only is a list of DAGs, as only=\['verify_store'\], not 'verify_store'"):
        StoreDags("own", path="/x", only="verify_store")
    with pytest.raises(BadSettings, match="the first argument is the store's name"):
        StoreDags(None, path="/x")  # type: ignore[arg-type]
    for dags in (["verify_store"], {"verify_store": "0 3 * * *"}, {"verify_store": None}):
        with pytest.raises(BadSettings, match=r"dags has arguments of DAG for single DAGs, as .*, not "):
            StoreDags("own", path="/x", dags=dags)  # type: ignore[arg-type]
    with pytest.raises(BadSettings, match=r"dags\['verify_store'\] cannot be used: .*schedle"):
        StoreDags("own", path="/x", dags={"verify_store": {"schedle": "0 3 * * *"}}, only=["verify_store"])
    for nothing in (3, None):
        with pytest.raises(BadSettings, match=f"default_args is a table, not {nothing}"):
            StoreDags("own", path="/x", dags={"verify_store": {"default_args": nothing}}, only={"verify_store"})
    with pytest.raises(BadSettings, match="has no such table"):
        StoreDags("nobody")
