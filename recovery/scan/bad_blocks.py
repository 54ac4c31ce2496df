"""Segments of a disk that fails: what it cannot read counts as zeros, and reading goes on behind it."""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import Any

from broker.errors import StoreError
from broker.store.read.segments import Listing, Segment

_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PatientSegment(Segment):
    """A segment whose unreadable blocks are zeros."""

    def read_into(self, at: int, buffer: Any) -> int:
        try:
            return Segment.read_into(self, at, buffer)
        except StoreError as error:
            if not _is_unreadable(error):
                raise
        view = memoryview(buffer).cast("B")
        start = 0
        while start < len(view):
            block = view[start : start + _BLOCK_BYTES - (at + start) % _BLOCK_BYTES]  # to the end of the disk's block
            try:
                done = Segment.read_into(self, at + start, block)
            except StoreError as error:
                if not _is_unreadable(error):
                    raise
                block[:] = bytes(len(block))
                done = len(block)
            start += done
            if done < len(block):
                return start
        return len(view)


def patient(listing: Listing) -> Listing:
    """The same segments, read with patience."""
    segments = [PatientSegment(one.base, one.size, one.path, one.inode, one.files) for one in listing.segments]
    return replace(listing, segments=tuple(segments))


def _is_unreadable(error: StoreError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.EIO
