"""`checkback airflow doctor`: what it finds wrong, and what it says to do next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.airflow.operating.doctor import OK, WRONG, examine
from recovery.airflow.operating.sight import SightTrigger, sight_of
from tests.jobs.shops import ANSWERS, shop


@pytest.mark.usefixtures("database")
def test_each_thing_that_is_wrong_has_a_next_step(looked_after: Callable[..., None], tmp_path: Path) -> None:
    """A store in order, one that is missing, a mistake, a pool that nobody made; Airflow itself does not run here."""
    looked_after(
        shop={"path": shop(tmp_path / "shop", orders=3), "resolver": ANSWERS, "pool": "nobody_made_it"},
        gone={"path": tmp_path / "gone"},
        typo={"path": "/x", "ask": "true"},
    )
    found = list(examine(run_s=0))
    assert all(one.next_step for one in found if one.state != OK)
    wrong = " | ".join(one.what for one in found if one.state == WRONG)
    for text in ("ask cannot be 'true'", "scheduler: has no heartbeat", "pool nobody_made_it", "no such directory"):
        assert text in wrong, wrong
    assert any(one.state == OK and "3 transactions in doubt" in one.what for one in found)


def test_without_settings_it_says_so(looked_after: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """First of all."""
    monkeypatch.delenv("AIRFLOW__CHECKBACK__STORES", raising=False)
    _version, first, *_ = examine(run_s=0)
    assert (first.state, "is empty" in first.what) == (WRONG, True)


def test_what_a_process_sees(tmp_path: Path) -> None:
    """Nothing wrong with a store; a sentence where there is none."""
    assert sight_of(str(shop(tmp_path / "shop", orders=1)))["why"] == ""
    assert "no such directory" in sight_of(str(tmp_path / "gone"))["why"]
    assert SightTrigger("/x").serialize()[1] == {"path": "/x"}
