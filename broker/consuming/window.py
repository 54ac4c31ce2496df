"""What of one queue was handed out and not acknowledged; pure.

As in:

    window = Window(position=7)
    window.fetched(7), window.fetched(8)
    window.acknowledge(8)      # -> 7: the position is the lowest that is not acknowledged
    window.acknowledge(7)      # -> 9
"""

from __future__ import annotations

from collections import OrderedDict

from broker.message import ReceivedMessage


class Window:
    """The open queue offsets of one queue, in order."""

    def __init__(self, position: int) -> None:
        self.next = position  # where to fetch
        self._open: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    @property
    def position(self) -> int:
        """The lowest queue offset that is not acknowledged."""
        return next(iter(self._open), self.next)

    def fetched(self, queue_offset: int) -> None:
        """A message was read; those between it and the one before were passed over."""
        self._open[queue_offset] = None
        self.next = queue_offset + 1

    def passed(self, queue_offset: int) -> None:
        """Nothing up to here, exclusive, is left to fetch."""
        if queue_offset > self.next:
            self.next = queue_offset

    def acknowledge(self, queue_offset: int) -> int:
        """Take a message out; returns the position. One that is not open is not an error."""
        self._open.pop(queue_offset, None)
        return self.position


def name_in_hand(message: ReceivedMessage) -> tuple[str, int]:
    """What a message in hand is known by: those of one record, a batch at a cluster, have one offset message id."""
    return message.message_id, message.queue_offset
