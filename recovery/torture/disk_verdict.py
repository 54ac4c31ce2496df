"""What the measurements of a disk mean: facts in, verdicts out."""

from __future__ import annotations

from collections.abc import Iterator

from recovery.torture.disk import DiskFacts, Latency, PageCounts, Reread
from recovery.torture.promises import PromiseState, PromiseVerdict

# Drives with capacitors acknowledge a flush in some 20 µs at best. Faster means that nothing left the machine.
FASTEST_SYNC_US = 15.0
IN_MEMORY = {"tmpfs", "ramfs", "devtmpfs"}
NO_BARRIER = {"nobarrier", "barrier=0"}
_COPIES = (
    "a block that is written again gets a new place: on a full disk that kills the process (SIGBUS), which loses "
    "nothing that was acknowledged; keep space free"
)
BY_KIND = {
    **dict.fromkeys(("bcachefs", "btrfs", "zfs"), _COPIES),
    "overlay": "files of a lower layer are copied at their first write; mount a volume of the disk itself",
    "9p": "the machine behind it decides what an fsync does",
    "virtiofs": "the machine behind it decides what an fsync does",
    "fuse": "a program decides what an fsync does",
    "fuseblk": "a program decides what an fsync does",
}


def verdicts(facts: DiskFacts, sync: str) -> list[PromiseVerdict]:
    """One verdict for each promise that the store needs; `sync` is its mode: `os` needs no medium that keeps bytes."""
    return [
        _mount(facts, sync),
        _flushed("fsync of an append", facts.after_append),
        _flushed("fsync of a shared map", facts.after_map),
        _speed(facts, sync),
        _kept("an append that was flushed", facts.appended),
        _kept("a shared map that was flushed", facts.mapped),
        *_names(facts),
        *_files(facts),
        *_processes(facts),
    ]


def _mount(facts: DiskFacts, sync: str) -> PromiseVerdict:
    mount, name = facts.mount, "file system"
    figures = {"kind": mount.kind, "options": sorted(mount.options), "drive_cache": mount.drive_cache}
    kind = mount.kind or "an unknown file system"
    if not facts.is_local:
        text = f"{kind} is shared with other machines: a store is refused for writing there; use a local disk"
        return PromiseVerdict(name, PromiseState.BROKEN, text, figures)
    if mount.kind in IN_MEMORY:
        text = f"{kind} keeps files in memory: a power cut takes all of them"
        return PromiseVerdict(name, PromiseState.WARNING if sync == "os" else PromiseState.BROKEN, text, figures)
    if "volatile" in mount.options:
        text = f"{kind} is mounted with `volatile`: an fsync does nothing; mount it without"
        return PromiseVerdict(name, PromiseState.BROKEN, text, figures)
    if off := sorted(NO_BARRIER & mount.options):
        text = f"{kind} is mounted with `{off[0]}`: an fsync does not flush the drive's cache, which must not need it"
        return PromiseVerdict(name, PromiseState.WARNING, text, figures)
    if mount.kind in BY_KIND:
        return PromiseVerdict(name, PromiseState.WARNING, f"{kind}: {BY_KIND[mount.kind]}", figures)
    cache = {
        "write back": "; the drive has a cache, which an fsync flushes",
        "write through": "; the drive reports no volatile cache, so an fsync sends it no flush",
    }.get(mount.drive_cache, "")
    return PromiseVerdict(name, PromiseState.HOLDS, f"{kind} on this machine{cache}", figures)


def _flushed(name: str, counts: PageCounts | None) -> PromiseVerdict:
    if counts is None:
        text = "the kernel cannot report which pages are on disk (cachestat, Linux 6.5)"
        return PromiseVerdict(name, PromiseState.UNKNOWN, text)
    figures = {"cached_pages": counts.cached, "unwritten_pages": counts.unwritten}
    if counts.unwritten:
        text = f"fsync returned while {counts.unwritten} pages of the file were not on disk: it does not wait, or does "
        return PromiseVerdict(
            name, PromiseState.BROKEN, text + "nothing (a library such as libeatmydata, or the mount)", figures
        )
    return PromiseVerdict(name, PromiseState.HOLDS, "no page is left unwritten when fsync returns", figures)


def _speed(facts: DiskFacts, sync: str) -> PromiseVerdict:
    name, sync_us = "speed of fsync", facts.append_sync
    text = f"4 KiB appended and flushed: {_shown(sync_us)}; a directory: {_shown(facts.directory_sync)}"
    figures = {
        "calls": sync_us.calls,
        "p50_us": round(sync_us.p50_us, 1),
        "p99_us": round(sync_us.p99_us, 1),
        "directory_p50_us": round(facts.directory_sync.p50_us, 1),
        "directory_p99_us": round(facts.directory_sync.p99_us, 1),
    }
    if sync_us.p50_us < FASTEST_SYNC_US and sync != "os":
        text += f": no medium that keeps bytes without power is known to answer in less than {FASTEST_SYNC_US:g} µs"
        return PromiseVerdict(name, PromiseState.WARNING, text, figures)
    return PromiseVerdict(name, PromiseState.HOLDS, text, figures)


def _shown(sync: Latency) -> str:
    return f"p50 {_time(sync.p50_us)}, p99 {_time(sync.p99_us)}"


def _time(us: float) -> str:
    return f"{us / 1000:.1f} ms" if us >= 1000 else f"{us:.0f} µs" if us >= 10 else f"{us:.1f} µs"


def _kept(name: str, read: Reread) -> PromiseVerdict:
    figures = {"after_drop": read.dropped, "pages_left_cached": read.left_cached, "direct": read.direct}
    if not read.dropped or read.direct is False:
        how = "past the cache" if read.dropped else "after the cache was dropped"
        text = f"what fsync acknowledged is gone or different when it is read {how}: this disk loses acknowledged bytes"
        return PromiseVerdict(name, PromiseState.BROKEN, text, figures)
    if read.direct is None and read.left_cached != 0:
        text = "all bytes are there, but the cache could not be dropped: what the disk has was not seen"
        return PromiseVerdict(name, PromiseState.UNKNOWN, text, figures)
    ways = ["after the cache was dropped"] * (read.left_cached == 0) + ["past the cache (O_DIRECT)"] * bool(read.direct)
    return PromiseVerdict(
        name, PromiseState.HOLDS, f"all bytes are there when they are read {' and '.join(ways)}", figures
    )


def _names(facts: DiskFacts) -> Iterator[PromiseVerdict]:
    kept = facts.rename_kept
    text = "a file is replaced by another one" if kept else "a file that was replaced still has its old content"
    yield PromiseVerdict(
        "rename", PromiseState.HOLDS if kept else PromiseState.BROKEN, f"{text} when its directory was flushed"
    )
    if facts.exchanges:
        yield PromiseVerdict("exchange of two names", PromiseState.HOLDS, "two names are exchanged in one step")
    else:
        text = "not in one step: a rebuild renames twice, and completes the second one after a kill between them"
        yield PromiseVerdict("exchange of two names", PromiseState.WARNING, text)


def _files(facts: DiskFacts) -> Iterator[PromiseVerdict]:
    full = facts.allocated_bytes >= 1 << 20
    text = f"a file of 1 MiB that was allocated in full has {facts.allocated_bytes} bytes of the disk"
    yield PromiseVerdict(
        "allocation", PromiseState.HOLDS if full else PromiseState.WARNING, text, {"bytes": facts.allocated_bytes}
    )
    text = "holes take no space" if facts.sparse else "holes take space: a store takes the sizes of its files"
    yield PromiseVerdict("sparse files", PromiseState.HOLDS if facts.sparse else PromiseState.WARNING, text)


def _processes(facts: DiskFacts) -> Iterator[PromiseVerdict]:
    text = "what one process stores, another one sees" if facts.shares_maps else "processes do not see the same bytes"
    yield PromiseVerdict(
        "maps shared by processes", PromiseState.HOLDS if facts.shares_maps else PromiseState.BROKEN, text
    )
    text = "they exclude other processes, and end with their process"
    if not facts.locks:
        text = "a lock does not exclude another process, or outlives its own"
    yield PromiseVerdict("locks", PromiseState.HOLDS if facts.locks else PromiseState.BROKEN, text)
    text = "the machine reports when it was started" if facts.has_boot_id else "none: each opening recovers the store"
    yield PromiseVerdict("boot id", PromiseState.HOLDS if facts.has_boot_id else PromiseState.WARNING, text)
