"""The deployed shape as files: they parse, what they name exists, nothing floats, nothing is open to the network."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from airflow.api_fastapi.auth.managers.base_auth_manager import BaseAuthManager

from recovery.airflow.bundle import CheckbackDagBundle
from recovery.airflow.hook import SPARK_CONNECTION
from recovery.airflow.local.standalone import BUNDLES
from recovery.airflow.settings import read_stores
from tests.airflow.compose import COMPOSE, DOCKER, DOCKERFILE, PARTS, SERVICES, made_secrets
from tests.house.tree import ROOT


def test_every_part_is_there() -> None:
    """PostgreSQL, the four parts of Airflow and what makes its tables, Spark, and a store that is served."""
    spark = {"spark-master", "spark-worker-1", "spark-worker-2"}
    assert set(SERVICES) == PARTS | spark | {"postgres", "airflow-init", "serve"}
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


def test_every_service_that_stays_has_a_health_check() -> None:
    """Spark's workers had none: one that hangs took no work, and nobody saw it."""
    assert [name for name, service in SERVICES.items() if "healthcheck" not in service] == ["airflow-init"]


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_floats_and_nothing_is_open(name: str) -> None:
    """Images have versions; ports are published on the loopback only; no secret stands in the file."""
    service = SERVICES[name]
    assert re.search(r":\d+(\.\d+)+", service["image"])
    for port in service.get("ports", []):
        assert port.startswith("127.0.0.1:")
    for key, value in service.get("environment", {}).items():
        if re.search("PASSWORD|_SECRET_|KEY|CONN_CMD", key):
            assert "/run/secrets/" in value or value.startswith("/opt/airflow/state/"), key
        assert "${" not in value, f"{key}: what Compose would put in would be seen by docker inspect"


def test_every_volume_belongs_to_the_images_user() -> None:
    """One that Docker makes belongs to root: the Dockerfile makes each directory first, and gives it away."""
    own = [service for service in SERVICES.values() if service["image"].startswith("checkback:")]
    volumes = [volume.split(":") for service in own for volume in service.get("volumes", [])]
    named = {parts[1] for parts in volumes if not parts[0].startswith(".")}
    (made,) = re.findall(r"mkdir --parents (.+?) \\$", DOCKERFILE, re.MULTILINE)
    (given,) = re.findall(r"chown --recursive airflow (.+)$", DOCKERFILE, re.MULTILINE)
    assert named <= set(made.split())
    assert all(any(f"{one}/".startswith(f"{place}/") for place in given.split()) for one in named)


def test_spark_workers_write_where_they_may() -> None:
    """By default into the package of pyspark, which belongs to root."""
    for name in ("spark-worker-1", "spark-worker-2"):
        command = SERVICES[name]["command"]
        assert command[command.index("--work-dir") + 1].startswith("/tmp/")  # noqa: S108 - in the container


def test_spark_speaks_with_nobody_who_lacks_its_secret() -> None:
    """The cluster has it from a file, Airflow from its connection; neither is on a command line."""
    made = made_secrets()
    cluster = dict(line.split(" ") for line in made["spark.conf"].splitlines())
    spark = json.loads(made["connections.json"])[SPARK_CONNECTION]
    assert cluster.pop("spark.authenticate.secret") == spark["password"]
    assert cluster == {"spark.authenticate": "true", **spark["extra"]}
    for name in ("spark-master", "spark-worker-1", "spark-worker-2"):
        command = SERVICES[name]["command"]
        assert command[command.index("--properties-file") + 1] == "/run/secrets/spark.conf"
        assert SERVICES[name]["secrets"] == ["spark.conf"]


def test_what_airflow_is_told_is_right() -> None:
    """The bundle is ours, the connections are JSON, the stores' file is one that the DAGs can read."""
    told = SERVICES["airflow-scheduler"]["environment"]
    assert json.loads(told["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"]) == BUNDLES[:1]
    assert BUNDLES[0]["classpath"] == f"{CheckbackDagBundle.__module__}.{CheckbackDagBundle.__name__}"
    (store,) = read_stores(str(DOCKER / "stores.toml")).stores
    connections = json.loads(made_secrets()["connections.json"])
    assert connections[str(store.connection)]["extra"]["path"] == store.path
    spark = connections[SPARK_CONNECTION]
    assert f"{spark['host']}:{spark['port']}" in SERVICES["spark-worker-1"]["command"]
    assert store.pool in SERVICES["airflow-init"]["command"][-1].split()


def test_the_secrets_are_files_that_the_script_makes(tmp_path: Path) -> None:
    """Each is named in the compose file, used by a service, made once, and closed to other users."""
    files = {name: entry["file"] for name, entry in COMPOSE["secrets"].items()}
    assert {Path(file).name for file in files.values()} == set(made_secrets()) == set(files)
    used = {name for service in SERVICES.values() for name in service.get("secrets", [])}
    assert used == set(files)
    script = tmp_path / "make_secrets.py"
    script.write_text((DOCKER / "make_secrets.py").read_text(encoding="utf-8"))

    def run(*given: str, check: bool = True) -> str:
        done = subprocess.run([sys.executable, script, *given], capture_output=True, text=True, check=check)
        return done.stdout + done.stderr

    first = run()
    kept = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert kept["postgres_password"] in kept["sql_alchemy_conn"]
    assert json.loads(kept["airflow_passwords.json"])["admin"] in first
    (tmp_path / "secrets/jwt_secret").unlink()
    run()
    again = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert {name for name in kept if kept[name] != again[name]} == {"jwt_secret"}
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    (tmp_path / "secrets/jwt_secret").unlink()
    assert "has another ledger, or none: write the URL into it" in run("postgresql+psycopg://db/shop", check=False)
    assert not (tmp_path / "secrets/jwt_secret").exists()
    (tmp_path / "secrets/.jwt_secret.new").write_text("a run that was ki")
    assert "password" in run("")
    assert len((tmp_path / "secrets/jwt_secret").read_text()) == 64
    (tmp_path / "secrets/spark.conf").unlink()
    (tmp_path / "secrets/jwt_secret").unlink()
    assert "spark.conf is missing, and connections.json, which is there" in run(check=False)
    assert not (tmp_path / "secrets/jwt_secret").exists()


@pytest.mark.parametrize(
    ("given", "text"), [(["--help"], "usage: "), (["a://b", "c://d"], "usage: "), (["a://b"], "JSON")]
)
def test_what_no_secret_can_be_made_of_is_said(tmp_path: Path, given: list[str], text: str) -> None:
    """`--help` became the ledger's URL, and a comma that a person left out a traceback."""
    script = tmp_path / "make_secrets.py"
    script.write_text((DOCKER / "make_secrets.py").read_text(encoding="utf-8"))
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/connections.json").write_text('{"shop": {')
    done = subprocess.run([sys.executable, script, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert text in done.stderr
    assert done.stderr.endswith("Nothing was written\n")
    assert [path.name for path in (tmp_path / "secrets").iterdir()] == ["connections.json"]


def test_the_image_has_what_runs_and_no_tools() -> None:
    """Its lock has the same versions as that of the tree, the driver of the database, and nothing for tests."""

    def pins(path: str) -> dict[str, str]:
        text = (ROOT / path).read_text(encoding="utf-8")
        return dict(re.findall(r"^([a-z0-9-]+)(?:\[[^]]*\])?==(\S+)", text, re.MULTILINE))

    image, tree = pins("docker/requirements.lock"), pins("requirements.lock")
    assert image.items() <= tree.items()
    assert {"apache-airflow", "pyspark", "psycopg", "sqlalchemy", "uvicorn", "setuptools"} <= set(image)
    assert not {"pytest", "mypy", "ruff", "hypothesis", "uv", "mkdocs-material"} & set(image)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (named,) = re.findall(r"^IMAGE := (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    wanted = {re.split(r"[^a-z0-9-]", one)[0] for name in named.split() for one in extras[name]}
    assert wanted <= {*image, "checkback"}


def test_the_kubernetes_values_are_the_compose_files(tmp_path: Path) -> None:
    """The same bundle, the same file of stores, and one claim for all that touches a store."""
    values = yaml.safe_load((DOCKER / "kubernetes/values.yaml").read_text(encoding="utf-8"))
    told = {one["name"]: one["value"] for one in values["env"]}
    assert json.loads(told["AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"]) == BUNDLES[:1]
    claims = [one["persistentVolumeClaim"]["claimName"] for one in values["volumes"] if "persistentVolumeClaim" in one]
    manifests = list(yaml.safe_load_all((DOCKER / "kubernetes/stores.yaml").read_text(encoding="utf-8")))
    kinds = {one["kind"]: one for one in manifests}
    assert claims == [kinds["PersistentVolumeClaim"]["metadata"]["name"]]
    file = tmp_path / "stores.toml"
    file.write_text(kinds["ConfigMap"]["data"]["stores.toml"])
    (store,) = read_stores(str(file)).stores
    mounts = [one["mountPath"] for one in values["volumeMounts"]]
    assert any(store.path.startswith(mount) for mount in mounts)
    assert told["AIRFLOW__CHECKBACK__STORES"].startswith(tuple(mounts))


def test_the_kubernetes_values_name_an_auth_manager_that_the_image_has() -> None:
    """The chart takes FAB, and makes its user by `airflow users`: the API server and the installation failed."""
    values = yaml.safe_load((DOCKER / "kubernetes/values.yaml").read_text(encoding="utf-8"))
    lock = (DOCKER / "requirements.lock").read_text(encoding="utf-8")
    assert "apache-airflow-providers-fab==" not in lock
    module, name = values["config"]["core"]["auth_manager"].rsplit(".", 1)
    assert issubclass(getattr(importlib.import_module(module), name), BaseAuthManager)
    assert values["createUserJob"] == {"enabled": False}


def test_the_image_is_built_from_the_lock() -> None:
    """With hashes; every directory and file that is copied exists, and all packages of the wheel are among them."""
    assert "COPY docker/requirements.lock ./" in DOCKERFILE
    assert "--require-hashes --requirement requirements.lock" in DOCKERFILE
    assert re.search(r"^FROM \S+:\d+\.\d+\.\d+", DOCKERFILE, re.MULTILINE)
    copied = {word for line in re.findall(r"^COPY (.*) \S+$", DOCKERFILE, re.MULTILINE) for word in line.split()}
    assert all((ROOT / name).exists() for name in copied)
    setup = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    directories = {
        setup.get("package-dir", {}).get(name, name.replace(".", "/")).split("/")[0] for name in setup["packages"]
    }
    assert directories <= copied
    assert re.search(r"^USER airflow$", DOCKERFILE, re.MULTILINE)


def test_the_python_of_the_workers_is_the_drivers() -> None:
    """Spark starts its Python by this path, on every machine."""
    (version,) = re.findall(r"^FROM python:(\d+\.\d+)", DOCKERFILE, re.MULTILINE)
    for name in ("spark-master", "spark-worker-1", "spark-worker-2"):
        assert SERVICES[name]["image"] == SERVICES["airflow-scheduler"]["image"]
        assert f"/python{version}/" in SERVICES[name]["command"][0]
