"""Where records begin in a window of bytes, and what stands where no record does. Pure: no files.

A walk hops from record to record by TOTALSIZE and then looks at all of them at once; the first that is not a whole
record ends it. After damage, `next_start` finds the next place where the log can be trusted again: a whole record that
says its own true offset. `next_blank` finds the end of the segment where no record follows.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from broker.compiled import fast
from broker.format.commitlog import (
    BLANK_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MIN,
    RecordHead,
)
from broker.format.framing import Frame, FrameKind, claimed_size, frame, is_record_size
from recovery.scan.native.columns import WindowPass
from recovery.scan.records import Bytes, Ints, Records
from recovery.scan.strings import unaligned

_SIZE = struct.Struct(">i").unpack_from
_PIECE_BYTES = 64 << 10
_HOPS = 64  # one by one, before a rhythm is looked for
_MAGIC_AT = RecordHead.OFFSET["magic"]
_PLACE_AT = RecordHead.OFFSET["commitlog_offset"]
_MAGIC_SIZE = 4
_RECORD_MAGICS = tuple(struct.pack(">i", magic) for magic in (MAGIC_V1, MAGIC_V2))
_BLANK_MAGICS = (struct.pack(">i", MAGIC_BLANK),)


class Stop(enum.Enum):
    """Why a walk ended, with the position where it did."""

    MORE = "a record begins here that reaches beyond the window"
    BLANK = "the blank that ends a segment"
    EMPTY = "eight zero bytes: nothing was written here yet"
    FULL = "the end of the segment"
    BAD = "neither a record nor a blank"


@dataclass(frozen=True, slots=True)
class Walk:
    """The records of a window, why they end, where, and how many bytes the next record claims (for Stop.MORE)."""

    records: Records
    stop: Stop
    at: int
    claims: int = 0


def walk(window: Bytes, base: int, segment_end: int, begun: WindowPass | None = None) -> Walk:
    """Walk the records from the window's first byte on; `segment_end` is the CommitLog offset where the segment ends.

    `begun` is a pass over the same window that went on while it was read. RocketMQ: CommitLog.recoverAbnormally
    (5.3.3), but a record must also say the offset at which it really lies.
    """
    limit = min(len(window), segment_end - base - BLANK_SIZE)
    if fast is not None or begun is not None:
        return _walk_compiled(window, base, segment_end, begun or WindowPass(window, base), limit)
    positions = _hop(window, limit)
    records = Records(window, base, positions)
    if len(records):
        whole = records.whole(limit)
        if not whole.all():
            first = int(np.argmin(whole))
            # Not take(): what is not a whole record must not be among those whose columns are read.
            return Walk(Records(window, base, positions[:first]), Stop.BAD, int(positions[first]))
    at = int(positions[-1] + records.sizes[-1]) if len(records) else 0
    kind, size = _frame(window, at, segment_end - base - at)
    if kind is FrameKind.RECORD and at + size > segment_end - base - BLANK_SIZE:
        cut = Records(window, base, np.append(positions, at))
        if cut.whole(at + size).all():
            return Walk(cut, Stop.FULL if at + size == segment_end - base else Stop.BAD, at + size)
    return Walk(records, _STOPS[kind], at, size if kind is FrameKind.CUT_OFF else 0)


def _walk_compiled(window: Bytes, base: int, segment_end: int, walked: WindowPass, limit: int) -> Walk:
    """The same by the C module."""
    walked.advance(limit)
    stop, size = Stop.BAD, 0
    if not walked.is_broken:
        kind, size = _frame(window, walked.at, segment_end - base - walked.at)
        stop = _STOPS[kind]
        if kind is FrameKind.RECORD and walked.at + size > segment_end - base - BLANK_SIZE:
            walked.advance(walked.at + size)
            stop = Stop.FULL if walked.at == segment_end - base else Stop.BAD
    columns = walked.columns()
    return Walk(Records(window, base, columns["at"], columns), stop, walked.at, size if stop is Stop.MORE else 0)


def _frame(window: Bytes, at: int, remaining: int) -> Frame:
    """What begins at a place; a record behind which fewer bytes are left than a blank takes is one, too."""
    found = frame(window.data, at, remaining)
    if found.kind is FrameKind.BAD:
        size = claimed_size(window[at : at + BLANK_SIZE].tobytes())
        if _is_cut_behind(size, remaining):
            return frame(window.data, at, size)
    return found


def _is_cut_behind(size: int, remaining: int) -> bool:
    """Whether fewer bytes are left behind a record of this size than a blank takes, which a broker leaves room for.

    The file was cut there, and its size is not that of a segment: a copy may end anywhere in the zeros behind the log.
    """
    return is_record_size(size, size) and remaining - BLANK_SIZE < size < remaining


def _hop(window: Bytes, limit: int) -> Ints:
    """Positions by size alone: whether records really stand there is asked for all of them at once.

    A producer's messages mostly repeat a few sizes. Where the last 64 sizes do, `predict_offsets` says where the next
    records begin, and all predictions are compared with the sizes that stand there in one NumPy pass; only where they
    differ the walk goes on hop by hop. Without prediction the result is the same (tests/scan/test_framing_rhythm.py).
    """
    runs: list[Ints] = []
    at = 0
    while True:
        steps = _hop_by_hop(window, at, limit)
        runs.append(np.array(steps[:-1], np.int64))
        at = steps[-1]
        if len(steps) <= _HOPS:
            return np.concatenate(runs)
        predicted = predict_offsets(window, [after - before for before, after in pairwise(steps)], at, limit)
        if len(predicted) > 1:
            runs.append(predicted[:-1])
            at = int(predicted[-1])


def _hop_by_hop(window: Bytes, at: int, limit: int) -> list[int]:
    """The next positions, at most so many, and where the last of them leads."""
    positions = [at]
    view, last = window.data, limit - RECORD_SIZE_MIN
    size_at, add = _SIZE, positions.append
    for _ in range(_HOPS):
        if at > last:
            break
        (size,) = size_at(view, at)
        if size < RECORD_SIZE_MIN or at + size > limit:
            break
        at += size
        add(at)
    return positions


def predict_offsets(window: Bytes, sizes: list[int], at: int, limit: int) -> Ints:
    """Positions from `at` on as far as the period of the last sizes holds, and where the last of them leads.

    An example: the last sizes were 300, 120, 300, 120, ... and at = 1000, limit = 2000.
      period     2, since sizes[2:] == sizes[:-2]; at most 31 are tried
      steps      300 120 300 120 300 120 ...       as often as they fit into 1000 bytes
      starts     1000 1300 1420 1720 1840 2140     the sums; 2140 is beyond the limit
      inside     4: the records at 1000, 1300, 1420 and 1720 would end at 1840 or before
      stated     300 120 300 250                   what stands at these four places: the last one differs
      returned   1000 1300 1420 1720               three predictions hold, and 1720 is where the walk goes on
    """
    period = next((count for count in range(1, _HOPS // 2) if sizes[count:] == sizes[:-count]), 0)
    if not period:
        return np.array([at], np.int64)
    rhythm = np.array(sizes[-period:], np.int64)
    steps = np.tile(rhythm, (limit - at) // int(rhythm.sum()) + 1)
    starts = at + np.concatenate(([0], np.cumsum(steps)))
    inside = int(np.searchsorted(starts, limit, side="right")) - 1
    stated = unaligned(window, ">i4", starts[:inside])
    wrong = np.flatnonzero(stated != steps[:inside])
    return starts[: (int(wrong[0]) if len(wrong) else inside) + 1]


_STOPS = {
    FrameKind.RECORD: Stop.BAD,  # it was looked at, and is not whole
    FrameKind.CUT_OFF: Stop.MORE,
    FrameKind.BLANK: Stop.BLANK,
    FrameKind.EMPTY: Stop.EMPTY,
    FrameKind.FULL: Stop.FULL,
    FrameKind.BAD: Stop.BAD,
}


@dataclass(frozen=True, slots=True)
class RecordStart:
    """A place where the log can be trusted again; a record that the window cuts off says how many bytes it claims."""

    at: int
    claims: int = 0


def next_start(window: Bytes, base: int, segment_end: int) -> RecordStart | None:
    """The first whole record in the window; None when there is none.

    A record that the window cuts off is returned with what it claims: read so much from there and ask again.
    """
    for at in _candidates(window, _RECORD_MAGICS):
        (size,) = _SIZE(window.data, at)
        remaining = segment_end - base - at
        if not is_record_size(size, remaining) and not _is_cut_behind(size, remaining):
            continue
        if at + RecordHead.SIZE > len(window):
            return RecordStart(at, size)
        if RecordHead.unpack_from(window.data, at).commitlog_offset != base + at:
            continue
        if at + size > len(window):
            return RecordStart(at, size)
        if Records(window, base, np.array([at], np.int64)).whole(len(window)).all():
            return RecordStart(at)
    return None


def next_blank(window: Bytes, base: int, segment_end: int) -> int | None:
    """The first place in the window of what would be the segment's blank there; None when there is none.

    It counts only where no record follows in the segment: eight bytes in a body can look like one.
    """
    found = _candidates(window, _BLANK_MAGICS)
    blanks = (at for at in found if _SIZE(window.data, at)[0] == segment_end - base - at)
    return next(blanks, None)


def _candidates(window: Bytes, magics: tuple[bytes, ...]) -> Iterator[int]:
    """The positions, in order, of everything whose second word is one of these magic codes; looked for piece by piece.

    The first is mostly near and mostly right: a search through the whole window would cost more than the walk.
    """
    for start in range(0, len(window) - _MAGIC_AT, _PIECE_BYTES):
        raw = window[start + _MAGIC_AT : start + _MAGIC_AT + _PIECE_BYTES + _MAGIC_SIZE - 1].tobytes()
        found: list[int] = []
        for magic in magics:
            at = raw.find(magic)
            while at >= 0:
                found.append(start + at)
                at = raw.find(magic, at + 1)
        yield from sorted(found)


def overlaps(window: Bytes, base: int, commitlog_offset: int, segment_end: int) -> bool:
    """Whether a record or a blank that the window may hold begins before an offset and reaches over it.

    Nothing is asked of it but a known magic, its own true place, and its size: better a doubt too many.
    """
    for magic in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK):
        at = _places(window, magic)
        at = at[at + base < commitlog_offset]
        if not len(at):
            continue
        sizes = unaligned(window, ">i4", at).astype(np.int64)
        over = at + base + sizes > commitlog_offset
        if magic == MAGIC_BLANK:
            over &= (sizes == segment_end - base - at) & (sizes >= BLANK_SIZE)
        else:
            over &= (sizes >= RECORD_SIZE_MIN) & (unaligned(window, ">i8", at + _PLACE_AT) == at + base)
        if over.any():
            return True
    return False


def _places(window: Bytes, magic: int) -> Ints:
    """Where something begins whose second word is this magic."""
    mark = magic.to_bytes(4, "big", signed=True)
    at = np.flatnonzero(window[_MAGIC_AT : len(window) - len(mark) + 1] == mark[0])
    for number in range(1, len(mark)):
        at = at[window[at + _MAGIC_AT + number] == mark[number]]
    return at
