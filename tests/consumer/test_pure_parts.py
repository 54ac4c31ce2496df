"""Window, tags and shares: decisions without a store."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.consuming.group.membership import share
from broker.consuming.tags import Selection
from broker.consuming.window import Window
from broker.errors import MessageRejected


@given(st.integers(0, 50), st.lists(st.integers(0, 30)), st.integers(0, 30))
def test_the_position_is_the_lowest_that_is_not_acknowledged(start: int, acked: list[int], fetched: int) -> None:
    """In whatever order messages are acknowledged, once or twice."""
    window, done = Window(start), set()
    for queue_offset in range(start, start + fetched):
        window.fetched(queue_offset)
    for step in acked:
        window.acknowledge(start + step)
        done.add(start + step)
        open_ones = [one for one in range(start, start + fetched) if one not in done]
        assert window.position == (open_ones[0] if open_ones else start + fetched)


def test_what_is_passed_over_counts_as_done_once_all_before_it_is() -> None:
    window = Window(0)
    window.fetched(0)
    window.passed(5)
    assert window.position == 0
    assert window.acknowledge(0) == 5


@given(st.lists(st.integers(), unique=True, max_size=40), st.integers(1, 9), st.integers(0, 1 << 32))
def test_each_queue_falls_to_exactly_one_member(queues: list[int], count: int, turn: int) -> None:
    """And no share is larger than another by more than one queue."""
    members = list(range(100, 100 + count))
    shares = [share(queues, members, member, turn) for member in members]
    assert sorted(queue for part in shares for queue in part) == sorted(queues)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_topics_with_one_queue_do_not_all_fall_to_one_member() -> None:
    assert {share([0], [7, 8], 7, turn)[:1] == [0] for turn in range(2)} == {True, False}


def test_tags_that_share_a_hash_are_told_apart() -> None:
    """Java's hash of Aa and of BB is the same: the unit lets both pass, the tag decides."""
    selection = Selection.parse(" Aa || C ")
    (code,) = selection.codes & Selection.parse("BB").codes
    assert selection.may_match(code)
    assert selection.matches("Aa")
    assert not selection.matches("BB")


@pytest.mark.parametrize("expression", ["*", "", "  "])
def test_a_star_or_nothing_selects_all(expression: str) -> None:
    selection = Selection.parse(expression)
    assert selection.may_match(0)
    assert selection.matches("")


def test_an_expression_that_selects_nothing_is_refused() -> None:
    with pytest.raises(MessageRejected, match=r"write '\*'"):
        Selection.parse("||")
