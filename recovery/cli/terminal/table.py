"""Tables and coloured lines, as text. They print nothing; `recovery.cli.terminal.output` does."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from recovery.humanize import printable

_SGR = {
    "bold": "1", "bold red": "1;31", "bold green": "1;32", "bold yellow": "1;33", "cyan": "36", "dim": "2",
}  # fmt: skip
_GAP = "  "
_NARROWEST = 4
_MEASURED = 10_000  # rows of a long table


@dataclass(frozen=True)
class Styled:
    """A line in a style; without colours it is the text alone."""

    text: str
    style: str

    def lines(self, width: int | None, *, colours: bool) -> Iterator[str]:  # noqa: ARG002 - lines are not folded
        """The line itself."""
        yield f"\x1b[{_SGR[self.style]}m{self.text}\x1b[0m" if colours and self.style else self.text


class Table:
    """Named columns, and rows of cells. What comes from a store cannot move the cursor."""

    def __init__(self, *columns: str, right: Sequence[str] = ()) -> None:
        """`right`: the columns that end on the right, as numbers do."""
        self._columns = columns
        self._is_right = [name in right for name in columns]
        self._rows: list[tuple[list[str], str]] = []
        self._more: Iterator[Sequence[object]] = iter(())

    def take(self, rows: Iterable[Sequence[object]]) -> None:
        """More rows behind those that were added, which may be longer than memory: read while they are printed.

        The first ten thousand say how wide the columns are. Where a cell further on is wider, so is its column from
        there on.
        """
        self._more = iter(rows)

    def add(self, *cells: object, style: str = "") -> None:
        """Add a row, one cell for each column."""
        self._rows.append(([printable(str(cell)) for cell in cells], style))

    def lines(self, width: int | None, *, colours: bool) -> Iterator[str]:
        """Header, rule and rows. With a width, in terminal cells, long cells are folded to fit; None never folds."""
        for cells in islice(self._more, _MEASURED):
            self.add(*cells)
        widths = self._widths(width)
        yield from self._row(list(self._columns), widths, "bold", colours=colours)
        yield "─" * (sum(widths) + len(_GAP) * (len(widths) - 1))
        for known, style in self._rows:
            yield from self._row(known, widths, style, colours=colours)
        for cells in self._more:
            texts = [printable(str(cell)) for cell in cells]
            if width is None:  # nothing is folded
                widths = [max(had, cell_width(text)) for had, text in zip(widths, texts, strict=True)]
            yield from self._row(texts, widths, "", colours=colours)

    def _widths(self, width: int | None) -> list[int]:
        """Of each column; the widest gives way until all of them fit."""
        columns = zip(self._columns, *(cells for cells, _ in self._rows), strict=True)
        widths = [max(map(cell_width, column)) for column in columns]
        if width is not None:
            over = sum(widths) + len(_GAP) * (len(widths) - 1) - width
            while over > 0 and max(widths) > _NARROWEST:
                widths[widths.index(max(widths))] -= 1
                over -= 1
        return widths

    def _row(self, cells: list[str], widths: list[int], style: str, *, colours: bool) -> Iterator[str]:
        folded = [list(_fold(cell, width)) for cell, width in zip(cells, widths, strict=True)]
        for number in range(max(map(len, folded))):
            shown = [
                _pad(parts[number] if number < len(parts) else "", width, right=right)
                for parts, width, right in zip(folded, widths, self._is_right, strict=True)
            ]
            yield from Styled(_GAP.join(shown).rstrip(), style).lines(None, colours=colours)


Shown = str | Styled | Table


def cell_width(text: str) -> int:
    """How many cells of a terminal a text takes: two for a wide character, none for one that combines."""
    if text.isascii():
        return len(text)
    return sum(_width(character) for character in text)


def _width(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) in ("Cf", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def _fold(text: str, width: int) -> Iterator[str]:
    """The text in pieces of at most this width; at least one."""
    while cell_width(text) > width:
        end, used = 0, 0
        while used + _width(text[end]) <= width or end == 0:
            used += _width(text[end])
            end += 1
        yield text[:end]
        text = text[end:]
    yield text


def _pad(text: str, width: int, *, right: bool) -> str:
    space = " " * (width - cell_width(text))
    return space + text if right else text + space
