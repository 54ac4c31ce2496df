"""Copy what can be read of a corrupt store into a new one; the old one is only read.

    report = salvage("shop.store", "shop.saved")
    report.records, report.lost, report.as_json()

What the copy keeps, and why:

- Every whole record, byte for byte, at its own CommitLog offset, in segments of the same size: a record states its
  offset, its end names it, and so do message ids that are out in the world. What lies between is bridged so that
  RocketMQ and everybody else can read on: `recovery.repair.salvage_log` says how.
- A record whose body fails its CRC is lost too: RocketMQ would cut the log there. Its name and place stand in the
  report, and its bytes still in the old store.
- Nothing that is derived (ConsumeQueue, index, state table, redo log, timer wheel): it would name records that are
  gone. An empty `abort` and no `checkpoint` make every generation of RocketMQ dispatch the whole log again when it
  loads.
- The JSON files of `config` that can be read. RocketMQ closes the gaps in a queue when it rebuilds it, so messages
  behind a gap get smaller queue offsets; a position that stayed would skip as many messages as were lost. So
  positions behind a gap are lowered by what is missing below them: a message may come twice, none is skipped.
- Op messages of 5.x name half messages by queue offset, and no record can stand in for a lost half without being one
  more transaction in doubt. So a gap in the half queue stays, and the report names it: a broker that builds this queue
  again pairs op messages behind the gap with the wrong halves, asks again and may park.

The copy is made beside its place and renamed when it is whole, so a directory at OUT is a finished salvage. A block
that the disk cannot read counts as zeros. `OUT/checkback/salvage.json` holds the report.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from broker.errors import StoreError
from broker.format.commitlog import SEGMENT_SIZE
from broker.store.disk.files import Disk
from broker.store.disk.os_errors import not_written
from broker.store.read.detect import check_outside_stores, check_place
from broker.store.read.inventory import Inventory, inventory
from broker.store.read.segments import Listing, SegmentDamage
from broker.transaction.events import EventKind, TransactionState
from recovery.repair.left_behind import check_config, left_behind, numbered_by_queue
from recovery.repair.queue_gaps import Gap, Numbering
from recovery.repair.salvage_config import copy_config
from recovery.repair.salvage_log import NOTHING, TOPIC, Bridge, NewLog
from recovery.scan.bad_blocks import patient
from recovery.scan.kinds import Kinds
from recovery.scan.records import Bools, Records
from recovery.scan.scanner import PAGE_BYTES, Scan
from recovery.scan.store_files import StoreFiles
from recovery.transactions.tracker import TransactionTracker
from recovery.verify.causes.log_short import short_log

Progress = Callable[[int, int], None]  # bytes done, bytes in all

LOSSES_LISTED = 100_000  # more are counted, not listed
_COPIED = frozenset(("commitlog", "config"))
_UNFINISHED = ".unfinished"


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that was not copied, and what stands in its place."""

    kind: str  # of the finding, or the cause, that verify would report
    commitlog_offset: int
    size: int  # 0 where nobody knows
    reason: str
    file: str
    bridge: str  # "filler record", "blank", or "nothing"
    record: dict[str, Any] | None = None  # what its head still says, of a record that fails its CRC


@dataclass
class SalvageReport:
    """What was kept and what was lost."""

    store: str
    out: str
    segment_size: int = 0
    records: int = 0
    bytes: int = 0
    begin_offset: int = 0
    end_offset: int = 0
    lost_bytes: int = 0
    lost: list[Loss] = field(default_factory=list)
    lost_omitted: int = 0
    fillers: int = 0
    not_bridged: int = 0
    queues: list[Gap] = field(default_factory=list)  # queue offsets that no record has any more
    in_doubt: int = 0  # transactions in doubt, in the new store
    in_doubt_before_loss: int = 0  # of these, whose end may be among what was lost
    ends_without_half: int = 0
    config: list[str] = field(default_factory=list)  # copied
    positions_lowered: int = 0
    left_out: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)  # of that, what no broker can make again from the log

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def salvage(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    segment_size: int | None = None,
    without_config: bool = False,
    progress: Progress | None = None,
) -> SalvageReport:
    """Copy the store at `path` into the directory `out`, which must be empty or not there yet.

    Give `segment_size` when the files do not say it, because the only one was cut: RocketMQ opens a store only when
    its files have the size that the broker is set to. Raises NotUnderstood, with nothing written, when topics, groups
    or positions are in a RocksDB, unless `without_config` says to go without them.
    """
    files = StoreFiles.open(path)
    contents = inventory(files.path, Disk())
    check_config(contents, without_config=without_config)
    out_path = os.fspath(out).rstrip(os.sep) or os.sep
    _check_out(files.path, out_path)
    unfinished = f"{out_path}{_UNFINISHED}"
    try:
        with contextlib.suppress(FileExistsError):  # an empty one that somebody made will do
            os.mkdir(unfinished, 0o700 | os.stat(files.path).st_mode & 0o777)  # for who may look into the store
        os.mkdir(os.path.join(unfinished, "commitlog"))
    except FileExistsError:
        text = f"{unfinished} is left of a killed salvage, or one is running. Remove it, or give another directory"
        raise StoreError(text, path=unfinished) from None
    except OSError as error:
        raise not_written(error, unfinished) from error
    try:
        report = _Salvage(files, contents, out_path, unfinished, segment_size, progress).run()
        _sync_directories(unfinished)
        os.rename(unfinished, out_path)
    except OSError as error:
        raise not_written(error, out_path) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return report


def _check_out(store: str, out: str) -> None:
    """The new store must have a place of its own."""
    inside, outside = os.path.realpath(out), os.path.realpath(store)
    if os.path.commonpath((inside, outside)) in (inside, outside):
        text = f"{out} and {store} lie in each other: a salvage is never done in place. Give another directory"
        raise StoreError(text, path=out)
    if os.path.lexists(out) and not (os.path.isdir(out) and not os.listdir(out)):
        what = "is a directory that holds something" if os.path.isdir(out) else "is a file"
        raise StoreError(f"{out} {what}. Give a directory that is empty or not there yet", path=out)
    if os.path.islink(out) or os.path.ismount(out):  # the rename that puts the salvage in place cannot replace these
        what = "a symbolic link" if os.path.islink(out) else "where a disk is mounted"
        inside = os.path.join(out, os.path.basename(os.path.realpath(store)))
        raise StoreError(f"{out} is {what}, and the salvage becomes OUT itself. Give {inside}", path=out)
    check_outside_stores(out)
    check_place(out, Disk(), create=True)


class _Salvage:
    """One salvage: the scan copies, then the bridges are built, then the small files follow."""

    def __init__(
        self, files: StoreFiles, contents: Inventory, out: str, directory: str, segment_size: int | None,
        progress: Progress | None,
    ) -> None:  # fmt: skip
        self._contents = contents
        self._files, self._directory, self._progress = files, directory, progress
        listing = _with_size(patient(files.commitlog), segment_size)
        self._scan = Scan(listing, progress=self._advance)
        self._log = NewLog(os.path.join(directory, "commitlog"), _first_base(listing), listing.segment_size)
        self._report = SalvageReport(files.path, out, listing.segment_size, begin_offset=listing.begin)
        self._judgement, self._numbering = TransactionTracker(files), Numbering(TOPIC)
        self._gaps: list[tuple[int, int, int]] = []  # start, end, store time of the record before
        self._losses: list[Loss] = []
        self._at, self._store_ms = listing.begin, 0

    def run(self) -> SalvageReport:
        report = self._report
        try:
            for records in self._scan:
                self._take(records)
            self._make_all_segments()
            bridges = [bridge for gap in self._gaps for bridge in self._log.bridge(*gap, self._numbering.free_queue_id)]
            self._log.close()
            self._sum_up(bridges)
        finally:
            self._log.close()
            self._judgement.close()
        config = copy_config(self._files.path, self._directory, report.queues)
        report.config, report.positions_lowered = config.copied, config.positions_lowered
        report.left_behind = left_behind(self._contents, config, is_lossy=bool(report.lost))
        self._finish()
        return report

    def _advance(self, done: int) -> None:
        if self._progress is not None:
            self._progress(done, self._files.commitlog_bytes)

    def _take(self, records: Records) -> None:
        """Copy what is sound of some records, in runs that follow each other."""
        sound = self._sound(records)
        kept = records.take(np.flatnonzero(sound))
        if not len(kept):
            return
        ends = kept.offsets + kept.sizes
        # A run ends where the next record does not follow, or lies in another segment.
        breaks = np.flatnonzero(kept.offsets[1:] != ends[:-1]) + 1
        times = kept.field("store_timestamp_ms")
        for start, stop in zip([0, *breaks.tolist()], [*breaks.tolist(), len(kept)], strict=True):
            low, high = int(kept.offsets[start]), int(ends[stop - 1])
            if low > self._at:
                self._gaps.append((self._at, low, self._store_ms or int(times[start])))
            self._log.write(low, records.window[low - records.base : high - records.base])
            self._at, self._store_ms = high, int(times[stop - 1])
        self._judgement.add(kept)
        self._numbering.add(kept, Kinds(kept))

    def _sound(self, records: Records) -> Bools:
        """Which records go into the new log; what is left out of it is a loss."""
        ends = records.offsets + records.sizes
        first = self._log.base_of(int(records.offsets[0]))
        size = self._log.segment_size
        inside = (records.offsets - first) // size == (ends + 7 - first) // size
        before = np.maximum.accumulate(np.concatenate(([self._at], ends[:-1])))
        follows = records.offsets >= before
        sound = np.asarray(inside & follows)
        for number in np.flatnonzero(~sound).tolist():
            self._lose(records, number, "segment-overlap", "the record lies across others, or across two segments")
        for number in records.bad_crcs().tolist():
            if sound[number]:
                sound[number] = False
                self._lose(records, number, "crc-mismatch", "the body does not have the CRC that the record states")
        return sound

    def _lose(self, records: Records, number: int, kind: str, reason: str) -> None:
        one = records.take(slice(number, number + 1))
        offset, size = int(one.offsets[0]), int(one.sizes[0])
        head: dict[str, Any] = {"topic": one.topics.array[0].as_py().decode("utf-8", "replace")}
        head |= {name: int(one.field(name)[0]) for name in ("queue_id", "queue_offset")}
        head["says"] = EventKind(int(Kinds(one).events[0])).name.lower()
        self._losses.append(Loss(kind, offset, size, reason, self._files.commitlog_file(offset), NOTHING, head))

    def _make_all_segments(self) -> None:
        """A store has no holes between its files, and a log that lost all its records still has its first one."""
        listing = self._scan.listing
        if listing.segments:
            self._log.make(max(self._at - 1, listing.begin))

    def _sum_up(self, bridges: list[Bridge]) -> None:
        report = self._report
        for damage in self._scan.damages:
            place = (damage.commitlog_offset, damage.size, damage.reason, damage.file)
            self._losses.append(Loss(damage.kind, *place, NOTHING))
        short = short_log(self._files, self._scan.end_offset, self._scan.damages)
        if short is not None:  # how much it was, nobody knows
            self._losses.append(Loss(short.kind, short.commitlog_offset, 0, short.text, short.file, NOTHING))
        losses = sorted(self._losses, key=lambda loss: loss.commitlog_offset)
        starts = [bridge.start for bridge in bridges]
        for number, loss in enumerate(losses):
            at = int(np.searchsorted(starts, loss.commitlog_offset, side="right")) - 1
            covered = at >= 0 and loss.commitlog_offset < bridges[at].end
            losses[number] = replace(loss, bridge=bridges[at].how if covered else NOTHING)
        report.lost, report.lost_omitted = losses[:LOSSES_LISTED], max(0, len(losses) - LOSSES_LISTED)
        report.lost_bytes = _covered(losses)
        report.fillers = self._log.fillers
        report.not_bridged = sum(bridge.how == NOTHING for bridge in bridges)
        report.records, report.bytes = self._judgement.records, self._judgement.bytes
        report.end_offset = self._at
        gaps = self._numbering.gaps([(loss.commitlog_offset, loss.size) for loss in losses])
        report.queues = numbered_by_queue(gaps, self._contents)
        self._judge(max((loss.commitlog_offset + loss.size for loss in losses), default=0))

    def _judge(self, loss_end: int) -> None:
        """Count the transactions that the loss may have touched."""
        report = self._report
        for outcomes in self._judgement.outcomes():
            halves = outcomes.rows["half"][outcomes.rows["state"] == TransactionState.PREPARED]
            report.in_doubt += len(halves)
            report.in_doubt_before_loss += int((halves < loss_end).sum())
        report.ends_without_half = self._judgement.findings.counts["end-without-half"]

    def _finish(self) -> None:
        """The files that belong to the store as a whole."""
        report = self._report
        report.left_out = sorted(set(os.listdir(self._files.path)) - _COPIED)
        with open(os.path.join(self._directory, "abort"), "xb"):
            pass
        os.mkdir(os.path.join(self._directory, "checkback"))
        with open(os.path.join(self._directory, "checkback", "salvage.json"), "x", encoding="utf-8") as file:
            json.dump(report.as_json(), file, indent=1)


def _covered(losses: list[Loss]) -> int:
    """The bytes that losses cover, each once."""
    total = end = 0
    for loss in losses:
        stop = loss.commitlog_offset + loss.size
        total += max(0, stop - max(end, loss.commitlog_offset))
        end = max(end, stop)
    return total


def _with_size(listing: Listing, segment_size: int | None) -> Listing:
    """The listing with the size that the segments should have: a single file that was cut does not say it."""
    if len(listing.segments) != 1:
        if segment_size not in (None, listing.segment_size):
            text = f"the segments have {listing.segment_size} bytes, so --segment-size {segment_size} cannot be"
            raise StoreError(text, path=listing.segments[0].path if listing.segments else None)
        return replace(listing, segment_size=listing.segment_size or SEGMENT_SIZE)
    (segment,) = listing.segments
    size = segment_size or segment.size or SEGMENT_SIZE
    if not segment.size:  # a broker has only begun
        return replace(listing, segment_size=size)
    if segment_size is None and size % PAGE_BYTES:
        size = max(SEGMENT_SIZE, -(-size // PAGE_BYTES) * PAGE_BYTES)
    if size < segment.size:
        text = f"{segment.path} has {segment.size} bytes: give a --segment-size that is not smaller"
        raise StoreError(text, path=segment.path)
    if size == segment.size:
        return listing
    start, end = segment.base + segment.size, segment.base + size
    reason = f"the file has {segment.size} bytes and was cut; {size} are taken for its true size"
    damage = SegmentDamage("segment-size", start, end, segment.path, reason)
    return replace(listing, segment_size=size, damages=(*listing.damages, damage))


def _first_base(listing: Listing) -> int:
    """A base that most segments agree with: their names are multiples of the size, and one more number."""
    residues = Counter(segment.base % listing.segment_size for segment in listing.segments)
    return residues.most_common(1)[0][0] if residues else 0


def _sync_directories(path: str) -> None:
    for directory, _, names in os.walk(path):
        for name in [".", *names]:
            descriptor = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
