"""What every source file looks like: short, named well, silent, finished."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

import pytest

from tests.house.tree import ROOT, Module, files, modules, product, texts

MODULE_LINES = 400
FUNCTION_LINES = 60

# A thing without a better name has no purpose yet.
VAGUE = {"base", "common", "constants", "core", "helper", "helpers", "manager", "misc", "tools", "util", "utils"}

# pytest would import these folders under the names of the packages.
SHADOWS = {"broker", "recovery", "dags", "docker"}

# Who else may print, exit or read the environment, and why.
SPEAKERS: dict[str, str] = {
    "examples.flash_sale.one_sale": "a program of its own",
    "examples.spark_in_doubt": "a program of its own",
    "recovery.cli.app": "the command line",
    "recovery.cli.shared": "how a verb ends",
    "recovery.cli.output": "what the command line writes, and where",
    "recovery.airflow.local.standalone": "hands its own environment on to Airflow, with settings over it",
    "recovery.spark.jobs": "a program of its own, for spark-submit",
    "recovery.spark.sessions": "Spark takes the Python of its workers from the environment",
}
SPEECH = {
    "print", "input", "breakpoint", "exit", "quit", "SystemExit", "sys.exit", "sys.stdout", "sys.stderr", "sys.argv",
    "os._exit", "os.abort", "os.environ", "os.environb", "os.getenv", "os.putenv",
}  # fmt: skip

# With brackets, so that this file has none.
MARKS = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b")

by_module = pytest.mark.parametrize("module", product(), ids=lambda module: module.name)


@by_module
def test_modules_are_short(module: Module) -> None:
    """A module that grows past the limit holds two things."""
    lines = len((ROOT / module.path).read_text(encoding="utf-8").splitlines())
    assert lines <= MODULE_LINES, f"{module.path} has {lines} lines"


@by_module
def test_functions_are_short(module: Module) -> None:
    """A function fits on a screen."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES, f"{module.path}:{node.lineno}: {node.name} has {lines} lines"


@by_module
def test_modules_say_their_job(module: Module) -> None:
    """A module begins with a docstring, whose first line is a sentence or a title of its one job."""
    if module.tree.body:
        assert ast.get_docstring(module.tree), f"{module.path} has no docstring"


@by_module
def test_only_the_command_line_speaks(module: Module) -> None:
    """A library neither prints, nor exits, nor reads the environment."""
    if module.name not in SPEAKERS:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in SPEECH:
                pytest.fail(f"{module.path}:{node.lineno}: {ast.unparse(node)} is for {', '.join(SPEAKERS)}")


@by_module
def test_no_offset_without_its_kind(module: Module) -> None:
    """A field or an argument is a commitlog_offset, a queue_offset or a slot; `offset` alone could be any of them."""
    for name, line in _declared(module.tree):
        assert name != "offset", f"{module.path}:{line}: say which offset"


def _declared(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.name)
def test_file_names(module: Module) -> None:
    """No vague name, no stutter, and no name of the standard library: run from its folder, it would shadow that."""
    stem = module.path.stem
    assert stem not in VAGUE, f"{module.path}: what is in it?"
    assert stem not in sys.stdlib_module_names, f"{module.path} shadows the module {stem}"
    assert stem != module.path.parent.name or stem == "store", f"{module.path}: `from {stem} import {stem}`"


def test_no_folder_shadows_a_package() -> None:
    """No tests/broker and the like, and docker/ is no package: it would hide the Docker SDK from Airflow."""
    for path in files():
        assert not (path.parts[0] == "tests" and SHADOWS & set(path.parts[1:-1])), f"{path} would shadow a package"
        assert path.as_posix() != "docker/__init__.py"


def test_nothing_is_left_for_later() -> None:
    """What is missing stands in an issue, not in the code; and only make wants tabs."""
    for path, text in texts():
        for number, line in enumerate(text.splitlines(), 1):
            if path.name not in {"LICENSE", "requirements.lock"}:
                assert not MARKS.search(line), f"{path}:{number}: {line.strip()}"
            assert "\t" not in line or path.name == "Makefile", f"{path}:{number}: a tab"
