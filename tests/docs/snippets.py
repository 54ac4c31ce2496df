"""The programs and commands of a page: what they are, and how a test runs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.house.tree import ROOT, files

BLOCK = re.compile(
    r"^(?:<!-- not run: ([^>]+) -->\n+)?```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its file name if it has one, its text, and why it is not run."""

    language: str
    title: str
    text: str
    not_run: str = ""


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [Block(language, title, body, reason) for reason, language, title, body in BLOCK.findall(text)]


def commands(text: str) -> Iterator[tuple[str, list[str]]]:
    """Each `$ command` of a console block with the lines that it prints."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, *output = part.splitlines()
        yield command, output


def run(command: str, directory: Path) -> list[str]:
    """What a command prints, with the programs of this environment first on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f"{directory}{os.pathsep}{ROOT}", "COLUMNS": "120"}
    done = subprocess.run(  # noqa: S602 - a page shows commands of a shell
        command, shell=True, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.stdout.splitlines()


def agrees(expected: list[str], printed: list[str]) -> bool:
    """Whether lines are as expected; `…` stands for anything, alone on a line for any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line.rstrip()).replace("…", ".*") + r" *\n"
        for line in expected
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def pages() -> list[str]:
    """README and every page of docs/."""
    return [
        path.as_posix()
        for path in files()
        if path.suffix == ".md" and (path.parts[0] == "docs" or path.parts == ("README.md",))
    ]
