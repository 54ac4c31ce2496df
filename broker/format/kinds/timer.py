"""The timer wheel of 5.x: messages with an arbitrary delay, each in the slot of the moment at which it is due.

    STORE/timerwheel          slots, by moment modulo their number; each names the first and the last unit of a chain
    STORE/timerlog/           units in files; each names the unit before it in its slot, and a record
    STORE/config/timercheck   how far the wheel was read, and how far the timer topic was put into it

The records are in the topic rmq_sys_wheel_timer. RocketMQ: TimerMessageStore, TimerWheel, TimerLog (5.3.3).
"""

from __future__ import annotations

from dataclasses import dataclass

from broker.format.layout import Layout, i32, i64

NOWHERE = -1  # before the first unit of a chain
ROLLED, DELETES = 2, 4  # bits of `magic`: it is put into the wheel again later, it takes another message back


@dataclass(frozen=True)
class TimerSlot(Layout, size=32):
    """One moment of the wheel. Quirk: the moment is in units of timerPrecisionMs, which no file states."""

    moment: i64  # milliseconds since 1970, divided by the precision
    first_position: i64  # in the timer log, of the first unit
    last_position: i64  # of the last one
    count: i32  # of the messages, less those that were taken back
    magic: i32  # 0


@dataclass(frozen=True)
class TimerUnit(Layout, size=52):
    """One message in the timer log."""

    size: i32  # of this unit: 52
    previous_position: i64  # of the unit before it in the same slot; -1 for none
    magic: i32  # 1, with bits for what becomes of it
    write_ms: i64  # when it was put into the wheel
    delay_ms: i32  # after which it is due
    commitlog_offset: i64  # of its record
    record_size: i32  # of its record, in bytes
    topic_hash: i32  # of the real topic
    reserved: i64  # 0

    @property
    def due_ms(self) -> int:
        """When it is due, or put into the wheel again."""
        return self.write_ms + self.delay_ms


@dataclass(frozen=True)
class TimerCheck(Layout, size=56):
    """How far a broker is. RocketMQ: TimerCheckpoint (5.3.3)."""

    read_ms: i64  # what was due before that is delivered
    log_position: i64  # up to which the timer log was flushed
    queue_offset: i64  # of the timer topic: what lies before it is in the wheel
    master_queue_offset: i64  # the same of the master
    state_version: i64  # of the table's version
    version_ms: i64  # when it changed
    version_counter: i64  # how often
