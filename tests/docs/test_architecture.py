"""ARCHITECTURE.md is short, and what it names is there. So is what the decisions and the other pages name."""

from __future__ import annotations

import importlib
import re

import pytest

from tests.docs.snippets import pages
from tests.house.tree import ROOT

TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
LINES, COLUMNS, WORDS, FILES = 200, 100, 80, 5

ROOMS = r"(?:broker|recovery|dags|tests|docs|docker|examples)"
PATH = re.compile(rf"`({ROOMS}(?:/[\w.*-]+)*/?)`")
DOTTED = re.compile(r"`((?:broker|recovery)(?:\.\w+)+)(?:\([^`]*\))?`")


def sections() -> list[tuple[str, str]]:
    """Each room: its heading and its text."""
    parts = re.split(r"^### (.*)$", TEXT.split("\n## Three walks")[0], flags=re.MULTILINE)
    return [(heading, body.split("\n## ")[0]) for heading, body in zip(parts[1::2], parts[2::2], strict=True)]


def test_it_is_short() -> None:
    """At most 200 lines of 100 columns."""
    lines = TEXT.splitlines()
    assert len(lines) <= LINES
    assert not [line for line in lines if len(line) > COLUMNS]


def test_a_room_is_a_paragraph_and_its_invariants() -> None:
    """At most 80 words and five files before the invariants, which every room has."""
    assert len(sections()) >= 14
    for heading, body in sections():
        paragraph, invariant, _ = body.partition("**Invariant:**")
        assert invariant, heading
        assert len(paragraph.split()) <= WORDS, heading
        assert len(set(re.findall(r"`[\w/]+\.py`", paragraph))) <= FILES, heading


def test_each_walk_has_eight_steps() -> None:
    walks = TEXT.split("## Three walks")[1].split("\n## ")[0]
    assert re.findall(r"^(\d)\. ", walks, re.MULTILINE) == [str(step) for step in range(1, 9)] * 3


def test_every_file_of_a_room_is_in_it() -> None:
    """A short name is a file of the room whose heading it stands under."""
    for heading, body in sections():
        rooms = [ROOT / name for name in re.findall(r"`([\w/.]+)`", heading)]
        for name in re.findall(r"`(\w+\.py)`", body):
            found = [room for room in rooms if list((room if room.is_dir() else room.parent).rglob(name))]
            assert found, f"{heading}: there is no {name}"


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", *pages()])
def test_paths_exist_and_names_can_be_imported(page: str) -> None:
    """Every path, and every dotted name of the packages, that a document names in backticks."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for path in PATH.findall(text):
        assert list(ROOT.glob(path)) if "*" in path else (ROOT / path).exists(), f"{page}: {path}"
    for name in DOTTED.findall(text):
        assert _is_there(name), f"{page}: {name}"


def _is_there(name: str) -> bool:
    """Whether a dotted name is a module, or something that one has."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False
