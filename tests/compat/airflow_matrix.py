"""The core of tests/airflow with older Airflows: `python -m tests.compat.airflow_matrix [VERSION...]`.

Each version gets an environment in build/airflow-VERSION, from the registry; a file of constraints, as Airflow
publishes one for each version, may be given as VERSION=FILE. What a version lacks is in recovery/airflow/versions.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.house.tree import ROOT

VERSIONS = ("3.0.6", "3.1.8", "3.2.2")
PINS = {  # as of its day: with a newer one its API server answers no request, or does not start
    "3.0.6": ["pyjwt==2.10.1"],
    "3.2.2": ["fastapi==0.136.3", "cadwyn==7.0.0"],
}
CORE = ("tests/airflow/test_core.py", "tests/airflow/test_store_dags.py", "tests/airflow/test_settings.py")
TOOLS = (
    "numpy>=1.26", "pyarrow>=19", "click>=8.2", "tenacity", "pytest", "pytest-timeout", "pytest-xdist", "pyyaml",
    "jsonschema", "hypothesis", "httpx", "setuptools==84.2.1",
)  # fmt: skip


def environment(version: str, constraints: str) -> Path:
    """A Python with that Airflow and this tree; made once."""
    directory = ROOT / "build" / f"airflow-{version}"
    python = directory / "bin/python"
    uv = Path(sys.executable).with_name("uv")
    if not python.exists():
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, directory], check=True)
    install = [uv, "pip", "install", "--quiet", "--python", python]
    bounds = ["--constraint", constraints] if constraints else []
    subprocess.run([*install, *bounds, f"apache-airflow=={version}"], check=True)
    subprocess.run([*install, f"apache-airflow=={version}", *PINS.get(version, []), *TOOLS], check=True)
    subprocess.run([*install, "--no-deps", "--no-build-isolation", "--editable", ROOT], check=True)
    return python


def main(words: list[str]) -> int:
    """0 when every version passed."""
    failed = []
    for word in words or VERSIONS:
        version, _, constraints = word.partition("=")
        python = environment(version, constraints)
        pytest = ["-m", "pytest", "-q", "-o", "filterwarnings=", "-p", "no:cacheprovider", *CORE]
        if subprocess.run([python, *pytest], cwd=ROOT, check=False).returncode:
            failed.append(version)
    print(f"failed: {', '.join(failed)}" if failed else "all versions passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
