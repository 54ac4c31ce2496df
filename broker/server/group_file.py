"""config/subscriptionGroup.json: the consumer groups and their settings, as a broker keeps them.

RocketMQ: SubscriptionGroupManager (5.3.3).
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from broker.errors import MessageRejected
from broker.format.config import DataVersion, SubscriptionGroup, SubscriptionGroups, encode_subscription_groups
from broker.format.topics import check_topic_name, retry_topic
from broker.store.read.config import read_subscription_groups
from broker.store.read.directory import StoreDirectory

if TYPE_CHECKING:
    from broker.live import LiveStore

_NAME = "subscriptionGroup.json"
_GROUP_SIZE_MAX = 119  # its retry topic must fit in a record
GROUPS_MAX = 16_384


class GroupFile:
    """The groups of a store. Threads share it; other servers of the store may change the file, too."""

    def __init__(self, store: LiveStore) -> None:
        self._store, self._lock = store, threading.Lock()
        self._folder = StoreDirectory(store.path, store.writer.disk)
        self._held = read_subscription_groups(self._folder)

    def get(self, name: str) -> SubscriptionGroup | None:
        return self._held.groups.get(name)

    def all(self) -> SubscriptionGroups:
        return self._held

    def ensure(self, name: str) -> SubscriptionGroup:
        """The group, made with RocketMQ's settings when it is new. Raises MessageRejected for a name that cannot be."""
        return self.get(name) or self.put(SubscriptionGroup(name))

    def put(self, group: SubscriptionGroup) -> SubscriptionGroup:
        """Make a group, or change it."""
        check_topic_name(retry_topic(group.name))
        if not 0 < len(group.name) <= _GROUP_SIZE_MAX:
            raise MessageRejected(f"a group has from 1 to {_GROUP_SIZE_MAX} characters, not {len(group.name)}")
        self._change({group.name: group})
        return group

    def remove(self, name: str) -> None:
        self._change({name: None})

    def _change(self, changes: dict[str, SubscriptionGroup | None]) -> None:
        disk, paths = self._store.writer.disk, self._store.writer.paths
        with self._lock, self._store.writer.append_lock:
            found = read_subscription_groups(self._folder)
            groups = {name: group for name, group in {**found.groups, **changes}.items() if group is not None}
            if len(groups) > GROUPS_MAX:
                raise MessageRejected(f"a store has room for {GROUPS_MAX} consumer groups, and all are taken")
            version = DataVersion(found.version.counter + 1, time.time_ns() // 1_000_000, found.version.state_version)
            self._held = replace(found, groups=groups, version=version)
            if disk.entry(paths.config("")) is None:
                disk.create_folder(paths.config(""))
            path = paths.config(_NAME)
            if disk.entry(path) is not None:
                disk.write_file(f"{path}.bak", disk.read(path))
            disk.write_file(path, encode_subscription_groups(self._held))
