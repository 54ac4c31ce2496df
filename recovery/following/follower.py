"""Follow a master: a thread receives its log, another verifies what is on disk, and tells how it stands.

    with Follower("127.0.0.1:10912", "copy.store") as follower:
        follower.run(stopped, on_status=print)

The store at the path is a copy from then on: no other program may write to it. It is a store for everything that only
reads (`verify`, `trace`, `dump`, Spark).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from broker.errors import CorruptStore, StoreError
from broker.format.commitlog import SEGMENT_SIZE
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths, path_of_store
from broker.store.disk.store_lock import StoreLock
from broker.store.read.detect import check_place
from broker.transaction.events import EventKind
from recovery.findings import Finding
from recovery.following.copied_log import CopiedLog, FollowedStore
from recovery.following.link import TRIES, parse_master
from recovery.following.log_verifier import LogVerifier
from recovery.following.receiver import LAST_SEGMENT, LogReceiver
from recovery.following.retention import expired_below
from recovery.following.status import FollowerStatus
from recovery.verify.live_writes import LAG_MS

ROUND_S = 0.25
SEGMENT_BYTES_MIN = 4096
_IN_DOUBT_SHOWN, _FINDINGS_SHOWN = 100, 1000
_RETAIN_EVERY_S = 60.0
_UNFINISHED = frozenset({"committed-without-op"})  # op messages are written seconds after the end that they are about


@dataclass(frozen=True, kw_only=True)
class FollowOptions:
    """`start` of a new copy: "last", "first", or the offset of a segment. `keep_s`: older segments of the copy go."""

    start: str | int = LAST_SEGMENT
    segment_bytes: int | None = None  # of the master's log; those of the copy, else 1 GiB
    keep_s: float | None = None
    acknowledges: bool = False  # counts as a slave that has what is on disk here. RocketMQ: SYNC_MASTER


def is_copy(path: str | os.PathLike[str], options: FollowOptions) -> bool:
    """Whether a copy is at a path; nothing is made. Raises StoreError when it holds anything but such a copy."""
    known, _ = _admitted(Paths(path_of_store(path)), Disk(), options)
    return known is not None


def _admitted(paths: Paths, disk: Disk, options: FollowOptions) -> tuple[FollowedStore | None, int]:
    """What is known of the copy, and the size of its segments in bytes. Raises StoreError."""
    path, wanted = paths.store, options.segment_bytes
    check_place(path, disk, create=True)
    entry = disk.entry(path)
    if entry is not None and not entry.is_directory:
        raise StoreError(f"{path} is a file, and a copy is a directory: name another one", path=path)
    known = FollowedStore.read(paths, disk)
    if known is None and entry is not None and not _has_only_begun(paths, disk):
        text = f"{path} is not empty, and not a copy that follows a master: name another directory"
        raise StoreError(text, path=path)
    has_log = known is not None and disk.entry(paths.commitlog) is not None and bool(disk.entries(paths.commitlog))
    if known is not None and has_log and wanted not in (None, known.segment_bytes):
        text = f"{path} has segments of {known.segment_bytes} bytes, not {wanted}: leave out --segment-bytes"
        raise StoreError(text, path=path)
    size = wanted if wanted is not None else known.segment_bytes if known else SEGMENT_SIZE
    if size < SEGMENT_BYTES_MIN:
        raise StoreError(f"segments of {size} bytes cannot be: a broker's have {SEGMENT_BYTES_MIN} at least", path=path)
    if not has_log and isinstance(options.start, int) and options.start % size:
        text = f"no segment begins at {options.start}: segments have {size} bytes, so give a multiple of that"
        raise StoreError(text, path=path)
    return known, size


def _has_only_begun(paths: Paths, disk: Disk) -> bool:
    """Whether a directory has no more than a follower leaves that was killed before it wrote whose copy it is."""
    found = {entry.name: entry for entry in disk.entries(paths.store)}
    inside = [
        entry.name.startswith(f"{os.path.basename(paths.followed)}.")  # written, and not renamed
        for name in ("commitlog", "checkback")
        if name in found
        for entry in (disk.entries(found[name].path) if found[name].is_directory else [found[name]])
    ]
    return found.keys() <= {"commitlog", "checkback", "lock"} and all(inside)


class Follower:
    """One copy and its master. Use it in a `with` statement; `run` does the work."""

    def __init__(self, master: str, path: str | os.PathLike[str], options: FollowOptions | None = None) -> None:
        """Raises StoreError when the path holds anything but such a copy, StoreLocked when another process follows."""
        self.options, self.master = options or FollowOptions(), master
        address, self.path, self._disk = parse_master(master), path_of_store(path), Disk()
        self._paths = Paths(self.path)
        segment_bytes = self._admit()
        self._lock = StoreLock(self._paths.lock, self._disk)
        if not self._lock.try_exclusive():
            raise self._lock.locked()
        try:
            FollowedStore(master, segment_bytes).write(self._paths, self._disk)
            self.log = CopiedLog(self._paths, self._disk, segment_bytes)
            self._verifier = LogVerifier(self.path, self._disk, segment_bytes)
            self._resume()
        except BaseException:
            self._lock.release()
            raise
        self._turn = threading.Lock()  # the log is not cut while it is verified
        self._receiver = LogReceiver(
            address, self.log, self, start=self.options.start, acknowledges=self.options.acknowledges
        )
        self._retained_s = 0.0

    def _admit(self) -> int:
        """The size of the copy's segments; directories are made. Raises StoreError."""
        known, segment_bytes = _admitted(self._paths, self._disk, self.options)
        if known is None:
            self._disk.create_directory(self._paths.own)
        self._disk.create_directory(self._paths.commitlog)
        return segment_bytes

    def _resume(self) -> None:
        """Go on behind the whole records that are on disk."""
        bases, mark = self.log.bases(), self._verifier.book.marked()
        if not bases:
            return
        if mark is None:
            end, last = self._verifier.whole_records(bases[0])
            mark = bases[0], end, last
        begin, end, last = max(mark[0], bases[0]), mark[1], mark[2]
        if end > begin and (end - 1) - (end - 1) % self.log.segment_bytes not in bases:
            book = self._paths.followed_book
            text = f"{self.path} lacks its last segment, up to {end}. Remove {book}: what is left is verified again"
            raise CorruptStore(f"{text}, and the rest is copied again", path=self.path)
        if begin < end <= last:  # as earlier versions noted it under load: nothing could be compared from there on
            last = max((at for at in self._verifier.book.boundaries() if begin <= at < end), default=begin)
        self.log.resume(begin, end, last)

    # The receiver's questions

    def boundaries(self) -> Sequence[int]:
        """Offsets at which records begin, ascending."""
        with self._turn, self._verifier.book.sentences():
            return self._verifier.book.boundaries()

    def cut(self, commitlog_offset: int) -> None:
        """Set aside what the master lost, forget it, and let the copy end where the master's log did."""
        with self._turn, self._verifier.book.sentences():
            log, book = self.log, self._verifier.book
            log.sync()
            self._verifier.advance(log.begin, log.durable_end)
            end, now_ms = log.end, time.time_ns() // 1_000_000
            kinds = book.event_counts_from(commitlog_offset)
            report: dict[str, Any] = {
                "begin_offset": commitlog_offset, "end_offset": end, "bytes": end - commitlog_offset,
                "noticed_ms": now_ms, "records": self._verifier.count_from(commitlog_offset, log.framed_end),
                "half_messages": kinds[EventKind.PREPARED] + kinds[EventKind.HALF],
                "commits": kinds[EventKind.COMMITTED], "rollbacks": kinds[EventKind.ROLLED_BACK],
            }  # fmt: skip
            name = f"{commitlog_offset:020d}-{end:020d}-{now_ms}"
            report["kept"] = log.set_aside(commitlog_offset, name)
            self._disk.write_file(os.path.join(self._paths.lost, f"{name}.json"), json.dumps(report, indent=1).encode())
            # In this order: killed anywhere, the next run cuts again, or resumes where the log is to end.
            self._verifier.forget_from(commitlog_offset)
            last = max((at for at in book.boundaries() if at < commitlog_offset), default=log.begin)
            book.note_lost(log.begin, last, report)
            log.cut(commitlog_offset, last)

    def _mark(self) -> None:
        log = self.log
        if log.begin >= 0:
            self._verifier.book.mark(log.begin, log.durable_end, max(log.durable_record, log.begin))

    # The work

    def run(
        self,
        stopped: threading.Event,
        on_status: Callable[[FollowerStatus], None] = lambda _status: None,
        *,
        until_caught_up: bool = False,
        every_s: float = 10.0,
    ) -> FollowerStatus:
        """Follow until `stopped` is set; the last status, with digest and findings. Raises StoreError.

        `on_status` gets a status at the beginning and every so many seconds, in this thread. `until_caught_up` returns
        when the copy has, verified, all that the master had at some moment since it was asked; it also raises
        MasterAway when the master does not answer for TRIES times in a row.
        """
        with self._verifier.book.sentences():
            return self._run(stopped, on_status, until_caught_up=until_caught_up, every_s=every_s)

    def _run(
        self, stopped: threading.Event, on_status: Callable[[FollowerStatus], None], *, until_caught_up: bool,
        every_s: float,
    ) -> FollowerStatus:  # fmt: skip
        self._receiver.tries = TRIES if until_caught_up else None
        thread = threading.Thread(target=self._receiver.run, name="checkback-follow-receive", daemon=True)
        thread.start()
        told_s = -every_s
        try:
            while not stopped.is_set() and self._receiver.failure is None:
                has_more = self._round()
                if time.monotonic() - told_s >= every_s:
                    told_s = time.monotonic()
                    on_status(self.status())
                if until_caught_up and self._is_complete:
                    break
                if not has_more:
                    stopped.wait(ROUND_S)
        finally:
            was_caught_up = self._receiver.is_caught_up
            self._receiver.stop()
            thread.join()
        if self._receiver.failure is not None:
            raise self._receiver.failure
        self._retained_s = -_RETAIN_EVERY_S
        self._round()
        return replace(self._finished(), is_caught_up=was_caught_up)

    @property
    def _is_complete(self) -> bool:
        """Whether all that the master had at some moment since it was asked is here, and verified."""
        complete = self._receiver.progress.complete_offset
        verified = self._verifier.book.position or self.log.begin
        return complete is not None and verified >= min(complete, self.log.framed_end)

    def _round(self) -> bool:
        """Flush, verify, remove what expired; whether there was anything to verify."""
        with self._turn:
            log = self.log
            if log.begin < 0:
                return False
            durable_end = log.sync()
            self._mark()
            has_more = self._verifier.advance(log.begin, durable_end)
            if self.options.keep_s is not None and time.monotonic() - self._retained_s >= _RETAIN_EVERY_S:
                self._retained_s = time.monotonic()
                self._retain(self.options.keep_s)
            return has_more

    def _retain(self, keep_s: float) -> None:
        book, log = self._verifier.book, self.log
        below = expired_below(
            book.batches_below(log.last_record - log.last_record % log.segment_bytes), log.segment_bytes,
            older_than_ms=time.time_ns() // 1_000_000 - int(keep_s * 1000), lowest_in_doubt=book.lowest_in_doubt(),
        )  # fmt: skip
        if below is not None and below > log.begin:
            book.mark(below, log.durable_end, max(log.durable_record, below))
            self._verifier.forget_below(below)
            log.remove_below(below)
            self._verifier.release_removed()

    # How it stands

    def status(self) -> FollowerStatus:
        """How it stands now; findings that a living master will settle in a moment are apart."""
        book, receiver, log = self._verifier.book, self._receiver, self.log
        totals, now_ms = book.totals(), time.time_ns() // 1_000_000
        counts, unfinished = book.finding_counts(), {}
        for kind in _UNFINISHED & counts.keys() if receiver.is_connected else ():
            recent = sum(self._is_recent(one, totals.last_ms) for one in book.findings_of(kind, _FINDINGS_SHOWN))
            unfinished[kind], counts[kind] = recent, counts[kind] - recent
        position = book.position
        return FollowerStatus(
            master=self.master, path=self.path, is_connected=receiver.is_connected,
            is_caught_up=receiver.is_caught_up, trouble=receiver.trouble, begin_offset=log.begin, end_offset=log.end,
            verified_offset=log.begin if position is None else position, now_ms=now_ms, last_store_ms=totals.last_ms,
            records=totals.records, bytes=totals.bytes, generation=book.generation().label,
            transactions=book.states(), in_doubt=book.in_doubt(_IN_DOUBT_SHOWN),
            counts={kind: count for kind, count in counts.items() if count},
            unfinished={kind: count for kind, count in unfinished.items() if count}, lost=book.lost(),
        )  # fmt: skip

    def _is_recent(self, finding: Finding, last_ms: int) -> bool:
        stored_ms = self._verifier.stored_ms(int(finding.facts.get("delivered_offset", finding.commitlog_offset)))
        return stored_ms is None or stored_ms > last_ms - LAG_MS

    def _finished(self) -> FollowerStatus:
        """The last status. What came of a record that is not whole yet is cut: it comes again."""
        book = self._verifier.book
        if self.log.end > self.log.framed_end and self.log.damage_at is None:
            self.log.cut(self.log.framed_end, self.log.last_record)
        findings = [one.as_json() for one in book.findings(_FINDINGS_SHOWN)]
        trouble = self._receiver.trouble or "stopped"
        return replace(self.status(), trouble=trouble, digest=book.digest(), findings=findings)

    def close(self) -> None:
        """Flush, and release the copy, also when the flush fails."""
        try:
            self.log.close()
        finally:
            self._verifier.close()
            self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
