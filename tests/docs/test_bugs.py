"""The table of bugs: every guard that it names exists, and every bug has one."""

from __future__ import annotations

import ast
import re

from tests.house.tree import ROOT

PAGE = (ROOT / "docs/reference/bugs.md").read_text(encoding="utf-8")
OURS = PAGE.split("## Not ours")[0]
GUARD = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def test_every_guard_exists() -> None:
    for path, name in GUARD.findall(PAGE):
        assert (ROOT / path).is_file(), path
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        tests = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert not name or name in tests, f"{path} has no test {name}"


def test_every_bug_has_a_guard_that_make_test_runs() -> None:
    """And says who found it; a guard in tests/compat or tests/torture alone would seldom run."""
    rows = [row.split(" | ") for row in OURS.splitlines() if row.startswith("| ") and not row.startswith("| what")]
    assert len(rows) > 30
    for what, who, guards in rows:
        assert who.strip(), what
        named = GUARD.findall(guards)
        assert named, what
        for path, name in named:
            assert name, f"{what}: name the test"
            assert not path.startswith(("tests/compat", "tests/torture")), what


def test_no_bug_is_listed_twice() -> None:
    rows = [row.split(" | ")[0] for row in PAGE.splitlines() if row.startswith("| ")]
    titles = [row for row in rows if not row.startswith("| what")]
    assert len(titles) == len(set(titles))
