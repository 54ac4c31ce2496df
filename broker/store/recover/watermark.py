"""Up to where a store of ours is complete, as its control page says: for those who verify it and change nothing.

    mark = read_watermark("shop.store", disk)        before any other file is looked at
    mark.dispatched                                  every record below it is published, and so is all that it derives

Processes go on while the files are compared, and may be killed at any instant. So a snapshot is taken by the order of
reading, which is the reverse of the order of writing. A writer publishes a record (TAIL), writes what is derived from
it, raises the count of each derived file behind what it wrote there, and only then moves DISPATCHED. A reader takes
DISPATCHED first, then the counts, then the files. Therefore:

- A record below `dispatched` never changes, and all that it derives lies below the counts.
- What lies below the counts is whole; what of it names a record at or above `dispatched` is not verified.
- What lies at or above a count, and the log's bytes at or above `dispatched`, are uncommitted: a killed process may
  have left anything there, until the next append clears or finishes it.

The page is read by pread and never mapped: a map of a file that somebody truncates would kill us with SIGBUS.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from broker.errors import StoreError
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths
from broker.store.disk.store_lock import is_held
from broker.store.read.layout import StoreFile, read_store_file
from broker.store.read.log_reader import LogReader
from broker.store.recover.tail import is_continued
from broker.store.shared.checkpoint_file import read_point
from broker.store.shared.control import MAGIC, PAGE_SIZE, VERSION, Word, boot_words, lock_written_ns, two_words
from broker.store.shared.queue_offsets import read_cells

_TRIES, _PAUSE_S = 40, 0.005  # for how long an exchange of directories is waited for
_READINGS = 100  # of a page whose numbers move; each is in order but for one that meets a move


@dataclass(frozen=True, slots=True)
class DerivedCounts:
    """How much of each derived file is whole: numbers behind the last unit, slot and index file."""

    redo_units: int
    slots: int
    index: int  # the name of the index file in use; 0 for none
    queues: Mapping[tuple[str, int], int] = field(default_factory=dict)  # topic and queue id: the next queue offset


@dataclass(frozen=True, slots=True)
class Watermark:
    """What may be verified of a store. Plain values, so that it can be part of a plan that other machines carry out."""

    dispatched: int  # CommitLog offset: published and dispatched below it
    segment_bytes: int
    generation: int  # of the derived files; another one: they were exchanged since
    tail: int  # CommitLog offset, as it was when `dispatched` was read, or later
    durable: int = 0  # CommitLog offset: what is published below it is flushed, and no power cut takes it back
    counts: DerivedCounts | None = None  # None where they cannot be relied on: a copy, an exchange that was cut off
    is_at_rest: bool = False  # nobody has the store open and nothing is under way: all of it may be verified
    is_copy: bool = False  # the page came with a copy, whose log may end earlier
    opened: tuple[int, int] = (0, 0)  # inode and time of the file abort, which each process that opens alone remakes

    @property
    def limits(self) -> DerivedCounts | None:
        """The counts at which verifying ends; None where it does not end before the files do."""
        return None if self.is_at_rest else self.counts

    def until_durable(self) -> Watermark:
        """The same for a reader that goes on where it ended, and so may read nothing that is replaced later."""
        return replace(self, dispatched=min(self.dispatched, self.durable), is_at_rest=False)

    @property
    def ignore_from(self) -> int | None:
        """What names a record at or above this CommitLog offset is not verified; None when everything is."""
        return None if self.is_at_rest else self.dispatched


class _Page:
    """One reading of the control page."""

    def __init__(self, raw: bytes, inode: int) -> None:
        self._words, self._inode = memoryview(raw).cast("Q"), inode

    def __getitem__(self, word: Word) -> int:
        return self._words[word]

    def is_of(self, store: StoreFile) -> bool:
        """Whether it is a page of this store, in this machine's order of bytes."""
        here = (MAGIC, VERSION, *two_words(int(store.store_id, 16)), store.layout.segment_bytes)
        words = (Word.MAGIC, Word.VERSION, Word.STORE_HIGH, Word.STORE_LOW, Word.SEGMENT_SIZE)
        return tuple(self[word] for word in words) == here

    def is_in_order(self) -> bool:
        """Whether its places agree. Read while they move, one may be older than the next: then reading again helps."""
        return self[Word.DISPATCHED] <= self[Word.TAIL] <= self[Word.INTENT]

    def is_of_boot(self, disk: Disk) -> bool:
        """Whether no map of it was lost since: the machine has not been started again."""
        boot = boot_words(disk)
        return boot != (0, 0) and (self[Word.BOOT_HIGH], self[Word.BOOT_LOW]) == boot

    def is_in_place(self) -> bool:
        """Whether it is the file that it speaks of, and no copy."""
        return self._inode == self[Word.INODE]

    @property
    def is_idle(self) -> bool:
        """Whether nothing is begun that is not finished."""
        return self[Word.DISPATCHED] == self[Word.TAIL] == self[Word.INTENT]


def read_watermark(path: str, disk: Disk, *, while_written: bool = False) -> Watermark | None:
    """The watermark of a store; None for one that is not ours, or whose control page does not describe it as it is.

    `while_written` takes the store for one that is being written, whatever it looks like.
    """
    paths = Paths(path)
    known = _identity(disk, paths)
    if known is None:
        return None
    for attempt in range(_TRIES):
        opened = _last_opened(disk, paths)
        in_use = while_written or _is_in_use(disk, paths)
        first = _page(disk, paths, known)
        if first is None:
            return None
        if not first.is_in_place():
            return _of_copy(first, disk, paths)
        if not first.is_of_boot(disk):
            return None
        log = LogReader(disk, paths.commitlog, first[Word.SEGMENT_SIZE])
        if not in_use and is_continued(log, first[Word.TAIL], first[Word.INTENT]):
            again = _page(disk, paths, known)
            if again is not None and again[Word.INTENT] == first[Word.INTENT]:
                return None  # another program went on with the store
            continue
        second = _page(disk, paths, known)
        if second is None:
            return None
        is_exchanged = second[Word.GENERATION] % 2 == 1 or second[Word.GENERATION] != first[Word.GENERATION]
        if is_exchanged and attempt < _TRIES - 1:
            time.sleep(_PAUSE_S)
            continue
        cells = None if is_exchanged else read_cells(disk, paths.queues, second[Word.QUEUES])
        return replace(_of_live(first, second, cells, in_use=in_use), opened=opened)
    return None


def _of_live(first: _Page, second: _Page, cells: dict[tuple[str, int], int] | None, *, in_use: bool) -> Watermark:
    counts = None
    if cells is not None:
        counts = DerivedCounts(second[Word.REDO_UNITS], second[Word.SLOTS], second[Word.INDEX], cells)
    return Watermark(
        first[Word.DISPATCHED],
        first[Word.SEGMENT_SIZE],
        second[Word.GENERATION],
        second[Word.TAIL],
        first[Word.DURABLE],
        counts,
        is_at_rest=counts is not None and not in_use and first.is_idle and second[Word.INTENT] == first[Word.INTENT],
    )


def _of_copy(page: _Page, disk: Disk, paths: Paths) -> Watermark | None:
    """A copy that was taken while the store ran is complete up to what its page says, if so much of it was copied.

    Not one that is in use: a process of ours makes the page its own first, so a broker went on with the copy.
    """
    if disk.entry(paths.abort) is None or _is_in_use(disk, paths):
        return None
    dispatched, segment = page[Word.DISPATCHED], page[Word.SEGMENT_SIZE]
    log = LogReader(disk, paths.commitlog, segment)
    if dispatched and log.missing(dispatched) is not None:
        return None
    return Watermark(dispatched, segment, page[Word.GENERATION], page[Word.TAIL], dispatched, is_copy=True)


def before_recovery(path: str, disk: Disk) -> Watermark | None:
    """Up to where recovery keeps the log of a store that the machine went down with; None for any other store.

    Behind the last checkpoint it cuts the log at a page that was not written, though later ones may have been. Also
    while it recovers: it trusts the page at its last step.
    """
    paths = Paths(path)
    known = _identity(disk, paths)
    if known is None or disk.entry(paths.abort) is None or _is_of_broker(disk, paths):
        return None
    page = _page(disk, paths, known)
    if page is not None and (page.is_of_boot(disk) or not page.is_in_place()):
        return None
    point = read_point(disk, paths)
    end = point.commitlog_offset if point is not None else 0
    return Watermark(end, known.layout.segment_bytes, 0, end, end)


def read_durable(path: str, disk: Disk) -> Watermark | None:
    """Up to where no power cut and no recovery takes back what the log of ours holds; None for any other store."""
    mark = read_watermark(path, disk) or before_recovery(path, disk)
    mark = mark or read_watermark(path, disk)  # it was recovered between the two
    return mark.until_durable() if mark is not None else None


def durable_in_this_boot(path: str, disk: Disk) -> int:
    """Up to where the log was flushed, as the page of this boot says, even if it is not trusted otherwise; or 0."""
    paths = Paths(path)
    known = _identity(disk, paths)
    page = _page(disk, paths, known) if known is not None else None
    is_own = page is not None and page.is_in_place() and page.is_of_boot(disk)
    return page[Word.DURABLE] if page is not None and is_own else 0


def queue_ends(path: str, disk: Disk) -> Mapping[tuple[str, int], int]:
    """The next queue offset of every queue by now; none where no page says it."""
    paths = Paths(path)
    known = _identity(disk, paths)
    page = _page(disk, paths, known) if known is not None else None
    return (read_cells(disk, paths.queues, page[Word.QUEUES]) if page is not None else None) or {}


def log_begin(path: str, disk: Disk) -> int:
    """The CommitLog offset at which the log begins by now; retention moves it."""
    return LogReader(disk, Paths(path).commitlog, 1).begin


def has_moved(mark: Watermark | None, path: str, disk: Disk) -> bool:
    """Whether what was compared since the mark was read may have changed in a way that it does not allow for.

    Without a mark: whether there is one by now. The store was just being opened then.
    """
    if mark is None:
        return read_watermark(path, disk) is not None
    paths = Paths(path)
    known = _identity(disk, paths)
    page = _page(disk, paths, known) if known is not None else None
    if page is None or mark.is_copy:
        return not mark.is_copy
    if page[Word.GENERATION] != mark.generation:
        return True
    is_left_alone = page[Word.INTENT] == mark.tail and _last_opened(disk, paths) == mark.opened
    return mark.is_at_rest and (_is_in_use(disk, paths) or not is_left_alone)


def published(path: str, disk: Disk) -> tuple[int, int]:
    """The tail of the log of ours by now, and the store time (ms) of its newest record; zeros where no page says it."""
    paths = Paths(path)
    known = _identity(disk, paths)
    page = _page(disk, paths, known) if known is not None else None
    return (page[Word.TAIL], page[Word.STORE_MS]) if page is not None else (0, 0)


def _identity(disk: Disk, paths: Paths) -> StoreFile | None:
    """What store.json states; None for a store that is not ours, or whose file is damaged."""
    try:
        return read_store_file(disk, paths)
    except StoreError:
        return None


def _page(disk: Disk, paths: Paths, known: StoreFile) -> _Page | None:
    for _ in range(_READINGS):
        try:
            entry, raw = disk.entry(paths.control), disk.read(paths.control)
        except Missing:
            return None
        if entry is None or len(raw) != PAGE_SIZE:
            return None
        page = _Page(raw, entry.inode)
        if not page.is_of(known):
            return None
        if page.is_in_order():
            return page
    return None


def _last_opened(disk: Disk, paths: Paths) -> tuple[int, int]:
    """What distinguishes two openings of a store: a process that opens it alone writes the file abort again."""
    entry = disk.entry(paths.abort)
    return (entry.inode, entry.changed_ns) if entry is not None else (0, 0)


def _is_of_broker(disk: Disk, paths: Paths) -> bool:
    """Whether a broker has the store open: when it starts it writes to the lock, which no process of ours does."""
    if not _is_in_use(disk, paths):
        return False
    try:
        raw = memoryview(disk.read(paths.control))
    except Missing:
        return True
    written = raw.cast("Q")[Word.LOCK_NS] if len(raw) == PAGE_SIZE else 0
    return written not in (0, lock_written_ns(disk, paths))  # 0: a new page, which a recovery fills


def _is_in_use(disk: Disk, paths: Paths) -> bool:
    try:
        return is_held(paths.lock, disk)
    except StoreError:  # this user may not ask: then it counts as used
        return True
