"""Unique keys: the producer's id of a message, made where it is sent, the same for every copy of it.

    address, process, 32 bits that differ between processes     once a process
    milliseconds of the month, a counter of 16 bits             for each message

RocketMQ: MessageClientIDSetter.createUniqID (5.3.3).
"""

from __future__ import annotations

import itertools
import os
import secrets
import time

from broker.format.java import make_unique_key

_ADDRESS = bytes((127, 0, 0, 1))  # a process that can read the store shares its machine
_TAIL_DIGITS = 12
_MONTH_LEFT_MS = 60_000  # how long a start of the month is trusted before the calendar is asked again


class _Source:
    """What this process makes its keys of."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A forked child gets a prefix of its own: the counter and the clock are those of its parent."""
        key = make_unique_key(_ADDRESS, os.getpid(), secrets.randbits(32), 0, 0)
        self.process, self.prefix = os.getpid(), key[:-_TAIL_DIGITS]
        self.counter = itertools.count(secrets.randbits(16))
        self.month_ms, self.looked_ms = 0, -_MONTH_LEFT_MS
        self.front = (-1, "")  # of the last key: when it was made, and all but its counter

    def front_of(self, now_ms: int) -> str:
        """Everything but the counter."""
        if self.process != os.getpid():  # forked without Python's handlers
            self.renew()
        if not 0 <= now_ms - self.looked_ms < _MONTH_LEFT_MS:
            local = time.localtime(now_ms / 1000)
            self.month_ms = int(time.mktime((local.tm_year, local.tm_mon, 1, 0, 0, 0, 0, 0, -1))) * 1000
            self.looked_ms = now_ms
        front = f"{self.prefix}{(now_ms - self.month_ms) & 0xFFFFFFFF:08X}"
        self.front = (now_ms, front)
        return front


_source = _Source()
os.register_at_fork(after_in_child=_source.renew)


def new_unique_key(now_ms: int) -> str:
    """A key that no other message has: up to 65,536 a millisecond in one process are distinct."""
    made_ms, front = _source.front
    if made_ms != now_ms:
        front = _source.front_of(now_ms)
    return f"{front}{next(_source.counter) & 0xFFFF:04X}"
