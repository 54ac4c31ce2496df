"""The deployed shape as files: they parse, what they name exists, nothing floats, nothing is open to the network."""

from __future__ import annotations

import json
import re
import tomllib

import pytest

from recovery.airflow.bundle import CheckbackDagBundle
from recovery.airflow.local.standalone import BUNDLES
from recovery.airflow.settings import read_stores
from tests.airflow.compose import COMPOSE, DOCKER, DOCKERFILE, PARTS, SERVICES
from tests.house.tree import ROOT


def test_every_part_is_there() -> None:
    """PostgreSQL, the four parts of Airflow and what makes its tables, a Spark master and two workers."""
    assert set(SERVICES) == PARTS | {"postgres", "airflow-init", "spark-master", "spark-worker-1", "spark-worker-2"}
    commands = {" ".join(SERVICES[name]["command"]) for name in PARTS}
    assert commands == {"airflow api-server", "airflow scheduler", "airflow dag-processor", "airflow triggerer"}


@pytest.mark.parametrize("name", SERVICES)
def test_what_a_service_names_exists(name: str) -> None:
    """Its build context, its Dockerfile, its files, its volumes, and those it waits for, which must have a health."""
    service = SERVICES[name]
    if "build" in service:
        context = (DOCKER / service["build"]["context"]).resolve()
        assert context == ROOT
        assert (context / service["build"]["dockerfile"]).is_file()
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert (DOCKER / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
    for other, how in service.get("depends_on", {}).items():
        assert how["condition"] in ("service_healthy", "service_completed_successfully")
        assert how["condition"] != "service_healthy" or "healthcheck" in SERVICES[other]


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_floats_and_nothing_is_open(name: str) -> None:
    """Images have versions; ports are published on the loopback only; no secret stands in the file."""
    service = SERVICES[name]
    assert re.search(r":\d+(\.\d+)+", service["image"])
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")
    for key, value in service.get("environment", {}).items():
        if re.search("PASSWORD|SECRET|KEY", key):
            assert re.fullmatch(r"\$\{\w+(:\?[^}]+)?\}", value), key


def test_what_airflow_is_told_is_right() -> None:
    """The bundle is ours, the connections are JSON, the stores' file is one that the DAGs can read."""
    told = SERVICES["airflow-scheduler"]["environment"]
    assert json.loads(told["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"]) == BUNDLES[:1]
    assert BUNDLES[0]["classpath"] == f"{CheckbackDagBundle.__module__}.{CheckbackDagBundle.__name__}"
    (store,) = read_stores(str(DOCKER / "stores.toml")).stores
    connections = {name: json.loads(value) for name, value in told.items() if name.startswith("AIRFLOW_CONN_")}
    assert connections[f"AIRFLOW_CONN_{str(store.connection).upper()}"]["extra"]["path"] == store.path
    assert connections["AIRFLOW_CONN_CHECKBACK_SPARK"]["host"] == "spark://spark-master"
    assert store.pool in SERVICES["airflow-init"]["command"][-1].split()
    wanted = set(re.findall(r"\$\{(\w+)", (DOCKER / "compose.yaml").read_text(encoding="utf-8")))
    offered = set(re.findall(r"^(\w+)=", (DOCKER / "example.env").read_text(encoding="utf-8"), re.MULTILINE))
    assert wanted == offered


def test_the_image_is_built_from_the_lock() -> None:
    """With hashes; every folder and file that is copied exists, and all packages of the wheel are among them."""
    assert "--require-hashes --requirement requirements.lock" in DOCKERFILE
    assert re.search(r"^FROM \S+:\d+\.\d+\.\d+", DOCKERFILE, re.MULTILINE)
    copied = {word for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()}
    assert all((ROOT / name).exists() for name in copied)
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    folders = {
        setup.get("package-dir", {}).get(name, name.replace(".", "/")).split("/")[0] for name in setup["packages"]
    }
    assert folders <= copied
    assert re.search(r"^USER airflow$", DOCKERFILE, re.MULTILINE)


def test_the_python_of_the_workers_is_the_drivers() -> None:
    """Spark starts its Python by this path, on every machine."""
    (version,) = re.findall(r"^FROM python:(\d+\.\d+)", DOCKERFILE, re.MULTILINE)
    for name in ("spark-master", "spark-worker-1", "spark-worker-2"):
        assert SERVICES[name]["image"] == SERVICES["airflow-scheduler"]["image"]
        assert f"/python{version}/" in SERVICES[name]["command"][0]
