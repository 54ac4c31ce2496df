"""Make the derived files of a store again from its CommitLog: queues, index, and of 3.x the state table and redo log.

    report = rebuild("shop.store")                        compare only: nothing in the store is changed
    report = rebuild("shop.store", apply=True)            and put them in place, while applications go on

What is built lies beside the live files (STORE/checkback/rebuild) until it is complete, forced and compared; then the
folders are exchanged (`broker.store.write.directory_swap`). A store that another program wrote is changed only when
that program is stopped: `recovery.rebuild.quiescence`. RocketMQ has no such tool; its own recovery of a 3.x store
renumbers the slots, after which nothing in doubt can be settled.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from broker.errors import CorruptStore, StoreError
from broker.format import consumequeue, index, redolog, statetable
from broker.format.checkpoint import Checkpoint, encode
from broker.store.disk.files import Disk
from broker.store.disk.locks import StoreLock
from broker.store.disk.paths import Paths
from broker.store.read.checkpoint import read_checkpoint
from broker.store.read.directory import Folder
from broker.store.recover.load import write_checkpoint
from broker.store.recover.survey import read_layout
from broker.store.write.control import Word
from broker.store.write.directory_swap import begin_swap, finish_swap, remove_built
from broker.store.write.layout import StoreLayout
from broker.store.writer import StoreWriter
from broker.transaction.events import Generation
from recovery.findings import Findings
from recovery.rebuild.builder import Build
from recovery.rebuild.diff import Difference, differences
from recovery.rebuild.entries import Claim
from recovery.rebuild.quiescence import STILL_S, check_still
from recovery.scan.kinds import Kinds
from recovery.scan.scanner import Damage, Scan
from recovery.scan.store_files import StoreFiles
from recovery.verify.index import open_index
from recovery.verify.index_items import IndexingRule, expected_items

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_LEFT_OUT = {
    Generation.GAP: "prepared records of 3.1.5 to 4.2 have no slots: there is no state table to make",
    Generation.MIXED: "the store holds transactions of several generations: their slots cannot be told apart",
}


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What was made, where it differs from what was there, and whether it took its place."""

    path: str
    generation: str
    records: int
    end_offset: int
    parts: tuple[str, ...]
    left_out: str = ""  # why the state table and the redo log are not among the parts
    differences: tuple[Difference, ...] = ()
    claims: tuple[Claim, ...] = ()  # two halves with one slot
    applied: bool = False
    seconds: float = 0.0
    aside: tuple[str, ...] = field(default=())  # damages of the log that were passed over: a torn tail

    @property
    def ok(self) -> bool:
        """Whether the live files are what the log says, by now."""
        return self.applied or not self.differences

    @property
    def refusal(self) -> str:
        """Why the result may not be put in place; empty when it may. DECISIONS: two halves that claim one slot."""
        doubtful = [one for one in self.claims if one.lost_in_doubt or one.owner_in_doubt]
        if not doubtful:
            return ""
        one = doubtful[0]
        text = f"{len(doubtful)} slots are claimed by two half messages each, of which one is in doubt: slot {one.slot}"
        text = f"{text} by those at {one.lost_offset} and {one.owner_offset}, and nobody could settle both"
        return f"{text}. Give each a slot of its own with --apply --move; checkback writes to the store from then on"

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        counts: dict[str, int] = {}
        for one in self.differences:
            counts[f"{one.part}-{one.kind}"] = counts.get(f"{one.part}-{one.kind}", 0) + one.count
        return {
            "ok": self.ok,
            "path": self.path,
            "generation": self.generation,
            "records": self.records,
            "end_offset": self.end_offset,
            "parts": list(self.parts),
            "left_out": self.left_out,
            "applied": self.applied,
            "counts": dict(sorted(counts.items())),
            "differences": [one.as_json() for one in self.differences],
            "claims": [one.as_json() for one in self.claims],
            "passed_over": list(self.aside),
            "refusal": self.refusal,
            "seconds": round(self.seconds, 3),
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
) -> RebuildReport:
    """Build, compare, and with `apply` put in place; `kind` is who reads the log (default: this process).

    Raises NotAStore, CorruptStore when the log itself is damaged, and with `apply` StoreError or StoreLocked when
    another program may be at work on the store, or when two halves claim one slot and one is in doubt.
    """
    text, disk = os.fspath(path).rstrip(os.sep) or os.sep, disk or Disk()
    started, make = time.monotonic(), kind or Rebuilding
    files = StoreFiles.open(text)
    ours = read_layout(disk, Paths(text)) is not None
    if not apply:
        with tempfile.TemporaryDirectory(prefix="checkback-rebuild-") as folder:
            return make(text, disk, progress, ours=ours).compare_only(files, folder, started)
    if ours:
        return make(text, disk, progress, ours=True).apply_to_ours(started)
    check_still(text, disk, broker_is_stopped=broker_is_stopped, still_s=still_s)
    return make(text, disk, progress, ours=False).apply_to_foreign(started)


class Rebuilding:
    """One rebuild of one store."""

    def __init__(self, path: str, disk: Disk, progress: Progress, *, ours: bool) -> None:
        self.path, self.disk, self.ours = path, disk, ours
        self.paths = Paths(path)
        self._progress = progress
        self._damages: list[Damage] = []
        self._end = 0

    def compare_only(self, files: StoreFiles, folder: str, started: float) -> RebuildReport:
        """The differences; nothing in the store is touched."""
        build = self._build(files, folder)
        try:
            self._read(build, files)
            build.finish()
            return self._report(build, files, started)
        finally:
            build.close()

    def apply_to_ours(self, started: float) -> RebuildReport:
        """Build while others append; then, under the append lock, what they appended meanwhile, and the exchange."""
        store = StoreWriter(self.path, self.disk, sync="os")
        try:
            self._clear_place()
            files = StoreFiles.open(self.path)
            build = self._build(files, self.paths.rebuild)
            try:
                self._read(build, files, end=store.control[Word.TAIL])
                with store.append_lock:
                    store.appender.heal()
                    self._scan(build, StoreFiles.open(self.path), start=self._end, end=store.control[Word.TAIL])
                    build.finish()
                    report = self._report(build, StoreFiles.open(self.path), started, applied=True)
                    self._refuse_claims(report)
                    self._exchange(build, store)
            finally:
                build.close()
            remove_built(self.disk, self.paths)
            return report
        finally:
            store.close()

    def apply_to_foreign(self, started: float) -> RebuildReport:
        """Build, exchange, and leave the store as its broker leaves it when it closes well."""
        lock = StoreLock(self.paths.lock, self.disk)
        if not lock.try_exclusive():
            raise lock.locked()
        try:
            if self.disk.entry(self.paths.own) is None:
                self.disk.create_folder(self.paths.own)
            finish_swap(self.disk, self.paths)  # of a rebuild that was killed
            self._clear_place()
            files = StoreFiles.open(self.path)
            build = self._build(files, self.paths.rebuild)
            try:
                self._read(build, files)
                build.finish()
                report = self._report(build, files, started, applied=True)
                self._refuse_claims(report)
                begin_swap(self.disk, self.paths, [(live, built) for _, live, built in build.parts()])
                finish_swap(self.disk, self.paths)
                self._close_as_rocketmq(build)
            finally:
                build.close()
            remove_built(self.disk, self.paths)
            self._remove_own_if_empty()
            return report
        finally:
            lock.release()

    def _clear_place(self) -> None:
        remove_built(self.disk, self.paths)
        self.disk.create_folder(self.paths.rebuild)

    def _build(self, files: StoreFiles, folder: str) -> Build:
        return Build(*self._build_arguments(files, folder), ours=self.ours)

    def _build_arguments(
        self, files: StoreFiles, folder: str
    ) -> tuple[StoreFiles, StoreLayout, str, Disk, IndexingRule]:
        return files, sizes_of(files, self.disk), folder, self.disk, self._rule(files)

    def _rule(self, files: StoreFiles) -> IndexingRule:
        return IndexingRule.V5 if self.ours else index_rule(files)

    def _read(self, build: Build, files: StoreFiles, end: int | None = None) -> None:
        """The first pass, which is the long one; what is appended meanwhile follows by `_scan`."""
        self._scan(build, files, end=end)

    def _scan(self, build: Build, files: StoreFiles, *, start: int = 0, end: int | None = None) -> None:
        total = files.commitlog_bytes
        scan = Scan(files.commitlog, start, end, progress=lambda done: self._progress(done, total))
        for records in scan:
            if len(records):
                build.add(records)
        self._end = max(self._end, scan.end_offset)
        self._refuse_damages(scan.damages)

    def _refuse_damages(self, damages: list[Damage]) -> None:
        self._damages += damages
        for damage in damages:
            if damage.kind != "torn-tail":
                text = f"{damage.file} at CommitLog offset {damage.commitlog_offset}: {damage.reason}. What is derived "
                raise CorruptStore(f"{text}from a damaged log is no better. Run: checkback salvage {self.path} OUT")

    def _report(self, build: Build, files: StoreFiles, started: float, *, applied: bool = False) -> RebuildReport:
        return RebuildReport(
            path=self.path,
            generation=build.generation.label,
            records=build.tracker.records,
            end_offset=self._end,
            parts=tuple(part for part, _, _ in build.parts()),
            left_out=_LEFT_OUT.get(build.generation, ""),
            differences=tuple(differences(build, files, self.disk, self._end)),
            claims=tuple(build.claims),
            applied=applied,
            seconds=time.monotonic() - started,
            aside=tuple(f"{one.file} at {one.commitlog_offset}: {one.reason}" for one in self._damages),
        )

    def _refuse_claims(self, report: RebuildReport) -> None:
        if report.refusal:
            raise StoreError(f"{self.path}: {report.refusal}", path=self.path)

    def _exchange(self, build: Build, store: StoreWriter) -> None:
        """The swap of a store that other processes have open; call under the append lock."""
        control = store.control
        words = {Word.INDEX.name: build.index.numbers[-1] if build.index.numbers else 0}
        if build.generation is Generation.STATE_TABLE:
            words[Word.REDO_UNITS.name] = build.redo_units
        if self.disk.entry(self.paths.own_checkpoint) is not None:
            self.disk.remove(self.paths.own_checkpoint)  # it speaks of the files that go
        control[Word.GENERATION] += 1  # odd: whoever takes the lock after we were killed from here on goes on
        begin_swap(self.disk, self.paths, [(live, built) for _, live, built in build.parts()], words)
        finish_swap(self.disk, self.paths, control)
        store.dispatcher.refresh()
        for (topic, queue_id), queue in build.queues.items():
            cell = store.cells.of(topic, queue_id)
            store.cells[cell] = max(store.cells[cell], queue.end)
        write_checkpoint(store)

    def _close_as_rocketmq(self, build: Build) -> None:
        """A checkpoint that says that all is on disk, and no file abort: then the broker believes what it finds.

        RocketMQ: StoreCheckpoint, DefaultMessageStore.load (3.1.4, 5.3.3). A 3.x broker that finds `abort` would make
        its state table again, and wrong.
        """
        before = read_checkpoint(Folder(self.path, self.disk))
        last_ms = build.tracker.last_store_ms
        made = Checkpoint(
            last_ms,
            last_ms,
            build.index.last_full_ms,
            before.master_flushed_offset if before else 0,
            before.confirm_commitlog_offset if before else 0,
        )
        self.disk.write_file(self.paths.checkpoint, encode(made))
        if self.disk.entry(self.paths.abort) is not None:
            self.disk.remove(self.paths.abort)

    def _remove_own_if_empty(self) -> None:
        if not self.disk.entries(self.paths.own):
            self.disk.remove_tree(self.paths.own)


def sizes_of(files: StoreFiles, disk: Disk) -> StoreLayout:
    """The sizes of a store's files: as its maker says, else as its files are, else RocketMQ's."""
    said = read_layout(disk, Paths(files.path))
    if said is not None:
        return said
    queues = [files.queue(topic, queue_id).segment_size for topic, queue_id in files.queues()]
    held = open_index(files.index, Findings())
    slots, items = (held[0].slots, held[0].items) if held else (index.SLOT_COUNT, index.ITEM_COUNT)
    return StoreLayout(
        files.commitlog.segment_size,
        max(queues, key=queues.count, default=0) or consumequeue.FILE_SIZE,
        files.state_table.segment_size or statetable.FILE_SIZE,
        files.redo_log.segment_size or redolog.FILE_SIZE,
        slots,
        items,
    )


def index_rule(files: StoreFiles) -> IndexingRule:
    """By which rule a foreign store is indexed: by that of which its index holds more; without one, by its records.

    3.x knows no unique key; 4.x and 5.x write one into every message that their clients send.
    """
    held: set[tuple[int, int]] = set()
    for file in open_index(files.index, Findings())[:1]:
        rows = file.read(1, min(file.used, 1 << 16))
        held = set(zip(rows["commitlog_offset"].tolist(), rows["key_hash"].tolist(), strict=True))
    for records in Scan(files.commitlog):
        kinds, fits = Kinds(records), {}
        for rule in (IndexingRule.V5, IndexingRule.V3):
            items = expected_items(records, kinds, rule)
            made = set(zip(items["commitlog_offset"].tolist(), items["key_hash"].tolist(), strict=True))
            fits[rule] = len(made & held) - len(made - held)
        if held:
            return max(fits, key=lambda rule: fits[rule])
        keyed = bool((records.values("UNIQ_KEY").lengths > 0).any())
        return IndexingRule.V5 if keyed else IndexingRule.V3
    return IndexingRule.V5
