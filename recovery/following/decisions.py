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
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from broker.remoting.replication import HEARTBEAT_S

FIRST_BYTE = 1  # the least offset that can be asked for: 0 means "from the last segment on"
SILENT_TIMES, SILENT_S = 2, HEARTBEAT_S - 1.0  # heartbeats without data, and how far apart, until they are believed
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
