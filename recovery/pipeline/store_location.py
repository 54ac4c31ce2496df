"""Where a store lies: on a disk of this machine, or on any file system that pyarrow reaches; its segments as they are
or compressed.

    place = Place("s3://archive/shop.store")
    place.log().listing()

A place and its log can be pickled: the driver lists the directory, the executors open what it lists. Compressed
segments (`00000000000000000000.gz`, `.zst`, `.lz4`) are unpacked into a temporary file by the process that reads them.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, islice, pairwise
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs

from broker.errors import CorruptStore, NotAStore, StoreError
from broker.store.disk.files import Disk, Entry, Missing, ReadFile
from broker.store.disk.open_files import OpenFiles
from broker.store.disk.os_errors import FULL, temporary_not_written
from broker.store.disk.paths import path_of_store
from broker.store.read.directory import StoreDirectory
from broker.store.read.segments import NAME_DIGITS, Listing, Segment, SegmentDamage, is_base
from broker.store.recover.watermark import Watermark, read_durable, read_watermark
from recovery.scan.store_files import StoreFiles

COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".lz4": "lz4"}
_COPY_BYTES = 4 << 20
_OF_GOOGLE = ("gs://", "gcs://")  # the same to PyArrow
_RETRY_OPTION, _RETRY_S = "retry_limit_seconds=", 30
_OF_HADOOP = ("s3a", "s3n")  # what Spark's own readers call it
_OF_HADOOP_FORM = re.compile(r"([a-z][a-z0-9+.-]+):(/[^/].*)")  # as Spark prints a path: file:/data/shop.store


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """One segment: where it lies and what it holds."""

    base: int
    size: int
    path: str


@dataclass(frozen=True, slots=True)
class LogManifest:
    """The segments of a CommitLog at one moment."""

    place: StoreLocation
    files: tuple[SegmentEntry, ...]
    segment_size: int
    damages: tuple[SegmentDamage, ...] = ()
    watermark: Watermark | None = None  # up to where derived files are compared, on every machine

    @property
    def begin(self) -> int:
        """The CommitLog offset of the first byte."""
        return self.files[0].base if self.files else 0

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    def listing(self) -> Listing:
        """The segments to read, without what is wrong with them as files."""
        opened = OpenFiles(self.place.disk())
        segments = tuple(Segment(file.base, file.size, file.path, 0, opened) for file in self.files)
        return Listing(segments, self.segment_size)

    def file_at(self, commitlog_offset: int) -> str:
        """The path of the segment that holds an offset, of two that overlap the later one; else of the directory."""
        for file in reversed(self.files):
            if file.base <= commitlog_offset < file.base + self.segment_size:
                return file.path
        return os.path.dirname(self.files[0].path) if self.files else self.place.path

    def store_files(self) -> StoreFiles:
        """The other files of the store, as far as they are compared."""
        return self.place.files(self.watermark)

    def check_seen(self) -> None:
        """Raises NotAStore where a task runs on a machine that does not see the segments: it would find no records."""
        disk = self.place.disk()
        for directory in sorted({os.path.dirname(file.path) for file in self.files}):
            if disk.entry(directory) is None:
                text = f"{directory} is not there for a task of Spark, that is on the machine of an executor"
                step = "All machines must see the store under one path: mount it there, or give a URI"
                raise NotAStore(f"{text}. {step}", path=directory)

    def is_compressed(self, file: SegmentEntry) -> bool:
        """Whether a segment can only be read as a whole."""
        return os.path.splitext(file.path)[1] in COMPRESSIONS


@dataclass(frozen=True, slots=True)
class PackedLog:
    """A manifest for its way to a task: segments that follow each other in one directory are a first one and a count.

    It travels with each split: 50 GB in segments of 16 MiB were 790 MB of names in the driver.
    """

    others: LogManifest  # without its segments
    runs: tuple[tuple[SegmentEntry, int], ...]

    @classmethod
    def of(cls, log: LogManifest) -> PackedLog:
        """The manifest, packed."""
        runs: list[tuple[SegmentEntry, int]] = []
        following: Iterator[SegmentEntry] = iter(())
        for file in log.files:
            if file == next(following, None):
                runs[-1] = runs[-1][0], runs[-1][1] + 1
            else:
                runs.append((file, 1))
                following = _following(file, log.segment_size)
        return cls(replace(log, files=()), tuple(runs))

    def unpacked(self) -> LogManifest:
        """The manifest as it was."""
        files: list[SegmentEntry] = []
        for first, length in self.runs:
            files += [first, *islice(_following(first, self.others.segment_size), length - 1)]
        return replace(self.others, files=tuple(files))


def _following(first: SegmentEntry, segment_size: int) -> Iterator[SegmentEntry]:
    """The segments that would come behind one, of its size and in its directory."""
    name_at = len(first.path) - len(os.path.basename(first.path))
    directory, suffix = first.path[:name_at], first.path[name_at + NAME_DIGITS :]
    for base in count(first.base + segment_size, segment_size):
        yield SegmentEntry(base, first.size, f"{directory}{base:0{NAME_DIGITS}}{suffix}")


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """A store's path, or the URI of one (s3://, hdfs://, gs://, file://)."""

    path: str

    def disk(self) -> Disk:
        """The disk that the place is on."""
        return _disk(self.path)[0]

    @property
    def is_local(self) -> bool:
        return "://" not in self.path

    def for_all(self) -> StoreLocation:
        """The same for other processes: an executor has a current directory of its own."""
        return StoreLocation(path_of_store(self.path)) if self.is_local else self

    @property
    def inside(self) -> str:
        """The path on the disk that the place is on."""
        return _disk(self.path)[1]

    def files(self, watermark: Watermark | None = None) -> StoreFiles:
        """The store. Raises NotAStore."""
        disk, path = _disk(self.path)
        if not self.is_local or _has_archives(disk, os.path.join(path, "commitlog")):
            if _answer_of(self.path, disk, os.path.join(path, "commitlog")) is None:
                text = f"{self.path} is not a store, for it holds no commitlog/. Give the directory that a broker calls"
                raise NotAStore(f"{text} storePathRootDir", path=self.path)
            return StoreFiles(StoreDirectory(path, disk), watermark)
        return StoreFiles.open(path, watermark)

    def log(self, *, durable: bool = False) -> LogManifest:
        """The CommitLog as it is now, of a store of ours what is published, or `durable`. Raises NotAStore.

        The next append may put other records into the place of what follows.
        """
        mark = (read_durable if durable else read_watermark)(self.inside, self.disk())
        return replace(manifest_of(self, self.files(mark)), watermark=None)  # for those who compare derived files


def _answer_of(path: str, disk: Disk, directory: str) -> Entry | None:
    """What stands at a directory of a path or URI. Raises StoreError where the file system gives no answer."""
    try:
        return disk.entry(directory)
    except OSError as error:
        reason = str(error).partition(" error_info=")[0]  # Google's client adds what it was doing
        text = f"{path}: its file system gives no answer: {reason}. See that it runs, and the credentials for it"
        raise StoreError(text, path=path) from error


def manifest_of(place: StoreLocation, store: StoreFiles) -> LogManifest:
    """What executors need to know of the part of a log that is compared."""
    listing, absolute = store.compared, path_of_store if place.is_local else str
    files = tuple(SegmentEntry(segment.base, segment.size, absolute(segment.path)) for segment in listing.segments)
    return LogManifest(place.for_all(), files, listing.segment_size, listing.damages, store.watermark)


def _disk(path: str) -> tuple[Disk, str]:
    """The disk of a path or URI, and the path on it."""
    _refuse_one_slash(path)
    if "://" not in path:  # not kept: a relative path leads elsewhere when the process changes its directory
        plain = path if path == os.sep else path.rstrip(os.sep)
        return ArchiveDisk(None), os.path.abspath(plain)
    return _disk_of_uri(path)


@cache
def _disk_of_uri(path: str) -> tuple[Disk, str]:
    filesystem, inside = filesystem_of(path)
    if isinstance(filesystem, pafs.LocalFileSystem):
        return ArchiveDisk(None), inside.rstrip("/") or "/"
    return ArchiveDisk(filesystem), inside.rstrip("/")


def _refuse_one_slash(path: str) -> None:
    """Raises StoreError for `file:/data`: taken as a path it would be a directory called `file:` in the current one."""
    if found := _OF_HADOOP_FORM.fullmatch(path):
        text = f"{path} has one slash behind its scheme. Write {found[1]}://{found[2]}"
        raise StoreError(f"{text}, or ./{path} for a directory of that name here", path=path)


def filesystem_of(path: str) -> tuple[Any, str]:
    """The file system of a path or URI as pyarrow has it, and the path on it. Raises StoreError."""
    _refuse_one_slash(path)
    if "://" not in path:
        return pafs.LocalFileSystem(), os.path.abspath(path)
    try:
        filesystem, inside = pafs.FileSystem.from_uri(_with_a_limit(path))
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        scheme, _, rest = path.partition("://")
        step = f". Write s3://{rest}" if scheme in _OF_HADOOP else ""
        if reason.startswith("Unable to load"):  # hdfs:// and viewfs:// are Hadoop's own library, in this process
            step = ". It needs JAVA_HOME, HADOOP_HOME, and in CLASSPATH what `hadoop classpath --glob` prints"
        raise StoreError(f"{path}: pyarrow cannot reach this file system: {reason}{step}", path=path) from error
    return filesystem, inside


def _with_a_limit(uri: str) -> str:
    """A URI whose client gives up. Google's goes on for 15 minutes, also without credentials, and heeds no Ctrl-C."""
    if not uri.startswith(_OF_GOOGLE) or _RETRY_OPTION in uri:
        return uri
    return f"{uri}{'&' if '?' in uri else '?'}{_RETRY_OPTION}{_RETRY_S}"


def path_within(path: str, *names: str) -> str:
    """A path or URI inside another; the options of a URI (`?endpoint_override=...`) stay behind it."""
    if "://" not in path:
        return os.path.join(os.path.abspath(path), *names)
    place, mark, options = path.partition("?")
    return "/".join((place.rstrip("/"), *names)) + mark + options


def _has_archives(disk: Disk, directory: str) -> bool:
    try:
        return any(os.path.splitext(entry.path)[1] in COMPRESSIONS for entry in disk.entries(directory))
    except Missing:
        return False


class ArchiveDisk(Disk):
    """The file system of this machine or one of pyarrow's, on which a segment may be compressed.

    A compressed segment appears under the name of what it holds, with the size of its neighbours: a broker allocates
    every segment in full.
    """

    def __init__(self, filesystem: Any) -> None:
        self._filesystem = filesystem

    def entry(self, path: str) -> Entry | None:
        """What stands at a path; None when nothing does."""
        if self._filesystem is None:
            return super().entry(path)
        if path in ("", "/"):
            return Entry(path, path, True, False, 0, 0, 0)
        info = self._filesystem.get_file_info(path)
        return None if info.type is pafs.FileType.NotFound else _entry(info)

    def entries(self, directory: str) -> list[Entry]:
        """What lies in a directory, sorted by name. Raises Missing without a directory."""
        if self._filesystem is None:
            found = super().entries(directory)
        else:
            try:
                infos = self._filesystem.get_file_info(pafs.FileSelector(directory))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise Missing(f"{directory}: there is no such directory", path=directory) from error
            found = sorted((_entry(info) for info in infos), key=lambda entry: entry.name)
        return self._unpacked(found)

    def _unpacked(self, found: list[Entry]) -> list[Entry]:
        """Compressed segments under their own names; one that is there as well as it was, counts once."""
        plain = {entry.name for entry in found}
        packed = [entry for entry in found if _is_archive(entry) and entry.name[:NAME_DIGITS] not in plain]
        if not packed:
            return found
        others = [entry for entry in found if not _is_archive(entry)]
        size = _usual_size(others, [int(entry.name[:NAME_DIGITS]) for entry in found if _is_numbered(entry)])
        size = size or self._count(packed[0].path)
        unpacked = [replace(entry, name=entry.name[:NAME_DIGITS], size=size) for entry in packed]
        return sorted([*others, *unpacked], key=lambda entry: entry.name)

    def _count(self, path: str) -> int:
        return self._unpack(path)[1]

    def open_read(self, path: str) -> ReadFile:
        """Raises Missing when the file is not there."""
        if os.path.splitext(path)[1] in COMPRESSIONS:
            return ReadFile(path, self._unpack(path)[0])
        if self._filesystem is None:
            return super().open_read(path)
        try:
            return _RemoteFile(path, self._filesystem.open_input_file(path))
        except FileNotFoundError as error:
            raise Missing(f"{path}: there is no such file", path=path) from error

    def _unpack(self, path: str) -> tuple[int, int]:
        """A descriptor of an unnamed file with what a compressed one holds, and its size."""
        # As octets: PyArrow takes text that is UTF-8 alone, and a name on this machine may be any.
        local = (pafs.LocalFileSystem(), os.fsencode(path))
        filesystem, inside = (self._filesystem, path) if self._filesystem else local
        compression = COMPRESSIONS[os.path.splitext(path)[1]]
        try:
            with (
                filesystem.open_input_stream(inside, compression=compression) as source,
                tempfile.TemporaryFile(prefix="checkback-") as target,
            ):
                size = 0
                while part := source.read(_COPY_BYTES):
                    target.write(part)
                    size += len(part)
                target.flush()
                return os.dup(target.fileno()), size
        except FileNotFoundError as error:
            raise Missing(f"{path}: there is no such file", path=path) from error
        except (OSError, pa.ArrowException) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                raise temporary_not_written(error, tempfile.gettempdir()) from error
            text = (
                f"{path} cannot be unpacked as {compression}: {error}. Put a whole copy in its place, or move it out of"
            )
            text = f"{text} the store: what is missing then is a finding, and what can be read is read"
            raise CorruptStore(text, path=path) from error


class _RemoteFile(ReadFile):
    """A file of a file system of pyarrow's."""

    def __init__(self, path: str, file: Any) -> None:
        super().__init__(path, os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        self._file = file

    def pread(self, size: int, at: int) -> bytes:
        """The bytes from position `at` on: fewer than `size` only where the file ends."""
        wanted = max(min(size, self._file.size() - at), 0)
        data: bytes = self._file.read_at(wanted, at)
        return data

    def pread_into(self, buffer: Any, at: int) -> int:
        """Fill a writable buffer from position `at`; returns how many bytes were there."""
        view = memoryview(buffer).cast("B")
        data = self.pread(len(view), at)
        view[: len(data)] = data
        return len(data)

    def next_data(self, at: int) -> int:
        """Holes are not known there."""
        return at


def _entry(info: Any) -> Entry:
    is_directory, is_file = info.type is pafs.FileType.Directory, info.type is pafs.FileType.File
    return Entry(info.path, info.base_name, is_directory, is_file, info.size or 0, 0, info.mtime_ns or 0)


def _is_numbered(entry: Entry) -> bool:
    return entry.is_file and is_base(os.path.splitext(entry.name)[0])


def _is_archive(entry: Entry) -> bool:
    return _is_numbered(entry) and os.path.splitext(entry.name)[1] in COMPRESSIONS


def _usual_size(plain: Sequence[Entry], bases: Sequence[int]) -> int:
    """What most segments have, else the least distance of the names; 0 when neither says it."""
    sizes = Counter(entry.size for entry in plain if _is_numbered(entry) and entry.size)
    if sizes:
        return max(sizes, key=lambda size: (sizes[size], size))
    ordered = sorted(bases)
    return min((after - before for before, after in pairwise(ordered) if after > before), default=0)
