"""What every verb of the command line shares: its exit codes, its arguments, and the way to say what is wrong.

The verbs themselves stand in `recovery.verbs_*`, a module for each kind of work; `recovery.cli.app` brings them
together.
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from recovery.cli.output import warn

WELL, FINDINGS, USAGE, LOCKED, CORRUPT, DEFECT, INTERRUPTED, PIPE_CLOSED = 0, 1, 2, 3, 4, 70, 130, 141

DEBUG = "CHECKBACK_DEBUG"

Store = Annotated[str, typer.Argument(metavar="STORE", help="The folder that a broker calls storePathRootDir.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON value on standard output, and nothing else.")]


def examples(*lines: str) -> str:
    """The foot of a verb's help."""
    return "\n\n".join(["Examples:", *(f"  checkback {line}" for line in lines)])


def fail(sentence: str, code: int) -> NoReturn:
    """Say in a sentence what is wrong, and end."""
    if os.environ.get(DEBUG) and sys.exc_info()[0] is not None:
        traceback.print_exc()
    _flush()
    if sentence:
        warn(sentence)
    raise typer.Exit(code)


def secret(name: str) -> str | None:
    """What the environment holds under a name: for what must not stand on the command line, where others see it."""
    return os.environ.get(name) or None


def _flush() -> None:
    """Write what is held back; what cannot be written, because nobody reads it or the disk is full, is dropped."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
