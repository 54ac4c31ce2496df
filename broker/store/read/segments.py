"""A queue of segments: files of one size, each named by the position of its first byte, in 20 digits.

    SegmentQueue(files, "shop.store/commitlog", ...).read(1_073_741_824, 91)

What is expected of a live queue is not an error: the first segments expire, the last is empty or full of zeros, files
appear while we look. What no live queue shows is a `SegmentDamage`, and reading a byte that it took raises it.

RocketMQ calls a segment a mapped file: MappedFileQueue (5.3.3), MapedFileQueue (3.1.4).
"""

from __future__ import annotations

import contextlib
import math
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from shlex import quote
from typing import Any

from broker.errors import CorruptStore
from broker.store.disk.files import Disk, Entry, Missing, ReadFile
from broker.store.disk.open_files import OpenFiles

NAME_DIGITS = 20
_NAME_END = f"{1 << 62:0{NAME_DIGITS}}"


@dataclass(frozen=True, slots=True)
class Segment:
    """One file of a queue, as it was when the directory was listed."""

    base: int  # position in the queue of its first byte
    size: int
    path: str
    inode: int
    files: OpenFiles = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    def read(self, at: int, size: int, *, cached_only: bool = False) -> bytes:
        """The bytes from position `at` of the file on: fewer where it ends. Raises Missing when it is gone.

        With `cached_only` all of them; raises NotCached for what is not in the system's cache.
        """
        file = self.open_file()
        return file.pread_cached(size, at) if cached_only else file.pread(size, at)

    def open_file(self) -> ReadFile:
        """The file, open as long as it is held. Raises Missing when it is gone."""
        return self.files.get(self.path, self.inode)

    def read_into(self, at: int, buffer: Any) -> int:
        """Fill the buffer from position `at` of the file; returns how many bytes were there."""
        return self.open_file().pread_into(buffer, at)

    def next_data(self, at: int) -> int:
        """The first position at or after `at` that may hold a byte other than zero; the file's size when none does."""
        return self.open_file().next_data(at)


@dataclass(frozen=True, slots=True)
class SegmentDamage:
    """What no live queue shows: `kind` is segment-missing, segment-overlap or segment-size."""

    kind: str
    start: int  # the positions in the queue that cannot be read
    end: int
    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Listing:
    """The segments of a directory at one moment, in order."""

    segments: tuple[Segment, ...] = ()
    segment_size: int = 0  # of every whole segment; 0 when no file says it
    damages: tuple[SegmentDamage, ...] = ()
    others: tuple[str, ...] = ()  # paths in the directory that are not segments
    stamp: tuple[int, int] | None = None  # of the directory: as long as it stands, no file came or went

    @property
    def begin(self) -> int:
        """The position of the first byte."""
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        """The position after the last segment, which may be empty as yet."""
        return self.segments[-1].base + self.segment_size if self.segments else 0

    def at(self, position: int) -> Segment | None:
        """The segment that holds the position."""
        index = bisect_right(self.segments, position, key=lambda segment: segment.base) - 1
        if index < 0 or position >= self.segments[index].base + self.segment_size:
            return None
        return self.segments[index]

    def room(self, position: int) -> int:
        """How many bytes the segment has from a position on; 0 where there is no segment."""
        segment = self.at(position)
        return 0 if segment is None else segment.base + self.segment_size - position

    def based(self, base: int) -> Segment | None:
        """The segment that begins at a position."""
        index = bisect_right(self.segments, base, key=lambda segment: segment.base) - 1
        return self.segments[index] if index >= 0 and self.segments[index].base == base else None

    def after(self, segment: Segment) -> tuple[Segment, ...]:
        """The segments behind one."""
        return self.segments[bisect_right(self.segments, segment.base, key=lambda other: other.base) :]


class SegmentQueue:
    """The segments of one directory, and of `others`, read as one run of bytes. Threads may share it."""

    def __init__(
        self, disk: Disk, files: OpenFiles, directory: str, store_path: str, others: Sequence[str] = ()
    ) -> None:
        self._others = others
        self.directory = directory
        self._disk = disk
        self._files = files
        self._store_path = store_path
        self._listing = Listing()

    def listing(self, *, fresh: bool = False) -> Listing:
        """The segments as they are now. A file that only grew shows when the listing is `fresh`."""
        stamp = self._disk.stamp(self.directory)
        if stamp is None:
            self._listing = Listing()
            return self._listing
        if fresh or stamp != self._listing.stamp:
            before, self._listing = self._listing, self._list(stamp)
            for segment in set(before.segments) - set(self._listing.segments):
                self._files.forget(segment.path, segment.inode)
        return self._listing

    def _list(self, stamp: tuple[int, int]) -> Listing:
        try:
            entries = self._disk.entries(self.directory)
        except Missing:
            return Listing()
        segments = tuple(
            Segment(int(entry.name), entry.size, entry.path, entry.inode, self._files)
            for entry in self._with_others(entries)
            if _is_segment(entry)
        )
        others = tuple(entry.path for entry in entries if not _is_segment(entry))
        size = segment_size(segments)
        return Listing(segments, size, tuple(damages_of(segments, size)), others, stamp)

    def _with_others(self, entries: list[Entry]) -> list[Entry]:
        if not self._others:
            return entries
        found = list(entries)
        for directory in self._others:
            with contextlib.suppress(Missing):
                found += self._disk.entries(directory)
        return sorted(found, key=lambda entry: entry.name)

    def read(self, position: int, size: int, listing: Listing | None = None) -> bytes:
        """The bytes from a position on: fewer where the queue or what is whole of it ends, none outside it.

        A `listing` of this moment spares the first look at the directory. Raises CorruptStore when no live queue would
        lack the byte at the position.
        """
        data = self.read_listed(listing or self.listing(), position, size)
        if len(data) < size:  # the directory may have changed under us: files grow, expire, are replaced
            listing = self.listing(fresh=True)
            data = self.read_listed(listing, position, size)
            if not data:
                self._raise_damage(listing, position)
        return data

    def read_listed(self, listing: Listing, position: int, size: int, *, cached_only: bool = False) -> bytes:
        """As many of the bytes as follow each other in these segments, without a look at the directory.

        With `cached_only` raises NotCached for what is not in the system's cache.
        """
        parts, at, end = [], position, position + size
        while at < end and (segment := listing.at(at)) is not None:
            want = min(end, segment.base + listing.segment_size) - at
            try:
                part = segment.read(at - segment.base, want, cached_only=cached_only)
            except Missing:
                break
            parts.append(part)
            at += len(part)
            if len(part) < want:
                break
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def _raise_damage(self, listing: Listing, position: int) -> None:
        for damage in listing.damages:
            if damage.start <= position < damage.end:
                next_step = f"Run: checkback verify {quote(self._store_path)}"
                raise CorruptStore(f"{damage.path}: {damage.reason}. {next_step}", path=damage.path)


def segment_size(segments: Sequence[Segment]) -> int:
    """The size of a queue's segments: what most files have, else what the distance of the names says; 0 without files.

    A store does not say it: RocketMQ takes it from its configuration. The names are multiples of it: a copy that drops
    the zeros at the end of each file may leave none whole.
    """
    sizes = Counter(segment.size for segment in segments if segment.size)
    steps = Counter(after.base - before.base for before, after in pairwise(segments))
    if not sizes:
        return min(steps, default=0)
    if not steps:
        return max(sizes)
    # Of sizes that are as frequent, the one that the names agree with; cut files agree with nothing.
    usual = max(sizes, key=lambda size: (sizes[size], steps[size], size))
    distance, largest = math.gcd(*steps), max(sizes)
    if distance % usual == 0 or distance < largest:
        return usual
    return largest if distance % largest == 0 else distance


def _is_segment(entry: Entry) -> bool:
    return entry.is_file and is_base(entry.name)


def damages_of(segments: Sequence[Segment], size: int) -> list[SegmentDamage]:
    """What no live queue shows, among segments of one size."""
    found = []
    whose = "the others have" if any(segment.size == size for segment in segments) else "from name to name there are"
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        if segment.size != size and (segment.size or following):
            start = segment.base + min(segment.size, size)
            reason = f"the segment has {segment.size} bytes, {whose} {size}"
            if len(segments) > 1:
                found.append(SegmentDamage("segment-size", start, segment.base + size, segment.path, reason))
        if following is None or following.base == segment.base + size:
            continue
        end = segment.base + size
        if following.base > end:
            directory = os.path.dirname(segment.path)
            last = following.base - size
            which = f"segment {end:0{NAME_DIGITS}} is" if last <= end else f"segments {end:020} to {last:020} are"
            reason = f"{which} missing, {following.base - end} bytes in the middle"
            found.append(SegmentDamage("segment-missing", end, following.base, directory, reason))
        else:
            reason = f"the segment begins inside the one before it, which ends at {end}"
            found.append(SegmentDamage("segment-overlap", following.base, end, following.path, reason))
    return found


def is_base(name: str) -> bool:
    """Whether a file in a queue's directory is named as a segment is: by a position that 8 bytes hold, as its end does.

    A broker does not start where a name is a larger number.
    """
    return len(name) == NAME_DIGITS and name.isascii() and name.isdecimal() and name < _NAME_END
