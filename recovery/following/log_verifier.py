"""Verifies a copied log as it grows: reads what is on disk and was not verified yet, and writes it into the book."""

from __future__ import annotations

import os
from dataclasses import replace

from broker.store.disk.files import Disk
from broker.store.read.directory import StoreDirectory
from broker.store.read.segments import NAME_DIGITS, Listing
from broker.transaction.events import GenerationEvidence
from recovery.findings import Finding
from recovery.following.book import FollowedBook
from recovery.following.book_reading import Batch
from recovery.scan.kinds import Kinds
from recovery.scan.record_at import record_at
from recovery.scan.records import Records
from recovery.scan.scanner import Damage, Scan
from recovery.transactions.fingerprint import difference
from recovery.transactions.tracker import EventStream
from recovery.verify.record_checks import wrong_crcs, wrong_fields


class LogVerifier:
    """Reads the log of one copy; one thread at a time."""

    def __init__(self, path: str, disk: Disk, segment_bytes: int) -> None:
        self._directory = StoreDirectory(path, disk)
        self._commitlog, self._segment_bytes = self._directory.paths.commitlog, segment_bytes
        paths = self._directory.paths
        self.book = FollowedBook(paths.followed_book, segment_bytes, self.file_of, self._differ)
        self._stream = self._resumed()
        self._listing = Listing()

    def file_of(self, commitlog_offset: int) -> str:
        """The segment that holds an offset."""
        base = commitlog_offset - commitlog_offset % self._segment_bytes
        return os.path.join(self._commitlog, f"{base:0{NAME_DIGITS}}")

    def _differ(self, half: int, end: int) -> str:
        return difference(self._at(half), self._at(end))

    def _resumed(self) -> EventStream:
        stream = EventStream(self.book.last_prepared(), self.book.redeliveries())
        stream.names = self.book.names
        return stream

    def listing(self, end: int) -> Listing:
        """The segments as they are now, up to an offset at which a record ends."""
        listing = self._directory.segments(self._commitlog).listing(fresh=True)
        cut = [replace(one, size=min(one.size, end - one.base)) for one in listing.segments if one.base < end]
        return Listing(tuple(cut), self._segment_bytes)

    def whole_records(self, begin: int) -> tuple[int, int]:
        """For a copy whose book is gone: where its whole records end, by their CRCs, and the last of them begins."""
        end = last = begin
        scan = Scan(self.listing(1 << 62), start=begin)
        for records in scan:
            bad = records.bad_crcs()
            count = int(bad[0]) if len(bad) else len(records)
            if scan.damages or not count:
                break
            last = int(records.offsets[count - 1])
            end = last + int(records.sizes[count - 1])
            if len(bad):
                break
        return end, last

    def advance(self, begin: int, end: int) -> bool:
        """Verify from where the book is, at first from `begin`, to the end of a record; whether there was anything."""
        position = self.book.position
        start = begin if position is None else position
        if start >= end:
            return False
        self._listing = self.listing(end)
        scan, at = Scan(self._listing, start=start), start
        for records in scan:
            at = self._take(at, records, scan)
        self._cover(at, end, [*scan.damages])
        return True

    def _take(self, at: int, records: Records, scan: Scan) -> int:
        """One window of records; the offset up to which the book is then."""
        kinds, before = Kinds(records), self._stream.evidence
        first, end = int(records.offsets[0]), int(records.offsets[-1] + records.sizes[-1])
        if first > at:
            self._cover(at, first, scan.damages)
            scan.damages.clear()
        rows, ops = self._stream.take(records, kinds)
        stored_ms = records.field("store_timestamp_ms")
        evidence = GenerationEvidence(*(b - a for a, b in zip(before, self._stream.evidence, strict=True)))
        found = [*wrong_crcs(records, self._at, self.file_of), *wrong_fields(records, kinds, self.file_of)]
        batch = Batch(first, end, len(records), int(records.sizes.sum()), int(stored_ms.max()), evidence)
        self.book.add(batch, rows, ops, found)
        return end

    def _cover(self, start: int, end: int, damages: list[Damage]) -> None:
        """A stretch without records: the blank of a segment, or damage."""
        if start >= end and not damages:
            return
        found = [Finding(one.kind, one.commitlog_offset, one.reason, one.file, {"size": one.size}) for one in damages]
        rows, ops = self._stream.nothing()
        while start < end:
            stop = min(end, start - start % self._segment_bytes + self._segment_bytes)
            self.book.add(Batch(start, stop, 0, 0, 0, GenerationEvidence()), rows, ops, found)
            start, found = stop, []

    def forget_from(self, commitlog_offset: int) -> None:
        """The log was cut: verify again from the stretch on in which that happened."""
        self.book.forget_from(commitlog_offset)
        self._stream = self._resumed()

    def forget_below(self, commitlog_offset: int) -> None:
        """The segments below one are gone."""
        self.book.forget_below(commitlog_offset)

    def release_removed(self) -> None:
        """Close the files of segments that were removed: until then their space is not free."""
        self._directory.files.forget_removed()

    def count_from(self, start: int, end: int) -> int:
        """How many records begin between two offsets."""
        return sum(len(records) for records in Scan(self.listing(end), start=start))

    def stored_ms(self, commitlog_offset: int) -> int | None:
        """When the record at an offset was stored; None when none begins there."""
        record = self._at(commitlog_offset)
        return None if record is None else int(record.field("store_timestamp_ms")[0])

    def _at(self, commitlog_offset: int) -> Records | None:
        return record_at(self._listing, commitlog_offset)

    def close(self) -> None:
        self.book.close()
        self._directory.files.close()
