"""What the command line writes, and where: values on standard output, progress and warnings on standard error.

With `recovery.cli.app` the only module that prints. A table fits the terminal; in a file or a pipe it is never folded.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Self, TypeVar

from recovery.humanize import printable, size, span

if TYPE_CHECKING:
    from recovery.cli.terminal.table import Shown
    from recovery.views.dump_commitlog import DumpEntry

_T = TypeVar("_T")
_BAR_AFTER_S, _BAR_EVERY_S = 0.3, 0.1
_BAR_CELLS = 30
_BOLD, _RED = 1, 31


class Bar:
    """A bar with an estimate on standard error, on a terminal only, and only when it takes long enough to ask."""

    def __init__(self, verb: str) -> None:
        self._verb, self._started = verb, time.monotonic()
        self._shown_s: float | None = None
        self._is_there = False

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` bytes."""
        took_s = time.monotonic() - self._started
        due_s = _BAR_AFTER_S if self._shown_s is None else self._shown_s + _BAR_EVERY_S
        if took_s > due_s and sys.stderr.isatty():
            self._shown_s, self._is_there = took_s, True
            line = _bar_line(self._verb, min(done, total), total, took_s)
            print(f"\r\x1b[2K{line[: _terminal_cells() - 1]}", end="", file=sys.stderr, flush=True)

    def between(self, values: Iterable[_T]) -> Iterator[_T]:
        """The same values, each to be printed where the bar was; it is there again while the next is looked for."""
        for value in values:
            self._wipe()
            yield value

    def __exit__(self, *_: object) -> None:
        self._wipe()

    def _wipe(self) -> None:
        if self._is_there:
            self._is_there = False
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def others_to_stderr() -> Iterator[None]:
    """What a library prints meanwhile goes to standard error: standard output is for values."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def _bar_line(verb: str, done: int, total: int, took_s: float) -> str:
    share = done / total if total else 1.0
    cells = round(share * _BAR_CELLS)
    left = f", {span(took_s / share - took_s)} left" if share else ""
    rate = f"{size(int(done / took_s))}/s" if took_s else ""
    return f"{verb} {'━' * cells}{'╌' * (_BAR_CELLS - cells)} {size(done)} of {size(total)}, {rate}{left}"


def _terminal_cells() -> int:
    return shutil.get_terminal_size().columns


def show(shown: Iterable[Shown]) -> None:
    is_terminal = sys.stdout.isatty()
    colours = is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for one in shown:
        if isinstance(one, str):
            print(one)
        else:
            for line in one.lines(_terminal_cells() if is_terminal else None, colours=colours):
                print(line)


def show_now(line: str) -> None:
    """A line that somebody waits for."""
    print(line, flush=True)


def print_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2 if sys.stdout.isatty() else None)
    print()


def print_json_list(values: Iterable[Any]) -> int:
    """A list, item by item: it may be longer than memory. Returns how many there were."""
    count = 0
    for value in values:
        print("," if count else "[", end="\n")
        json.dump(value, sys.stdout)
        count += 1
    print("\n]" if count else "[]")
    return count


def warn(sentence: str) -> None:
    with contextlib.suppress(OSError):  # a log on a full disk: the exit code says it nevertheless
        print(f"checkback: {printable(sentence)}", file=sys.stderr, flush=True)


def print_entry(entry: DumpEntry, as_hex: bool) -> None:
    line = entry.line
    if sys.stdout.isatty() and (as_hex or entry.is_damage):
        line = f"\x1b[{_RED if entry.is_damage else _BOLD}m{line}\x1b[0m"
    print(line)
    if as_hex:
        from recovery.views.hexdump import lines

        for field in lines(entry.fields()):
            print(field)
        print()
