"""Keeps a copied log equal to its master's: connects, compares the end, appends, and cuts what the master lost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event
from typing import Protocol

from broker.errors import BrokerError, CorruptStore, StoreError
from broker.remoting.replication import Transfer
from recovery.following.copied_log import CopiedLog, SegmentSizeWrong
from recovery.following.decisions import (
    NOT_A_SLAVE,
    ComparedEnd,
    CopyVerdict,
    Progress,
    Search,
    has_all,
    is_silent,
    request_for,
    verdict,
    wider,
)
from recovery.following.link import MasterAway, MasterLink, backoff_s

_WAIT_S = 0.05
LAST_SEGMENT, FIRST_SEGMENT = "last", "first"


class CopyOwner(Protocol):
    """What the receiver needs of the follower."""

    def boundaries(self) -> Sequence[int]:
        """Offsets at which records begin, ascending."""

    def cut(self, commitlog_offset: int) -> None:
        """The master lost what comes from a record's offset on."""


class LogReceiver:
    """Fills one log from one master. `run` in a thread of its own; the other members tell how it stands."""

    def __init__(
        self, address: tuple[str, int], log: CopiedLog, owner: CopyOwner, *, start: str | int, acknowledges: bool
    ) -> None:
        """`start` of a new copy: LAST_SEGMENT, FIRST_SEGMENT or the offset of a segment."""
        self._address, self._log, self._owner = address, log, owner
        self._start, self._acknowledges = start, acknowledges
        self._name = f"{address[0]}:{address[1]}"
        self._asked: int | None = None  # where to ask from next, when the last record is not enough
        self._stop = Event()
        self.is_connected = False
        self.progress = Progress()  # of this connection
        self.trouble = ""  # why it is not connected
        self.failure: BrokerError | None = None  # what ended it
        self.tries: int | None = None  # after so many failures in a row that brought nothing it gives up
        self.heard_s = 0.0
        self.received_bytes = 0

    def run(self) -> None:
        """Follow until `stop`, or until it cannot go on (`failure`)."""
        attempt, brought = 0, 0  # failures in a row, and the bytes that were here at the last of them
        while not self._stop.is_set():
            try:
                with MasterLink(self._address) as link:
                    self._session(link)
            except MasterAway as error:
                self.trouble = str(error)
                attempt = attempt + 1 if self.received_bytes == brought else 1
                brought = self.received_bytes
                if self.tries is not None and attempt >= self.tries:
                    self.failure = error
                    self._stop.set()
                self._stop.wait(backoff_s(attempt))
            except StoreError as error:
                self.failure = error
                self._stop.set()
            except Exception as error:  # noqa: BLE001 - a thread's last words; the follower raises them
                self.failure = StoreError(f"{self._log.paths.store}: {error}", path=self._log.paths.store)
                self._stop.set()
            finally:
                self.is_connected, self.progress = False, Progress()

    @property
    def is_caught_up(self) -> bool:
        """Whether the copy has, but for the last moment, all that the master has."""
        return self.progress.is_caught_up(time.monotonic())

    def stop(self) -> None:
        """Have `run` return."""
        self._stop.set()

    def _session(self, link: MasterLink) -> None:
        if self._log.end < 0 and not self._begin(link):
            return
        if self._log.end >= 0:
            self._resume(link)

    # A new copy

    def _begin(self, link: MasterLink) -> bool:
        """Decide where a new copy begins; whether this connection goes on."""
        start = self._start
        if start == FIRST_SEGMENT:
            start = self._first_segment()
        elif isinstance(start, int):
            self._check_has(start)
        if isinstance(start, int):
            self._append_first(start)
            return True
        link.ask(0)
        first = link.first_answer(self._stop.is_set)
        if first is not None:
            self._append_first(first.commitlog_offset)
            self._follow(link, first.commitlog_offset, [first])
        return False

    def _check_has(self, start: int) -> None:
        """Raises StoreError when the master has nothing at an offset: RocketMQ's is silent then, ours closes."""
        try:
            first = self._try(request_for(start))
        except MasterAway:
            first = None
        last = None if first is not None and first.data else self._try(0)
        if last is not None and start != last.commitlog_offset:
            text = f"{self._name} has nothing at {start}: its last segment begins at {last.commitlog_offset}"
            text += ". Begin with --from first, or with a segment that it has"
            raise StoreError(text, path=self._log.paths.store)

    def _append_first(self, commitlog_offset: int) -> None:
        if commitlog_offset % self._log.segment_bytes:
            text = f"a segment of {self._name} begins at {commitlog_offset}, no multiple of {self._log.segment_bytes}"
            raise SegmentSizeWrong(f"{text}: give --segment-bytes as the master's mappedFileSizeCommitLog has it")
        self._append(commitlog_offset, b"")

    def _first_segment(self) -> int:
        """Where the master's first segment begins, found by trying."""
        base = self._try(0)
        if base is None:
            return 0
        search = Search(0, base.commitlog_offset // self._log.segment_bytes)
        while (segment := search.candidate) is not None and not self._stop.is_set():
            answer = self._try(request_for(segment * self._log.segment_bytes))
            search = search.tried(segment, is_there=answer is not None and bool(answer.data))
        return search.high * self._log.segment_bytes

    def _try(self, asked: int) -> Transfer | None:
        """What a master sends first when it is asked for something."""
        with MasterLink(self._address) as link:
            link.ask(asked)
            return link.first_answer(self._stop.is_set)

    # A copy that has something

    def _resume(self, link: MasterLink) -> None:
        """Ask for what the copy has at its end, compare it, and go on behind it."""
        log = self._log
        if log.end == 0:
            self._resume_at_zero(link)
            return
        asked = max(log.begin, log.last_record) if self._asked is None else self._asked
        if log.end == log.begin:
            asked = log.end
        link.ask(request_for(asked))
        self._follow(link, request_for(asked), [], asked)

    def _resume_at_zero(self, link: MasterLink) -> None:
        """Offset 0 cannot be asked for: a master without a second segment sends it, another one sends the rest."""
        link.ask(0)
        first = link.first_answer(self._stop.is_set)
        if first is not None and first.commitlog_offset > 0:
            self._append(0, b"\0")  # the first byte of a record's size, which is below 16 MiB
        elif first is not None:
            self._follow(link, 0, [first])

    def _follow(self, link: MasterLink, position: int, first: list[Transfer], asked: int | None = None) -> None:
        """Take what comes, in order, until the connection or this session ends."""
        self.is_connected, self.trouble = True, ""
        silent, silent_s, transfers = 0, 0.0, first
        data_s: float | None = None  # silence before the first answer says nothing
        while not self._stop.is_set():
            for transfer in transfers:
                if transfer.commitlog_offset != position:
                    raise MasterAway(f"{self._name} sent offset {transfer.commitlog_offset}, not {position}")
                if transfer.data:
                    silent, data_s = 0, time.monotonic()
                    same = self._compare(position, transfer.data)
                    if same is not None:
                        self._conclude(asked, same, differs=True)
                        return
                    position += len(transfer.data)
                elif position < self._log.end:
                    silent_s = time.monotonic() if not silent else silent_s
                    silent += 1
                    if is_silent(silent, time.monotonic() - silent_s):
                        self._conclude(asked, position, differs=False)
                        return
            if position >= self._log.end:
                self._asked, asked = None, None
                self._note_progress(transfers[-1] if transfers else None, data_s)
            self._acknowledge(link)
            self.heard_s = link.heard_s
            transfers = link.receive(_WAIT_S)

    def _note_progress(self, last: Transfer | None, data_s: float | None) -> None:
        log, now_s = self._log, time.monotonic()
        quiet_s = 0.0 if data_s is None else now_s - data_s
        had_all = has_all(last, log.segment_bytes, ends_record=log.ends_record, quiet_s=quiet_s)
        self.progress = self.progress.heard(last, log.end, had_all=had_all, now_s=now_s)

    def _acknowledge(self, link: MasterLink) -> None:
        if not self._acknowledges:
            link.acknowledge(NOT_A_SLAVE)
            return
        before = self._log.durable_end
        link.acknowledge(self._log.sync(), now=self._log.durable_end > before)

    def _compare(self, position: int, data: bytes) -> int | None:
        """Append what is new; None when what is not new is the same, else up to where it is."""
        log = self._log
        known = min(len(data), max(0, log.end - position))
        at = position
        while at < position + known:
            ours = log.read(at, position + known - at)
            theirs = data[at - position : at - position + len(ours)]
            if ours != theirs:
                return at + next(number for number, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b)
            at += len(ours)
        if known < len(data):
            self._append(position + known, data[known:])
        return None

    def _append(self, commitlog_offset: int, data: bytes) -> None:
        self._log.append(commitlog_offset, data)
        self.received_bytes += len(data)

    def _conclude(self, asked: int | None, same_up_to: int, *, differs: bool) -> None:
        """The master does not have what the copy has: find out from where on, and cut. Raises StoreError."""
        log = self._log
        asked = log.last_record if asked is None else asked
        boundaries = sorted({log.begin, *self._owner.boundaries(), log.last_record})
        boundaries = [at for at in boundaries if log.begin <= at < log.end]
        answer = ComparedEnd(asked, log.first_end(asked), log.end, same_up_to, differs)
        if not differs and same_up_to == request_for(asked):
            self._check_not_expired()
        decided = verdict(answer, is_begin=asked <= boundaries[0])
        if decided is CopyVerdict.FOREIGN:
            text = (
                f"{self._name} has nothing of what the copy in {log.paths.store} has: it is another broker, or its log"
            )
            text += " was replaced. Nothing was changed. Follow it in another directory"
            raise CorruptStore(text, path=log.paths.store)
        if decided is CopyVerdict.WIDER:
            self._asked = wider(asked, boundaries)
            return
        self._asked = None
        self._owner.cut(log.record_below(asked, same_up_to))

    def _check_not_expired(self) -> None:
        """Raises StoreError when the master removed what comes behind the copy."""
        last = self._try(0)
        if last is not None and last.commitlog_offset > self._log.end:
            text = f"{self._name} has removed what comes behind the copy in {self._log.paths.store}, which ends at"
            text += f" {self._log.end}: it was not followed for too long. Follow it in another directory"
            raise StoreError(text, path=self._log.paths.store)
