"""Up to where each slave has the log, and which sends wait for one of them. Pure: no sockets, no clock.

RocketMQ: HAService.isSlaveOK, GroupTransferService (4.9.7).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from broker.remoting.codes import ResponseCode
from broker.remoting.replication import BEHIND_BYTES_MAX, SLAVE_TIMEOUT_S

Done = Callable[[ResponseCode], None]


class Acknowledgements:
    """One slave that has a record is enough for it, whichever it is."""

    def __init__(self) -> None:
        self._slaves: dict[int, int] = {}  # the last report of each that is connected
        self._highest = -1  # of all reports ever made
        self._numbers = count()
        self._by_end: list[tuple[int, int, Done]] = []
        self._deadlines: list[tuple[float, int, int]] = []
        self._waiting: set[int] = set()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def slaves(self) -> dict[int, int]:
        """The last report of each slave that is connected, by its number."""
        return dict(self._slaves)

    def reported(self, slave: int, commitlog_offset: int) -> None:
        """A slave has the log up to an offset: sends that waited for that are answered."""
        self._slaves[slave] = commitlog_offset
        self._highest = max(self._highest, commitlog_offset)
        while self._by_end and self._by_end[0][0] <= self._highest:
            _, number, done = heapq.heappop(self._by_end)
            if number in self._waiting:
                self._waiting.discard(number)
                done(ResponseCode.SUCCESS)

    def left(self, slave: int) -> None:
        """A slave is gone; sends that wait go on waiting for the others, or for it to come back."""
        self._slaves.pop(slave, None)

    def wait(self, end: int, now_s: float, done: Done, timeout_s: float = SLAVE_TIMEOUT_S) -> None:
        """Have `done` get SUCCESS, once a slave has the log up to `end`, or what became of that.

        SLAVE_NOT_AVAILABLE when none is near enough to be waited for, FLUSH_SLAVE_TIMEOUT when none reports in time.
        The record is stored either way, as with RocketMQ.
        """
        if self._highest >= end and self._slaves:
            done(ResponseCode.SUCCESS)
        elif not any(end - at < BEHIND_BYTES_MAX for at in self._slaves.values()):
            done(ResponseCode.SLAVE_NOT_AVAILABLE)
        else:
            number = next(self._numbers)
            self._waiting.add(number)
            heapq.heappush(self._by_end, (end, number, done))
            heapq.heappush(self._deadlines, (now_s + timeout_s, end, number))

    def expire(self, now_s: float) -> None:
        """Answer the sends that waited for too long."""
        late = set()
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, _, number = heapq.heappop(self._deadlines)
            if number in self._waiting:
                self._waiting.discard(number)
                late.add(number)
        if late:
            expired = [done for _, number, done in self._by_end if number in late]
            self._by_end = [one for one in self._by_end if one[1] not in late]
            heapq.heapify(self._by_end)
            for done in expired:
                done(ResponseCode.FLUSH_SLAVE_TIMEOUT)
