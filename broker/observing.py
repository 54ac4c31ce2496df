"""Who observes what passes through producers and consumers: nobody, unless `broker.telemetry.switch_on()` was called.

An observer is asked once, when a producer, a consumer or a round of check-back is made, and puts something of its own
around it. So a process without one runs the same instructions for each message as if there were no telemetry. Besides
it is asked at each answer to a check of a cluster's broker, which comes for few messages, and by a server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from broker.message import ReceivedMessage
    from broker.producing.destination import Destination
    from broker.receiving import Receiver
    from broker.transaction.service import Half, HalfMessageService, LocalTransactionState

    _Receiver = TypeVar("_Receiver", bound=Receiver)
    _Service = TypeVar("_Service", bound=HalfMessageService)

Run = Callable[["ReceivedMessage"], None]


class MessageObserver(Protocol):
    """What puts itself around the parts of an application that messages pass through."""

    def destination(self, inner: Destination, producer_group: str) -> Destination:
        """Around what a producer stores in, and what ends its half messages."""

    def ending(self, inner: _Service, *, for_client: bool) -> _Service:
        """Around what ends half messages for others: check-back, or a server at a client's request."""

    def answering(self, half: Half, decision: LocalTransactionState) -> AbstractContextManager[object]:
        """Around the answer to a broker's check, which ends a half message unless it is "unknown"."""

    def receiver(self, kind: type[_Receiver]) -> type[_Receiver]:
        """A subclass of a consumer's class."""

    def handling(self, run: Run, consumer_group: str) -> Run:
        """Around what processes one message of an application's group."""

    def stored(self, message: StoredForClient) -> None:
        """After a server answered a client that sent a message."""


class StoredForClient(NamedTuple):
    """A message of a client of a server: what its request says of it, and what became of it."""

    topic: str
    queue_id: int
    producer_group: str
    properties: Mapping[str, str]
    body_size: int
    begun_ns: int
    """When the request came: nanoseconds since 1970."""
    error: str
    """Why it was refused; empty when it is stored."""


_current: MessageObserver | None = None


def observe(observer: MessageObserver | None) -> None:
    """Let an observer, or nobody, see what is made from now on."""
    global _current  # noqa: PLW0603 - one for the process
    _current = observer


def is_observed() -> bool:
    """Whether there is an observer."""
    return _current is not None


def destination(inner: Destination, producer_group: str) -> Destination:
    """See MessageObserver."""
    return inner if _current is None else _current.destination(inner, producer_group)


def ending(inner: _Service, *, for_client: bool = False) -> _Service:
    """See MessageObserver."""
    return inner if _current is None else _current.ending(inner, for_client=for_client)


def answering(half: Half, decision: LocalTransactionState) -> AbstractContextManager[object]:
    """See MessageObserver."""
    return nullcontext() if _current is None else _current.answering(half, decision)


def receiver(kind: type[_Receiver]) -> type[_Receiver]:
    """See MessageObserver."""
    return kind if _current is None else _current.receiver(kind)


def handling(run: Run, consumer_group: str) -> Run:
    """See MessageObserver."""
    return run if _current is None else _current.handling(run, consumer_group)


def stored(message: StoredForClient) -> None:
    """See MessageObserver."""
    if _current is not None:
        _current.stored(message)
