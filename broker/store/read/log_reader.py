"""The segments of a CommitLog as they are now, read by pread: for work that walks bytes, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator

from broker.store.disk.files import Disk, Entry
from broker.store.read.segments import is_base

WINDOW_BYTES = 8 << 20


class LogReader:
    """Windows of the log by CommitLog offset. The list of segments is that of the moment when it was made."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int) -> None:
        self.directory, self.segment_bytes = directory, segment_bytes
        self._disk = disk
        found = disk.entries(directory) if disk.entry(directory) else []
        self.files: dict[int, Entry] = {int(e.name): e for e in found if e.is_file and is_base(e.name)}
        self.begin = min(self.files, default=0)

    def missing(self, stop: int) -> int | None:
        """Where the first segment begins that should hold bytes below an offset and is missing or cut, if any."""
        bases = range(self.begin, stop, self.segment_bytes)
        return next((base for base in bases if not self._holds(base, stop)), None)

    def _holds(self, base: int, stop: int) -> bool:
        entry = self.files.get(base)
        return entry is not None and entry.size >= min(self.segment_bytes, stop - base)

    def unmade(self, end: int) -> tuple[str, ...]:
        """The files behind an offset that are shorter than a segment and hold nothing: the power failed meanwhile."""
        bases = [base for base in sorted(self.files) if base >= end and base > self.begin]
        short = [base for base in bases if self.files[base].size < self.segment_bytes]
        filled = {place - place % self.segment_bytes for place, _ in self.filled(end)} if short else set()
        return tuple(self.files[base].path for base in short if base not in filled)

    def path_of(self, commitlog_offset: int) -> str:
        """The segment that holds an offset, or the directory when there is none."""
        entry = self.files.get(commitlog_offset - commitlog_offset % self.segment_bytes)
        return entry.path if entry else self.directory

    def read(self, commitlog_offset: int, size: int) -> bytes:
        """The bytes from an offset on: fewer where the segment or the log ends."""
        base = commitlog_offset - commitlog_offset % self.segment_bytes
        entry = self.files.get(base)
        if entry is None:
            return b""
        room = self.segment_bytes - (commitlog_offset - base)
        return self._disk.open_read(entry.path).pread(min(size, room), commitlog_offset - base)

    def filled(self, start: int) -> Iterator[tuple[int, bytes]]:
        """The windows from an offset to the end of the last file that hold anything but zeros."""
        for base in sorted(self.files):
            at = max(start, base)
            if at >= base + self.segment_bytes:
                continue
            file = self._disk.open_read(self.files[base].path)
            for first, stop in file.filled(at - base):
                for place in range(first, stop, WINDOW_BYTES):
                    data = file.pread(min(WINDOW_BYTES, stop - place), place)
                    if data.count(0) != len(data):
                        yield base + place, data
