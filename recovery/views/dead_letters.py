"""The dead letters of a consumer group: messages that it could not process in all their retries.

    %DLQ%group ──resend──► %RETRY%group, with all retries before it again

A dead letter stays where it is: the log is never changed. It counts as resent once the retry topic holds a message
with its unique key behind it, so resending twice sends once; while one run resends, another is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from shlex import quote
from typing import Any

from broker.consuming.redelivery import resent
from broker.errors import BrokerError, CorruptStore, StoreLocked
from broker.format import properties as names
from broker.format.topics import DLQ_PREFIX, dlq_topic, retry_topic
from broker.live import LiveStore
from broker.message import ReceivedMessage
from broker.store.disk.paths import Paths, is_topic_directory
from broker.store.read.store import Store
from broker.store.shared.control import Word
from broker.transaction.events import WHY

_READ_ANYHOW = 1000  # so many messages are read as quickly as a few are looked up


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One message that was given up."""

    message_id: str  # where it lies now
    unique_key: str | None
    group: str
    topic: str  # where it was sent to
    tag: str
    keys: tuple[str, ...]
    store_timestamp_ms: int  # when it was given up
    reconsume_times: int
    body_bytes: int
    commitlog_offset: int
    resent: bool
    why: str = ""  # what its handler or consumer gave as the reason

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def groups(store: Store) -> dict[str, int]:
    """The groups that have dead letters, and how many each has, resent ones included."""
    found = {}
    for topic in store.topics():
        if topic.startswith(DLQ_PREFIX):
            ranges = [store.queue_range(topic, queue_id) for queue_id in store.queues(topic)]
            if count := sum(end - first for first, end in ranges):
                found[topic.removeprefix(DLQ_PREFIX)] = count
    return found


def dead_letters(store: Store, group: str, *, newest: int | None = None) -> Iterator[DeadLetter]:
    """The dead letters of a group, oldest first; only the `newest` so many of them (None: all)."""
    topic = dlq_topic(group)
    ranges = {queue_id: store.queue_range(topic, queue_id) for queue_id in store.queues(topic)}
    number = sum(end - first for first, end in ranges.values())
    skipped = 0 if newest is None else max(0, number - newest)
    retries: _Retries | None = None
    for queue_id, (first, end) in ranges.items():
        begin = min(end, first + skipped)
        skipped -= begin - first
        for queue_offset in range(begin, end):
            message = store.message(topic, queue_id, queue_offset)
            if message is None:
                continue
            if retries is None:
                behind = message.commitlog_offset if len(ranges) == 1 else -1
                retries = _Retries(store, group, behind, number if newest is None else newest)
            yield _letter(message, group, resent=retries.have_behind(message))


class _Retries:
    """The messages of a group's retry topic behind its first dead letter: what was sent again is among them.

    Each dead letter is looked for in the index, in all its files. Where these messages are no more than twice as many
    as the dead letters, they are read once instead: of a million dead letters the first way does not end.
    """

    def __init__(self, store: Store, group: str, behind: int, number: int) -> None:
        """`behind` is the CommitLog offset of the first dead letter, `number` how many there are about."""
        self._store, self._topic = store, retry_topic(group)
        places = {queue_id: self._places(queue_id, behind) for queue_id in store.queues(self._topic)}
        self._newest: dict[str, int] | None = None  # by unique key the CommitLog offset of the last; None: not read
        if sum(map(len, places.values())) <= max(_READ_ANYHOW, 2 * number):
            with contextlib.suppress(CorruptStore):  # the index may go around the one that is damaged
                self._newest = self._read(places)

    def _read(self, places: Mapping[int, range]) -> dict[str, int]:
        newest: dict[str, int] = {}
        for queue_id, queue_offsets in places.items():
            for queue_offset in queue_offsets:
                message = self._store.message(self._topic, queue_id, queue_offset)
                if message is not None and message.unique_key:
                    known = newest.get(message.unique_key, 0)
                    newest[message.unique_key] = max(known, message.commitlog_offset)
        return newest

    def _places(self, queue_id: int, behind: int) -> range:
        """The queue offsets of the messages behind a CommitLog offset."""
        first, end = self._store.queue_range(self._topic, queue_id)
        queue = self._store.consumequeues.queue(self._topic, queue_id)

        def is_behind(queue_offset: int) -> bool:
            unit = None if queue is None else queue.get(queue_offset)
            return unit is not None and unit.commitlog_offset > behind

        return range(first + bisect_left(range(first, end), True, key=is_behind), end)

    def have_behind(self, letter: ReceivedMessage) -> bool:
        """Whether the group got a dead letter again."""
        if not letter.unique_key:
            return False
        if self._newest is not None:
            return self._newest.get(letter.unique_key, -1) > letter.commitlog_offset
        found = self._store.by_unique_key(self._topic, letter.unique_key)
        return any(copy.commitlog_offset > letter.commitlog_offset for copy in found)


def _letter(message: ReceivedMessage, group: str, *, resent: bool) -> DeadLetter:
    return DeadLetter(
        message_id=message.message_id,
        unique_key=message.unique_key,
        group=group,
        topic=message.properties.get(names.DLQ_ORIGIN_TOPIC) or message.properties.get(names.RETRY_TOPIC, ""),
        tag=message.tag,
        keys=message.keys,
        store_timestamp_ms=message.store_timestamp_ms,
        reconsume_times=message.reconsume_times,
        body_bytes=len(message.body),
        commitlog_offset=message.commitlog_offset,
        resent=resent,
        why=message.properties.get(WHY, ""),
    )


def resend(store: LiveStore, group: str, ids: Collection[str] = ()) -> list[DeadLetter]:
    """Send dead letters to their group again, and return them; all that were not resent, or those with these ids.

    An id is a message id or a unique key. Raises BrokerError when one of them is not a dead letter of the group, and
    StoreLocked while they are resent elsewhere.
    """
    with _alone(store, group):
        return _resend(store, group, ids)


def _resend(store: LiveStore, group: str, ids: Collection[str]) -> list[DeadLetter]:
    store.writer.settle(store.writer.control[Word.TAIL])  # what a killed run sent shows once it is durable
    letters = list(dead_letters(store, group))
    known = {name for letter in letters for name in (letter.message_id, letter.unique_key) if name}
    for one in ids:
        if one not in known:
            raise BrokerError(
                f"{one} is not a dead letter of group {group}. List them: "
                f"checkback dlq {quote(store.path)} {quote(group)}"
            )
    chosen = [one for one in letters if not ids or one.message_id in ids or one.unique_key in ids]
    sent = [one for one in chosen if not one.resent]
    for letter in sent:
        record = store.commitlog.read(letter.commitlog_offset)
        if record is not None:
            store.writer.append([resent(record, group)], wait=False)  # one fsync for all of them
    store.writer.settle(store.writer.control[Word.TAIL])
    return sent


@contextlib.contextmanager
def _alone(store: LiveStore, group: str) -> Iterator[None]:
    """Of two at once each would find that nothing was resent yet, and send all. The lock goes with its process.

    It is on the directory of the dead letters, so that no file has to be made for it.
    """
    topic = dlq_topic(group)
    directory = Paths(store.path).topic(topic)
    if not (is_topic_directory(topic) and os.path.isdir(directory)):  # no dead letters
        yield
        return
    held = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"the dead letters of group {group} are being sent again by another run: wait until it has ended"
            raise StoreLocked(text, path=store.path) from None
        yield
    finally:
        os.close(held)
