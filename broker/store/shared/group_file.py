"""config/subscriptionGroup.json: the consumer groups and their settings, as a broker keeps them.

RocketMQ: SubscriptionGroupManager (5.3.3).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from broker.errors import MessageRejected
from broker.format.config import SubscriptionGroup, SubscriptionGroups, encode_subscription_groups
from broker.format.topics import GROUP_SIZE_MAX, check_topic_name, retry_topic
from broker.store.disk.files import Disk
from broker.store.read.config import read_subscription_groups
from broker.store.read.directory import StoreDirectory
from broker.store.shared.config_file import write_config

_NAME = "subscriptionGroup.json"
_LOOK_S = 0.25
GROUPS_MAX = 16_384


class GroupFile:
    """The groups of a store. Threads share it; other processes change the file, too: it is looked at again."""

    def __init__(self, path: str, disk: Disk, append_lock: AbstractContextManager[None]) -> None:
        """Of the store at a path; changes are made under its append lock."""
        self._append_lock, self._lock = append_lock, threading.Lock()
        self._directory = StoreDirectory(path, disk)
        self._path = self._directory.paths.config(_NAME)
        self._held, self._seen, self._looked_s = SubscriptionGroups(), (0, 0, -1), float("-inf")
        self._look()

    def _look(self) -> SubscriptionGroups:
        """The groups; the file is read when it is another one than at the last look. Raises CorruptRecord."""
        now_s = time.monotonic()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s = now_s
            seen = self._mark()
            if seen != self._seen:
                self._held, self._seen = read_subscription_groups(self._directory), seen
        return self._held

    def is_current(self) -> bool:
        """Whether the groups can be asked, for an eighth of a second from now on, without reading the file again.

        For an event loop: it looks at the file now and then, and reads none.
        """
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S / 2:
            return True
        if self._mark() != self._seen:
            return False
        self._looked_s = now_s
        return True

    def _mark(self) -> tuple[int, int, int]:
        """By what another version of the file is known."""
        entry = self._directory.disk.entry(self._path)
        return (0, 0, 0) if entry is None else (entry.inode, entry.changed_ns, entry.size)

    def get(self, name: str) -> SubscriptionGroup | None:
        """The settings of a group; None when it has none of its own."""
        return self._look().groups.get(name)

    def is_paused(self, name: str) -> bool:
        """Whether the group gets no messages: its consumeEnable is false, here and for RocketMQ's brokers."""
        found = self.get(name)
        return found is not None and not found.consume_enable

    def pause(self, name: str, *, paused: bool = True) -> None:
        """Give the group no messages any more, or give them again. Raises MessageRejected for an impossible name."""
        if not isinstance(name, str):
            raise MessageRejected(f"the name of a consumer group is text, not {name!r:.60}")
        self._put(name, lambda held: replace(held or SubscriptionGroup(name), consume_enable=not paused))

    def all(self) -> SubscriptionGroups:
        """The settings of all groups."""
        return self._look()

    def ensure(self, name: str) -> SubscriptionGroup:
        """The group, made with RocketMQ's settings when it is new. Raises MessageRejected for a name that cannot be."""
        return self.get(name) or self._put(name, lambda held: held or SubscriptionGroup(name))

    def put(self, group: SubscriptionGroup) -> SubscriptionGroup:
        """Make a group, or change it."""
        return self._put(group.name, lambda _: group)

    def _put(self, name: str, change: Callable[[SubscriptionGroup | None], SubscriptionGroup]) -> SubscriptionGroup:
        held = self._look().groups
        if len(held) >= GROUPS_MAX and name not in held:  # at once: to read thousands takes long, under a lock
            raise _full()
        check_topic_name(retry_topic(name))
        if not 0 < len(name) <= GROUP_SIZE_MAX:
            raise MessageRejected(f"a group has from 1 to {GROUP_SIZE_MAX} characters, not {len(name)}")
        return self._change(name, change)[name]

    def remove(self, name: str) -> None:
        self._change(name, lambda _: None)

    def _change(
        self, name: str, change: Callable[[SubscriptionGroup | None], SubscriptionGroup | None]
    ) -> Mapping[str, SubscriptionGroup]:
        """Write what becomes of a group, from what the file says now: another process may have made or paused it since
        the last look. Returns all groups."""
        disk, paths = self._directory.disk, self._directory.paths
        with self._lock, self._append_lock:
            found = read_subscription_groups(self._directory)
            made, groups = change(found.groups.get(name)), {**found.groups}
            if made is None:
                groups.pop(name, None)
            else:
                groups[name] = made
            if len(groups) > GROUPS_MAX:
                raise _full()
            self._looked_s = float("-inf")
            version = found.version.changed(time.time_ns() // 1_000_000)
            changed = replace(found, groups=groups, version=version)
            disk.create_in_store(paths.store, paths.config(""))
            write_config(disk, self._path, encode_subscription_groups(changed))
            self._held = changed  # last: what could not be written is not so
            self._seen, self._looked_s = self._mark(), time.monotonic()  # under the lock: what is there is ours
            return groups


def _full() -> MessageRejected:
    return MessageRejected(f"a store has room for {GROUPS_MAX} consumer groups, and all are taken")
