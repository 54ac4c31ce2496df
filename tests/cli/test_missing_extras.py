"""A verb that needs an extra which is not installed names it; a verb that needs none works without any."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import broker
from recovery.cli.shared import USAGE, WELL
from recovery.cli.terminal.extras import EXTRAS, REQUIRED
from tests.cli.command import Ran
from tests.house.tree import ROOT

WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ABSENT = set(sys.argv.pop(1).split(","))
sys.meta_path.insert(0, Absent())
from recovery.cli.app import main
main(sys.argv[1:])
"""
ALL = ",".join([*EXTRAS, "isal", "msgspec", "uvloop"])


def without(absent: str, *words: object, cwd: Path) -> Ran:
    """`checkback WORDS` where these modules are not installed."""
    line = [sys.executable, "-c", WITHOUT, absent, *map(str, words)]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "", "HOME": str(cwd)}
    ran = subprocess.run(line, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with a message and a transaction in doubt."""
    with broker.open(tmp_path / "shop.store") as opened:
        opened.producer("web").send(broker.Message("orders", b"phone"))
        opened.transactions.prepare(broker.Message("orders", b"phone"), "shop")
    return tmp_path / "shop.store"


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("check-back shop.store", "sql"),
        ("check-back shop.store --ledger sqlite:///shop.db", "sql"),
        ("park-list shop.store", "sql"),
        ("resolve shop.store 0 --commit", "sql"),
        ("recheck shop.store --all-parked", "sql"),
        ("ledger doctor shop.store --ledger sqlite:///shop.db", "sql"),
        ("answer 127.0.0.1:1 --group shop --ledger sqlite:///shop.db", "sql"),
        ("move shop.store rocketmq://127.0.0.1:1 --ledger sqlite:///shop.db", "sql"),
        ("demo", "sql"),
        ("page shop.store", "page"),
        ("airflow doctor", "airflow"),
        ("up shop.store", "airflow"),
    ],
)
def test_the_extra_is_named(words: str, extra: str, store: Path) -> None:
    ran = without(ALL, *words.split(), cwd=store.parent)
    assert (ran.code, len(ran.err.splitlines())) == (USAGE, 1)
    assert ran.err.startswith("checkback: ")
    assert ran.err.endswith(f": install checkback with its extra '{extra}'\n")


def test_an_option_may_need_another_extra(store: Path) -> None:
    ran = without("opentelemetry", "check-back", store, "--otlp", "http://127.0.0.1:1", cwd=store.parent)
    assert ran.code == USAGE
    assert ran.err == "checkback: telemetry needs opentelemetry: install checkback with its extra 'telemetry'\n"


def test_one_module_of_an_extra_may_be_there(store: Path) -> None:
    ran = without("tenacity", "check-back", store, cwd=store.parent)
    assert ran == Ran(USAGE, "", "checkback: this needs tenacity: install checkback with its extra 'sql'\n")


def test_what_comes_with_every_installation_is_named_when_it_is_gone(store: Path) -> None:
    """It was called a defect of checkback, with exit code 70."""
    ran = without("pyarrow", "verify", store, cwd=store.parent)
    text = "this needs pyarrow, which comes with checkback: install checkback again, with its dependencies"
    assert ran == Ran(USAGE, "", f"checkback: {text}\n")


@pytest.mark.parametrize("verb", ["info", "verify", "pending", "consumer", "dlq", "retain", "metrics"])
def test_what_needs_no_extra_works_without_one(verb: str, store: Path) -> None:
    ran = without(ALL, verb, store, cwd=store.parent)
    assert (ran.code, ran.err) == (WELL, "")


def test_the_extras_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS.values()) <= set(project["optional-dependencies"])
    assert set(REQUIRED) < {re.split("[<>=]", one)[0] for one in project["dependencies"]}
