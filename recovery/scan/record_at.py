"""One record, read again by its CommitLog offset."""

from __future__ import annotations

import numpy as np

from broker.store.read.segments import Listing
from recovery.scan.framing import Stop, walk
from recovery.scan.records import Records

_READ_BYTES = 1 << 16


def record_at(listing: Listing, commitlog_offset: int) -> Records | None:
    """The record at an offset, as it is now; None when none begins there. Raises Missing when its file is gone."""
    segment = listing.at(commitlog_offset)
    if segment is None:
        return None
    at, segment_end, size = commitlog_offset - segment.base, segment.base + listing.segment_size, _READ_BYTES
    while True:
        window = np.zeros(max(min(size, segment.size - at), 0), np.uint8)
        window = window[: segment.read_into(at, window.data)]
        step = walk(window, commitlog_offset, segment_end)
        if len(step.records):
            return step.records.take(slice(0, 1))
        if step.stop is not Stop.MORE or step.claims <= size:
            return None
        size = step.claims
