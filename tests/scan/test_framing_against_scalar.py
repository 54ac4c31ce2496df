"""The vectorised walk says what the scalar rule of `broker.format.framing` says, byte by byte."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.format.commitlog import BLANK_SIZE, MAGIC_BLANK, MAGIC_V1, RECORD_SIZE_MIN
from broker.format.framing import Frame, FrameKind, frame
from recovery.scan.framing import Stop, walk
from tests.scan.effort import tries
from tests.scan.logs import Log, logs

SEGMENT = 1 << 12


def two_words(size: int, magic: int) -> bytes:
    return size.to_bytes(4, "big", signed=True) + magic.to_bytes(4, "big", signed=True)


@pytest.mark.parametrize(
    ("raw", "remaining", "expected"),
    [
        (b"", 0, Frame(FrameKind.FULL)),
        (bytes(7), 7, Frame(FrameKind.BAD)),
        (bytes(7), 100, Frame(FrameKind.CUT_OFF, BLANK_SIZE)),
        (bytes(8), 100, Frame(FrameKind.EMPTY)),
        (two_words(100, MAGIC_BLANK), 100, Frame(FrameKind.BLANK, 100)),
        (two_words(99, MAGIC_BLANK), 100, Frame(FrameKind.BAD)),
        (two_words(200, MAGIC_V1) + bytes(192), 208, Frame(FrameKind.RECORD, 200)),
        (two_words(200, MAGIC_V1) + bytes(191), 208, Frame(FrameKind.CUT_OFF, 200)),
        (two_words(200, MAGIC_V1) + bytes(192), 207, Frame(FrameKind.BAD)),  # no room for the blank
        (two_words(RECORD_SIZE_MIN - 1, MAGIC_V1), 1000, Frame(FrameKind.BAD)),
        (two_words(200, 0), 1000, Frame(FrameKind.BAD)),
    ],
)
def test_eight_bytes_decide(raw: bytes, remaining: int, expected: Frame) -> None:
    assert frame(raw, 0, remaining) == expected


@tries(30)
@given(logs(min_size=1), st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3))
def test_the_walk_follows_the_rule(log: Log, changes: list[tuple[int, int]]) -> None:
    """Each record of the walk is one to the rule, and begins where the one before it ends; the stop is the same."""
    base, raw = min(log.segments.items())
    window = np.frombuffer(bytes(raw), np.uint8).copy()
    for place, value in changes:
        window[place % len(window)] = value
    segment_end, at = base + len(window), 0
    step = walk(window, base, segment_end)
    for position, size in zip(step.records.at.tolist(), step.records.sizes.tolist(), strict=True):
        assert position == at
        assert frame(window.data, at, len(window) - at) == Frame(FrameKind.RECORD, size)
        at += size
    assert at == step.at
    kind = frame(window.data, at, len(window) - at).kind
    assert step.stop.name == {FrameKind.RECORD: Stop.BAD.name, FrameKind.CUT_OFF: Stop.MORE.name}.get(kind, kind.name)
