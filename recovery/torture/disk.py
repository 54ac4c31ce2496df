"""What a file system does, as far as a program can see it: measured in a directory of our own, decided elsewhere.

Each measurement asks one question that the store relies on (docs/explanation/disk.md). What a drive does with its own
cache when the power fails cannot be seen by a program: only a real power cut shows it.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import secrets
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from broker.store.disk.files import Disk
from broker.store.disk.maps import force
from broker.store.disk.os_errors import NotSupported
from broker.store.disk.store_lock import StoreLock
from recovery.torture.neighbour import MAPPED_BYTES, WORD

BLOCK = 4096
_FILE_BLOCKS = 256
_ALLOCATED_BYTES = 1 << 20
_SYNCS, _SYNCS_S = 400, 3.0  # at most so many, and so long
_CACHESTAT = 451  # the same number on every architecture but Alpha; Linux 6.5
_READY_S = 20.0


@dataclass(frozen=True)
class Mount:
    """Where a path lies: the kind of file system, its options, and what the kernel assumes of the drive's cache."""

    kind: str
    options: frozenset[str]
    drive_cache: str  # "write back", "write through", or empty when there is no such device


@dataclass(frozen=True)
class Latency:
    """Microseconds of one call, over so many calls."""

    calls: int
    p50_us: float
    p99_us: float


@dataclass(frozen=True)
class PageCounts:
    """Pages of a file in the cache of the system (cachestat(2)): all, and those that are not on disk."""

    cached: int
    unwritten: int


@dataclass(frozen=True)
class Reread:
    """What was read back after an fsync: whether it is what was written; None when it could not be read so."""

    dropped: bool  # through the cache, after it was dropped
    left_cached: int | None  # pages that stayed in the cache although it was to be dropped
    direct: bool | None  # past the cache (O_DIRECT)


@dataclass(frozen=True)
class DiskFacts:
    """All that was measured."""

    mount: Mount
    is_local: bool
    append_sync: Latency
    after_append: PageCounts | None
    after_map: PageCounts | None
    appended: Reread
    mapped: Reread
    directory_sync: Latency
    rename_kept: bool
    exchanges: bool
    allocated_bytes: int
    sparse: bool
    shares_maps: bool
    locks: bool
    has_boot_id: bool


def measure(directory: Path) -> DiskFacts:
    """Measure in a directory that is empty and stays empty. Raises OSError and StoreFull."""
    disk = Disk()
    append_sync, after_append, appended = _appended(directory / "appended")
    after_map, mapped = _mapped(disk, directory / "mapped")
    directory_sync, rename_kept = _renamed(disk, directory)
    shares_maps, locks = _with_neighbour(disk, directory)
    facts = DiskFacts(
        mount=mount_of(directory),
        is_local=disk.is_local(str(directory)),
        append_sync=append_sync,
        after_append=after_append,
        after_map=after_map,
        appended=appended,
        mapped=mapped,
        directory_sync=directory_sync,
        rename_kept=rename_kept,
        exchanges=_exchanges(disk, directory),
        allocated_bytes=_allocated(disk, directory / "allocated"),
        sparse=_is_sparse(directory / "sparse"),
        shares_maps=shares_maps,
        locks=locks,
        has_boot_id=bool(disk.boot_id()),
    )
    for path in directory.iterdir():
        path.unlink()
    return facts


# fsync


def _appended(path: Path) -> tuple[Latency, PageCounts | None, Reread]:
    """Append 4 KiB and flush, again and again; then look for pages that are not on disk, and read all of it back."""
    content, times = secrets.token_bytes(BLOCK * _FILE_BLOCKS), []
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        started, number, unwritten, cached = time.monotonic(), 0, 0, 0
        while number < _SYNCS and (number < 8 or time.monotonic() - started < _SYNCS_S):
            at = number % _FILE_BLOCKS * BLOCK  # a second round overwrites
            os.pwrite(descriptor, content[at : at + BLOCK], at)
            before = time.perf_counter_ns()
            force(descriptor)
            times.append((time.perf_counter_ns() - before) / 1000)
            counts = page_counts(descriptor)
            if counts is not None:
                cached, unwritten = counts.cached, max(unwritten, counts.unwritten)
            number += 1
        size = min(number, _FILE_BLOCKS) * BLOCK
        counts = None if counts is None else PageCounts(cached, unwritten)
    finally:
        os.close(descriptor)
    return latency(times), counts, _reread(path, content[:size])


def _mapped(disk: Disk, path: Path) -> tuple[PageCounts | None, Reread]:
    """Store through a shared map and flush, as an append does."""
    content = secrets.token_bytes(BLOCK * 16)
    disk.allocate(str(path), len(content))
    area = disk.open_map(str(path), len(content))
    area.view[:] = content
    area.sync()
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        counts = page_counts(descriptor)
    finally:
        os.close(descriptor)
    area.close()
    return counts, _reread(path, content)


def _reread(path: Path, content: bytes) -> Reread:
    """Read a flushed file back: after its pages were dropped from the cache, and past the cache."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        counts = page_counts(descriptor)
        dropped = os.pread(descriptor, len(content) + 1, 0) == content
    finally:
        os.close(descriptor)
    return Reread(dropped, None if counts is None else counts.cached, _read_direct(path, content))


def _read_direct(path: Path, content: bytes) -> bool | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
    except OSError:
        return None
    try:
        with mmap.mmap(-1, len(content)) as aligned:
            read = os.preadv(descriptor, [aligned], 0)
            return aligned[:read] == content
    except OSError:
        return None
    finally:
        os.close(descriptor)


class _CachestatRange(ctypes.Structure):
    _fields_ = (("start", ctypes.c_uint64), ("length", ctypes.c_uint64))


class _Cachestat(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "recently_evicted")
    )


def page_counts(descriptor: int) -> PageCounts | None:
    """cachestat(2) of a whole file; None where the kernel has none (before Linux 6.5)."""
    counts, whole = _Cachestat(), _CachestatRange(0, 0)
    call = ctypes.CDLL(None, use_errno=True).syscall
    if call(_CACHESTAT, descriptor, ctypes.byref(whole), ctypes.byref(counts), 0) != 0:
        return None
    return PageCounts(counts.cached, counts.dirty + counts.writeback)


def latency(times_us: list[float]) -> Latency:
    """The distribution of some times, in microseconds."""
    ordered = sorted(times_us)
    return Latency(len(ordered), ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)])


# Names, sizes


def _renamed(disk: Disk, directory: Path) -> tuple[Latency, bool]:
    """Replace a file by another one, and flush the directory; whether the name then has the new content."""
    old, new, times = directory / "old", directory / "new", []
    for number in range(16):
        content = b"%d" % number + secrets.token_bytes(BLOCK)
        disk.write_file(str(new), content)
        os.replace(new, old)
        before = time.perf_counter_ns()
        disk.sync_directory(str(directory))
        times.append((time.perf_counter_ns() - before) / 1000)
        if old.read_bytes() != content or new.exists():
            return latency(times), False
    return latency(times), True


def _exchanges(disk: Disk, directory: Path) -> bool:
    first, second = directory / "first", directory / "second"
    first.write_bytes(b"1")
    second.write_bytes(b"2")
    try:
        disk.exchange(str(first), str(second))
    except NotSupported:
        return False
    return first.read_bytes() == b"2"


def _allocated(disk: Disk, path: Path) -> int:
    """The bytes that the disk has for a file that was allocated in full; of `_ALLOCATED_BYTES`."""
    disk.allocate(str(path), _ALLOCATED_BYTES)
    return disk.used_bytes(str(path))


def _is_sparse(path: Path) -> bool:
    with open(path, "wb") as file:
        file.truncate(_ALLOCATED_BYTES)
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_blocks * 512 < _ALLOCATED_BYTES


# Other processes


def _with_neighbour(disk: Disk, directory: Path) -> tuple[bool, bool]:
    """Whether what another process stores in a map is seen at once, and whether its lock holds until it is killed."""
    mapped, lock = directory / "shared", directory / "lock"
    disk.allocate(str(mapped), MAPPED_BYTES)
    area = disk.open_map(str(mapped), MAPPED_BYTES)
    words = [sys.executable, "-m", "recovery.torture.neighbour", str(mapped), str(lock)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as neighbour:  # noqa: S603 - our own interpreter
        try:
            assert neighbour.stdout is not None
            ready = neighbour.stdout.readline() == b"ready\n"
            shares = ready and bytes(area.view[: len(WORD)]) == WORD and _starts_with(mapped, WORD)
            own = StoreLock(str(lock))
            excluded = not own.try_exclusive()
        finally:
            neighbour.kill()
            neighbour.wait()
    released = _taken_soon(own)
    own.release()
    area.close()
    return shares, ready and excluded and released


def _starts_with(path: Path, word: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(word)) == word


def _taken_soon(lock: StoreLock) -> bool:
    deadline = time.monotonic() + _READY_S
    while not lock.try_exclusive():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


# The mount


def mount_of(directory: Path) -> Mount:
    """What /proc and /sys say of the file system that a directory is on; empty where they say nothing."""
    kind, options = Disk().file_system(str(directory)), frozenset[str]()
    number = os.stat(directory).st_dev
    device = f"{os.major(number)}:{os.minor(number)}"
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            fields = before.split(" ")
            if len(fields) > 5 and fields[2] == device:
                options = frozenset([*fields[5].split(","), *after.split()[-1].split(",")])
    return Mount(kind, options, _drive_cache(device))


def _drive_cache(device: str) -> str:
    for place in ("queue", "../queue"):  # a disk, or a part of one
        with contextlib.suppress(OSError):
            return Path(f"/sys/dev/block/{device}/{place}/write_cache").read_text(encoding="ascii").strip()
    return ""
