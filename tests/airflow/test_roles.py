"""What each of Airflow's roles may see and do: the page offers what Airflow allows, and nothing that it refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from recovery.airflow.settings import WORK
from tests.jobs.shops import ANSWERS, shop

ROLES = ("viewer", "user", "op", "admin")
ROUTES = ("", "/shop", "/shop/report", "/shop/transactions/0", "/shop/dlq/billing")
SECRET = "LedgerPw987"  # noqa: S105 - of a database that is not there


@pytest.fixture
def login(api: TestClient, looked_after: Callable[..., None], tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """`login("viewer")`: the headers of a user with that role; there are two stores."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    ledger = f"postgresql+psycopg://shop:{SECRET}@127.0.0.1:1/shop"
    looked_after(
        shop={"path": shop(tmp_path / "shop", orders=3), "ledger": ledger},
        hidden={"path": shop(tmp_path / "hidden", orders=1), "resolver": ANSWERS},
    )

    def headers(role: str) -> dict[str, str]:
        token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=role, role=role))
        return {"Authorization": f"Bearer {token}"}

    return headers


@pytest.mark.parametrize("role", ROLES)
def test_a_role_is_offered_what_airflow_lets_it_do(
    role: str, api: TestClient, login: Callable[[str], dict[str, str]]
) -> None:
    """A viewer looks; a user starts DAGs, decides and unpauses; connections are for op and admin."""
    headers = login(role)
    may = api.get("/checkback/api/stores/shop", headers=headers).json()["may"]
    acts = role != "viewer"
    assert may == {"start": list(WORK) if acts else [], "unpause": acts}
    run = "/api/v2/dags/shop.check_back/dagRuns"
    refused = {
        "start": api.post(run, headers=headers, json={"logical_date": None}).status_code == 403,
        "unpause": api.patch("/api/v2/dags/shop.check_back", headers=headers, json={"is_paused": False}).status_code
        == 403,
        "answer": api.patch(
            f"{run}/manual/taskInstances/approve/-1/hitlDetails",
            headers=headers,
            json={"chosen_options": ["Approve"], "params_input": {}},
        ).status_code
        == 403,
    }
    assert refused == dict.fromkeys(refused, not acts)
    assert (api.get("/api/v2/connections", headers=headers).status_code == 200) == (role in ("op", "admin"))


@pytest.mark.parametrize("role", ROLES)
def test_no_role_sees_a_password(role: str, api: TestClient, login: Callable[[str], dict[str, str]]) -> None:
    """In no answer of the page; and none of its routes takes anything but GET."""
    for route in ROUTES:
        shown = api.get(f"/checkback/api/stores{route}", headers=login(role))
        assert shown.status_code in (200, 404), route
        assert SECRET not in shown.text
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert api.request(method, f"/checkback/api/stores{route}", headers=login(role)).status_code == 405


def test_a_store_whose_dags_are_hidden_is_hidden(
    api: TestClient,
    login: Callable[[str], dict[str, str]],
    looked_after: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with roles for each DAG, which FAB and Keycloak have: not in the list, and 404 by its name.

    Neither is it in the list, with its path, once there is a mistake in its settings.
    """
    from airflow.api_fastapi.app import get_auth_manager

    manager = get_auth_manager()
    may = manager.is_authorized_dag

    def shop_alone(*, details: Any = None, **asked: Any) -> bool:
        hidden = details is not None and str(details.id).startswith("hidden.")
        return not hidden and may(details=details, **asked)

    monkeypatch.setattr(manager, "is_authorized_dag", shop_alone)
    headers = login("user")
    assert [one["name"] for one in api.get("/checkback/api/stores", headers=headers).json()] == ["shop"]
    for route in ROUTES[1:]:
        path = f"/checkback/api/stores{route.replace('shop', 'hidden')}"
        assert api.get(path, headers=headers).status_code == 404
    looked_after(typo={"path": "/x", "ask": "true"}, hidden={"path": "secret/place"})
    assert [one["name"] for one in api.get("/checkback/api/stores", headers=headers).json()] == ["typo"]
