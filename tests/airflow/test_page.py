"""The page inside of Airflow's interface, through Airflow's own API server: who may see it, and what it shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from recovery.jobs import tasks
from tests.jobs.shops import LATE_MS, park, shop, tree


@pytest.fixture
def page(api: TestClient, looked_after: Callable[..., None], tmp_path: Path) -> TestClient:
    """Logged in, with a store that has three in doubt, and three that are not right."""
    looked_after(
        shop={"path": shop(tmp_path / "shop", orders=3)},
        gone={"path": tmp_path / "gone"},
        unconnected={"connection": "nobody_made_it"},
        typo={"path": "/x", "check_back_every_s": 0},
    )
    return api


def test_nobody_sees_it_without_a_login(page: TestClient) -> None:
    """A plugin's app has no login of its own; each route of ours asks."""
    for route in ("/", "/api/stores", "/api/stores/shop", "/api/stores/shop/transactions/0"):
        assert page.get(f"/checkback{route}", headers={"Authorization": ""}).status_code == 401
        assert page.get(f"/checkback{route}", headers={"Authorization": "Bearer forged"}).status_code in (401, 403)


def test_the_page_is_one_file(page: TestClient) -> None:
    """Nothing is fetched from elsewhere."""
    shown = page.get("/checkback/")
    assert shown.headers["content-type"].startswith("text/html")
    assert "https://" not in shown.text
    assert 'src="' not in shown.text


def test_every_store_has_a_line(page: TestClient) -> None:
    """One that cannot be read says why, and does not hide the others."""
    one, gone, unconnected, typo = page.get("/checkback/api/stores").json()
    assert (one["dags"]["verify_store"], typo["dags"]) == ("shop.verify_store", {"settings": "typo.settings"})
    assert "nobody_made_it" in unconnected["error"]
    assert "check_back_every_s cannot be 0" in typo["error"]
    assert (one["name"], one["counts"]["in_doubt"], one["crashed"], one["error"]) == ("shop", 3, False, None)
    assert "no such directory" in gone["error"]
    assert page.get("/checkback/api/stores/gone").status_code == 409
    assert page.get("/checkback/api/stores/nobody").status_code == 404


def test_a_store_shows_what_waits_and_its_last_verification(page: TestClient, tmp_path: Path) -> None:
    """With age and attempts; and looking changes nothing."""
    path = tmp_path / "shop"
    offsets = park(path, why="the till was closed")
    tasks.verify(str(path), now_ms=5)
    before = tree(path)
    shown = page.get("/checkback/api/stores/shop").json()
    assert [one["commitlog_offset"] for one in shown["parked"]] == offsets
    assert {one["why"] for one in shown["parked"]} == {"the till was closed"}
    assert shown["report"]["transactions"]["in_doubt"] + shown["report"]["transactions"]["parked"] == 3
    assert shown["dags"]["resolve_parked"] == "shop.resolve_parked"
    steps = page.get(f"/checkback/api/stores/shop/transactions/{offsets[0]}").json()["steps"]
    assert [step["what"] for step in steps] == ["prepared", "parked"]
    assert page.get("/checkback/api/stores/shop/transactions/1").status_code == 404
    assert tree(path) == before


def test_the_story_tells_of_checks(page: TestClient, tmp_path: Path) -> None:
    """Who was asked how often, and when again."""
    late = time.time_ns() // 1_000_000 + LATE_MS
    tasks.check_back(str(tmp_path / "shop"), now_ms=late, resolver="tests.jobs.shops:knows_nothing")
    (one, *_) = page.get("/checkback/api/stores/shop").json()["in_doubt"]
    assert one["checks"] == 1
    steps = page.get(f"/checkback/api/stores/shop/transactions/{one['commitlog_offset']}").json()["steps"]
    assert steps[-1]["what"] == "asked 1 time"
    assert "knows_nothing answered unknown" in steps[-1]["last_answer"]


def test_no_body_of_a_message_is_shown(page: TestClient, tmp_path: Path) -> None:
    """Bodies are the application's; keys and properties are for operators."""
    (one, *_) = page.get("/checkback/api/stores/shop").json()["in_doubt"]
    story = page.get(f"/checkback/api/stores/shop/transactions/{one['commitlog_offset']}").text
    assert "order 0" not in story
