"""A snapshot of a store that is in use: a copy that verifies without findings, and that opens as after a power cut.

    report = copy_store("shop.store", "/backup/shop.store")

The order makes it whole. Of a store of ours the control page comes first, then what is derived, and the log last: all
that the page calls dispatched is in what follows (`broker.store.recover.watermark`). A RocketMQ broker has no such
page, so the derived files of its copy are made from the copied log (`recovery.rebuild`), which is the longer work.

The copy does not know the ledgers of the original, unless it is to take its place: check-back on a copy would insert
tombstones for transactions that the original is still about to commit. RocketMQ has no such tool.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

from broker.errors import NotAStore, StoreError, StoreLocked
from broker.store.disk.files import Disk, Entry, Missing
from broker.store.disk.opening import check_no_link
from broker.store.disk.os_errors import not_written
from broker.store.disk.paths import Paths
from broker.store.disk.store_lock import is_held
from broker.store.read.detect import LOST_AND_FOUND, check_outside_stores
from broker.store.read.inventory import inventory, refusal
from broker.store.read.layout import read_store_file
from broker.transaction.events import Generation
from recovery.rebuild.rebuilder import Rebuilding, rebuild
from recovery.rebuild.replaced import forget
from recovery.scan.store_files import StoreFiles
from recovery.sqlite_files import connect_to_read

Progress = Callable[[int, int], None]  # bytes done, bytes in all

_UNFINISHED = ".unfinished"
_PIECE_BYTES = 1 << 20
# In this order: each says of what comes after it how far it is whole. Then everything else, and the log.
_FIRST = ("checkback/store.json", "checkback/checkpoint", "checkback/control", "abort", "checkpoint", "config/")
_NEVER = (
    "checkback/rebuild/", "checkback/replaced/", "checkback/swap", "checkback/torn/", "checkback/reserve",
    "checkback/catalog.db", f"{LOST_AND_FOUND}/",
)  # fmt: skip
_LEDGERS = "checkback/ledgers/"
_LOG = "commitlog/"


@dataclass(frozen=True, slots=True)
class CopyReport:
    """What was copied."""

    path: str
    out: str
    files: int
    bytes: int
    linked: int  # of the files: segments that are the very files of the original
    was_live: bool
    is_rebuilt: bool  # whether derived files were made from the copied log
    with_ledgers: bool

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        return asdict(self)


def copy_store(
    path: str,
    out: str,
    *,
    link: bool = False,
    with_ledgers: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> CopyReport:
    """Copy the store at `path` into the directory `out`, which must not be there yet; processes may go on writing.

    `link`: segments of the log that are full become hard links, which takes no space; such a copy is for reading.
    Raises NotAStore, StoreError, NotUnderstood for a store in use whose derived files cannot be made from its log,
    StoreLocked for one that `checkback follow` fills.
    """
    source, target = path.rstrip(os.sep) or os.sep, out.rstrip(os.sep) or os.sep
    disk, paths = Disk(), Paths(source)
    StoreFiles.open(source)
    is_ours = read_store_file(disk, paths) is not None
    is_open = is_held(paths.lock, disk)
    if is_open and disk.entry(paths.followed) is not None:
        text = f"{source} is a copy that follows a master, and grows now. Stop checkback follow to copy it, or make a"
        raise StoreLocked(f"{text} store of its own: checkback salvage {quote(source)} NEW", path=source)
    was_live = is_open or disk.entry(paths.abort) is not None
    if was_live and not is_ours and (misfits := inventory(source, disk).misfits(of_rebuild=True)):
        raise refusal(f"{source} (stop it to copy this store)", misfits)
    _check_place(source, target)
    unfinished = f"{target}{_UNFINISHED}"
    work = _Copy(disk, source, unfinished, link=link, with_ledgers=with_ledgers, progress=progress)
    try:
        # Of two copies to one place at once, one: the other removes nothing. Who may not look into the store may not
        # look into its copy.
        os.mkdir(unfinished, 0o700 | os.stat(source).st_mode & 0o777)
    except OSError as error:
        raise not_written(error, unfinished) from error
    try:
        work.run()
        is_rebuilt = was_live and not is_ours
        if is_rebuilt:
            _rebuild(unfinished, keeps_abort=disk.entry(paths.abort) is not None)
        work.sync()
        os.rename(unfinished, target)
    except OSError as error:
        raise not_written(error, target) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return CopyReport(
        source, target, work.files, work.done, work.linked, was_live, is_rebuilt, with_ledgers and is_ours
    )


def _check_place(source: str, target: str) -> None:
    inside, outside = os.path.realpath(target), os.path.realpath(source)
    if os.path.commonpath((inside, outside)) in (inside, outside):
        raise StoreError(f"{target} and {source} lie in each other. Give another directory", path=target)
    if os.path.lexists(target):
        raise StoreError(f"{target} is there already. Give a directory that does not exist", path=target)
    if os.path.lexists(f"{target}{_UNFINISHED}"):
        text = f"{target}{_UNFINISHED} is left of a copy that was killed, or one is running. Remove it, or give another"
        raise StoreLocked(f"{text} directory", path=target)
    if not os.path.isdir(os.path.dirname(target) or "."):
        raise NotAStore(f"{os.path.dirname(target)} is not a directory", path=target)
    check_outside_stores(target)


class _OfACopy(Rebuilding):
    """The queues of a running broker are late, so they always differ; a copy is whole without its damaged records."""

    refuses_damaged_records = False


def _rebuild(path: str, *, keeps_abort: bool) -> None:
    """Make the derived files of a copy of a running broker's store from its log.

    A 5.x broker that finds `abort` recovers what the copy caught half way, such as its timers. A 3.x broker would
    make its state table again, and wrong.
    """
    report = rebuild(path, apply=True, broker_is_stopped=True, still_s=0, kind=_OfACopy)
    forget(Disk(), Paths(path))
    if keeps_abort and report.generation != Generation.STATE_TABLE.label:
        with open(Paths(path).abort, "wb"):
            pass


class _Copy:
    """One copy, file by file; what vanishes meanwhile expired."""

    def __init__(
        self, disk: Disk, source: str, target: str, *, link: bool, with_ledgers: bool, progress: Progress
    ) -> None:
        self._disk, self._source, self._target, self._link, self._progress = disk, source, target, link, progress
        self._never = _NEVER if with_ledgers else (*_NEVER, _LEDGERS)
        self.files = self.linked = self.done = self._total = 0

    def run(self) -> None:
        """Copy all, in the order that makes the copy whole."""
        done: set[str] = set()
        for name in _FIRST:
            for path, entry in self._below(name):
                self._take(path, entry)
                done.add(path)
        rest = [one for one in self._below("") if not one[0].startswith(_LOG) and one[0] not in done]
        self._total = sum(entry.size for _, entry in self._below(""))
        for path, entry in rest:
            self._take(path, entry)
        self._catalog()
        segments = list(self._below(_LOG))  # listed now: one that was begun since is part of the copy
        last = max((entry.name for _, entry in segments), default="")
        for path, entry in segments:
            self._take(path, entry, is_full=entry.name < last)

    def _below(self, name: str) -> Iterator[tuple[str, Entry]]:
        """The files at or below a name of the store, by their path below it."""
        root = os.path.join(self._source, name)
        if name and not name.endswith("/"):
            entry = self._disk.entry(root)
            if entry is not None and entry.is_file:
                yield name, entry
            return
        try:
            entries = self._disk.entries(root)
        except Missing:
            return
        for entry in entries:
            path = f"{name}{entry.name}"
            if entry.is_directory and not f"{path}/".startswith(self._never):
                os.makedirs(os.path.join(self._target, path), exist_ok=True)
                yield from self._below(f"{path}/")
            elif entry.is_file and not path.startswith(self._never):
                yield path, entry

    def _take(self, path: str, entry: Entry, *, is_full: bool = False) -> None:
        target = os.path.join(self._target, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if is_full and self._link:
            try:
                os.link(entry.path, target)
                self.linked += 1
            except OSError:  # another file system
                self._copy(entry, target)
        else:
            self._copy(entry, target)
        self.files += 1
        self.done += entry.size
        self._progress(self.done, max(self._total, self.done))

    def _copy(self, entry: Entry, target: str) -> None:
        """The bytes of a file, its holes left out."""
        try:
            file = self._disk.open_to_copy(entry.path)
        except Missing:
            return
        with open(target, "xb", buffering=0) as copy:
            for start, stop in file.filled(0):
                for at in range(start, stop, _PIECE_BYTES):
                    raw = file.pread(min(_PIECE_BYTES, stop - at), at)
                    os.pwrite(copy.fileno(), raw, at)
            os.ftruncate(copy.fileno(), max(entry.size, os.fstat(copy.fileno()).st_size))
            os.fsync(copy.fileno())

    def _catalog(self) -> None:
        """What check-back remembers is a database: it is copied as one."""
        catalog = Paths(self._source).catalog
        if self._disk.entry(catalog) is None:
            return
        check_no_link(catalog)
        try:
            with (
                closing(connect_to_read(catalog)) as before,
                closing(sqlite3.connect(Paths(self._target).catalog)) as copy,
            ):
                before.backup(copy)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
            text = f"{catalog} cannot be read ({error}). Move it away, and copy again: check-back counts again"
            raise StoreError(text, path=catalog) from error

    def sync(self) -> None:
        """Flush the directories; files were flushed one by one."""
        for directory, _, _ in os.walk(self._target):
            descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
