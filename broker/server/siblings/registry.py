"""What a server publishes for the other servers of its store, and for consumers with the store open.

A client that asks who is in its group gets the same list from every server.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from broker.errors import StoreError
from broker.store.shared.published_clients import Groups, PublishedClients

if TYPE_CHECKING:
    from broker.consuming.group.membership import Membership
    from broker.live import LiveStore


class SiblingRegistry(PublishedClients):
    """What one server publishes, and what it reads of the others. Threads share it."""

    def __init__(self, store: LiveStore, member: Membership) -> None:
        """`member` is this server's own place."""
        super().__init__(store.writer.disk, store.writer.paths.servers, member.place, member.lives)
        self._member = member
        self._own: bytes | None = None
        self._disk.create_directory(self._directory)

    def publish(self, groups: Groups) -> None:
        """Publish which clients are connected here. Raises StoreError."""
        groups_here = {group: sorted(ids) for group, ids in sorted(groups.items())}
        raw = json.dumps({"number": self._member.number, "groups": groups_here}).encode()
        if raw != self._own:
            self._disk.write_file(self.path, raw, durable=False)
            self._own = raw
            self._member.announce()

    def leave(self) -> None:
        """Take this server's file away."""
        with contextlib.suppress(StoreError):
            self._disk.remove(self.path, durable=False)
