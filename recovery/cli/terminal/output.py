"""What the command line writes, and where: values on standard output, progress and warnings on standard error.

With `recovery.cli.app` the only module that prints. A table fits the terminal; in a file or a pipe it is never folded.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

from recovery.humanize import printable
from recovery.views.hexdump import lines

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from recovery.cli.terminal.tables import Shown
    from recovery.views.dump_commitlog import DumpEntry

_WIDE = 1 << 14
_BAR_AFTER_S = 0.3
_BOLD, _RED = 1, 31


class Bar:
    """A bar with an estimate on standard error, on a terminal only, and only when it takes long enough to ask."""

    def __init__(self, verb: str) -> None:
        self._verb, self._started = verb, time.monotonic()
        self._bar: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None and sys.stderr.isatty() and time.monotonic() - self._started > _BAR_AFTER_S:
            self._begin(total)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=min(done, total))

    def _begin(self, total: int) -> None:
        from rich import progress

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.DownloadColumn(binary_units=True),
            progress.TransferSpeedColumn(),
            progress.TimeRemainingColumn(),
        )
        self._bar = progress.Progress(*columns, console=_console(error=True), transient=True)
        self._task = self._bar.add_task(self._verb, total=total)
        self._bar.start()

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _console(*, error: bool = False) -> Console:
    from rich.console import Console

    stream = sys.stderr if error else sys.stdout
    return Console(file=stream, width=None if stream.isatty() else _WIDE, highlight=False, markup=False, emoji=False)


def show(shown: Iterable[Shown]) -> None:
    console = _console()
    for one in shown:
        if isinstance(one, str):
            print(one)
        else:
            console.print(one)


def show_now(line: str) -> None:
    """A line that somebody waits for."""
    print(line, flush=True)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2 if sys.stdout.isatty() else None)
    print()


def print_json_list(values: Iterable[Any]) -> None:
    """A list, item by item: it may be longer than memory."""
    separator = "["
    for value in values:
        print(separator, end="\n")
        json.dump(value, sys.stdout)
        separator = ","
    print("[]" if separator == "[" else "\n]")


def warn(sentence: str) -> None:
    print(f"checkback: {printable(sentence)}", file=sys.stderr)


def print_entry(entry: DumpEntry, as_hex: bool) -> None:
    line = entry.line
    if sys.stdout.isatty() and (as_hex or entry.is_damage):
        line = f"\x1b[{_RED if entry.is_damage else _BOLD}m{line}\x1b[0m"
    print(line)
    if as_hex:
        for field in lines(entry.fields()):
            print(field)
        print()
