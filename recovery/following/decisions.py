"""What to ask a master for, and what its answer means. Pure: values in, values out.

The HA protocol names neither a store nor an end. So who connects again asks for something that it has, and compares:

    the copy          ... ────────────┤ end
    asked for                  ├──────┤            the last record, or more (`wider`)
    the master sends           ├──────────────►    the same bytes: go on behind them
                               ├──x───             other bytes: the master lost what came from there on
                               ├──┤                fewer bytes: the master's log ends there
                                                   none: it lost all of that, or removed it as expired

Where the first record of what was asked for is not the same, the difference may begin before it: then more is asked
for. RocketMQ's own slave asks behind its end, and goes on with whatever comes.

No frame says where the master's log ends, either. But a master sends all that it has, up to `haTransferBatchSize` and
to the end of a segment: so a transfer that stops before both was all of it (`has_all`).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from broker.remoting.replication import HEARTBEAT_S, TRANSFER_BYTES, Transfer

FIRST_BYTE = 1  # the least offset that can be asked for: 0 means "from the last segment on"
SILENT_TIMES, SILENT_S = 2, HEARTBEAT_S - 1.0  # heartbeats without data, and how far apart, until they are believed
IDLE_S = 0.5  # so long without data, behind a whole record: there is none. RocketMQ: a master waits for 100 ms at most
CAUGHT_UP_S = 1.0  # a copy that had all that the master had is caught up for so long
NOT_A_SLAVE = -(1 << 62)  # a report of a slave that is too far behind to count, whatever the master's log holds


class CopyVerdict(enum.Enum):
    """What the comparison of the copy's end with the master's bytes says."""

    SAME = "the master has what the copy has"
    CUT = "the master's log differs from a record of the copy on, or ends there"
    WIDER = "what was asked for differs from its first record on: ask for more"
    FOREIGN = "nothing that the copy has is in the master's log"


@dataclass(frozen=True, slots=True)
class ComparedEnd:
    """What a master sent of the bytes that the copy has already."""

    asked: int  # CommitLog offset of the first byte that was asked for
    first_end: int  # where the copy's record ends that begins there
    end: int  # of the copy
    same_up_to: int  # the bytes from `asked` to here are the same
    differs: bool  # the next byte is another one; else the master sent no more


def verdict(answer: ComparedEnd, *, is_begin: bool) -> CopyVerdict:
    """What to do. `is_begin`: no more than this can be asked for."""
    if answer.same_up_to >= answer.end:
        return CopyVerdict.SAME
    if answer.same_up_to >= answer.first_end:
        return CopyVerdict.CUT
    return CopyVerdict.FOREIGN if is_begin else CopyVerdict.WIDER


def wider(asked: int, boundaries: Sequence[int]) -> int:
    """The next place to ask from: each step goes back twice as many boundaries. The first of them is the last resort.

    `boundaries` are offsets at which records begin, ascending.
    """
    behind = sum(1 for at in boundaries if at >= asked)
    below = [at for at in boundaries if at < asked]
    return below[max(0, len(below) - max(1, behind))] if below else asked


def request_for(commitlog_offset: int) -> int:
    """What to report to get the log from an offset on: from offset 0 on it cannot be asked for."""
    return max(FIRST_BYTE, commitlog_offset)


def is_silent(times: int, since_s: float) -> bool:
    """Whether so many heartbeats without data, over so many seconds, say that the master has nothing more.

    One alone may come of a master that is slow, or that limits its speed (haFlowControlEnable).
    """
    return times >= SILENT_TIMES and since_s >= SILENT_S


def has_all(last: Transfer | None, segment_bytes: int, *, ends_record: bool, quiet_s: float) -> bool:
    """Whether a copy that took everything that came has all that the master had when it sent `last`.

    `last` is None when nothing came since. `ends_record`: the copy ends behind a whole record, as a master's log always
    does, while a transfer that a limit cut rarely does: a master may have a smaller haTransferBatchSize, or limit its
    speed (haFlowControlEnable), which also makes transfers without data. `quiet_s`: since data came, in seconds; 0 as
    long as none did.

    RocketMQ: DefaultHAConnection.WriteSocketService.run (5.3.3).
    """
    if last is not None and last.data:
        end = last.commitlog_offset + len(last.data)
        return ends_record and len(last.data) < TRANSFER_BYTES and end % segment_bytes != 0
    if not ends_record:
        return quiet_s >= SILENT_S
    return last is not None or quiet_s > IDLE_S


@dataclass(frozen=True, slots=True)
class Progress:
    """What one connection showed about how far the copy is behind. Times are of a monotonic clock, in seconds."""

    first_s: float | None = None  # when the copy first had all that the master had
    newest_s: float = 0.0  # when it last had
    end_offset: int = -1  # where it ended then
    complete_offset: int | None = None  # a copy up to here has all that the master had when it was asked

    def heard(self, last: Transfer | None, end: int, *, had_all: bool, now_s: float) -> Self:
        """After a look at the connection, whether anything came or not; the copy ends at `end`.

        A heartbeat completes a copy. A master that is written to all the time sends none: then it is complete so long
        after it first had all as a heartbeat would take.
        """
        known = self
        if had_all:
            first_s = now_s if known.first_s is None else known.first_s
            known = replace(known, first_s=first_s, newest_s=now_s, end_offset=end)
        is_heartbeat = had_all and last is not None and not last.data
        if is_heartbeat or (known.first_s is not None and now_s - known.first_s >= HEARTBEAT_S):
            known = replace(known, complete_offset=known.end_offset)
        return known

    def is_caught_up(self, now_s: float) -> bool:
        """Whether the copy had all that the master had, within the last CAUGHT_UP_S seconds."""
        return self.first_s is not None and now_s - self.newest_s <= CAUGHT_UP_S


@dataclass(frozen=True, slots=True)
class Search:
    """A bisection for the first segment that the master still has; numbers of segments."""

    low: int  # the first one is here or above
    high: int  # the master has this one

    @property
    def candidate(self) -> int | None:
        """The segment to try; None when it is known which is first."""
        return (self.low + self.high) // 2 if self.low < self.high else None

    def tried(self, segment: int, *, is_there: bool) -> Search:
        """What is known after an attempt."""
        return Search(self.low, segment) if is_there else Search(segment + 1, self.high)
