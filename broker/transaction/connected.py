"""Ask the producers of this process how their local transactions ended: RocketMQ's own way of check-back.

RocketMQ: DefaultTransactionalMessageCheckListener, Broker2Client.checkProducerTransactionState (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

from broker.message import ReceivedMessage
from broker.transaction.service import CheckListener, Half, LocalTransactionState

Checker = Callable[[ReceivedMessage], LocalTransactionState]


class ConnectedProducers(CheckListener):
    """A check listener that asks the listener that is registered for the producer group; entry point `connected`."""

    def __init__(self) -> None:
        self._checkers: dict[str, Checker] = {}

    def register(self, producer_group: str, checker: Checker) -> None:
        """Let a function answer for a producer group. RocketMQ: ProducerManager.registerProducer."""
        self._checkers[producer_group] = checker

    def unregister(self, producer_group: str) -> None:
        """Nobody answers for the group any more."""
        self._checkers.pop(producer_group, None)

    def resolve_half_message(self, half: Half, message: ReceivedMessage) -> LocalTransactionState:
        """What the group's producer says; UNKNOW while none is connected."""
        checker = self._checkers.get(half.producer_group)
        return LocalTransactionState.UNKNOW if checker is None else checker(message)
