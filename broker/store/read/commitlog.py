"""The CommitLog: read a record at an offset, walk forward, find where the log ends.

RocketMQ stores no write position, so the end is found by walking the last segment in use. A record that its writer is
still copying looks torn: at the tail, and only there, we wait a moment and look again; what stays torn ends the log.
RocketMQ: CommitLog (5.3.3).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from shlex import quote

from broker.errors import CorruptRecord
from broker.format.commitlog import (
    BLANK_SIZE,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_SIZE_MAX,
    RECORD_SIZE_MIN,
    Record,
    RecordBorn,
    RecordHead,
    decode,
    read_blank,
)
from broker.format.framing import claimed_size, is_record_size, record_marks
from broker.format.sysflag import BORN_IPV6
from broker.store.disk.os_errors import Missing
from broker.store.disk.read_file import NotCached, ReadFile
from broker.store.read.directory import StoreDirectory
from broker.store.read.kinds.log_directories import other_log_directories
from broker.store.read.segments import Listing, Segment, SegmentDamage

_WINDOW_BYTES = 1 << 20
_NEAR_BYTES = 1 << 19  # of records that are wanted, and others between them
_RECORD_BYTES = 4096  # most records fit: one read is enough
_SEARCH_BYTES = 8 << 20  # how far behind a bad place a whole record is looked for
_ZEROS = bytes(4096)
_PAUSES_S = (0.0, 0.001, 0.004, 0.016)  # a writer copies a record of 4 MiB in a millisecond or two


@dataclass(frozen=True, slots=True)
class Head:
    """What a hop over the log learns of a record, without looking at the rest of it."""

    commitlog_offset: int
    total_size: int
    store_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class _Look:
    """The bytes from an offset on, and what is wrong with the record that should begin there."""

    at: int
    window: bytes
    fault: CorruptRecord | None
    is_unfinished: bool = False  # whole by its lengths and CRC, but it may lack its last bytes

    @property
    def is_empty(self) -> bool:
        """Whether nothing was ever written there."""
        return not any(self.window[:BLANK_SIZE])


class CommitLog:
    """The records of a store, by their CommitLog offset. Threads may share it."""

    def __init__(self, directory: StoreDirectory) -> None:
        self._queue = directory.log_segments(tuple(other_log_directories(directory.disk, directory.path)))
        self._store_path = directory.path
        self._last: tuple[int, int] | None = None  # the last record when we last looked: inode and CommitLog offset

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._queue.listing(fresh=True).segments

    @property
    def damages(self) -> tuple[SegmentDamage, ...]:
        return self._queue.listing(fresh=True).damages

    @property
    def begin_offset(self) -> int:
        """Where the oldest segment begins; older ones have expired."""
        return self._queue.listing().begin

    @property
    def end_offset(self) -> int:
        """Where the next record goes, as far as one can see: walks the last segment in use, or what was added to it."""
        listing = self._queue.listing(fresh=True)
        segment = self._last_used(listing)
        if segment is None:
            return listing.begin
        hop = deque(self.heads(self._resume(segment), segment.base + listing.segment_size), maxlen=1)
        if not hop:
            return segment.base
        last = hop.pop()
        if self._next_record(last.commitlog_offset) is None:  # torn: the log ends before it
            return last.commitlog_offset
        self._last = (segment.inode, last.commitlog_offset)
        return self._past_blank(last.commitlog_offset + last.total_size)

    def read(self, commitlog_offset: int, size: int = _RECORD_BYTES) -> Record | None:
        """The record that begins at an offset; None where the log does not reach (any more, or yet).

        `size` is a guess that saves a second read. Raises CorruptRecord when other bytes are there than a record's.
        """
        listing = self._queue.listing()
        if commitlog_offset < listing.begin:
            return None
        raw = self._queue.read(commitlog_offset, min(size, _WINDOW_BYTES, self._room(commitlog_offset)))
        try:
            if claimed_size(raw) > len(raw):
                raw = self._queue.read(commitlog_offset, min(claimed_size(raw), self._room(commitlog_offset)))
            return decode(raw, commitlog_offset=commitlog_offset)
        except CorruptRecord:
            found = self._next_record(commitlog_offset)  # looks closer: is it the tail, a blank, or damage?
            if found is None or found[0] != commitlog_offset:
                return None
            return decode(found[1], commitlog_offset=commitlog_offset)

    def at(self, commitlog_offset: int) -> Record | None:
        """The record that begins at an offset that somebody else named; None where none does.

        Magic, size and the offset that it states come first: any other place costs one small read, and is not searched
        for what it might be. Raises CorruptRecord for a record that is damaged behind them.
        """
        listing = self._queue.listing()  # one look for all reads: a stat takes as long as a record of 1 KiB
        if commitlog_offset < listing.begin:
            return None
        room = listing.room(commitlog_offset) or self._room(commitlog_offset)
        raw = self._queue.read(commitlog_offset, min(_RECORD_BYTES, room), listing)
        head = _head(raw, 0, commitlog_offset, room)
        if head is None:
            return None
        if head.total_size > len(raw):
            raw = self._queue.read(commitlog_offset, head.total_size, listing)
        try:
            return decode(raw, commitlog_offset=commitlog_offset)
        except CorruptRecord as fault:
            raise self.damage(commitlog_offset, fault) from None

    def reader(self) -> Callable[[int, int], Record]:
        """Reads records by offset and size, after one look at the directory for all of them: a stat takes as long as a
        record of 1 KiB.

        What it returns raises CorruptRecord for anything but a whole, sound record in the segments of that moment;
        `read` looks again then, and closer. A segment that expires meanwhile may still be read.
        """
        listing, queue = self._queue.listing(), self._queue
        return lambda commitlog_offset, size: decode(
            queue.read_listed(listing, commitlog_offset, min(size, RECORD_SIZE_MAX)), commitlog_offset=commitlog_offset
        )

    def raw(self, commitlog_offset: int, size: int) -> bytes | None:
        """The bytes of the record of a known size at an offset; None where the log does not reach any more.

        Only size, magic and the offset that it states are compared. Raises CorruptRecord when they do not fit.
        """
        if commitlog_offset < self._queue.listing().begin:
            return None
        found = self._queue.read(commitlog_offset, size)
        if len(found) != size or not _is_placed(found, 0, commitlog_offset, size):
            raise self.damage(commitlog_offset, CorruptRecord(f"no record of {size} bytes begins here"))
        return found

    def raws(self, places: Sequence[tuple[int, int]], *, cached_only: bool = False) -> list[bytes]:
        """The bytes of records by offset and size, as `raw` gives them, without those that expired.

        One look at the directory for all, and one read for those that lie near each other. Raises CorruptRecord; with
        `cached_only` NotCached for what is not in the system's cache.
        """
        listing, found, window, base = self._queue.listing(), list[bytes](), b"", 0
        for number, (commitlog_offset, size) in enumerate(places):
            at = commitlog_offset - base
            if not 0 <= at <= len(window) - size:
                base, at = commitlog_offset, 0
                window = self._queue.read_listed(listing, base, _near(places, number) - base, cached_only=cached_only)
            fits = commitlog_offset >= listing.begin and size <= len(window) - at
            if fits and _is_placed(window, at, commitlog_offset, size):
                found.append(window[at : at + size])
            elif cached_only:
                raise NotCached(self._queue.directory)
            elif (raw := self.raw(commitlog_offset, size)) is not None:  # it looks again, and closer
                found.append(raw)
        return found

    def holder(self, commitlog_offset: int) -> tuple[ReadFile, int, int] | None:
        """The file of the segment that holds an offset, and the offsets where it begins and ends; None without one."""
        listing = self._queue.listing()
        segment = listing.at(commitlog_offset)
        if segment is None:
            return None
        try:
            return segment.open_file(), segment.base, segment.base + listing.segment_size
        except Missing:
            return None

    def walk(self, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        """The records from one CommitLog offset to another, across segments, to the end that the log has by then.

        `start` is the offset of a record or of a segment. What has expired below it is passed over. Raises
        CorruptRecord where no record begins although the log goes on, CorruptStore where a segment is missing.
        """
        at = self.begin_offset if start is None else start
        while (end is None or at < end) and (found := self._next_record(at)) is not None:
            base, window = found
            at = base
            while end is None or at < end:
                try:
                    record = decode(window, at - base, commitlog_offset=at)
                except CorruptRecord:
                    break  # the window ends inside this record, or the log does
                if at != base and _is_unfinished(record):
                    break
                yield record
                at += record.total_size

    def heads(self, start: int, end: int) -> Iterator[Head]:
        """Hop over the records of one segment between two offsets; ends early at the first that is none.

        Only size, magic and the offset that a record states are looked at.
        """
        at = start
        room = self._room(start)
        while at < end and room >= RECORD_SIZE_MIN:
            window, base = self._queue.read(at, min(_WINDOW_BYTES, room)), at
            while at < end and (head := _head(window, at - base, at, room - (at - base))) is not None:
                yield head
                at += head.total_size
            if at == base:
                return
            room = self._room(at)

    def store_timestamp_ms(self, commitlog_offset: int) -> int | None:
        """When the record at an offset was stored; None when none begins there."""
        room = self._room(commitlog_offset)
        raw = self._queue.read(commitlog_offset, min(RECORD_SIZE_MIN, room))
        head = _head(raw, 0, commitlog_offset, room)
        return None if head is None else head.store_timestamp_ms

    def _next_record(self, at: int) -> tuple[int, bytes] | None:
        """Where the first whole record at or behind `at` begins, after blanks, and bytes that begin with it.

        None at the end of the log.
        """
        look = self._look(max(at, self.begin_offset))
        for pause_s in _PAUSES_S:
            if look.fault is None and not look.is_unfinished:
                return look.at, look.window
            if look.is_empty and self._ends_at(look.at):
                return None
            time.sleep(pause_s)
            look = self._look(look.at)
        if look.fault is None:  # it ends in zeros for good; RocketMQ takes it, and so do we
            return look.at, look.window
        if len(look.window) < min(self._room(look.at), _WINDOW_BYTES):
            self._queue.read(look.at + len(look.window), 1)  # raises: the file was cut here
        if self._ends_at(look.at):
            return None
        raise self.damage(look.at, look.fault)

    def _look(self, at: int) -> _Look:
        """What stands at an offset now, or at the beginning of the next segment when that is a blank."""
        try:
            at = self._past_blank(at)
        except CorruptRecord as fault:
            return _Look(at, self._window(at), fault)
        window = self._window(at)
        try:
            record = decode(window, commitlog_offset=at)
        except CorruptRecord as fault:
            return _Look(at, window, fault)
        return _Look(at, window, None, _is_unfinished(record) and not any(window[record.total_size :]))

    def _past_blank(self, at: int) -> int:
        """The next segment's offset when a blank stands at `at`, else `at`."""
        while (segment := self._queue.listing().at(at)) is not None:
            room = self._room(at)
            if not read_blank(self._queue.read(at, min(BLANK_SIZE, room)), 0, room):
                return at
            at = segment.base + self._queue.listing().segment_size
        return at

    def _window(self, at: int) -> bytes:
        room = self._room(at)
        window = self._queue.read(at, min(_WINDOW_BYTES, room))
        claims = claimed_size(window)
        return window if claims <= len(window) else self._queue.read(at, min(claims, room))

    def _room(self, at: int) -> int:
        """How many bytes the segment has from an offset on; 0 where there is no segment."""
        room = self._queue.listing().room(at) or self._queue.listing(fresh=True).room(at)
        if not room:
            self._queue.read(at, 1)  # raises when a segment should be here
        return room

    def _ends_at(self, at: int) -> bool:
        """Whether nothing behind a bad place is a part of the log: zeros may be a block that the disk lost."""
        return self._is_tail(at) and not self._whole_record_follows(at)

    def _is_tail(self, at: int) -> bool:
        """Whether no segment behind the one at `at` has been written to."""
        listing = self._queue.listing(fresh=True)
        segment = listing.at(at)
        last = self._last_used(listing)
        return segment is None or last is None or last.base <= segment.base

    def _last_used(self, listing: Listing) -> Segment | None:
        """The last segment that holds anything: the one after it may be allocated ahead, full of zeros."""
        for segment in reversed(listing.segments):
            if any(self._queue.read(segment.base, min(BLANK_SIZE, segment.size))):
                return segment
        return None

    def _resume(self, segment: Segment) -> int:
        """Where to begin to look for the end: the last record that we know of in the segment, while it stands."""
        if self._last is not None and self._last[0] == segment.inode:
            known = self._last[1]
            if next(self.heads(known, known + 1), None) is not None:
                return known
        return segment.base

    def _whole_record_follows(self, at: int) -> bool:
        """Whether a whole record that says its true offset follows a bad place: then the log did not end there."""
        data = self._queue.read(at, min(self._room(at), _SEARCH_BYTES))
        if _is_zeros(data):  # as at the end of a log that grows, where a reader comes again and again
            return False
        for mark in record_marks(data, 1):
            with contextlib.suppress(CorruptRecord):
                decode(data, mark, commitlog_offset=at + mark)
                return True
        return False

    def damage(self, at: int, fault: CorruptRecord) -> CorruptRecord:
        """A fault in the record at an offset, with its file and the next step."""
        segment = self._queue.listing().at(at)
        path = self._queue.directory if segment is None else segment.path
        reason = f"{fault.reason}. Run: checkback verify {quote(self._store_path)}"
        return CorruptRecord(reason, at=at - segment.base if segment else 0, commitlog_offset=at, path=path)


def _head(window: bytes, at: int, commitlog_offset: int, room: int) -> Head | None:
    """The head of the record at a position of the window, when it makes sense there; `room` is the segment's rest."""
    if at + RECORD_SIZE_MIN > len(window):
        return None
    size, magic, _, _, _, _, said, sys_flag, _ = RecordHead.STRUCT.unpack_from(window, at)
    if magic not in (MAGIC_V1, MAGIC_V2) or not is_record_size(size, room):
        return None
    if said != commitlog_offset:
        return None
    born_at = at + RecordHead.SIZE + (16 if sys_flag & BORN_IPV6 else 4)
    _, store_timestamp_ms = RecordBorn.STRUCT.unpack_from(window, born_at)
    return Head(commitlog_offset, size, store_timestamp_ms)


def _is_placed(window: bytes, at: int, commitlog_offset: int, size: int) -> bool:
    """Whether a record of this size and offset begins at a position of the window, by what it states."""
    if size < RECORD_SIZE_MIN:
        return False
    stated, magic, _, _, _, _, stated_offset, _, _ = RecordHead.STRUCT.unpack_from(window, at)
    return bool(stated == size and stated_offset == commitlog_offset and magic in (MAGIC_V1, MAGIC_V2))


def _near(places: Sequence[tuple[int, int]], first: int) -> int:
    """Where a read that begins with one record may end: with the last of those that follow it within the window."""
    begin, size = places[first]
    end = begin + size
    for commitlog_offset, size in places[first + 1 :]:
        if not end <= commitlog_offset <= begin + _NEAR_BYTES - size:
            break
        end = commitlog_offset + size
    return end


def _is_zeros(data: bytes) -> bool:
    """Whether nothing is there, in a tenth of the time that a search takes which finds nothing."""
    whole = len(data) - len(data) % len(_ZEROS)
    return all(data.startswith(_ZEROS, at) for at in range(0, whole, len(_ZEROS))) and not any(data[whole:])


def _is_unfinished(record: Record) -> bool:
    """Whether the record may lack its last bytes: no CRC covers topic and properties, and zeros are legal lengths."""
    return record.properties.endswith(b"\0") or record.topic.endswith("\0")
