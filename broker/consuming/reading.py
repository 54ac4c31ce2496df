"""Read the next messages of one queue, no further than what is durable and dispatched.

A record counts when all of it lies below both marks: below the durable one, so that a power cut takes back nothing that
was seen (decision 0010); below the dispatched one, so that its unit is whole. RocketMQ: DefaultMessageStore.getMessage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.consuming.tags import Selection
from broker.consuming.window import Window
from broker.errors import CorruptStore
from broker.message import ReceivedMessage
from broker.store.write.control import Word

if TYPE_CHECKING:
    from broker.live import LiveStore

_UNITS = 1024  # looked at in one go, however few of them match


def readable_end(store: LiveStore) -> int:
    """The CommitLog offset below which consumers may read."""
    return min(store.visible_end, store.writer.control[Word.DISPATCHED])


def fetch(
    store: LiveStore, topic: str, queue_id: int, window: Window, selection: Selection, limit: int
) -> list[tuple[int, ReceivedMessage]]:
    """The next messages of a queue that are wanted, with their queue offsets; the window learns of all it passed.

    Raises CorruptStore where a message cannot be read: it is never passed over.
    """
    queue = store.consumequeues.queue(topic, queue_id)
    if queue is None:
        return []
    end = readable_end(store)
    start = max(window.next, queue.units.first)
    found: list[tuple[int, ReceivedMessage]] = []
    queue_offset = start
    for queue_offset, unit in enumerate(queue.walk(start, start + _UNITS), start):
        if not unit.is_filler and unit.commitlog_offset + unit.size > end:
            break
        window.passed(queue_offset)
        if len(found) >= limit:
            break
        if not unit.is_filler and selection.may_match(unit.tags_code):
            try:
                message = store.message(topic, queue_id, queue_offset)
            except CorruptStore:
                if found:  # those before it are handed out first; then it is met again
                    break
                raise
            if message is not None and selection.matches(message.tag):  # None: it expired
                window.fetched(queue_offset)
                found.append((queue_offset, message))
                continue
        window.passed(queue_offset + 1)
    return found


class Leftovers:
    """What a killed producer left: a record that is published, but not dispatched or not durable.

    Those who read finish it, so that no message waits for the next send.
    """

    def __init__(self, store: LiveStore) -> None:
        self._store = store
        self._lag: tuple[int, int] = (0, 0)

    def finish(self) -> None:
        """Dispatch and fsync what has stood still since the last look. Raises SyncFailed, StoreError."""
        writer = self._store.writer
        lag = writer.control[Word.TAIL], readable_end(self._store)
        if lag[0] > lag[1] and lag == self._lag:
            if writer.control[Word.DISPATCHED] < lag[0]:
                with writer.append_lock:
                    writer.appender.heal()
            writer.settle(lag[0])
        self._lag = lag
