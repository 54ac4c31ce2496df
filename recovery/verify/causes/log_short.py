"""A log that ends before what its queues and its index name: its last segments are missing, or it was cut.

Zeros, or nothing, behind the last record of a log say nothing by themselves. The derived files do: a broker writes a
record before it writes what is derived from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from broker.errors import CorruptRecord, StoreError
from broker.format.commitlog import BLANK_SIZE
from broker.format.framing import FrameKind, frame
from broker.store.disk.files import Missing
from recovery.findings import Cause, Findings
from recovery.scan.record_at import record_at
from recovery.scan.scanner import Damage
from recovery.scan.store_files import StoreFiles
from recovery.verify.index_files import open_index
from recovery.verify.live_writes import is_live

_FARTHEST = 1 << 50  # no log is so long: what a damaged unit names


@dataclass(frozen=True, slots=True)
class DerivedEnds:
    """The CommitLog offsets of the last records that the derived files name; -1 where they name none.

    `last` is the later one, of files that are not damaged themselves.
    """

    queues: int = -1
    index: int = -1
    last: int = -1


def short_log(files: StoreFiles, end_offset: int, damages: Iterable[Damage], *, is_alone: bool = False) -> Cause | None:
    """What shows that a log that was read to `end_offset` lacks its end; None when nothing does.

    Not what lies in one of `damages`, which the caller reports: they explain it. A torn tail that is passed over as
    what a crash leaves is not one of them: a queue names whole records only. None for a store that a broker is writing,
    too: what its queues name may have been appended since the log was read; `is_alone` says that none is, as who has
    the lock knows. None for a store of ours with a watermark, but for a copy whose log ends below it. Derived files
    that cannot be read show nothing; `verify` says that they cannot.
    """
    mark = files.watermark
    if mark is not None and not (mark.is_copy and end_offset < mark.dispatched):
        return None
    try:
        ends = derived_ends(files, end_offset)
    except StoreError:
        return None
    if any(one.commitlog_offset <= ends.last < one.commitlog_offset + one.size for one in damages):
        return None
    found = short_by(files, end_offset, ends)
    return None if found is not None and not is_alone and is_live(files, end_offset) else found


def short_by(files: StoreFiles, end_offset: int, ends: DerivedEnds) -> Cause | None:
    """The same by what the derived files are known to name, of a store that nobody writes, damages left aside."""
    if ends.last < end_offset:
        return None
    return Cause("log-short", end_offset, files.commitlog_file(end_offset), _text(files, end_offset, ends))


def derived_ends(files: StoreFiles, end_offset: int) -> DerivedEnds:
    """What the last units of the ConsumeQueues and the files of the index name: a read or two for each.

    A unit that names a place behind the end of the log, and is one bit off a record that it would be right for, was
    damaged itself.
    """
    queues = last = -1
    for topic, queue_id in files.queues():
        units = files.queue_units(topic, queue_id)
        low, high = units.begin, units.end
        while low < high:  # units are filled from the front
            middle = (low + high) // 2
            low, high = (middle + 1, high) if units.read(middle, 1)["size"][0] > 0 else (low, middle)
        if low > units.begin:
            named = int(units.read(low - 1, 1)["commitlog_offset"][0])
            is_damaged = named >= _FARTHEST or (named >= end_offset and _is_bit_off(files, named, queue_id, low - 1))
            queues, last = max(queues, named), max(last, -1 if is_damaged else named)
    index = max((header.end_commitlog_offset for header in files.index_headers()), default=-1)
    return DerivedEnds(queues, index, max(last, _index_end(files)))


def _is_bit_off(files: StoreFiles, named: int, queue_id: int, queue_offset: int) -> bool:
    """Whether the log has the record of a unit at a place that differs in one bit from what the unit names."""
    for place in (named ^ 1 << bit for bit in range(_FARTHEST.bit_length() - 1)):
        with contextlib.suppress(Missing):  # it expired meanwhile
            record = record_at(files.commitlog, place)
            if record is not None and (queue_id, queue_offset) == (
                int(record.field("queue_id")[0]), int(record.field("queue_offset")[0]),
            ):  # fmt: skip
                return True
    return False


def _index_end(files: StoreFiles) -> int:
    """The last record that the index names, both in a header, which one bit may change, and in the item it counts."""
    last = -1
    for file in open_index(files.index, Findings()):
        with contextlib.suppress(Missing, CorruptRecord):
            if file.used and file.read(file.used, 1)["commitlog_offset"][0] == file.header.end_commitlog_offset:
                last = max(last, file.header.end_commitlog_offset)
    return last


def _text(files: StoreFiles, end_offset: int, ends: DerivedEnds) -> str:
    names = f"the log ends at {end_offset}, and its queues and index name records up to {ends.last}"
    if ends.last >= files.commitlog.end and _is_full(files, end_offset):
        return f"{names}: segment {files.commitlog.end:020} is missing, and perhaps more behind it"
    if files.closed_at_ms() is not None:
        return f"{names}: the log was cut, or is older than they are"
    return f"{names}: it was copied while a broker wrote to it, the log first. It can be verified up to {end_offset}"


def _is_full(files: StoreFiles, end_offset: int) -> bool:
    """Whether the log ends where its last segment does: behind the last record is the blank."""
    segment = files.commitlog.at(end_offset)
    if segment is None:
        return True
    raw = files.read(segment, end_offset - segment.base, BLANK_SIZE).tobytes()
    remaining = segment.base + files.commitlog.segment_size - end_offset
    return frame(raw, 0, remaining).kind is FrameKind.BLANK
