"""config/topics.json for writing: which topics there are, how many queues they have, and what they take.

Written as RocketMQ does: the old one is kept as `.bak`, the new one is moved into place whole. Other processes change
the file too, so it is looked at again at least each second.

RocketMQ: TopicConfigManager.createTopicInSendMessageMethod, ConfigManager.persist (5.3.3).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from broker.format.config import MESSAGE_TYPE_ATTRIBUTE, PERM_WRITE, TopicConfig, Topics, encode_topics
from broker.format.topics import SEND_REFUSED_TOPICS
from broker.store.disk.files import Disk
from broker.store.disk.thread_lock import ThreadLock
from broker.store.read.config import read_topics
from broker.store.read.directory import StoreDirectory
from broker.store.shared.config_file import write_config

_LOOK_MS = 1000
_NAME = "topics.json"
_TYPES_OF_HALVES = ("", "MIXED", "TRANSACTION")
_TYPES_OF_PLAIN = ("", "MIXED", "NORMAL")


class Rules(NamedTuple):
    """What a send asks of a topic."""

    write_queues: int
    message_type: str  # one of MESSAGE_TYPES, or of a newer broker's; without one it takes every message
    may_write: bool
    half_queues: int  # those that take half messages; 0 where one has to look closer
    plain_queues: int  # the same for messages without an order or a delay


class TopicFile:
    """The topics of a store, read at once and looked at again when another process may have changed them."""

    def __init__(self, path: str, disk: Disk) -> None:
        self._directory = StoreDirectory(path, disk)
        self._path = self._directory.paths.config(_NAME)
        self._seen: tuple[int, int, int] | None = None
        self._looked_ms = -_LOOK_MS
        self._looking = ThreadLock()
        self._topics: dict[str, TopicConfig] = {}
        self._rules: dict[str, Rules] = {}

    def get(self, topic: str, now_ms: int) -> TopicConfig | None:
        """A topic's configuration; None when there is no such topic."""
        self._look_now_and_then(now_ms)
        return self._topics.get(topic)

    def rules(self, topic: str, now_ms: int) -> Rules | None:
        """What the topic takes; None when there is no such topic."""
        if not 0 <= now_ms - self._looked_ms < _LOOK_MS:
            self._look_now_and_then(now_ms)
        return self._rules.get(topic)

    def put(self, topic: TopicConfig, now_ms: int) -> None:
        """Create or change a topic; call under the append lock, which keeps other processes from doing the same."""
        found = read_topics(self._directory)
        self._write(found, {**found.topics, topic.name: topic}, now_ms)

    def remove(self, name: str, now_ms: int) -> None:
        """Forget a topic; call under the append lock."""
        found = read_topics(self._directory)
        topics = dict(found.topics)
        if topics.pop(name, None) is not None:
            self._write(found, topics, now_ms)

    def _write(self, found: Topics, topics: dict[str, TopicConfig], now_ms: int) -> None:
        """Write other topics than were found: in a store of thousands, to read them again takes as long as all else."""
        disk, paths = self._directory.disk, self._directory.paths
        changed = replace(found, topics=topics, version=found.version.changed(now_ms))
        disk.create_in_store(paths.store, paths.config(""))
        write_config(disk, self._path, encode_topics(changed))
        with self._looking:
            self._know(topics, self._mark(), now_ms)

    def look(self, now_ms: int) -> None:
        """Read the file if it is another one than at the last look. Raises CorruptRecord.

        One thread at a time: else what one read before a change would take the place of what another read after it.
        """
        with self._looking:
            seen = self._mark()
            if seen is None or seen != self._seen:
                self._know(dict(read_topics(self._directory).topics), seen, now_ms)
            self._looked_ms = now_ms

    def _know(self, topics: dict[str, TopicConfig], seen: tuple[int, int, int] | None, now_ms: int) -> None:
        self._topics = topics
        self._rules = {name: _rules(topic) for name, topic in topics.items()}
        self._seen, self._looked_ms = seen, now_ms

    def is_current(self, now_ms: int) -> bool:
        """Whether the topics can be asked, for half a second from now on, without reading the file again.

        For an event loop: it looks at the file now and then, reads none, and waits for nobody who does.
        """
        if 0 <= now_ms - self._looked_ms < _LOOK_MS // 2:
            return True
        if not self._looking.acquire(blocking=False):
            return False
        try:
            if self._mark() != self._seen:
                return False
            self._looked_ms = now_ms
            return True
        finally:
            self._looking.release()

    def _mark(self) -> tuple[int, int, int] | None:
        """By what another version of the file is known; None when there is none."""
        entry = self._directory.disk.entry(self._path)
        return None if entry is None else (entry.inode, entry.changed_ns, entry.size)

    def _look_now_and_then(self, now_ms: int) -> None:
        if not 0 <= now_ms - self._looked_ms < _LOOK_MS:
            self.look(now_ms)


def _rules(topic: TopicConfig) -> Rules:
    message_type, may_write = topic.attributes.get(MESSAGE_TYPE_ATTRIBUTE, ""), bool(topic.perm & PERM_WRITE)
    count, is_open = topic.write_queue_count, may_write and topic.name not in SEND_REFUSED_TOPICS
    half_queues = count if is_open and message_type in _TYPES_OF_HALVES else 0
    plain_queues = count if is_open and message_type in _TYPES_OF_PLAIN else 0
    return Rules(count, message_type, may_write, half_queues, plain_queues)
