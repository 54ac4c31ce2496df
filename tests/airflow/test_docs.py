"""docs/airflow.md: its settings are read, its DAGs parse, its tables are complete."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from recovery.airflow.bundle import dags_folder
from recovery.airflow.local.standalone import BUNDLES
from recovery.airflow.settings import StoreSettings, read_stores
from tests.airflow.bags import DagBag
from tests.house.tree import ROOT

PAGE = (ROOT / "docs/airflow.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_example_of_settings_is_read(tmp_path: Path) -> None:
    """And every setting there is has a line in the table."""
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    file = tmp_path / "stores.toml"
    file.write_text(example)
    shop, billing, copy = read_stores(str(file)).stores
    assert (shop.copy, billing.copy, copy.copy) == (False, False, True)
    assert tomllib.loads(example)["stores"]["shop"]["path"] == shop.path
    assert billing.rebuild_schedule is None
    rows = " ".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))
    assert all(f"`{one.name}`" in rows for one in fields(StoreSettings) if one.name != "name")


def test_every_dag_has_a_line() -> None:
    """And there is no line for one that is not there."""
    lines = set(re.findall(r"^\| `(\w+)` \| [^|]* \| [^|]* \|$", PAGE, re.MULTILINE))
    assert {file.stem for file in dags_folder().glob("*.py")} <= lines


def test_the_bundle_is_named_rightly() -> None:
    """As `checkback up` names it."""
    assert all(one["classpath"] in PAGE for one in BUNDLES)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_is_a_dag(number: int, tmp_path: Path) -> None:
    """It parses without an error, and has tasks."""
    (tmp_path / "example.py").write_text(EXAMPLES[number])
    bag = DagBag(tmp_path)
    assert not bag.import_errors
    (dag,) = bag.dags.values()
    assert dag.tasks


def test_the_examples_of_the_package_are_dags() -> None:
    """They parse, and each file has tasks."""
    directory = ROOT / "recovery/airflow/example_dags"
    bag = DagBag(directory)
    assert not bag.import_errors
    names = {"example_after_verification", "example_on_messages"}
    assert set(bag.dags) == names | {
        f"example.{work}" for work in ("check_back", "recover_after_crash", "verify_store")
    }
    assert all(dag.tasks for dag in bag.dags.values())
