"""Make the derived files of a store again from its CommitLog: queues, index, and of 3.x the state table and redo log.

    report = rebuild("shop.store")                        compare only: nothing in the store is changed
    report = rebuild("shop.store", apply=True)            and put them in place, while applications go on

What is built lies beside the live files (STORE/checkback/rebuild) until it is complete, flushed and compared; then the
directories that differ are exchanged (`broker.store.shared.directory_swap`), and the old ones kept aside
(`recovery.rebuild.replaced`, `recovery.rebuild.undo`). Nothing is exchanged that would be lost
(`recovery.rebuild.misfits`). A store that another program wrote is changed only when that program is stopped:
`recovery.rebuild.quiescence`. RocketMQ has no such tool; its own recovery of a 3.x store renumbers the slots, after
which nothing in doubt can be settled.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from shlex import quote
from typing import cast

from broker.errors import BrokerError, CorruptStore, StoreError, StoreFull
from broker.format import consumequeue, redolog, statetable
from broker.format.checkpoint import Checkpoint, encode
from broker.store.disk.files import Disk, Missing
from broker.store.disk.os_errors import temporary_not_written
from broker.store.disk.paths import Paths, given_path
from broker.store.disk.store_lock import StoreLock
from broker.store.maintain.checkpointing import checkpoint_as_is
from broker.store.read.checkpoint import read_checkpoint
from broker.store.read.directory import StoreDirectory
from broker.store.read.inventory import Misfit, refusal
from broker.store.read.layout import StoreLayout, is_segment_size, read_store_file
from broker.store.read.segments import Listing
from broker.store.recover.lost_log import check_log
from broker.store.recover.watermark import has_moved, log_begin, read_watermark
from broker.store.shared.control import Word
from broker.store.shared.directory_swap import begin_swap, finish_swap, remove_built
from broker.store.writer import StoreWriter, open_writer
from broker.transaction.events import Generation
from recovery.findings import Finding
from recovery.interrupts import temporary_directory
from recovery.rebuild import file_writers, replaced, unfit_log
from recovery.rebuild.builder import Build
from recovery.rebuild.diff import differences
from recovery.rebuild.index_rule import index_counts, index_rule
from recovery.rebuild.misfits import misfits_of_store
from recovery.rebuild.quiescence import STILL_S, check_still, only_rebuild
from recovery.rebuild.replaced import Replacement
from recovery.rebuild.report import RebuildReport
from recovery.scan.native.columns import Wants
from recovery.scan.record_at import record_at
from recovery.scan.scanner import Damage, Scan
from recovery.scan.store_files import StoreFiles
from recovery.verify.record_checks import wrong_crcs

Progress = Callable[[int, int], None]  # bytes done, bytes in all
Accept = Callable[[RebuildReport], None]

_TRIES = 3
_LEFT_OUT = {
    Generation.GAP: "prepared records of 3.1.5 to 4.2 have no slots: there is no state table to make",
    Generation.MIXED: "the store holds transactions of several generations: their slots cannot be distinguished",
}


def rebuild(
    path: str | os.PathLike[str],
    *,
    apply: bool = False,
    broker_is_stopped: bool = False,
    progress: Progress = lambda _done, _total: None,
    disk: Disk | None = None,
    still_s: float = STILL_S,
    kind: Callable[..., Rebuilding] | None = None,
    accept: Accept = lambda _report: None,
) -> RebuildReport:
    """Build, compare, and with `apply` put in place; `kind` is what reads the log (None: this process).

    `progress(done, total)` hears of bytes of the log. `accept` gets what is about to be put in place, under the append
    lock, and refuses it by raising. A store of another program must not change for `still_s` seconds, unless
    `broker_is_stopped`. Raises NotAStore, CorruptStore when the log itself is damaged or lacks its end, and with
    `apply` StoreLocked or StoreError when another program may be at work on the store, StoreError when two halves claim
    one slot and one is in doubt, NotUnderstood when the store holds what checkback cannot make, StoreFull, SyncFailed.
    """
    text, disk = given_path(path), disk or Disk()
    started, make = time.monotonic(), kind or Rebuilding
    files = StoreFiles.open(text)  # a wrong path is reported first
    check_log(Paths(text), disk)
    ours = read_store_file(disk, Paths(text)) is not None
    if not ours and not files.commitlog_bytes:  # a broker that never stored a message
        unfit_log.refuse_short(files, 0)
        return RebuildReport(text, Generation.NONE.label, 0, 0, 0, ())
    if not apply:
        return _compare(text, disk, lambda: make(text, file_writers.unflushed(disk), progress, ours=ours), started)
    misfits = misfits_of_store(StoreFiles.open(text), disk)
    if misfits:  # before a broker is stopped for it in vain
        raise refusal(text, misfits)
    if ours:
        with only_rebuild(text, disk):
            return make(text, disk, progress, ours=True).apply_to_ours(started, accept)
    check_still(text, disk, broker_is_stopped=broker_is_stopped, still_s=still_s)
    return make(text, disk, progress, ours=False).apply_to_foreign(started, accept)


def _compare(
    path: str, disk: Disk, make: Callable[[], Rebuilding], started: float, *, tries: int = _TRIES
) -> RebuildReport:
    """Build up to the watermark and compare; once more when something moved that the watermark does not allow for."""
    mark = read_watermark(path, disk, while_written=tries < _TRIES)
    again = partial(_compare, path, disk, make, started, tries=tries - 1)
    try:
        with temporary_directory("checkback-rebuild-") as directory:
            try:
                report = make().compare_only(StoreFiles.open(path, mark), directory, started)
            except StoreFull as error:  # of what is made to be compared, not of the store
                raise temporary_not_written(cast(OSError, error.__cause__), directory) from error
    except Missing:  # a writer finished the exchange of a rebuild that was killed, after the files were listed
        if tries == 1:
            raise
        return again()
    is_same_log = mark is None or log_begin(path, disk) == report.begin_offset
    if report.ok or tries == 1 or (is_same_log and not has_moved(mark, path, disk)):
        return report
    return again()


class Rebuilding:
    """One rebuild of one store."""

    build_type: type[Build] = Build
    refuses_short = True  # a log that ends before what its queues and its index name
    refuses_damaged_records = True  # where files would change for what they say

    def __init__(self, path: str, disk: Disk, progress: Progress, *, ours: bool) -> None:
        self.path, self.disk, self.ours = path, disk, ours
        self.paths = Paths(path)
        self._progress = progress
        self._damages: list[Damage] = []
        self._unsound: Finding | None = None  # the first record that fails the CRC of all of it
        self._end = 0

    def compare_only(self, files: StoreFiles, directory: str, started: float) -> RebuildReport:
        """The differences; nothing in the store is touched."""
        misfits = misfits_of_store(files, self.disk)
        build = self._build(files, directory)
        try:
            self._read(build, files)
            unfit_log.refuse_break(files, self._end)
            if self.refuses_short:
                unfit_log.refuse_short(files, self._end)
            self._finish(build)
            return self._report(build, files, started, misfits)
        finally:
            build.close()

    def apply_to_ours(self, started: float, accept: Accept) -> RebuildReport:
        """Build while others append; then, under the append lock, what they appended meanwhile, and the exchange."""
        store = open_writer(self.path, self.disk, sync="os")
        try:
            files = StoreFiles.open(self.path)
            self._clear_place()
            build = self._build(files, self.paths.rebuild)
            try:
                self._read(build, files, end=store.control[Word.TAIL])
                with store.append_lock:
                    store.appender.heal()
                    self._scan(build, StoreFiles.open(self.path), start=self._end, end=store.control[Word.TAIL])
                    unfit_log.refuse_break(StoreFiles.open(self.path, read_watermark(self.path, self.disk)), self._end)
                    self._finish(build)
                    report = self._report(build, StoreFiles.open(self.path), started)
                    self._refuse(report, accept)
                    made = self._exchange(build, store, report)
            finally:
                build.close()
            return self._applied(report, made)
        finally:
            store.close()

    def apply_to_foreign(self, started: float, accept: Accept) -> RebuildReport:
        """Build, exchange, and leave the store as its broker leaves it when it closes well."""
        lock = StoreLock(self.paths.lock, self.disk)
        if not lock.try_exclusive():
            raise lock.locked()
        try:
            if self.disk.entry(self.paths.own) is None:
                self.disk.create_directory(self.paths.own)
            finish_swap(self.disk, self.paths)  # of a rebuild that was killed
            self._clear_place()
            files = StoreFiles.open(self.path)
            build = self._build(files, self.paths.rebuild)
            try:
                self._read(build, files)
                unfit_log.refuse_short(files, self._end, is_alone=True)
                self._finish(build)
                report = self._report(build, files, started)
                self._refuse(report, accept)
                made = self._exchange_foreign(build, files, report)
            finally:
                build.close()
            return self._applied(report, made)
        finally:
            remove_built(self.disk, self.paths)
            if not self.disk.entries(self.paths.own):
                self.disk.remove_tree(self.paths.own)
            lock.release()

    def _finish(self, build: Build) -> None:
        build.read_to = self._end
        build.finish()

    def _clear_place(self) -> None:
        remove_built(self.disk, self.paths)
        replaced.remove_unused(self.disk, self.paths)
        self.disk.create_directory(self.paths.rebuild)

    def _build(self, files: StoreFiles, directory: str) -> Build:
        sizes, rule = sizes_of(files, self.disk), index_rule(files, ours=self.ours)
        return self.build_type(files, sizes, directory, self.disk, rule, ours=self.ours)

    def _read(self, build: Build, files: StoreFiles, end: int | None = None) -> None:
        """The first pass, which is the long one; what is appended meanwhile follows by `_scan`."""
        self._scan(build, files, end=end)

    def _scan(self, build: Build, files: StoreFiles, *, start: int = 0, end: int | None = None) -> None:
        total = files.commitlog_bytes
        scan = Scan(
            files.compared, start, end, wants=Wants(crc=True), progress=lambda done: self._progress(done, total)
        )  # fmt: skip
        for records in scan:
            if len(records):
                build.add(records)
                wrong = wrong_crcs(records, partial(record_at, files.commitlog), files.commitlog_file)
                self._note_wrong_crcs(wrong, files)
        self._end = max(self._end, scan.end_offset)
        self._refuse_damages(scan.damages)

    def _note_wrong_crcs(self, found: Iterable[Finding], files: StoreFiles) -> None:
        self._unsound = self._unsound or unfit_log.first_unsound(files.commitlog, found)

    def _refuse_damages(self, damages: list[Damage]) -> None:
        self._damages += damages
        unfit_log.refuse_damages(self.path, damages)

    def _report(self, build: Build, files: StoreFiles, started: float, misfits: Sequence[Misfit] = ()) -> RebuildReport:
        different = tuple(differences(build, files, self.disk, self._end))
        if different and self.refuses_damaged_records:
            unfit_log.refuse_unsound(self.path, self._unsound)
            first = {(one.kind, one.directory): one.first for one in different if one.part == "consumequeue"}
            unfit_log.refuse_lost(files, first, build.queues)
        return RebuildReport(
            path=self.path,
            generation=build.generation.label,
            records=build.tracker.records,
            end_offset=self._end,
            begin_offset=files.commitlog.begin,
            parts=tuple(part for part, _, _ in build.parts()),
            left_out=_LEFT_OUT.get(build.generation, ""),
            differences=different,
            claims=tuple(build.claims),
            seconds=time.monotonic() - started,
            aside=tuple(f"{one.file} at {one.commitlog_offset}: {one.reason}" for one in self._damages),
            misfits=(*misfits, *build.misfits),
            guessed_sizes=tuple(build.guessed_sizes()),
            kept=tuple(replaced.replacements(self.disk, self.paths)),
        )

    def _refuse(self, report: RebuildReport, accept: Accept) -> None:
        if report.misfits:
            raise refusal(self.path, report.misfits)
        if report.refusal:
            raise StoreError(f"{self.path}: {report.refusal}", path=self.path)
        accept(report)

    def _applied(self, report: RebuildReport, made: Replacement | None) -> RebuildReport:
        """The report once all is in place; the copies are hashed now, when no append waits."""
        remove_built(self.disk, self.paths)
        if made is not None:
            replaced.finish(self.disk, self.paths, made, is_ours=self.ours)
        return replace(report, applied=True, replacement=made, kept=tuple(replaced.replacements(self.disk, self.paths)))

    def _begin(
        self, build: Build, report: RebuildReport, files: Sequence[str] = (), words: dict[str, int] | None = None,
        *, is_open: bool = False,
    ) -> Replacement | None:  # fmt: skip
        """Flush what is built, keep aside what differs, and small files; None when there is nothing to change."""
        parts = [part for part in build.parts() if self._differs(build, report, *part[:2])]
        if not parts and not is_open:
            return None
        build.flush()
        return replaced.begin(
            self.disk, self.paths, name=replaced.name_now(), command="checkback rebuild --apply", parts=parts,
            files=files, reasons=[str(one) for one in report.differences], words=words, tail=self._end,
        )  # fmt: skip

    def _differs(self, build: Build, report: RebuildReport, part: str, live: str) -> bool:
        """Whether a directory is to be exchanged: for what it says, or for the sizes of its files."""
        if any(one.part == part for one in report.differences) or self.disk.entry(live) is None:
            return True
        sizes = build.file_sizes(part)
        return any(size not in sizes for size in replaced.sizes_below(self.disk, live))

    def _exchange(self, build: Build, store: StoreWriter, report: RebuildReport) -> Replacement | None:
        """The swap of a store that other processes have open; call under the append lock."""
        control = store.control
        words: dict[str, int] = {}  # of what is exchanged: an index that stays keeps the names of its files
        if any(part == "index" and self._differs(build, report, part, live) for part, live, _ in build.parts()):
            words[Word.INDEX.name] = build.index.numbers[-1] if build.index.numbers else 0
        if build.generation is Generation.STATE_TABLE:
            words[Word.REDO_UNITS.name] = build.redo_units
        made = self._begin(build, report, words={name: control[Word[name]] for name in words})
        if made is None:
            return None
        if self.disk.entry(self.paths.own_checkpoint) is not None:
            self.disk.remove(self.paths.own_checkpoint)  # it speaks of the files that go
        control[Word.GENERATION] += 1  # odd: if we are killed from here on, the next holder of the lock goes on
        begin_swap(self.disk, self.paths, replaced.exchanges(self.paths, made), words)
        finish_swap(self.disk, self.paths, control)
        store.dispatcher.refresh()
        for (topic, queue_id), queue in build.queues.items():
            cell = store.cells.of(topic, queue_id)
            store.cells[cell] = max(store.cells[cell], queue.end)
        checkpoint_as_is(store.parts)
        return made

    def _exchange_foreign(self, build: Build, files: StoreFiles, report: RebuildReport) -> Replacement | None:
        """The swap of a store that its broker has left, which then looks as a broker leaves it that closes well."""
        listing = files.commitlog
        damaged = files.damaged_small_files(
            build.tracker.last_store_ms, lambda commitlog_offset: _stored_ms(listing, commitlog_offset)
        )
        is_damaged = any(one.file == files.checkpoint for one in damaged)
        is_open = is_damaged or self.disk.entry(self.paths.abort) is not None
        made = self._begin(build, report, ("checkpoint", "abort"), is_open=is_open)
        if made is not None:
            begin_swap(self.disk, self.paths, replaced.exchanges(self.paths, made))
            finish_swap(self.disk, self.paths)
            stays = "index" not in {part.live for part in made.parts}  # with files that end elsewhere than ours would
            full = sorted(one.end_timestamp_ms for one in files.index_headers())[:-1] or [0]
            index_ms = full[-1] if stays else build.index.last_full_ms
            self._close_as_rocketmq(build.tracker.last_store_ms, index_ms, is_damaged=is_damaged)
        return made

    def _close_as_rocketmq(self, last_ms: int, index_ms: int, *, is_damaged: bool) -> None:
        """A checkpoint that says that all is on disk, and no file abort: then the broker believes what it finds.

        RocketMQ: StoreCheckpoint, DefaultMessageStore.load (3.1.4, 5.3.3). A 3.x broker that finds `abort` would make
        its state table again, and wrong.
        """
        flushed = confirmed = 0
        with suppress(CorruptStore):  # an empty file is none
            if not is_damaged and (before := read_checkpoint(StoreDirectory(self.path, self.disk))):
                flushed, confirmed = before.master_flushed_offset, before.confirm_commitlog_offset
        made = Checkpoint(last_ms, last_ms, index_ms, flushed, confirmed)
        self.disk.write_file(self.paths.checkpoint, encode(made))
        if self.disk.entry(self.paths.abort) is not None:
            self.disk.remove(self.paths.abort)


def _stored_ms(listing: Listing, commitlog_offset: int) -> int | None:
    record = record_at(listing, commitlog_offset)
    return None if record is None else int(record.field("store_timestamp_ms")[0])


def sizes_of(files: StoreFiles, disk: Disk) -> StoreLayout:
    """The sizes of a store's files: as its maker says, else as its files are, else RocketMQ's.

    Raises StoreError for files that were cut to sizes that no broker can be set to.
    """
    file = read_store_file(disk, Paths(files.path))
    if file is not None:
        return file.layout
    queues = Counter(one.size for queue in files.queues() for one in files.queue(*queue).segments)
    slots, items = index_counts(files)
    segment_bytes = files.commitlog.segment_size
    # Of sizes that are as frequent the largest, as in `StoreFiles.wrong_sizes`: the other is of a file that was cut.
    queue_bytes = max(queues, key=lambda size: (queues[size], size), default=0) or consumequeue.FILE_SIZE
    table_bytes = files.state_table.segment_size or statetable.FILE_SIZE
    redo_bytes = files.redo_log.segment_size or redolog.FILE_SIZE
    try:
        return StoreLayout(segment_bytes, queue_bytes, table_bytes, redo_bytes, slots, items)
    except BrokerError as error:
        wrong = [one.path for one in files.commitlog.segments if one.size == segment_bytes]
        if not is_segment_size(segment_bytes) and wrong:
            text = f"{wrong[-1]} has {segment_bytes} bytes, and {error}: it was cut. Bring it back to the size that "
            text = f"{text}its broker is set to (mappedFileSizeCommitLog) with: truncate -s BYTES {quote(wrong[-1])}"
            raise StoreError(text, path=wrong[-1]) from None
        text = f"{files.path}: {error}. A file was cut; see which with: checkback verify {quote(files.path)}"
        raise StoreError(text, path=files.path) from None
