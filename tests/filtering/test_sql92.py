"""SQL 92 expressions: what they select, and that any text is an expression or refused."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from broker.filtering.sql92 import DEPTH_MAX, EXPRESSION_SIZE_MAX, Expression, SyntaxFault

PROPERTIES = {
    "price": "7.5", "region": "north", "urgent": "true", "name": "o'brien", "TAGS": "new", "zero": "0",
    "id": "9007199254740993", "apart": "1_000", "endless": "inf", "blank": " 5 ",
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("price > 5", True),
        ("price>5 and price<=7.5", True),
        ("price BETWEEN 5 AND 7", False),
        ("price NOT BETWEEN 5 AND 7", True),
        ("region = 'north'", True),
        ("region <> 'north' OR price = 7.50", True),
        ("region IN ('south', 'north')", True),
        ("region NOT IN ('south')", True),
        ("missing IN ('a')", False),
        ("missing NOT IN ('a')", False),  # unknown, as with NULL
        ("missing IS NULL", True),
        ("region IS NOT NULL", True),
        ("missing > 5 OR price > 5", True),
        ("NOT (missing > 5)", False),
        ("NOT price > 9", True),
        ("region > 5", False),  # a text has no order
        ("urgent = TRUE", True),
        ("TRUE", True),
        ("FALSE OR (price = 7.5 AND (TAGS = 'new'))", True),
        ("name = 'o''brien'", True),
        ("name CONTAINS 'brie' AND name STARTSWITH 'o' AND NOT name ENDSWITH 'x'", True),
        ("zero = -0", True),
        ("zero >= 1e3", False),
        ("price = 7.5d", True),
        ("id = 9007199254740993", True),
        ("id = 9007199254740992", False),  # as floats, these are one number
        ("id > 9007199254740992 AND id BETWEEN 9007199254740993 AND 9007199254740993L", True),
        ("id <> 9007199254740992", True),
        ("apart = 1000 OR apart <> 1000", False),  # numbers for Python alone
        ("endless > 5 OR endless < 5", False),
        ("blank = 5 AND price > '7'", True),
    ],
)
def test_what_is_selected(text: str, matches: bool) -> None:
    assert Expression.parse(text).matches(PROPERTIES) is matches


@pytest.mark.parametrize(
    "text",
    ["", "price", "price >", "> 5", "price > 5 AND", "(price > 5", "price > 5)", "region IN ()", "region IN (5)",
     "price BETWEEN 5", "region = 'open", "a ; b", "price IS 5", "NOT", "region CONTAINS 5", "'a' 'b'",
     "(" * (DEPTH_MAX + 2) + "TRUE" + ")" * (DEPTH_MAX + 2), "a = 1 OR " * (EXPRESSION_SIZE_MAX // 9) + "b = 1"],
)  # fmt: skip
def test_what_is_no_expression(text: str) -> None:
    with pytest.raises(SyntaxFault):
        Expression.parse(text)


def test_a_test_that_is_never_true_is_refused_with_a_reason() -> None:
    """A consumer would start, and pass over every message."""
    with pytest.raises(SyntaxFault, match=r"only numbers have an order, and 'monday' is none: compare it by = or IN"):
        Expression.parse("region = 'north' AND day > 'monday'")


@pytest.mark.parametrize(
    "text", ["1" * 4095 + "x", "." + "1" * 4000 + "x", "a = 1." + "1" * 4000 + "x"], ids=["whole", "part", "value"]
)
def test_many_digits_take_no_time(text: str) -> None:
    """They took a second, in which the server did nothing else."""
    begun_s = time.thread_time()
    with pytest.raises(SyntaxFault):
        Expression.parse(text)
    assert not Expression.parse("a > 5").matches({"a": "1" * 30_000 + "x"})
    assert time.thread_time() - begun_s < 0.1


WORDS = st.sampled_from(["a", "AND", "OR", "NOT", "(", ")", "=", "5", "'x'", "IS", "NULL", "IN", ",", "BETWEEN", "<>"])


@given(st.text(max_size=40) | st.lists(WORDS, max_size=15).map(" ".join), st.dictionaries(st.just("a"), st.text()))
@example("a = 1e999999", {"a": "nan"})
@example("a = 1_0", {"a": "1"})
def test_any_text_is_an_expression_or_refused(text: str, properties: dict[str, str]) -> None:
    try:
        found = Expression.parse(text)
    except SyntaxFault:
        return
    assert found.matches(properties) in (True, False)
