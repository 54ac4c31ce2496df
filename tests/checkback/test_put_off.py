"""What a round leaves in doubt: when it is asked about again, and how old the report says that it is."""

from __future__ import annotations

import time

import pytest

from recovery.checkback.protocol import Outcome
from tests.checkback.room import RULE, Room, room

__all__ = ["room"]

pytestmark = pytest.mark.usefixtures("each_engine")

DUE_MS = RULE.first_check_after_ms


@pytest.mark.parametrize(
    ("outcome", "nobody_named"), [(Outcome.REFUSED, False), (Outcome.DOWN, True)], ids=["refused", "nobody named"]
)
def test_a_ledger_that_is_named_now_is_asked_by_the_next_round(
    room: Room, outcome: Outcome, nobody_named: bool
) -> None:
    """What was wrong does not become right with time, and who puts it right does not wait for an interval."""
    room.prepare()
    room.told.default, room.told.nobody_named = outcome, nobody_named
    assert [room.round(DUE_MS).asked for _ in range(2)] == [1, 1]


@pytest.mark.parametrize("outcome", [Outcome.UNKNOWN, Outcome.RUNNING, Outcome.DOWN])
def test_who_was_asked_is_left_alone_for_an_interval(room: Room, outcome: Outcome) -> None:
    room.prepare()
    room.told.default = outcome
    assert room.round(DUE_MS).asked == 1
    report = room.round(DUE_MS + RULE.interval_ms - 1)
    assert (report.asked, report.waiting) == (0, 1)
    assert room.round(DUE_MS + RULE.interval_ms).asked == 1


def test_the_oldest_is_the_first_that_is_not_parked(room: Room) -> None:
    """Asked about or not: it is the age that an alert is about."""
    halves = []
    for _ in range(3):
        halves += room.prepare()
        time.sleep(0.002)  # so that each is younger than the one before it
    for after_ms, oldest in ((1, halves[0]), (DUE_MS, halves[0])):
        report = room.round(after_ms)
        assert report.oldest_ms == room.stored_ms + after_ms - oldest.store_timestamp_ms
    assert room.store.transactions.park(halves[0], "a test")
    assert room.round(DUE_MS).oldest_ms == room.stored_ms + DUE_MS - halves[1].store_timestamp_ms
    for half in halves[1:]:
        room.store.transactions.rollback(half)
    assert room.round(DUE_MS).oldest_ms is None
