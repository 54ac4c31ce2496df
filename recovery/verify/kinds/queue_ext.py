"""The ConsumeQueueExt: a unit of a ConsumeQueue names a place there in place of the hash of the tags.

What lies at that place repeats the hash and the store time of the record, and has the bitmap of the SQL92 filters that
matched. RocketMQ: ConsumeQueueExt, ConsumeQueue.putMessagePositionInfoWrapper (5.5.0).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from broker.format.consumequeue import EXT_ADDRESS_MAX, ExtUnit
from broker.store.disk.files import Missing
from broker.store.read.segments import Listing, Segment
from recovery.scan.store_files import StoreFiles
from recovery.scan.units import Ints, Rows

_HEAD = np.dtype(ExtUnit.DTYPE)
_AT_ONCE = 1 << 22
_LONG_MIN = np.iinfo(np.int64).min


def queue_ext_of(files: StoreFiles, topic: str, queue_id: int) -> QueueExt | None:
    """The ConsumeQueueExt of a queue of a store; None where the store has none."""
    return QueueExt(files.queue_ext(topic, queue_id)) if files.has_queue_ext else None


class QueueExt:
    """The places of one queue."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing

    def resolve(self, units: Rows, store_ms: Ints) -> Rows:
        """The units with the hash in place of an address that leads to a place of the same store time.

        An address that does not stays as it is, and so differs from every hash.
        """
        named = np.flatnonzero((units["size"] > 0) & (units["tags_code"] <= EXT_ADDRESS_MAX))
        if not len(named):
            return units
        positions = units["tags_code"][named] - _LONG_MIN
        heads = self._heads(positions)
        sizes = heads["size"].astype(np.int64)
        fits = (sizes == _HEAD.itemsize + heads["bitmap_size"].astype(np.int64)) & (sizes >= _HEAD.itemsize)
        fits &= heads["store_timestamp_ms"] == store_ms[named]
        resolved = units.copy()
        resolved["tags_code"][named[fits]] = heads["tags_code"][fits]
        return resolved

    def _heads(self, positions: Ints) -> Rows:
        """What lies at these positions; zeros where no file holds it."""
        heads = np.zeros(len(positions), _HEAD)
        for segment in self._listing.segments:
            inside = np.flatnonzero((positions >= segment.base) & (positions < segment.base + segment.size))
            inside = inside[np.argsort(positions[inside], kind="stable")]
            at = positions[inside] - segment.base
            while len(at):
                count = max(1, int(np.searchsorted(at, at[0] + _AT_ONCE)))
                heads[inside[:count]] = self._read(segment, at[:count])
                inside, at = inside[count:], at[count:]
        return heads

    def _read(self, segment: Segment, at: Ints) -> Rows:
        """The fixed parts at ascending positions of one file, which are not far apart."""
        first = int(at[0])
        raw = np.zeros(int(at[-1]) - first + _HEAD.itemsize, np.uint8)
        try:
            segment.read_into(first, raw.data)
        except Missing:  # it expired
            raw[:] = 0
        rows: npt.NDArray[np.uint8] = raw[(at - first)[:, None] + np.arange(_HEAD.itemsize)]
        return np.ascontiguousarray(rows).view(_HEAD).reshape(-1)
