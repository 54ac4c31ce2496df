"""The page of the comparison has the tables and the plot of its JSON, for every contender."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

from tests.bench.contenders import CONTENDERS, code_lines
from tests.house.tree import ROOT


def _page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("comparison_page", ROOT / "docs" / "comparison.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_and_plot_are_those_of_the_measurements() -> None:
    page = _page()
    text = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
    assert page.with_tables(text) == text, "run: python docs/comparison.py"
    assert page.plot() == (ROOT / "docs" / "images" / "comparison.svg").read_text(encoding="utf-8")


def test_what_was_measured_is_of_the_contenders_as_they_are() -> None:
    """All of them, in their order. Lines of code are those of the sources now."""
    rows = {row["module"]: row for row in _page().comparison()["contenders"]}
    assert list(rows) == [one.module for one in CONTENDERS]
    for module, row in rows.items():
        assert row["code_lines"] == code_lines(module), "measure it again, or correct the figure"
        assert row["undisturbed"]["rate"] > 0
        assert row["killed"]["kills"] > 0


def test_requirements_are_hashed_and_name_no_host() -> None:
    text = (ROOT / "examples/comparison/requirements.txt").read_text(encoding="utf-8")
    names = [line.strip() for line in (ROOT / "examples/comparison/requirements.in").read_text().splitlines()]
    assert "://" not in text
    for name in names:
        assert f"{name.split('[')[0]}==" in text
    for requirement in re.split(r"\n(?=\S)", text.strip()):
        assert re.match(r"\S+==\S+", requirement), requirement
        assert "--hash=sha256:" in requirement, requirement
