"""What waits in a store, as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recovery.humanize import moment, printable
from recovery.views.messages.waiting import PoppedMessages, WaitingMessage


def timer_lines(waiting: Sequence[WaitingMessage]) -> Iterator[str]:
    """A line for each message with a timer."""
    if not waiting:
        yield "no message waits in the timer wheel"
    for one in waiting:
        marks = " ".join(text for text in (one.tag, one.keys, one.unique_key) if text)
        rolled = "  put into the wheel again before" if one.is_rolled else ""
        yield printable(
            f"due {moment(one.due_ms)}  {one.topic}  record at {one.commitlog_offset:>12}  [{marks}]{rolled}"
        )


def popped_lines(batches: Sequence[PoppedMessages]) -> Iterator[str]:
    """A line for each pop of which something is not acknowledged."""
    if not batches:
        yield "nothing that was popped waits for an acknowledgement"
    for one in batches:
        offsets = ", ".join(map(str, one.queue_offsets))
        times = f"popped {moment(one.popped_ms)}, visible again {moment(one.visible_ms)}"
        yield printable(f"{one.topic}/{one.queue_id}  {one.group}  {times}  queue offsets {offsets}")
