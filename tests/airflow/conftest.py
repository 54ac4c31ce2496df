"""Airflow for this room: its environment is set before its first import, in a directory of its own.

The room keeps to one process (an xdist group): Airflow takes seconds to load and to make its tables, configures logging
for the whole process, and warns where this project would fail.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from airflow.sdk import DAG

PASSWORDS = "simple_auth_manager_passwords.json.generated"
HOME = tempfile.mkdtemp(prefix="checkback-airflow-")
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
os.environ.update(
    AIRFLOW_HOME=HOME,
    AIRFLOW__CORE__LOAD_EXAMPLES="False",
    AIRFLOW__CORE__UNIT_TEST_MODE="False",
    AIRFLOW__API_AUTH__JWT_SECRET="for tests, and long enough for a signature " * 2,
    AIRFLOW__LOGGING__LOGGING_LEVEL="ERROR",
    AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST=json.dumps(
        [{"name": "checkback", "classpath": "recovery.airflow.bundle.CheckbackDagBundle", "kwargs": {}}]
    ),
)
os.environ.pop("AIRFLOW__CHECKBACK__STORES", None)


@contextlib.contextmanager
def logging_kept() -> Iterator[None]:
    """Airflow configures logging for the whole process: other rooms in it get back what they had."""
    root = logging.getLogger()
    level, handlers, disabled = root.level, list(root.handlers), logging.root.manager.disable
    yield
    root.setLevel(level)
    root.handlers[:] = handlers
    logging.disable(disabled)
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and not logger.name.startswith("airflow"):
            logger.disabled = False


with warnings.catch_warnings(), logging_kept():
    warnings.simplefilter("ignore")  # Airflow's own, of its own dependencies
    import airflow.api_fastapi.app
    import airflow.models  # noqa: F401
    import fastapi.testclient  # noqa: F401

    import tests.airflow.bags  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings fail a test everywhere else. Here those are let pass that Airflow and what it stands on give."""
    room = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(room):
            for kind in ("DeprecationWarning", "PendingDeprecationWarning", "UserWarning", "ResourceWarning"):
                item.add_marker(pytest.mark.filterwarnings(f"ignore::{kind}"))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(90))
            item.add_marker(pytest.mark.xdist_group("airflow"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))


@pytest.fixture(autouse=True)
def _logging_kept() -> Iterator[None]:
    with logging_kept():
        yield


@pytest.fixture(scope="session")
def database() -> None:
    """Airflow's tables, in SQLite."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture
def looked_after(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`looked_after(shop={"path": ...})` puts stores into the setting that the DAG files read."""

    def put(**stores: dict[str, Any]) -> None:
        values = {name: {key: _plain(value) for key, value in one.items()} for name, one in stores.items()}
        monkeypatch.setenv("AIRFLOW__CHECKBACK__STORES", json.dumps({"stores": values}))

    return put


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, Path) else value


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """`connection("shop", path=...)` makes an Airflow connection of type checkback; its id."""

    def make(conn_id: str, *, conn_type: str = "checkback", password: str | None = None, **extra: Any) -> str:
        value = {"conn_type": conn_type, "password": password, "extra": {k: _plain(v) for k, v in extra.items()}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", json.dumps(value))
        return conn_id

    return make


@pytest.fixture(scope="session")
def api(database: None) -> Iterator[Any]:
    """Airflow's API server, without a socket; logged in as its admin."""
    import airflow.api_fastapi.execution_api.routes  # noqa: F401  (dag.test() would, while another thread asks the API)
    from airflow.api_fastapi.app import create_app
    from fastapi.testclient import TestClient

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with TestClient(create_app(apps="core")) as client:
            user, password = next(iter(json.loads(Path(HOME, PASSWORDS).read_text()).items()))
            answer = client.post("/auth/token", json={"username": user, "password": password})
            client.cookies.clear()
            client.headers["Authorization"] = f"Bearer {answer.json()['access_token']}"
            yield client


@pytest.fixture
def quiet() -> Iterator[None]:
    """Operators called directly warn that no task runs them; that is meant here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture
def dag(database: None, looked_after: Callable[..., None]) -> Callable[..., DAG]:
    """`dag("verify_store", path=...)` is that DAG for a store called shop."""
    from recovery.airflow.bundle import dags_folder
    from tests.airflow.bags import DagBag
    from tests.jobs.shops import ANSWERS

    def load(work: str, **settings: Any) -> DAG:
        looked_after(shop={"resolver": ANSWERS, "engine": "local", **settings})
        bag = DagBag(dags_folder() / f"{work}.py")
        assert not bag.import_errors
        found = bag.dags[f"shop.{work}"]
        found.deadline = None  # Airflow 3.3.2: dag.test() of a DAG with a deadline fails when its tasks are done
        return found

    return load
