"""docs/decisions: every page has its three parts and a line in the index, and what refers to one refers to a page."""

from __future__ import annotations

import re

from tests.house.tree import ROOT, texts

DIRECTORY = ROOT / "docs" / "decisions"
REFERENCE = re.compile(r"(?:docs/decisions/|\b[Dd]ecisions? )(\d{4})")


def test_every_page_has_its_parts_and_a_line_in_the_index() -> None:
    index = (DIRECTORY / "index.md").read_text(encoding="utf-8")
    pages = sorted(path for path in DIRECTORY.glob("*.md") if path.name != "index.md")
    assert [path.name[:4] for path in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]
    for path in pages:
        text = path.read_text(encoding="utf-8")
        title = re.match(rf"# {path.name[:4]}\. (.+)\n", text)
        assert title, path.name
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Consequences"], path.name
        assert f"| {path.name[:4]} | [{title[1]}]({path.name}) |" in index, path.name


def test_references_lead_to_a_page() -> None:
    """In code, tests and documents; and no document that is not here is named."""
    for path, text in texts():
        for number in REFERENCE.findall(text):
            assert list(DIRECTORY.glob(f"{number}-*.md")), f"{path}: there is no docs/decisions/{number}"
        assert not re.search(r"\bDECISIONS \d|\bDESIGN\b", text) or path.name == "test_decisions.py", path
