"""What every source file looks like: short, named well, silent, finished."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator

import pytest

from tests.house.tree import ROOT, files, imports, modules, product, texts
from tests.samples import UNKNOWN

pytestmark = pytest.mark.xdist_group("house")  # one process reads the whole project

MODULE_LINES = 400
FUNCTION_LINES = 60

# A thing without a better name has no purpose yet.
VAGUE = {"base", "common", "constants", "core", "helper", "helpers", "manager", "misc", "tools", "util", "utils"}

# pytest would import these directories under the names of the packages.
SHADOWS = {"broker", "recovery", "dags", "docker"}

# Who else may print, exit or read the environment, and why.
SPEAKERS: dict[str, str] = {
    "examples.flash_sale.one_sale": "a program of its own",
    "examples.comparison.contender": "a program of its own",
    "examples.comparison.settings": "what a process of the comparison is given",
    "examples.spark_in_doubt": "a program of its own",
    "broker.compiled": "CHECKBACK_PURE leaves the C module out; `make setup` prints whether it is there",
    "setup": "the build",
    "docker.make_secrets": "a program of its own",
    "recovery.airflow.example_dags.example_after_verification": "prints into the log of its task",
    "recovery.cli.__main__": "an interrupt before the command line is loaded",
    "recovery.cli.app": "the command line",
    "recovery.cli.shared": "how a verb ends",
    "recovery.cli.terminal.log_lines": "where the log of a verb that stays goes",
    "recovery.cli.terminal.output": "what the command line writes, and where",
    "recovery.airflow.local.standalone": "hands its own environment on to Airflow, with settings over it",
    "recovery.cli.spark_job": "a program of its own, for spark-submit",
    "recovery.airflow.settings": "AIRFLOW_HOME, beside which the last good settings are kept",
    "recovery.torture.kills": "a program of its own: workers that are killed",
    "recovery.torture.neighbour": "a program of its own: the other process",
    "recovery.jobs.setup": "where the state of stores is kept that are not ours",
    "recovery.spark.sessions": "Spark takes the Python of its workers from the environment",
}
SPEECH = {
    "print", "input", "breakpoint", "exit", "quit", "SystemExit", "sys.exit", "sys.stdout", "sys.stderr", "sys.argv",
    "os._exit", "os.abort", "os.environ", "os.environb", "os.getenv", "os.putenv",
}  # fmt: skip

# With brackets, so that this file has none.
MARKS = re.compile(r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b")

# A directory that holds more, its door among them, has no one job.
DIRECTORY_MODULES = 15


def report(offenders: Iterator[str]) -> None:
    """Fail with all offenders, a line each."""
    if lines := list(offenders):
        pytest.fail("\n".join(lines), pytrace=False)


def test_modules_are_short() -> None:
    """A module that grows past the limit holds two things."""

    def offenders() -> Iterator[str]:
        for module in modules():
            lines = len((ROOT / module.path).read_text(encoding="utf-8").splitlines())
            if lines >= MODULE_LINES:
                yield f"{module.path} has {lines} lines, not under {MODULE_LINES}"

    report(offenders())


def test_functions_are_short() -> None:
    """A function fits on a screen."""

    def offenders() -> Iterator[str]:
        for module in product():
            for node in ast.walk(module.tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lines = (node.end_lineno or node.lineno) - node.lineno + 1
                    if lines > FUNCTION_LINES:
                        yield f"{module.path}:{node.lineno}: {node.name} has {lines} lines, more than {FUNCTION_LINES}"

    report(offenders())


def test_modules_say_their_job() -> None:
    """A module begins with a docstring, whose first line is a sentence or a title of its one job."""
    silent = (module for module in product() if module.tree.body and not ast.get_docstring(module.tree))
    report(f"{module.path} has no docstring" for module in silent)


def test_only_the_command_line_speaks() -> None:
    """A library neither prints, nor exits, nor reads the environment."""

    def offenders() -> Iterator[str]:
        for module in product():
            for node in ast.walk(module.tree) if module.name not in SPEAKERS else ():
                if isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in SPEECH:
                    yield f"{module.path}:{node.lineno}: {ast.unparse(node)} is for {', '.join(SPEAKERS)}"

    report(offenders())
    unknown = SPEAKERS.keys() - {module.name for module in product()}
    assert not unknown, f"no such module: {unknown}"


def test_no_offset_without_its_kind() -> None:
    """A field or an argument is a commitlog_offset, a queue_offset or a slot; `offset` alone could be any of them."""
    report(
        f"{module.path}:{line}: say which offset"
        for module in product()
        for name, line in _declared(module.tree)
        if name == "offset"
    )


def _declared(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node.lineno


def test_file_names() -> None:
    """No vague name, no stutter, and no name of the standard library: run from its directory, it would shadow that."""

    def offenders() -> Iterator[str]:
        for module in modules():
            stem = module.path.stem
            if stem in VAGUE:
                yield f"{module.path}: what is in it?"
            if stem in sys.stdlib_module_names:
                yield f"{module.path} shadows the module {stem}"
            if stem == module.path.parent.name and stem != "store":
                yield f"{module.path}: `from {stem} import {stem}`"

    report(offenders())


def test_directories_are_small() -> None:
    """A directory with more modules than a reader keeps in mind has rooms in it that are not built yet."""
    counts = Counter(module.path.parent for module in product())
    too_many = ((path, n) for path, n in counts.items() if n > DIRECTORY_MODULES)
    report(f"{path} holds {count} modules" for path, count in too_many)


def test_no_class_name_twice() -> None:
    """One name, one class, private ones included: a search for it finds the right one."""
    places: dict[str, list[str]] = defaultdict(list)
    for module in product():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(f"{module.path}:{node.lineno}")
    twice = {name: found for name, found in places.items() if len(found) > 1}
    report(f"{name}: {', '.join(found)}" for name, found in twice.items())


def test_no_test_module_imports_another() -> None:
    """Helpers live in helper modules: a test file can be run, renamed or removed alone."""
    report(
        f"{module.path}:{line}: {name} is a test module"
        for module in modules()
        for name, line in imports(module)
        if name.split(".")[0] == "tests" and name.rsplit(".", 1)[-1].startswith("test_")
    )


def test_what_a_module_imports_is_there() -> None:
    """`make test` runs no bench and no torture, and would not notice that one of them imports a name that is gone."""
    bound = {module.name: _bound(module.tree) for module in modules()}
    packages = {name.rpartition(".")[0] for name in bound}

    def missing() -> Iterator[str]:
        for module in modules():
            for node in ast.walk(module.tree):
                if not isinstance(node, ast.ImportFrom) or node.level or node.module not in bound:
                    continue
                if "__getattr__" in (names := bound[node.module]):
                    continue
                for name in (one.name for one in node.names):
                    whole = f"{node.module}.{name}"
                    if name != "*" and name not in names and whole not in bound and whole not in packages:
                        yield f"{module.path}:{node.lineno} imports {name}, which {node.module} does not have"

    report(missing())


def _bound(tree: ast.Module) -> set[str]:
    """The names that a module binds outside its functions and classes."""
    found: set[str] = set()
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update((one.asname or one.name).partition(".")[0] for one in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        waiting.extend(ast.iter_child_nodes(node))
    return found


def test_no_directory_shadows_a_package() -> None:
    """No tests/broker and the like, and docker/ is no package: it would hide the Docker SDK from Airflow."""
    for path in files():
        assert not (path.parts[0] == "tests" and SHADOWS & set(path.parts[1:-1])), f"{path} would shadow a package"
        assert path.as_posix() != "docker/__init__.py"


def test_nothing_is_left_for_later() -> None:
    """What is missing stands in an issue, not in the code; and only make and gofmt want tabs."""
    for path, text in texts():
        for number, line in enumerate(text.splitlines(), 1):
            if path.name not in {"LICENSE", "requirements.lock"}:
                assert not MARKS.search(line), f"{path}:{number}: {line.strip()}"
            assert "\t" not in line or path.name == "Makefile" or path.suffix == ".go", f"{path}:{number}: a tab"


def test_a_group_of_tests_keeps_to_one_process(request: pytest.FixtureRequest) -> None:
    """With pytest 9.2, pytest-xdist 3.8 scattered the groups over all processes, and said nothing."""
    if request.config.getoption("loadgroup", default=False):
        assert request.node.nodeid.endswith("@house")


def test_every_sample_names_cases(request: pytest.FixtureRequest) -> None:
    """When a case is renamed, `make test` would run none of its test, and say nothing."""
    assert request.config.stash[UNKNOWN] == []


def test_the_c_module_of_a_newer_python_works_with_the_oldest() -> None:
    """One file serves all versions. From 3.13 on a `#` in a format calls what 3.11 and 3.12 refuse with SystemError."""
    calls = re.compile(r'Py_?\w*(?:BuildValue|Parse\w*|CallFunction|CallMethod)\([^;]*?"[^"\n]*#')
    sources = [(path, text) for path, text in texts() if path.suffix in (".c", ".h") and path.parts[0] == "broker"]
    assert sources
    assert not [str(path) for path, text in sources if calls.search(text)]
