"""The deployed shape of docker/compose.yaml without an engine: each service, by `tests.torture.containers`.

Commands, environment, secrets, volumes and health checks are the compose file's, the user and the directories those of
the Dockerfile. One verification is started by REST and runs on the Spark cluster.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.airflow.compose import PARTS, SERVICES, made_secrets
from tests.house.tree import ROOT
from tests.ledger import postgres
from tests.torture.containers import OWN_IMAGE, PACKAGES, Containers, missing

READY_S, RUN_S = 300, 300
SPARK = ("spark-master", "spark-worker-1", "spark-worker-2")
DATA = "/var/lib/postgresql/of-the-test"

CREATE = """
import psycopg
psycopg.connect("host=/tmp user=airflow dbname=postgres", autocommit=True).execute("create database airflow")
"""

# The application: another process of the same user, beside `checkback serve`.
APPLICATION = """
import broker
with broker.open("/stores/shop.store") as store:
    halves = [store.transactions.prepare(broker.Message("orders", b"%d" % n, keys=[str(n)]), "shop") for n in range(40)]
    for half in halves[:10]:
        store.transactions.park(half, "the till was closed")
"""

# Somebody at the API; what Airflow says about a verification.
CLIENT = """
import json, sys, time
from recovery.airflow.local.rest import NoAnswer, Rest
password = json.load(open("/run/secrets/airflow_passwords.json"))["admin"]
rest = Rest("http://airflow-api:8080", lambda: ("admin", password))
deadline = time.monotonic() + {ready_s}
while rest.unhealthy() or "shop.verify_store" not in rest.dag_ids():
    assert time.monotonic() < deadline, rest.unhealthy()
    time.sleep(1)
run = rest.trigger("shop.verify_store")
state = rest.wait("shop.verify_store", run, {run_s}).state
task = "/api/v2/dags/shop.verify_store/dagRuns/" + run.replace("+", "%2B") + "/taskInstances/verify"
told = rest.ask("GET", task + "/xcomEntries/return_value")["value"] if state == "success" else None
print(json.dumps({{"state": state, "pool": rest.ask("GET", "/api/v2/pools/spark")["slots"], "told": told}}))
"""

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing()),
    pytest.mark.skipif(bool(missing()), reason=missing()),
    pytest.mark.skipif(not shutil.which("java"), reason="Spark needs Java, and there is none here"),
]


@pytest.fixture
def shape(tmp_path: Path) -> Iterator[Containers]:
    with Containers(tmp_path, made_secrets()) as made:
        yield made


def until(is_so: Callable[[], Any], made: Containers, what: str) -> None:
    """Wait until something is so; the logs otherwise."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            if is_so():
                return
        time.sleep(0.5)
    raise AssertionError(f"{what}:\n{logs(made)}")


def logs(made: Containers) -> str:
    return "\n".join(f"== {one.name}\n{one.read_text(errors='replace')[-2000:]}" for one in sorted(made.logs.iterdir()))


def start_postgres(made: Containers) -> None:
    """This machine's PostgreSQL, with the user and the password of the compose file."""
    programs = Path(postgres._program("initdb") or "").parent
    made.run("install", "--directory", "--owner=postgres", DATA)
    given = "--pwfile=/run/secrets/postgres_password"
    options = ("--username=airflow", given, "--auth-host=scram-sha-256", "--auth-local=trust")
    made.run(f"{programs}/initdb", f"--pgdata={DATA}", *options, user="postgres")
    listen = "-c listen_addresses=127.0.0.1 -c fsync=off -k /tmp"
    log = f"{DATA}/log"
    made.run(f"{programs}/pg_ctl", f"--pgdata={DATA}", "--wait", f"--log={log}", "-o", listen, "start", user="postgres")
    made.run("python", "-c", CREATE, user="postgres")


def test_every_command_runs_as_the_images_user(shape: Containers) -> None:
    """Uid 50000, packages of root, volumes as Docker makes them: each service is healthy, and Spark did the work."""
    assert shape.run("id", "-u", "airflow").strip() == "50000"
    with pytest.raises(AssertionError, match="Permission denied"):
        shape.run("touch", f"{PACKAGES}/here", user="airflow")
    start_postgres(shape)
    assert shape.start("airflow-init").wait(READY_S) == 0, logs(shape)
    shape.start("airflow-api")  # has port 8080 before Spark's pages look for a free one
    until(lambda: shape.is_healthy("airflow-api"), shape, "airflow-api")
    shape.start("spark-master")
    until(lambda: shape.is_healthy("spark-master"), shape, "spark-master")
    for name in (*SPARK[1:], "serve", *sorted(PARTS - {"airflow-api"})):
        shape.start(name)
    until(lambda: shape.is_healthy("serve"), shape, "serve")
    shape.run("python", "-c", APPLICATION, user="airflow", PYTHONPATH=str(ROOT))
    client = ["python", "-c", CLIENT.format(ready_s=READY_S, run_s=RUN_S)]
    words = shape.words(client, {"PYTHONPATH": str(ROOT)}, "root")
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=READY_S + RUN_S + 60)
    assert done.returncode == 0, f"{done.stderr[-2000:]}\n{logs(shape)}"
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["state"], found["pool"]) == ("success", 1), logs(shape)
    assert found["told"]["engine"] == "spark (spark://spark-master:7077)"
    assert (found["told"]["ok"], found["told"]["transactions"]["parked"]) == (True, 10)
    executors = {Path(one).name for one in shape.run("sh", "-c", "ls -d /tmp/spark-work/app-*/*").split()}
    assert {"0", "1"} <= executors, "two executors of one core: one ran on each worker"
    checked = {name for name, service in OWN_IMAGE.items() if "healthcheck" in service}
    assert checked == set(SERVICES) - {"postgres", "airflow-init"}
    for name in checked:
        until(lambda name=name: shape.is_healthy(name), shape, name)  # type: ignore[misc]
    owners = set(shape.run("sh", "-c", "find /stores /opt/airflow -printf '%u\n'").split())
    assert owners == {"airflow"}
