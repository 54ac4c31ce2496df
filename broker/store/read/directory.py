"""One store directory as every module of this room sees it: its paths, the disk below it, the files that are open."""

from __future__ import annotations

from collections.abc import Sequence

from broker.store.disk.files import Disk
from broker.store.disk.open_files import OpenFiles
from broker.store.disk.paths import Paths
from broker.store.read.segments import SegmentQueue


class StoreDirectory:
    """What the parts of a store share."""

    def __init__(self, path: str, disk: Disk) -> None:
        self.path = path
        self.paths = Paths(path)
        self.disk = disk
        self.files = OpenFiles(disk)

    def segments(self, path: str) -> SegmentQueue:
        """The queue of segments in one of the store's directories."""
        return SegmentQueue(self.disk, self.files, path, self.path)

    def log_segments(self, others: Sequence[str]) -> SegmentQueue:
        """The segments of the CommitLog, in commitlog/ and other directories."""
        return SegmentQueue(self.disk, self.files, self.paths.commitlog, self.path, others)
