"""What to ask a master for, and what may go: pure."""

from __future__ import annotations

import pytest

from broker.remoting.replication import TRANSFER_BYTES, Transfer
from recovery.following.decisions import (
    ComparedEnd,
    CopyVerdict,
    Progress,
    Search,
    has_all,
    is_silent,
    request_for,
    verdict,
    wider,
)
from recovery.following.retention import expired_below


@pytest.mark.parametrize(
    ("same_up_to", "is_begin", "expected"),
    [
        (200, False, CopyVerdict.SAME),
        (199, False, CopyVerdict.CUT),
        (120, True, CopyVerdict.CUT),
        (119, False, CopyVerdict.WIDER),
        (100, False, CopyVerdict.WIDER),
        (100, True, CopyVerdict.FOREIGN),
    ],
)
def test_a_difference_counts_behind_a_record_that_is_the_same(
    same_up_to: int, is_begin: bool, expected: CopyVerdict
) -> None:
    assert verdict(ComparedEnd(100, 120, 200, same_up_to, differs=True), is_begin=is_begin) is expected


def test_each_step_back_is_twice_as_long() -> None:
    boundaries = list(range(0, 1000, 10))
    asked, steps = 990, []
    while asked:
        before, asked = asked, wider(asked, boundaries)
        steps.append(before - asked)
    assert steps == [10, 20, 40, 80, 160, 320, 360]
    assert wider(0, boundaries) == 0


def test_zero_cannot_be_asked_for() -> None:
    assert [request_for(at) for at in (0, 1, 4096)] == [1, 1, 4096]


def test_one_heartbeat_proves_nothing() -> None:
    assert not is_silent(1, 60.0)
    assert not is_silent(2, 0.5)
    assert is_silent(2, 5.0)


@pytest.mark.parametrize("first", range(9))
def test_the_search_finds_the_first_segment(first: int) -> None:
    search, tries = Search(0, 8), 0
    while (candidate := search.candidate) is not None:
        search, tries = search.tried(candidate, is_there=candidate >= first), tries + 1
    assert search.high == first
    assert tries <= 4


@pytest.mark.parametrize(
    ("older_than_ms", "lowest_in_doubt", "expected"),
    [
        (0, None, None),
        (15, None, 100),
        (25, None, 200),
        (99, None, 300),
        (99, 250, 200),
        (99, 20, None),
        (99, 450, 300),
    ],
)
def test_segments_go_oldest_first(older_than_ms: int, lowest_in_doubt: int | None, expected: int | None) -> None:
    """Segments of 100 bytes; the second was verified in two stretches; the last is not complete."""
    batches = [(0, 100, 10), (100, 150, 20), (150, 200, 12), (200, 300, 30), (300, 350, 40)]
    found = expired_below(batches, 100, older_than_ms=older_than_ms, lowest_in_doubt=lowest_in_doubt)
    assert found == expected


@pytest.mark.parametrize(
    ("size", "ends_record", "quiet_s", "expected"),
    [
        (900, True, 0.0, True),  # shorter than a transfer can be, and it ends as a log does
        (TRANSFER_BYTES - 1, True, 0.0, True),
        (TRANSFER_BYTES, True, 0.0, False),  # there may be more
        (900, False, 0.0, False),  # a smaller haTransferBatchSize cut it
        (4096, True, 0.0, False),  # up to the end of the segment: there may be another one
        (0, True, 0.0, True),  # a heartbeat
        (0, False, 0.0, False),  # the master limits its speed
        (0, False, 5.0, True),
        (None, True, 0.4, False),
        (None, True, 0.6, True),
        (None, False, 0.6, False),
        (None, False, 5.0, True),
    ],
)
def test_a_transfer_that_no_limit_cut_was_all_that_the_master_had(
    size: int | None, ends_record: bool, quiet_s: float, expected: bool
) -> None:
    last = None if size is None else Transfer((1 << 20) - 4096, bytes(size))
    segment_bytes = 1 << 20 if size == 4096 else 1 << 30
    assert has_all(last, segment_bytes, ends_record=ends_record, quiet_s=quiet_s) is expected


def test_a_copy_is_caught_up_while_it_had_all_a_moment_ago() -> None:
    data, heartbeat = Transfer(0, b"record"), Transfer(6, b"")
    progress = Progress().heard(data, 6, had_all=False, now_s=100.0)
    assert not progress.is_caught_up(100.0)
    progress = progress.heard(data, 12, had_all=True, now_s=101.0)
    assert [progress.is_caught_up(101.9), progress.is_caught_up(102.1)] == [True, False]
    assert progress.complete_offset is None
    assert progress.heard(heartbeat, 12, had_all=True, now_s=102.0).complete_offset == 12
    busy = progress.heard(data, 40, had_all=True, now_s=104.0).heard(data, 60, had_all=False, now_s=106.0)
    assert busy.complete_offset == 40  # what came since may be a part of what the master has
    assert not busy.is_caught_up(106.0)
