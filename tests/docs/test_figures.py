"""The tables and the plot of the figures are those of docs/figures.json. `python docs/figures.py` writes them."""

from __future__ import annotations

import importlib.util
from types import ModuleType
from xml.etree import ElementTree as ET

import pytest

from tests.house.tree import ROOT


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    """docs/figures.py, which is not in a package."""
    spec = importlib.util.spec_from_file_location("figures", ROOT / "docs" / "figures.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_and_plot_are_those_of_the_data(figures: ModuleType) -> None:
    for page in figures.PAGES:
        text = page.read_text(encoding="utf-8")
        assert "<!-- figures -->" in text, page
        assert text == figures.with_table(text), f"{page}: run: python docs/figures.py"
    assert figures.PLOT.read_text(encoding="utf-8") == figures.plot(), "run: python docs/figures.py"


def test_the_plot_is_an_svg_with_a_bar_for_each_comparison(figures: ModuleType) -> None:
    bars = [node for node in ET.parse(figures.PLOT).iter() if node.tag.endswith("rect")]  # noqa: S314 - our own file
    assert len(bars) == sum("ratio" in figure for figure in figures.figures()["figures"])
