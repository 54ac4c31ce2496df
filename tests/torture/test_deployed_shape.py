"""The deployed shape of docker/compose.yaml without containers: the command of each service, as a process on loopback.

PostgreSQL for Airflow's tables, the four parts of Airflow, a Spark master and two workers; one verification is started
by REST and runs on the cluster. What the compose file says is taken from it: commands, environment, the stores' file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from recovery.airflow.local.rest import NoAnswer, Rest
from recovery.airflow.local.standalone import Standalone
from recovery.jobs import tasks
from tests.airflow.compose import DOCKER, PARTS, SERVICES, made_secrets
from tests.jobs.shops import park, shop
from tests.ledger import postgres

READY_S, RUN_S = 240.0, 240.0
SPARK = ("spark-master", "spark-worker-1", "spark-worker-2")
PYSPARK = re.compile(r"^/\S+/site-packages/pyspark/bin/spark-class$")
SPARK_CLASS = """
import os, sys, pyspark
program = os.path.join(os.path.dirname(pyspark.__file__), "bin/spark-class")
os.execv(program, [program, *sys.argv[1:]])
"""

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing()),
    pytest.mark.skipif(not shutil.which("java"), reason="Spark needs Java, and there is none here"),
]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def until(is_so: Callable[[], Any], timeout_s: float, log: Path) -> Any:
    """What `is_so` says as soon as it says anything."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(NoAnswer):
            if found := is_so():
                return found
        time.sleep(0.2)
    raise AssertionError("\n".join(f"== {one.name}\n{one.read_text()[-2000:]}" for one in sorted(log.glob("*.log"))))


class Shape:
    """The services of the compose file, on this machine: hosts are the loopback, volumes are directories in
    `directory`."""

    def __init__(self, directory: Path, socket_directory: Path) -> None:
        self.directory, self.stores, self.logs = directory, directory / "stores", directory / "logs"
        self.stores.mkdir()
        self.logs.mkdir()
        self.api_port, self.spark_port = free_port(), free_port()
        told = (DOCKER / "stores.toml").read_text(encoding="utf-8").replace("/stores/", f"{self.stores}/")
        (directory / "stores.toml").write_text(told)
        self.database = f"postgresql+psycopg://shop@/postgres?host={quote(str(socket_directory))}"
        self.secrets, self.state = directory / "secrets", directory / "state"
        self.secrets.mkdir()
        self.state.mkdir()
        made = made_secrets() | {"sql_alchemy_conn": self.database}
        for name, text in made.items():
            (self.secrets / name).write_text(self.here(text))
        self.login = ("admin", json.loads(made["airflow_passwords.json"])["admin"])
        self._started: list[subprocess.Popen[bytes]] = []
        environment = {name: self.here(value) for name, value in SERVICES["airflow-api"]["environment"].items()}
        stores = environment.pop("AIRFLOW__CHECKBACK__STORES")
        self.airflow = Standalone(str(directory / "airflow"), self.api_port, stores, **environment)

    def here(self, text: str) -> str:
        """A text of the compose file, with the hosts, directories and secrets of this machine."""
        text = text.replace("/run/secrets", str(self.secrets)).replace("/opt/airflow/state", str(self.state))
        text = text.replace("airflow-api:8080", f"127.0.0.1:{self.api_port}")
        text = text.replace("spark-master", "127.0.0.1").replace("7077", str(self.spark_port))
        return text.replace("/stores/", f"{self.stores}/").replace("/etc/checkback", str(self.directory))

    def command(self, name: str) -> list[str]:
        """What a service runs, as words for Python's interpreter."""
        words = [self.here(word) for word in SERVICES[name]["command"]]
        if words[0] == "airflow":
            return ["-m", *words]
        if PYSPARK.match(words[0]):  # only its place is another here
            return ["-c", SPARK_CLASS, *words[1:], "--webui-port", "0", *self.work_directory(name)]
        return ["-c", f"import os; os.execvp({words[0]!r}, {words!r})"]

    def work_directory(self, name: str) -> list[str]:
        """In a container each worker has a file system of its own."""
        return ["--work-dir", str(self.directory / name)] if "worker" in name else []

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """A service, as a process of its own."""
        with (self.logs / f"{name}.log").open("wb") as log:
            self._started.append(self.airflow.child(self.command(name), log))
        return self._started[-1]

    def stop(self) -> None:
        """All of it, first by asking."""
        for pid in self.airflow.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        self.airflow.stop()
        for process in self._started:
            process.wait(READY_S)

    def is_open(self, port: int) -> bool:
        """The health of a service that listens."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5):
            return True
        return False

    def workers_are_there(self) -> bool:
        return (self.logs / "spark-master.log").read_text(errors="replace").count("Registering worker") == 2


@pytest.fixture
def shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shape]:
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    with postgres.server() as socket_directory:
        made = Shape(tmp_path, socket_directory)
        try:
            yield made
        finally:
            made.stop()
            assert not made.airflow.left()


def test_a_verification_by_rest_runs_on_the_cluster(shape: Shape) -> None:
    """Every service comes up as the compose file orders it; the report is the local engine's, made by both workers."""
    path = shop(shape.stores / "shop.store", orders=40)
    park(path)
    expected = tasks.verify(str(path), now_ms=1)
    assert shape.start("airflow-init").wait(READY_S) == 0, (shape.logs / "airflow-init.log").read_text()[-3000:]
    shape.start("spark-master")
    until(lambda: shape.is_open(shape.spark_port), READY_S, shape.logs)
    for name in (*SPARK[1:], *sorted(PARTS)):
        shape.start(name)
    rest = Rest(shape.airflow.url, lambda: shape.login)
    until(lambda: not rest.unhealthy() and shape.workers_are_there(), READY_S, shape.logs)
    until(lambda: "shop.verify_store" in rest.dag_ids(), READY_S, shape.logs)
    assert rest.ask("GET", "/api/v2/pools/spark")["slots"] == 1
    run = rest.trigger("shop.verify_store")
    assert rest.wait("shop.verify_store", run, RUN_S).state == "success"
    task = f"/api/v2/dags/shop.verify_store/dagRuns/{quote(run, safe='')}/taskInstances/verify"
    told = rest.ask("GET", f"{task}/xcomEntries/return_value")["value"]
    assert told["engine"] == f"spark (spark://127.0.0.1:{shape.spark_port})"
    assert (told["digest"], told["transactions"]) == (expected["digest"], expected["transactions"])
    ran = [name for name in SPARK[1:] if any((shape.directory / name).glob("app-*"))]
    assert ran == list(SPARK[1:]), "an executor ran on each worker"
