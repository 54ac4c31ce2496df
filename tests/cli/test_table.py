"""Tables as text: aligned, folded to the terminal, never wider, and without colours where nobody sees them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from recovery.cli.terminal.table import Styled, Table, cell_width


def shown(table: Table, width: int | None = None) -> list[str]:
    return list(table.lines(width, colours=False))


def test_columns_are_aligned() -> None:
    table = Table("topic", "messages", right=("messages",))
    table.add("orders", 5)
    table.add("a", "1,024")
    assert shown(table) == ["topic   messages", "────────────────", "orders         5", "a          1,024"]


def test_wide_characters_take_two_cells() -> None:
    """And one that combines takes none."""
    table = Table("key", "n")
    table.add("注文", 1)
    table.add("e\u0301te\u0301", 2)
    assert [cell_width(line) for line in shown(table)] == [7, 7, 7, 7]


@pytest.mark.parametrize("width", [24, 40, 79])
def test_long_cells_are_folded_to_the_width(width: int) -> None:
    """Nothing is left out, and nothing is wider; in a file nothing is folded."""
    key, topic = "k" * 60 + "注文" * 8, "orders-of-the-north"
    table = Table("offset", "topic", "key", right=("offset",))
    table.add(4711, topic, key)
    lines = shown(table, width)
    assert max(map(cell_width, lines)) <= width
    for column, text in ((1, topic), (2, key)):
        assert sum(line.count(text[0]) for line in lines[2:]) >= text.count(text[0]), column
    assert "".join(lines[2:]).count("文") == 8
    assert key in shown(table)[-1]


def test_colours_are_for_terminals() -> None:
    """What a store says cannot bring its own."""
    assert list(Styled("ok", "bold green").lines(None, colours=True)) == ["\x1b[1;32mok\x1b[0m"]
    assert list(Styled("ok", "bold green").lines(None, colours=False)) == ["ok"]
    table = Table("topic")
    table.add("\x1b[31mred")
    assert "\x1b" not in "".join(shown(table))


def test_a_long_table_is_read_while_it_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """`pending` of a million in doubt took 1.2 GB, and printed nothing for minutes."""
    monkeypatch.setattr("recovery.cli.terminal.table._MEASURED", 2)
    read: list[int] = []

    def rows() -> Iterator[tuple[object, ...]]:
        for number in (1, 22, 333, 4):
            read.append(number)
            yield number, "x"

    table = Table("n", "k", right=("n",))
    table.take(rows())
    lines = table.lines(None, colours=False)
    assert [next(lines) for _ in range(4)] == [" n  k", "─────", " 1  x", "22  x"]
    assert read == [1, 22]
    assert list(lines) == ["333  x", "  4  x"]


def test_a_long_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recovery.cli.terminal.table._MEASURED", 1)
    table = Table("name")
    table.take([("abcd",), ("abcdefgh",)])
    assert list(table.lines(80, colours=False))[2:] == ["abcd", "abcd", "efgh"]
