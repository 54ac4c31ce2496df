"""The contenders of the comparison, and what stands beside their numbers: versions, lines of code, the machine."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.house.tree import ROOT
from tests.ledger import postgres

VENV = ROOT / "build" / "comparison-venv"
REQUIREMENTS = ROOT / "examples" / "comparison" / "requirements.txt"


@dataclass(frozen=True)
class Contender:
    """One way to make the purchase: its module, and what its documentation promises."""

    module: str
    title: str
    durability: str
    package: str = ""  # of the other environment; empty: ours
    commands: tuple[tuple[str, ...], ...] = ()  # of `checkback`, beside the buyers; else the module's own `work`


CONTENDERS = (
    Contender("xa", "XA (`PREPARE TRANSACTION`)", "2 prepares, 1 fsync of the decision, 2 commits"),
    Contender("outbox", "outbox table and poller", "1 commit; the order later"),
    Contender(
        "transactional",
        "transactional messages",
        "1 fsync of the message, 1 commit; the order later",
        commands=(
            ("work", "examples.comparison.transactional:desk", "--check-every", "never"),
            ("work", "examples.comparison.transactional:stock", "--check-every", "1s"),
        ),
    ),
    Contender("with_dbos", "DBOS", "1 commit of the lock, 3 of its workflow; the order later", package="dbos"),
    Contender("with_huey", "huey", "1 commit, then 1 of the task; the order later", package="huey"),
    Contender("with_procrastinate", "procrastinate", "1 commit with its job; the order later", package="procrastinate"),
)


def code_lines(module: str) -> int:
    """Lines of a contender's own source that are code: no blank, comment, docstring, or point to die at."""
    path = ROOT / "examples" / "comparison" / f"{module}.py"
    source = path.read_text(encoding="utf-8")
    docs: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docs |= set(range(body[0].lineno, (body[0].end_lineno or body[0].lineno) + 1))
    lines = enumerate(source.splitlines(), 1)
    code = [line.strip() for number, line in lines if line.strip() and number not in docs]
    return sum(not line.startswith("#") and "die" not in line for line in code)


def environment() -> str:
    """The Python of the environment with the other libraries, made from the hashed requirements."""
    python = VENV / "bin" / "python"
    mark = VENV / "made-from"
    if not mark.exists() or mark.read_bytes() != REQUIREMENTS.read_bytes():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=True)
        install = ["-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(REQUIREMENTS)]
        subprocess.run([str(python), *install], check=True)
        mark.write_bytes(REQUIREMENTS.read_bytes())
    return str(python)


def version_of(contender: Contender, python: str) -> str:
    if not contender.package:
        return ""
    script = f"import importlib.metadata as m; print(m.version({contender.package!r}))"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=True).stdout.strip()


def machine(load: tuple[float, float, float]) -> dict[str, Any]:
    """In general terms; and how busy it was."""
    model = next(
        (line.partition(":")[2].split()[:2] for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), ["unknown"],
    )  # fmt: skip
    return {
        "cores": os.cpu_count(),
        "processor": " ".join(model),
        "python": sys.version.split()[0],
        "postgresql": postgres_version(),
        "psycopg": version("psycopg"),
        "load_average_at_the_start": round(load[0], 1),
        "load_average_at_the_end": round(os.getloadavg()[0], 1),
    }


def postgres_version() -> str:
    program = postgres._program("postgres")
    text = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=True).stdout
    return next(word for word in text.split() if word[0].isdigit())
