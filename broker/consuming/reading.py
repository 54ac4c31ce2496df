"""Read the next messages of one queue, no further than what is durable and dispatched.

A record counts when all of it lies below both marks: below the durable one, so that a power cut takes back nothing that
was seen (decision 0010); below the dispatched one, so that its unit is whole. RocketMQ: DefaultMessageStore.getMessage.

Units come in blocks, and each record is read once, by pread: a map would kill the process with SIGBUS where a segment
was truncated or its disk cannot be read. What is not as it should be is read again by `Store.message`, which says what
is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.consuming.tags import Selection
from broker.consuming.window import Window
from broker.errors import CorruptStore
from broker.format.consumequeue import FILLER_SIZE, UNIT_SIZE, Unit
from broker.message import ReceivedMessage
from broker.store.shared.control import Word

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.format.commitlog import Record
    from broker.store.read.consumequeue import ConsumeQueue
    from broker.writable_store import WritableStore

BODY_BYTES_MAX = 16 << 20  # with so many bodies a look ends: a compressed one of 2 KiB may take 64 MiB when it is read
_UNITS = 1024  # looked at in one go, however few of them match
_DISPATCHED = int(Word.DISPATCHED)
_unpack_units = Unit.STRUCT.iter_unpack


def readable_end(store: WritableStore) -> int:
    """The CommitLog offset below which consumers may read."""
    return min(store.visible_end, store.writer.control.words[_DISPATCHED])


def fetch(
    store: WritableStore, topic: str, queue_id: int, window: Window, selection: Selection, limit: int
) -> list[tuple[int, ReceivedMessage]]:
    """The next messages of a queue that are wanted, with their queue offsets; the window learns of all it passed.

    At most `limit`, and no more once their bodies have BODY_BYTES_MAX. Raises CorruptStore where a message cannot be
    read: it is never passed over, and those before it are handed out first.
    """
    queue = store.consumequeues.queue(topic, queue_id)
    if queue is None:
        return []
    end, read = readable_end(store), store.commitlog.reader()
    at = max(window.next, queue.units.first)
    stop = at + _UNITS
    messages: list[tuple[int, ReceivedMessage]] = []
    body_bytes = 0
    window.passed(at)
    while at < stop and len(messages) < limit:
        # One more than is wanted: where every message is, one block is enough.
        block = queue.units.raw(at, min(stop - at, limit + 1 if selection.takes_all else _UNITS))
        for commitlog_offset, size, code in _unpack_units(block):
            if size <= 0 or commitlog_offset < 0:
                return messages
            is_filler = size == FILLER_SIZE and commitlog_offset == 0
            if not is_filler and (commitlog_offset + size > end or len(messages) >= limit):
                return messages
            if not is_filler and selection.may_match(code):
                try:
                    message = _message(store, read, queue, at, commitlog_offset, size)
                except CorruptStore:
                    if messages:  # then it is met again
                        return messages
                    raise
                if message is not None and selection.matches(message.tag):  # None: it expired
                    window.fetched(at)
                    messages.append((at, message))
                    body_bytes += len(message.body)
                    if body_bytes >= BODY_BYTES_MAX:
                        return messages
            at += 1
            window.passed(at)
        if len(block) < UNIT_SIZE:
            break
    return messages


def _message(
    store: WritableStore, read: Callable[[int, int], Record], queue: ConsumeQueue, queue_offset: int,
    commitlog_offset: int, size: int,
) -> ReceivedMessage | None:  # fmt: skip
    """One message. Raises CorruptStore, with the place and the next step."""
    try:
        record = read(commitlog_offset, size)
        if record.topic == queue.topic:
            return ReceivedMessage.of(record)
    except CorruptStore:
        pass
    return store.message(queue.topic, queue.queue_id, queue_offset)


class Leftovers:
    """What a killed producer left: a record that is published, but not dispatched or not durable.

    Those who read finish it, so that no message waits for the next send.
    """

    def __init__(self, store: WritableStore) -> None:
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
