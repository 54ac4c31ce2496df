"""What a test of the public interface may ask of the place that its messages go to, whichever place that is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

import broker
from broker.ledger import Ledger

Client: TypeAlias = broker.LiveStore | broker.LiveCluster


class Backend(Protocol):
    """One place, new for each test. `client` is what `broker.open` or `broker.connect` returns."""

    name: str  # "embedded", "served" or the version of a real RocketMQ
    client: Client

    @property
    def is_cluster(self) -> bool:
        """Whether `client` is that of `broker.connect`."""

    @property
    def soon_s(self) -> float:
        """How long a test waits for what the place does by itself: a check, a retry, a new share of queues."""

    @property
    def is_real(self) -> bool:
        """Whether it is RocketMQ's broker. That obeys each end that it gets, so it may deliver twice."""

    def another(self) -> AbstractContextManager[Client]:
        """A second client, as another process has one."""

    def delivered(self, topic: str = "orders") -> list[bytes]:
        """The bodies that consumers see, queue by queue."""

    def in_doubt(self) -> int:
        """How many half messages have no end, of all ends that were sent until now."""

    def lost_ends(self) -> AbstractContextManager[None]:
        """While it lasts, no COMMIT and no ROLLBACK of any client reaches its place."""

    def check_back(self, ledgers: Sequence[Ledger], group: str = "shop", client: Client | None = None) -> None:
        """Ask the ledgers about what is in doubt, until nothing is; what cannot be decided stays after `soon_s`.

        `client` is who asks, or answers its broker: another one, or its own.
        """

    def is_running(self, ledgers: Sequence[Ledger], group: str = "shop") -> bool:
        """Whether check-back is told of a local transaction that it still runs."""
