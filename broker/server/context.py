"""What the handlers of all requests share, and how they refuse one."""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from broker.errors import BrokerError, StoreFull
from broker.format.java import Host
from broker.log_fields import event
from broker.remoting.codes import RequestCode, ResponseCode
from broker.remoting.command import RemotingCommand
from broker.server.acl import Account
from broker.server.clients import Clients, Peer
from broker.server.counters import Counters
from broker.server.group_positions import GroupPositions
from broker.server.settings import ServerSettings
from broker.server.siblings.queue_locks import QueueLocks
from broker.server.siblings.registry import SiblingRegistry
from broker.store.shared.group_file import GroupFile

if TYPE_CHECKING:
    from broker.live import LiveStore

_AGAIN_S = 60.0

log = logging.getLogger("broker.server")


class Refused(BrokerError):
    """A request that is answered with a code and a sentence, and changes nothing."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code


class Request(NamedTuple):
    """A request, who sent it, and in whose name."""

    command: RemotingCommand
    connection: Peer
    account: Account | None

    def answer(
        self, ext: dict[str, str] | None = None, body: bytes = b"", remark: str | None = None
    ) -> RemotingCommand:
        return self.command.answer(ResponseCode.SUCCESS, remark, ext, body)


@dataclass
class ServerContext:
    """One server's parts."""

    settings: ServerSettings
    store: LiveStore
    address: str  # HOST:PORT that clients reach
    host: Host  # the same as records hold it
    clients: Clients
    positions: GroupPositions
    groups: GroupFile
    counters: Counters
    siblings: SiblingRegistry
    locks: QueueLocks
    properties: dict[str, dict[str, str]] = field(default_factory=dict)  # of the name server, by namespace and key
    checks: dict[int, int] = field(default_factory=dict)  # how often a half message was checked, by its offset
    places: WeakKeyDictionary[Peer, int] = field(default_factory=WeakKeyDictionary)  # cells that a connection took
    is_wiped: bool = False  # no topic is offered for writing. RocketMQ: wipeWritePerm
    started_ms: int = 0
    logged_s: dict[str, float] = field(default_factory=dict)  # when it was last logged what there is none of

    def failed(self, what: str, error: Exception) -> None:
        """Log that something failed in the background; it is tried again."""
        text, store = "%s failed, and is tried again: %s", self.store.path
        log.warning(text, what, error, exc_info=_unexpected(error), extra=event("background-failed", store=store))

    def round_failed(self, error: Exception) -> None:
        """The same of a round of check-back."""
        text, store = "a round of check-back failed, and is tried again: %s", self.store.path
        log.warning(text, error, exc_info=_unexpected(error), extra=event("check-round-failed", store=store))

    def is_full(self, error: StoreFull) -> None:
        """Log that there is no room for what clients send, once a minute; they are answered, but an end is oneway."""
        if self._is_to_be_logged("room"):
            log.warning("what clients send is refused: %s", error, extra=event("store-full", store=self.store.path))

    def has_no_memory(self) -> None:
        """Log that a request was refused for want of memory, once a minute."""
        if self._is_to_be_logged("memory"):
            text = "requests are refused: this process gets no more memory"
            log.warning(text, extra=event("request-failed", store=self.store.path))

    def _is_to_be_logged(self, what: str) -> bool:
        now_s = time.monotonic()
        is_due = now_s - self.logged_s.get(what, -math.inf) >= _AGAIN_S
        if is_due:
            self.logged_s[what] = now_s
        return is_due

    def client_ids(self, group: str) -> list[str]:
        """The members of a group: clients of this server and of others of the store, and consumers without a server."""
        ids = {*self.clients.client_ids(group), *self.siblings.client_ids(group)}
        return sorted(ids | set(self.positions.consumer_ids(group)))

    def meet_siblings(self) -> None:
        """Publish who is connected here, and have the clients of groups that changed elsewhere divide their queues."""
        self.siblings.publish(self.clients.ids_by_group())
        for group in self.siblings.refresh() | self.positions.changed_groups():
            found = self.clients.consumers(group)
            if found is not None:
                self.notify_members(group, list(found.channels))

    def notify_members(self, group: str, peers: list[Any]) -> None:
        """Have the clients of a group divide its queues again."""
        for peer in dict.fromkeys(peers):
            peer.notify(RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext={"consumerGroup": group}))


def _unexpected(error: Exception) -> Exception | None:
    """An error whose traceback is to be logged."""
    return None if isinstance(error, BrokerError | ValueError | OSError) else error
