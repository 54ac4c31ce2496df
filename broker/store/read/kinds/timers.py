"""The timer wheel and the timer log of a store that is only read: which messages wait, and until when.

    timers = read_timers(StoreDirectory(path, Disk()))
    for entry in timers.waiting(): entry.due_ms, entry.commitlog_offset

RocketMQ: TimerMessageStore.dequeue, TimerWheel.getSlot (5.3.3).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from broker.format.kinds.timer import DELETES, NOWHERE, ROLLED, TimerCheck, TimerSlot, TimerUnit
from broker.store.disk.files import Missing, ReadFile
from broker.store.read.directory import StoreDirectory

_AT_ONCE = TimerSlot.SIZE << 12
_WHEEL = "timerwheel"
_SNAPSHOT = re.compile(rf"{_WHEEL}\.[0-9]{{1,19}}")


class TimerEntry(NamedTuple):
    """One message in the wheel."""

    due_ms: int  # of a rolled one, when it is put into the wheel again
    position: int  # in the timer log
    commitlog_offset: int
    record_size: int
    is_rolled: bool
    takes_back: bool  # it names another message, which is not to be delivered


class TimerDamage(NamedTuple):
    """A slot whose chain does not lead where it should."""

    path: str
    position: int
    text: str


class Timers:
    """The wheel of one store; `read_timers` makes it. What a walk finds wrong is in `damages` afterwards."""

    def __init__(self, directory: StoreDirectory, check: TimerCheck) -> None:
        self._directory, self.check = directory, check
        self.path = os.path.join(directory.path, _WHEEL)
        self.log_path = os.path.join(directory.path, "timerlog")
        self._log = directory.segments(self.log_path)
        self.damages: list[TimerDamage] = []
        snapshot = self._newest_snapshot()
        if snapshot is not None and self._last_unit(snapshot) >= self._last_unit(self.path):
            self.path = snapshot

    def _newest_snapshot(self) -> str | None:
        """The copy of the wheel that a broker wrote last; it keeps the wheel itself in memory then, and its file empty.

        The number in its name is the end of the timer log. RocketMQ: timerWheelSnapshotFlush, TimerWheel.backup (5.4).
        """
        names = (entry.name for entry in self._directory.disk.entries(self._directory.path) if entry.is_file)
        numbers = [int(name[len(_WHEEL) + 1 :]) for name in names if _SNAPSHOT.fullmatch(name)]
        return f"{os.path.join(self._directory.path, _WHEEL)}.{max(numbers)}" if numbers else None

    def _last_unit(self, wheel: str) -> int:
        """The position of the last unit of the timer log that a wheel names: an old snapshot names earlier ones."""
        return max((slot.last_position for _, slot in self._slots(wheel)), default=NOWHERE)

    @property
    def is_whole(self) -> bool:
        """Whether both the wheel and its log are there."""
        return self._directory.disk.entry(self.path) is not None and bool(self._log.listing(fresh=True).segments)

    def waiting(self) -> Iterator[TimerEntry]:
        """The messages that are not delivered yet, slot by slot, each chain from its last unit to its first."""
        self.damages = []
        for position, slot in self._slots(self.path):
            last = self._unit(slot.last_position)
            if last is None or not slot.moment:
                self._damage(position, f"names {slot.last_position} of the timer log, where no unit is")
                continue
            precision_ms = last.due_ms // slot.moment
            if precision_ms < 1 or last.due_ms // precision_ms != slot.moment:
                self._damage(position, f"is of another moment than unit {slot.last_position} of the timer log")
            elif slot.moment * precision_ms >= self.check.read_ms:
                yield from self._chain(position, slot, last)

    def _slots(self, wheel: str) -> Iterator[tuple[int, TimerSlot]]:
        """The slots in use, and where in the wheel each lies."""
        try:
            file = self._directory.disk.open_read(wheel)
        except Missing:
            return
        at = 0
        while raw := self._part(file, at):
            whole = len(raw) - len(raw) % TimerSlot.SIZE
            for number, slot in enumerate(TimerSlot.iter_unpack(raw) if raw.strip(b"\0") else ()):
                if slot.moment > 0 and slot.last_position != NOWHERE:
                    yield at + number * TimerSlot.SIZE, slot
            if not whole:
                return
            at = file.next_data(at + whole)
            at -= at % TimerSlot.SIZE

    @staticmethod
    def _part(file: ReadFile, at: int) -> bytes:
        return file.pread(_AT_ONCE, at)

    def _chain(self, position: int, slot: TimerSlot, unit: TimerUnit | None) -> Iterator[TimerEntry]:
        at, counted = slot.last_position, 0
        while unit is not None:
            takes_back = bool(unit.magic & DELETES)
            counted += -1 if takes_back else 1
            yield TimerEntry(
                unit.due_ms, at, unit.commitlog_offset, unit.record_size, bool(unit.magic & ROLLED), takes_back
            )
            if unit.previous_position == NOWHERE or at == slot.first_position:
                if counted != slot.count:
                    self._damage(position, f"states {slot.count} messages, and its chain has {counted}")
                return
            if unit.previous_position >= at:
                self._damage(position, f"has a chain that does not end: unit {at} names {unit.previous_position}")
                return
            at, unit = unit.previous_position, self._unit(unit.previous_position)
        self._damage(position, f"has a chain that leads to {at} of the timer log, where no unit is")

    def _unit(self, position: int) -> TimerUnit | None:
        """The unit at a position of the timer log; None where none is."""
        if position < 0 or not self._log.listing().segments:
            return None
        try:
            raw = self._log.read(position, TimerUnit.SIZE)
        except Missing:
            return None
        if len(raw) < TimerUnit.SIZE:
            return None
        unit = TimerUnit.unpack_from(raw)
        return unit if unit.size == TimerUnit.SIZE else None

    def _damage(self, position: int, text: str) -> None:
        self.damages.append(TimerDamage(self.path, position, f"the slot at {position} of the timer wheel {text}"))


def read_timers(directory: StoreDirectory) -> Timers | None:
    """The timers of a store; None where no broker with a timer wheel had it. Raises CorruptRecord."""
    try:
        raw = directory.disk.read(directory.paths.config("timercheck"))
    except Missing:
        return None
    check = TimerCheck.unpack_from(raw)
    return Timers(directory, check) if check.read_ms > 0 else None
