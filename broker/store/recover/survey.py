"""What is there: the facts about a store on which its recovery depends. Looks only; changes nothing.

As in:

    found = survey("shop.store", disk)
    found.facts            a value for each question that CASES asks     (broker.store.recover.cases)
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.disk.store_lock import is_held
from broker.store.read.layout import StoreLayout, read_store_file
from broker.store.read.log_reader import LogReader
from broker.store.read.segments import is_base
from broker.store.recover.lost_derived import lost_derived_file
from broker.store.recover.lost_log import file_that_names_a_record, reason_of
from broker.store.recover.tail import Tail, TailKind, find_tail, is_continued
from broker.store.recover.watermark import durable_in_this_boot
from broker.store.shared.checkpoint_file import OwnCheckpoint, read_number, read_point
from broker.store.shared.control import MAGIC, PAGE_SIZE, VERSION, Word, boot_words, lock_written_ns
from broker.store.shared.directory_swap import pending_swaps


class Owner(enum.Enum):
    """Who wrote the store."""

    NOBODY = "nobody"  # there is no log yet
    LOST = "somebody, and the log is lost"  # there is none, but the store speaks of records
    US = "checkback"
    FOREIGN_SINCE = "another program, after checkback"  # and it is not known to have stopped
    FOREIGN = "another program"


class Ending(enum.Enum):
    """How the last writer left, by the file abort."""

    CLOSED = "closed"
    OPEN = "not closed"


class Point(enum.Enum):
    """Our checkpoint."""

    END = "at the log's end"
    BEHIND = "behind the log's end"
    NONE = "none"


class SurveyFacts(NamedTuple):
    """The questions, each with one of its answers."""

    owner: Owner
    in_use: bool  # another process holds the store's lock
    page_trusted: bool  # the control page is of this boot and these files, and nobody else went on behind its tail
    poisoned: bool  # an fsync failed
    ending: Ending
    point: Point
    tail: TailKind


@dataclass(frozen=True, slots=True)
class Survey:
    """A store as it was found. Times in milliseconds, places as CommitLog offsets."""

    path: str
    facts: SurveyFacts
    begin: int = 0  # the least offset that is kept
    durable: int = 0  # a lower bound of what was flushed
    tail: Tail = field(default_factory=lambda: Tail(0, 0))
    point: OwnCheckpoint | None = None
    layout: StoreLayout | None = None
    swaps: tuple[str, ...] = ()  # exchanges of derived directories that were begun and not finished
    unmade: tuple[str, ...] = ()  # segments that were being made when the power failed

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        facts = {name: value.value if isinstance(value, enum.Enum) else value
                 for name, value in self.facts._asdict().items()}  # fmt: skip
        answer: dict[str, Any] = {"path": self.path, **facts, "begin_offset": self.begin, "end_offset": self.tail.end}
        answer["durable_offset"] = self.durable
        answer["checkpoint_offset"] = self.point.commitlog_offset if self.point else None
        answer["behind_end_bytes"] = max(0, self.tail.rest_end - self.tail.end)
        if self.tail.reason:
            answer["reason"], answer["file"] = self.tail.reason, self.tail.path
        if self.swaps:
            answer["unfinished_swaps"] = list(self.swaps)
        return answer


def survey(path: str, disk: Disk, *, alone: bool = False) -> Survey:
    """Look at a store. `alone`: the caller itself holds the lock.

    Raises StoreError where this user may not look, and for a store that a later version made; CorruptStore where
    store.json is damaged: without it the store would be another program's, whose broker recovers it.
    """
    paths = Paths(path)
    file = read_store_file(disk, paths)
    layout = file.layout if file else None
    closed = disk.entry(paths.abort) is None
    in_use = not alone and is_held(paths.lock, disk)
    if layout is None:
        names = disk.entries(paths.commitlog) if disk.entry(paths.commitlog) else []
        is_foreign = any(entry.is_file for entry in names)
        named = None if is_foreign else file_that_names_a_record(paths, disk)
        if named is not None:
            return _lost(path, reason_of(named), None, in_use=in_use, closed=closed)
        owner = Owner.FOREIGN if is_foreign else Owner.NOBODY
        facts = SurveyFacts(owner, in_use, page_trusted=False, poisoned=False, ending=_ending(closed=closed),
                            point=Point.NONE, tail=TailKind.WHOLE)  # fmt: skip
        return Survey(path, facts)
    log = LogReader(disk, paths.commitlog, layout.segment_bytes)
    poisoned = disk.entry(paths.poisoned) is not None
    page = _page(disk, paths, layout)
    touched = page is not None and not in_use and page[Word.LOCK_NS] != lock_written_ns(disk, paths)
    is_trusted = not alone and not touched and (in_use or not poisoned)  # who is alone has looked
    if page is not None and is_trusted and (in_use or not _lacks_derived(disk, paths, layout, page)):
        tail = Tail(page[Word.TAIL], page[Word.TAIL], TailKind.WHOLE, page[Word.TAIL])
        if in_use or not is_continued(log, page[Word.TAIL], page[Word.INTENT]):
            facts = SurveyFacts(Owner.US, in_use, page_trusted=True, poisoned=bool(page[Word.POISON]),
                                ending=_ending(closed=closed), point=Point.BEHIND, tail=TailKind.WHOLE)  # fmt: skip
            return Survey(path, facts, log.begin, page[Word.DURABLE], tail, None, layout)
    return _looked(path, disk, layout, log, closed=closed, in_use=in_use, poisoned=poisoned, touched=touched)


def _lacks_derived(disk: Disk, paths: Paths, layout: StoreLayout, page: memoryview[int]) -> bool:
    file = read_store_file(disk, paths)
    return file is not None and lost_derived_file(disk, paths, layout, file.transactions, page) is not None


def survey_adopted(path: str, disk: Disk, layout: StoreLayout, adopted: int) -> Survey:
    """What a store of another program would be found to be, were it ours: with files of these sizes, and its records
    below the CommitLog offset `adopted` accepted. Looks only. Raises StoreError where this user may not look."""
    paths = Paths(path)
    log = LogReader(disk, paths.commitlog, layout.segment_bytes)
    closed, poisoned = disk.entry(paths.abort) is None, disk.entry(paths.poisoned) is not None
    return _looked(
        path, disk, layout, log, closed=closed, in_use=False, poisoned=poisoned, touched=True, adopted=adopted
    )


def _lost(path: str, reason: str, layout: StoreLayout | None, *, in_use: bool, closed: bool) -> Survey:
    """A store without its log."""
    facts = SurveyFacts(Owner.LOST, in_use, page_trusted=False, poisoned=False, ending=_ending(closed=closed),
                        point=Point.NONE, tail=TailKind.CORRUPT)  # fmt: skip
    tail = Tail(0, 0, TailKind.CORRUPT, 0, Paths(path).commitlog, reason)
    return Survey(path, facts, tail=tail, layout=layout)


def _looked(
    path: str,
    disk: Disk,
    layout: StoreLayout,
    log: LogReader,
    *,
    closed: bool,
    in_use: bool,
    poisoned: bool,
    touched: bool,
    adopted: int = 0,
) -> Survey:
    """The facts from the files, where no control page is trusted.

    `touched`: a broker started on the store since. One that finds `abort` removes files of the index that are younger
    than its checkpoint, and truncates queues, even if it appends nothing: no checkpoint speaks of them any more.
    """
    paths = Paths(path)
    named = file_that_names_a_record(paths, disk) if not log.files else None
    if named is not None:
        return _lost(path, reason_of(named), layout, in_use=in_use, closed=closed)
    point = read_point(disk, paths)
    if point is not None and not log.begin <= point.commitlog_offset:
        point = None
    adopted = max(adopted, read_number(disk, paths.adopted))
    durable = max(read_number(disk, paths.durable), point.commitlog_offset if point else 0, log.begin)
    durable = max(durable, durable_in_this_boot(path, disk))
    if not log.files and durable:
        return _lost(
            path,
            f"the log is not there (no segment), but was durable up to {durable}",
            layout,
            in_use=in_use,
            closed=closed,
        )
    start = point.commitlog_offset if point else log.begin
    tail = find_tail(log, start, durable, adopted=adopted, quick=closed and point is not None)
    lost = log.missing(durable)
    if lost is not None:
        tail = replace(
            tail, end=lost, kind=TailKind.CORRUPT, reason="the segment that begins here is not there, or was cut"
        )
    is_appended_to = closed and point is not None and tail.end > max(point.commitlog_offset, adopted)
    if touched:
        point = None
    where = Point.NONE if point is None else Point.END if point.commitlog_offset == tail.end else Point.BEHIND
    is_foreign = is_appended_to or tail.foreign_at is not None
    owner = Owner.NOBODY if not log.files else Owner.FOREIGN_SINCE if is_foreign else Owner.US
    facts = SurveyFacts(owner, in_use, page_trusted=False, poisoned=poisoned, ending=_ending(closed=closed),
                        point=where, tail=tail.kind)  # fmt: skip
    swaps = tuple(pending_swaps(disk, paths))
    return Survey(path, facts, log.begin, durable, tail, point, layout, swaps, log.unmade(tail.end))


def _ending(*, closed: bool) -> Ending:
    return Ending.CLOSED if closed else Ending.OPEN


def _page(disk: Disk, paths: Paths, layout: StoreLayout) -> memoryview[int] | None:
    """The words of a control page that can be of this boot and these files; None for any other."""
    entry = disk.entry(paths.control)
    if entry is None or entry.size != PAGE_SIZE:
        return None
    words = memoryview(disk.read(paths.control)).cast("Q")
    boot = boot_words(disk)
    here = (MAGIC, VERSION, *boot, entry.inode, layout.segment_bytes)
    fixed_words = (Word.MAGIC, Word.VERSION, Word.BOOT_HIGH, Word.BOOT_LOW, Word.INODE, Word.SEGMENT_SIZE)
    in_order = words[Word.DISPATCHED] <= words[Word.TAIL] <= words[Word.INTENT]
    if boot == (0, 0) or not in_order or tuple(words[word] for word in fixed_words) != here:
        return None
    return words if _last_segment_fits(disk, paths, words[Word.INTENT], layout) else None


def _last_segment_fits(disk: Disk, paths: Paths, intent: int, layout: StoreLayout) -> bool:
    """Whether the segment is there that the page says is in use."""
    names = disk.entries(paths.commitlog) if disk.entry(paths.commitlog) else []
    last = max((int(entry.name) for entry in names if entry.is_file and is_base(entry.name)), default=-1)
    used = intent - 1 - (intent - 1) % layout.segment_bytes if intent else -1
    return last >= used


__all__ = ["Ending", "Owner", "Point", "Survey", "SurveyFacts", "TailKind", "survey", "survey_adopted"]
