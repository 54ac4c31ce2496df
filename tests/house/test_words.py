"""Plain technical English: words and phrases that the field does not use, in the texts that people read.

Documents, `--help`, and the docstrings, comments and string literals of the code. Code, generated tables and names of
files are left out.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

import pytest

from recovery.cli.app import whole_command_line
from tests.house.tree import ROOT, product

pytestmark = pytest.mark.xdist_group("house")  # one process reads the whole project

ROOTS = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs", "examples")

# What is not said, and what is said instead.
WORDS = {
    r"whoever|whomever": "the process (user, thread) that ...",
    r"anew": "again",
    r"(?<!dags-)folders?": "directory",
    r"forced (?:write|together|to (?:the )?disk)|(?:is|are|was|were|be|been) forced": "fsync, flush",
    r"forces? (?:the|every|each|what)": "fsync, flush",
    r"told": "reported, distinguished, known",
    r"inside of|outside of": "inside, outside",
    r"(?:lets?|letting) go of": "releases",
    r"nobody's": "uncommitted, or whose",
    r"(?<!dead )(?<!ASCII )letters": "characters",
    r"(?:at|in) one blow": "a single 8-byte store",
    r"by hand": "manually",
    r"the why|a why|their why": "the reason",
    r"tells? (?:of|the living)": "reports",
    r"how manieth|a second time over": "index",
    r"upkeep(?!\.lock)|nursery": "background tasks, prefork",
    r"(?:closed|ended|left) well|exit code 0 well|0 well": "clean, clean shutdown, ok",
    r"for ever": "permanently, or forever",
    r"(?<!there )(?:is|are|was|were) no (?!longer|more)\w+": "is not a ...",
    r"Court|courts?|pronounces?": "compute",
    r"judges?|(?<!not )judged|judging": "verify",  # "not judged" is the name of a list of a report
    r"(?:99|95|50) of 100": "p99 latency",
    r"stands? beside|lies behind|lie behind": "follows, is next to",
    r"mends?|mended": "repair",
    r"asks? (?:about|after)|asked (?:about|after)|asking (?:about|after)": "query",
}
BANNED = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): instead for pattern, instead in WORDS.items()}

# Between markers a table is written from code: its words are the code's.
LEFT_OUT = re.compile(
    r"<!-- (?!not run)[\w:]+ -->\n.*?<!-- end[ \w]* -->|^```.*?^```$|^    [^\n]*$|`[^`\n]*`|\]\([^)]*\)|<!--.*?-->",
    re.MULTILINE | re.DOTALL,
)


# Of Python 3.12 on, the text of an f-string has a token of its own.
PROSE = {tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", -1)}
IDENTIFIER = re.compile(r"""[rb]*(["'])[\w./-]*\1""")  # a key, a name of a file
EXPRESSION = re.compile(r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}")  # of an f-string


def documents(roots: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Each text below the roots, with its place."""
    for root in roots:
        path = ROOT / root
        for page in sorted(path.rglob("*.md")) if path.is_dir() else sorted(ROOT.glob(root)):
            yield page.relative_to(ROOT).as_posix(), page.read_text(encoding="utf-8")


def helps() -> Iterator[tuple[str, str]]:
    """Every sentence that `--help` prints."""

    def texts(command: object, name: str) -> Iterator[tuple[str, str]]:
        yield name, "\n".join(str(getattr(command, part, "") or "") for part in ("help", "short_help"))
        for parameter in getattr(command, "params", []):
            yield f"{name} {parameter.name}", getattr(parameter, "help", "") or ""
        for child in getattr(command, "commands", {}).values():
            yield from texts(child, f"{name} {child.name}")

    yield from texts(whole_command_line(), "checkback")


def sources() -> Iterator[tuple[str, str]]:
    """The docstrings, comments and string literals of each module, each in its line; of an f-string its text."""
    for module in product():
        source = (ROOT / module.path).read_text(encoding="utf-8")
        lines = [""] * (source.count("\n") + 2)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            text = token.string
            if token.type == tokenize.STRING:
                if IDENTIFIER.fullmatch(text):
                    continue
                text = EXPRESSION.sub("", text) if "f" in text[: text.index(text[-1])].lower() else text
            elif token.type not in PROSE:
                continue
            for number, line in enumerate(text.split("\n"), token.start[0]):
                lines[number - 1] += line.strip() + " "
        yield module.path.as_posix(), "\n".join(lines)


def offences(name: str, text: str) -> Iterator[str]:
    """Each banned word of a text, with its line."""
    plain = LEFT_OUT.sub(lambda found: "\n" * found[0].count("\n"), text)
    for pattern, instead in BANNED.items():
        for found in pattern.finditer(plain):
            line = plain.count("\n", 0, found.start()) + 1
            yield f"{name}:{line}: {' '.join(found[0].split())!r}: write {instead}"


def test_documents_are_in_plain_technical_english() -> None:
    found = [offence for name, text in documents(ROOTS) for offence in offences(name, text)]
    assert not found, "\n".join(found)


def test_help_is_in_plain_technical_english() -> None:
    found = [offence for name, text in helps() for offence in offences(name, text)]
    assert not found, "\n".join(found)


def test_the_code_is_in_plain_technical_english() -> None:
    found = [offence for name, text in sources() for offence in offences(name, text)]
    assert not found, "\n".join(found)


def test_the_rules_bite() -> None:
    """On the sentences that they were made for, and not on code."""
    assert list(offences("x", "whoever is killed lets go of the folder"))
    assert list(offences("x", "it is no folder"))
    assert not list(offences("x", "`whoever` lists dead letters in a directory\n\n    folder anew\n"))


def test_every_verb_has_its_group_and_its_line() -> None:
    """A line of `checkback --help` fits beside the verb on 80 columns."""
    group = whole_command_line()
    for name, command in getattr(group, "commands", {}).items():
        assert command.panel, f"{name}: give it a group and a line in recovery/cli/shared.py"
        assert command.short_help, name
        assert len(command.short_help) <= 60, name
