"""What a server publishes for the other servers of its store, and for consumers with the store open.

A client that asks who is in its group gets the same list from every server.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

from broker.errors import BrokerError, StoreError
from broker.store.shared.published_clients import Groups, PublishedClients

if TYPE_CHECKING:
    from broker.consuming.group.membership import Membership
    from broker.live import LiveStore
    from broker.server.settings import ServerSettings

_ALIKE = {  # what is the same for all servers of a store, and why
    "--broker-name": "a name server that knew both would have clients get each message twice",
    "--cluster": "a store is a broker of one cluster",
    "--delay-levels": "one of them delivers all delayed messages, by its own",
}


class SiblingRegistry(PublishedClients):
    """What one server publishes, and what it reads of the others. Threads share it."""

    def __init__(self, store: LiveStore, member: Membership, settings: ServerSettings, address: str) -> None:
        """`member` is this server's own place, `address` where clients reach it."""
        super().__init__(store.writer.disk, store.writer.paths.servers, member.place, member.lives)
        self._member, self._address = member, address
        levels = " ".join(f"{delay_ms // 1000}s" for delay_ms in settings.delays_ms)  # 1m is 60s
        self._settings = dict(zip(_ALIKE, (settings.broker_name, settings.cluster, levels), strict=True))
        self._own: bytes | None = None
        self._disk.create_directory(self._directory)

    def publish(self, groups: Groups) -> None:
        """Publish which clients are connected here. Raises StoreError."""
        groups_here = {group: sorted(ids) for group, ids in sorted(groups.items())}
        own = {"number": self._member.number, "address": self._address, "settings": self._settings}
        raw = json.dumps({**own, "groups": groups_here}).encode()
        if raw != self._own:
            self._disk.write_file(self.path, raw, durable=False)
            self._own = raw
            self._member.announce()

    def check_alike(self) -> None:
        """Publish how this server is set. Raises BrokerError where another server of the store is set otherwise.

        Published first: of two that start at once, one sees the other.
        """
        self.publish({})
        for other in self.published():
            settings = other.get("settings")
            theirs = settings if isinstance(settings, dict) else {}
            for option, why in _ALIKE.items():
                if theirs.get(option, self._settings[option]) != self._settings[option]:
                    text = f"another server of this store, {other.get('address')}, has {option} {theirs[option]!r}"
                    text += f", and this one {self._settings[option]!r}: {why}"
                    raise BrokerError(f"{text}. Start both with the same {option}")

    def has(self, address: str) -> bool:
        """Whether clients reach another server of the store there."""
        return any(other.get("address") == address for other in self.published())

    def leave(self) -> None:
        """Take this server's file away."""
        with contextlib.suppress(StoreError):
            self._disk.remove(self.path, durable=False)
