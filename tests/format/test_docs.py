"""docs/format.md has the tables that the code declares. `python -m tests.format.test_docs` writes them anew."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from tests.format.strategies import LAYOUTS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "format.md"
BLOCK = re.compile(r"(<!-- unit:(\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
FIELD = re.compile(r"^    (\w+): i\d+(?: = \d+)?(?:  # (.*))?$", re.MULTILINE)


def table(name: str) -> str:
    """The fields of a layout, with the comments beside them."""
    layout = next(layout for layout in LAYOUTS if layout.__name__ == name)
    comments = dict(FIELD.findall(inspect.getsource(layout)))
    lines = ["| offset | type | field | |", "|---|---|---|---|"]
    lines += [f"| {at} | {layout.TYPE[field]} | `{field}` | {comments[field]} |" for field, at in layout.OFFSET.items()]
    return "\n".join(lines) + "\n"


def written_anew(text: str) -> str:
    return BLOCK.sub(lambda block: block[1] + table(block[2]) + block[4], text)


def test_tables_are_those_of_the_code() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == written_anew(text), "run: python -m tests.format.test_docs"


def test_every_layout_has_its_table() -> None:
    named = [name for _, name, _, _ in BLOCK.findall(PAGE.read_text(encoding="utf-8"))]
    assert sorted(named) == sorted(layout.__name__ for layout in LAYOUTS)


if __name__ == "__main__":
    PAGE.write_text(written_anew(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
