"""What users meet first: the import, its names and its cost, and the wheel."""

from __future__ import annotations

import configparser
import importlib
import modulefinder
import os
import subprocess
import sys
import tomllib
import zipfile
from types import ModuleType

import pytest

from broker.compiled import SOURCES
from tests.house.tree import ROOT, files, product, under
from tests.house.wheel import build_wheel

IMPORT_S = 0.05

needs_door = pytest.mark.skipif(not (ROOT / "broker/__init__.py").exists(), reason="the door is not there yet")

# Says what `import broker` loads and what it costs. CPU time, not the clock's: other tests run at the same time.
PROBE = """
import sys, time
before, start = set(sys.modules), time.process_time()
import broker
cost = time.process_time() - start
print(cost, *sorted({name.split(".")[0] for name in set(sys.modules) - before}))
"""


def probe() -> tuple[float, set[str]]:
    """Run PROBE in a fresh interpreter: (seconds, names of the top-level modules it loaded)."""
    path = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run([sys.executable, "-c", PROBE], check=True, capture_output=True, text=True, cwd="/", env=path)
    cost, *loaded = run.stdout.split()
    return float(cost), set(loaded)


@needs_door
def test_import_broker_is_cheap() -> None:
    """`import broker` loads the standard library only, and takes less than 50 ms."""
    runs = [probe() for _ in range(5)]
    assert runs[0][1] - sys.stdlib_module_names == {"broker"}
    assert min(cost for cost, _ in runs) < IMPORT_S


@needs_door
@pytest.mark.parametrize("package", ["broker", "recovery"])
def test_all_is_the_whole_door(package: str) -> None:
    """`__all__` names what is public: each name is there, in order, and there is no public name beside it."""
    if not (ROOT / package / "__init__.py").exists():
        pytest.skip(f"{package}/__init__.py is not there yet")
    door = importlib.import_module(package)
    declared = list(getattr(door, "__all__", []))
    assert len(declared) == len(set(declared))
    assert not [name for name in declared if name.startswith("_") and name != "__version__"]
    for name in declared:
        assert getattr(door, name) is not None
    here = {name for name, value in vars(door).items() if not isinstance(value, ModuleType)}
    beside = {name for name in here if not name.startswith("_")} - {"annotations", "TYPE_CHECKING"}
    assert beside <= set(declared)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel as a directory."""
    path = build_wheel(tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel"))
    return zipfile.Path(path)


@pytest.mark.skipif(not (ROOT / "README.md").exists(), reason="README.md is not there yet")
def test_the_wheel_holds_the_packages_and_nothing_else(wheel: zipfile.Path) -> None:
    """Its top level is broker and recovery, complete, with types; no tests, no DAGs."""
    names = set(wheel.root.namelist())
    info = {name.split("/")[0] for name in names if ".dist-info/" in name}
    assert len(info) == 1
    assert {name.split("/")[0] for name in names} - info == {"broker", "recovery"}
    missing = {m.path.as_posix() for m in product() if m.room in {"broker", "recovery"}} - names
    assert not missing, f"name their packages in pyproject.toml: {sorted(missing)}"
    assert {"broker/py.typed", "recovery/py.typed"} <= names
    said = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    entries = configparser.ConfigParser(delimiters="=")
    entries.optionxform = str  # type: ignore[assignment,method-assign]
    entries.read_string((wheel / info.pop() / "entry_points.txt").read_text())
    expected = {"console_scripts": said["scripts"], **said["entry-points"]}
    assert {group: dict(entries[group]) for group in entries.sections()} == expected
    for group in expected.values():
        for name in group.values():
            module, _, attribute = name.partition(":")
            assert f"{module.replace('.', '/')}.py" in names, name
            assert not attribute or attribute.isidentifier()


def test_the_build_knows_each_source_of_the_c_module() -> None:
    """A source archive holds what SOURCES names and no other header; only a change of these calls for a new build."""
    assert sorted(SOURCES) == sorted(path.as_posix() for path in files() if path.match("broker/_fast*.[ch]"))


def test_what_packs_an_application_sees_its_modules() -> None:
    """PyInstaller takes what is imported: `broker.open` of an application had no transaction service there."""
    finder = modulefinder.ModuleFinder(path=[str(ROOT)])
    finder.import_hook("broker")
    by_name = {"broker.django", "broker.telemetry", "broker.testing"}  # an application imports these itself
    of_recovery = {"broker.consuming.group.served_clients", "broker.format.kinds", "broker.store.read.kinds"}
    names = {module.name for module in product() if under(module.name, {"broker"})}
    missing = {name for name in names - finder.modules.keys() if not under(name, by_name | of_recovery)}
    assert not missing
