"""The dead letters of a consumer group: messages that it could not process in all their retries.

    %DLQ%group ──resend──► %RETRY%group, with all retries before it again

A dead letter stays where it is: the log is never changed. It counts as resent once the retry topic holds a message
with its unique key behind it, so resending twice sends once; while one run resends, another is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from broker.consuming.redelivery import resent
from broker.errors import BrokerError, StoreLocked
from broker.format import properties as names
from broker.format.topics import DLQ_PREFIX, dlq_topic, retry_topic
from broker.live import LiveStore
from broker.message import ReceivedMessage
from broker.store.disk.paths import Paths, is_topic_directory
from broker.store.read.store import Store
from broker.transaction.events import WHY


@dataclass(frozen=True)
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


def dead_letters(store: Store, group: str) -> Iterator[DeadLetter]:
    """The dead letters of a group, oldest first."""
    topic = dlq_topic(group)
    for queue_id in store.queues(topic):
        first, end = store.queue_range(topic, queue_id)
        for queue_offset in range(first, end):
            message = store.message(topic, queue_id, queue_offset)
            if message is not None:
                yield _letter(store, group, message)


def _letter(store: Store, group: str, message: ReceivedMessage) -> DeadLetter:
    later = store.by_unique_key(retry_topic(group), message.unique_key) if message.unique_key else []
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
        resent=any(copy.commitlog_offset > message.commitlog_offset for copy in later),
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
    letters = list(dead_letters(store, group))
    known = {name for letter in letters for name in (letter.message_id, letter.unique_key) if name}
    for one in ids:
        if one not in known:
            raise BrokerError(
                f"{one} is not a dead letter of group {group}. List them: checkback dlq {store.path} {group}"
            )
    chosen = [one for one in letters if not ids or one.message_id in ids or one.unique_key in ids]
    sent = [one for one in chosen if not one.resent]
    for letter in sent:
        record = store.commitlog.read(letter.commitlog_offset)
        if record is not None:
            store.writer.append([resent(record, group)])
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
