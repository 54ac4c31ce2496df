"""Every `checkback` command line of the documents and of `--help` is one that the command line takes.

Nothing is run: click parses the words. A line of a code block is complete. In a sentence arguments may be missing, and
in a synopsis (`[--json]`) each option must exist.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

import click
import pytest

from recovery.cli.app import whole_command_line
from recovery.cli.shared import VERBS
from tests.house.tree import texts

FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^(?:    |\t)(?:\$ )?(checkback [^\n]*)$", re.MULTILINE)
FENCED = re.compile(r"^(?:\$ )?(?:[.\w/]*/)?(checkback [^\n]*)$", re.MULTILINE)
INLINE = re.compile(r"`(?:[.\w/]*/)?(checkback [^`]*)`")
TABLE = re.compile(r"<!-- (?!not run)[\w:]+ -->\n.*?<!-- end[ \w]* -->", re.DOTALL)

# Where a line ends: a comment, what stands beside it, or another command.
REST = re.compile(r"\s{2,}.*$|\s+#.*$|\s+[|<>&;\\].*$|;.*$")
SHELLS = {"", "console", "bash", "sh", "text"}
PLACEHOLDERS = {"N": "1", "BYTES": "1", "OFFSET": "1", "TIME": "1h", "PORT": "9108"}
ANSWERING = ("ledger", "http", "call", "config")


class Line(NamedTuple):
    """A command line: where it stands, its words after `checkback`, and whether it is complete."""

    place: str
    text: str
    is_whole: bool


def in_documents() -> Iterator[Line]:
    for path, text in texts():
        if path.suffix != ".md" or path.parts[0] == "tests":
            continue
        plain = TABLE.sub("", text)
        for block in FENCE.finditer(plain):
            if block["language"] in SHELLS:
                yield from (Line(str(path), found, True) for found in FENCED.findall(block["body"]))
        plain = FENCE.sub("", plain)
        yield from (Line(str(path), found, True) for found in INDENTED.findall(plain))
        yield from (Line(str(path), found, False) for found in INLINE.findall(plain.replace("\n", " ")))


def in_help(command: click.Command, name: str = "checkback") -> Iterator[Line]:
    for line in (command.epilog or "").splitlines():
        if line.startswith("  checkback "):
            yield Line(f"{name} --help", line.strip(), True)
    for child in getattr(command, "commands", {}).values():
        yield from in_help(child, f"{name} {child.name}")


def fault(line: Line) -> str | None:
    """What the command line would say; None when it takes the words."""
    words = [PLACEHOLDERS.get(word, word) for word in shlex.split(REST.sub("", line.text))[1:]]
    command: click.Command = whole_command_line()
    is_list = not line.is_whole and len(words) > 1 and set(words) <= set(VERBS)
    if is_list or words[:1] == ["VERB"]:
        return None
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name = words.pop(0)
        if name not in command.commands:
            return f"no such verb: {name}"
        command = command.commands[name]
    options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
    given = {word.partition("=")[0] for word in re.findall(r"--[\w-]+", " ".join(words))}
    if unknown := given - options:
        return f"no such option: {', '.join(sorted(unknown))}"
    if "[" in line.text or "--help" in words or isinstance(command, click.Group):  # a synopsis, or all of them
        return None
    try:
        found = command.make_context(command.name, words).params
    except (click.MissingParameter, click.BadOptionUsage) as error:  # an argument, or the value of an option
        return error.format_message() if line.is_whole else None
    except click.UsageError as error:
        return error.format_message()
    if command.name == "check-back" and (line.is_whole or found["every"]) and not any(map(found.get, ANSWERING)):
        return "it names nobody who could be asked: give --ledger, --http, --call or --config"
    return None


def test_documents_have_commands_that_exist() -> None:
    lines = list(in_documents())
    assert len([line for line in lines if line.is_whole]) > 80
    found = [f"{line.place}: {line.text}: {what}" for line in lines if (what := fault(line))]
    assert not found, "\n".join(found)


def test_examples_of_help_are_commands_that_exist() -> None:
    lines = list(in_help(whole_command_line()))
    assert len(lines) > 40
    found = [f"{line.place}: {line.text}: {what}" for line in lines if (what := fault(line))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_whole", "is_right"),
    [
        ("checkback verify STORE --limit N", True, True),
        ("checkback verify", False, True),
        ("checkback verify", True, False),
        ("checkback verify STORE --limits 2", False, False),
        ("checkback verify [--jsn] STORE", True, False),
        ("checkback verfy", False, False),
        ("checkback retain shop.store --keep 72h        what would go", True, True),
        ("checkback check-back STORE --every 30s", False, False),
        ("checkback check-back", False, True),
    ],
)
def test_the_rule_bites(text: str, is_whole: bool, is_right: bool) -> None:
    assert (fault(Line("x", text, is_whole)) is None) is is_right
