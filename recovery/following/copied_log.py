"""The files of a followed copy: bytes in, byte for byte what the master has; up to where they are whole records.

    STORE/commitlog/00000000000000000000      as the master's
    STORE/checkback/followed.json             whose copy it is: no program may write to the store but its follower
    STORE/checkback/lost/                     what the master lost at a recovery, and the copy had

A segment is a sparse file of its full size from its first byte on. What `append` wrote is on disk after `sync`.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Self

from broker.errors import StoreError
from broker.format.commitlog import BLANK_SIZE
from broker.format.framing import FrameKind, frame
from broker.store.disk.files import Disk, Missing
from broker.store.disk.os_errors import not_continued
from broker.store.disk.paths import Paths
from broker.store.read.segments import NAME_DIGITS

_READ_BYTES = 1 << 20


class SegmentSizeWrong(StoreError):
    """The master's segments are not as large as those of the copy."""


@dataclass(frozen=True, slots=True)
class FollowedStore:
    """What followed.json states: the master whose copy the store is, and the size of its segments in bytes."""

    master: str
    segment_bytes: int
    version: int = 1

    @classmethod
    def read(cls, paths: Paths, disk: Disk) -> Self | None:
        """None when the store is not a followed copy. Raises StoreError when the file is damaged."""
        try:
            return cls(**json.loads(disk.read(paths.followed)))
        except Missing:
            return None
        except (TypeError, ValueError) as error:
            text = f"{paths.followed} is damaged ({error}): follow the master again in another directory"
            raise StoreError(text, path=paths.followed) from error

    def write(self, paths: Paths, disk: Disk) -> None:
        """Mark the store as a copy."""
        disk.write_file(paths.followed, json.dumps(asdict(self)).encode())


class CopiedLog:
    """One thread appends; `sync` and reads may come from another."""

    def __init__(self, paths: Paths, disk: Disk, segment_bytes: int) -> None:
        self.paths, self._disk, self.segment_bytes = paths, disk, segment_bytes
        self._guard, self._flushing = threading.Lock(), threading.Lock()
        self._files: dict[int, int] = {}  # base, descriptor; those that are not flushed, and the last
        self.begin = self.end = -1  # CommitLog offsets; -1: there is no byte as yet
        self.framed_end = -1  # whole records up to here, then part of one, or what is not a record
        self.last_record = -1  # where the last whole record (or blank) begins
        self.durable_end = -1  # whole records up to here are on disk
        self.durable_record = -1  # where the last of those begins
        self.damage_at: int | None = None  # no record begins here; what follows it in its segment is not framed

    # Resuming

    def bases(self) -> list[int]:
        """Where the segments begin that are there."""
        return sorted(int(entry.name) for entry in self._disk.entries(self.paths.commitlog) if entry.name.isdecimal())

    def resume(self, begin: int, end: int, last_record: int) -> None:
        """Go on behind whole records that are on disk: what was written after them is cut, and comes again."""
        self.begin, self.end, self.framed_end, self.durable_end = begin, end, end, end
        self.last_record = self.durable_record = last_record
        for base in [base for base in self.bases() if base >= max(end, 1) and base > begin]:
            self._disk.remove(self._path(base))
        self._zero_from(end)

    def _zero_from(self, at: int) -> None:
        base = at - at % self.segment_bytes
        path = self._path(base)
        if at > base and self._disk.entry(path) is not None:
            self._disk.truncate(path, at - base)
            self._disk.truncate(path, self.segment_bytes)

    # Writing

    def append(self, commitlog_offset: int, data: bytes) -> None:
        """Put bytes at the end. Raises SegmentSizeWrong, StoreFull."""
        if self.end < 0:
            self.begin = self.end = self.framed_end = self.durable_end = commitlog_offset
        if commitlog_offset != self.end:
            raise ValueError(f"bytes at {commitlog_offset} do not follow {self.end}")
        view, at = memoryview(data), commitlog_offset
        with self._guard:
            while view:
                base = at - at % self.segment_bytes
                part = view[: base + self.segment_bytes - at]
                self._write(base, at - base, part)
                view, at = view[len(part) :], at + len(part)
            self.end = at
        self._frame(commitlog_offset, data)

    def _write(self, base: int, position: int, data: memoryview) -> None:
        descriptor = self._files.get(base)
        path = self._path(base)
        try:
            if descriptor is None:
                is_new = not os.path.exists(path)
                descriptor = self._files[base] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
                os.ftruncate(descriptor, self.segment_bytes)
                if is_new:
                    self._disk.sync_directory(self.paths.commitlog)
            while data:
                done = os.pwrite(descriptor, data, position)
                data, position = data[done:], position + done
        except OSError as error:
            raise not_continued(error, path) from error

    def _frame(self, start: int, data: bytes) -> None:
        """Hop over the records that are whole by now."""
        at, last = self.framed_end, self.last_record
        while self.end - at >= BLANK_SIZE:
            base = at - at % self.segment_bytes
            remaining = base + self.segment_bytes - at
            if self.damage_at is not None:
                if self.end < base + self.segment_bytes:
                    break
                self.damage_at, at = None, base + self.segment_bytes
                continue
            head = data[at - start : at - start + BLANK_SIZE] if at >= start else self.read(at, BLANK_SIZE)
            kind, size = frame(head, 0, remaining)
            if kind in (FrameKind.CUT_OFF, FrameKind.RECORD, FrameKind.BLANK):
                if at + size > self.end:
                    break
                last, at = at, at + size
            else:
                self._check_size(at, head, remaining)
                self.damage_at = at
        with self._guard:  # a flush takes both
            self.framed_end, self.last_record = at, last

    @property
    def ends_record(self) -> bool:
        """Whether the log ends behind a whole record; in a damaged segment that is not known, and taken to be so."""
        return self.framed_end == self.end or self.damage_at is not None

    def _check_size(self, at: int, head: bytes, remaining: int) -> None:
        """Raises SegmentSizeWrong where a segment of another size explains what stands there."""
        size = int.from_bytes(head[:4], "big", signed=True)
        blank, _ = frame(head, 0, size)
        if blank is FrameKind.BLANK:
            base = at - at % self.segment_bytes
            text = f"the master's segment ends at {at + size}, where one of {self.segment_bytes} bytes does not"
            hint = f": its mappedFileSizeCommitLog is {at + size - base}" if base == self.begin else ""
        elif frame(head, 0, 1 << 40).kind in (FrameKind.CUT_OFF, FrameKind.RECORD):
            text = f"the master's record at {at} ({size} bytes) crosses the end of a segment of {self.segment_bytes}"
            hint = f", of which {remaining} are left"
        else:
            return
        text = f"{text}{hint}. Follow it again in another directory, with --segment-bytes as the master has it"
        raise SegmentSizeWrong(text, path=self.paths.store)

    def sync(self) -> int:
        """Flush; whole records up to the offset that is returned are on disk."""
        with self._flushing:
            return self._sync()

    def _sync(self) -> int:
        with self._guard:
            framed, record, files = self.framed_end, self.last_record, dict(self._files)
            last = max(files, default=0)
        for base, descriptor in files.items():
            try:
                os.fsync(descriptor)
            except OSError as error:
                raise not_continued(error, self._path(base)) from error
        with self._guard:
            for base in [base for base in files if base != last]:
                os.close(self._files.pop(base))
        if framed >= self.durable_end:
            self.durable_end, self.durable_record = framed, record
        return self.durable_end

    # Reading

    def read(self, commitlog_offset: int, size: int) -> bytes:
        """Bytes of one segment from an offset on."""
        base = commitlog_offset - commitlog_offset % self.segment_bytes
        return self._disk.open_read(self._path(base)).pread(
            min(size, base + self.segment_bytes - commitlog_offset), commitlog_offset - base
        )

    def first_end(self, commitlog_offset: int) -> int:
        """Where the record ends that begins at an offset; the offset itself where none does."""
        remaining = self.segment_bytes - commitlog_offset % self.segment_bytes
        return commitlog_offset + frame(self.read(commitlog_offset, BLANK_SIZE), 0, remaining).size

    def record_below(self, boundary: int, commitlog_offset: int) -> int:
        """Where the last record begins at or below an offset, counted from one that begins at `boundary`."""
        at = boundary
        while (end := self.first_end(at)) <= commitlog_offset and end > at:
            at = end
        return at

    # What the master lost, and what expires

    def set_aside(self, commitlog_offset: int, name: str) -> str:
        """Copy everything from an offset on into a file of its own, on disk; its path."""
        self._disk.create_directory(self.paths.lost)
        path = os.path.join(self.paths.lost, name)
        try:
            with open(path, "wb") as file:
                at = commitlog_offset
                while at < self.end:
                    data = self.read(at, min(_READ_BYTES, self.end - at))
                    file.write(data)
                    at += len(data)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.remove(path)  # each try has a name of its own
            raise not_continued(error, path) from error
        self._disk.sync_directory(self.paths.lost)
        return path

    def cut(self, commitlog_offset: int, last_record: int) -> None:
        """Let the log end at a record's offset."""
        self._close_files()
        self.damage_at = None
        self.resume(self.begin, commitlog_offset, last_record)

    def remove_below(self, base: int) -> None:
        """Remove the segments below one."""
        for old in [one for one in self.bases() if one < base]:
            self._disk.remove(self._path(old))
        self.begin = max(self.begin, base)

    def close(self) -> None:
        """Flush, and close all files."""
        try:
            if self._files:
                self.sync()
        finally:
            self._close_files()

    def _close_files(self) -> None:
        with self._flushing, self._guard:
            for descriptor in self._files.values():
                os.close(descriptor)
            self._files.clear()

    def _path(self, base: int) -> str:
        return os.path.join(self.paths.commitlog, f"{base:0{NAME_DIGITS}}")
