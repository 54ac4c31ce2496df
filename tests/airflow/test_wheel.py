"""An Airflow that has nothing of ours but the wheel: it starts, knows the provider, and finds the DAGs."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.house.tree import ROOT
from tests.house.wheel import build_wheel

Airflow = Callable[..., str]
OURS = ("checkback", "__editable__")

DAGS = """
try:
    from airflow.dag_processing.dagbag import DagBag
except ModuleNotFoundError:
    from airflow.models.dagbag import DagBag
import recovery
from recovery.airflow.bundle import dags_folder
bag = DagBag(dags_folder())
assert not bag.import_errors, bag.import_errors
print(recovery.__file__, dags_folder(), *bag.dags, sep="\\n")
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment with our wheel; all other distributions are those of this one."""
    directory = tmp_path_factory.mktemp("fresh")
    venv.create(directory / "environment", with_pip=False, symlinks=True)
    python = directory / "environment/bin/python"
    wheel = build_wheel(directory / "tree", directory)
    install = ["install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), *install], check=True, timeout=60)
    others = directory / "others"
    others.mkdir()
    here = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    for one in (one for path in here for one in Path(path).iterdir()):
        if not one.name.startswith(OURS) and one.suffix != ".pth":
            (others / one.name).symlink_to(one)
    (site,) = (directory / "environment").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(f"{others}\n")
    return python


@pytest.fixture
def run(python: Path, tmp_path: Path) -> Airflow:
    """`run("-m", "airflow", ...)` in the fresh environment, from an empty directory; what it says."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
    environment = {**kept, "AIRFLOW_HOME": str(tmp_path / "airflow"), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    stores = tmp_path / "stores.toml"
    stores.write_text(f'[stores.shop]\npath = "{tmp_path}/shop"\n')
    environment["AIRFLOW__CHECKBACK__STORES"] = str(stores)

    def start(*words: str) -> str:
        ran = subprocess.run(
            [python, *words], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=80, check=False
        )
        assert ran.returncode == 0, ran.stderr[-4000:]
        assert "Traceback" not in ran.stderr
        return ran.stdout

    return start


def test_airflow_starts_and_knows_the_provider(run: Airflow) -> None:
    """`airflow version` says Airflow's; `airflow providers list` names ours with its version."""
    assert run("-m", "airflow", "version").split()[-1] == importlib.metadata.version("apache-airflow")
    (line,) = [line for line in run("-m", "airflow", "providers", "list").splitlines() if line.startswith("checkback")]
    assert tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"] in line


def test_the_dags_come_with_the_wheel(run: Airflow, python: Path) -> None:
    """The bundle finds all seven where the wheel put them."""
    module, directory, *dags = run("-c", DAGS).splitlines()[-9:]
    environment = python.parent.parent
    assert Path(module).is_relative_to(environment)
    assert Path(directory).is_relative_to(environment)
    assert len(dags) == 7
