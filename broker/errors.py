"""Every error a user can meet, drawn as a tree. Each message is a sentence that says where, what and what to do next.

BrokerError
├─ StoreError               .path
│  ├─ NotAStore             nothing there that RocketMQ or checkback wrote
│  ├─ StoreLocked           another process is alone with it
│  ├─ StoreFull             .needed_bytes .free_bytes
│  ├─ NotUnderstood         a repair would replace what only its own broker can make; nothing was changed
│  ├─ SyncFailed            the disk failed an fsync; the store must be opened again
│  └─ CorruptStore          no crash explains this
│     └─ CorruptRecord      .reason .at .commitlog_offset
├─ MessageRejected          (also ValueError) too large, bad topic, bad property
├─ BodyError                a body that does not decode as what a handler takes
├─ NotPermitted             .code  the store was opened as a slave, or takes no such message
├─ ProtocolError            .code  bytes from the network that are not RocketMQ's remoting protocol
├─ ClusterError             .code .was_sent  a name server or a broker of a cluster did not answer, or refused
├─ NotInCluster             (also AttributeError) a store on this machine has it, a cluster has not
└─ TransactionError         .message_id
   ├─ AlreadyEnded          .state
   └─ UnknownOutcome        check-back will decide
"""

from __future__ import annotations

import functools
import os
import re


class BrokerError(Exception):
    """Anything that checkback raises on purpose."""


def shown(value: object) -> str:
    """A value of a wrong type as a sentence names it: a plain one as it is, of another its class.

    Without the user and the password of a URL, which is often what was given.
    """
    if isinstance(value, type):
        return f"the class {value.__qualname__}"
    kind = type(value)
    if isinstance(value, str) and "://" in value:
        value = re.sub(r"://.*@", "://...@", value, flags=re.DOTALL)
    if kind.__module__ != "builtins":
        return f"{kind.__module__}.{kind.__qualname__}"
    try:
        return f"{value!r:.60}"
    except Exception:  # noqa: BLE001 - a number of more than 4,300 digits; a list with an object that cannot say itself
        return f"a number of {value.bit_length()} bits" if isinstance(value, int) else f"a {kind.__qualname__}"


def given_in_seconds(time_ms: float) -> str:
    """What is wrong with a time in milliseconds that was given in seconds, as `time.time()` has them; empty: nothing.

    Such a number is a time from 2001 to 5138 in seconds, and of 1970 to 1973 in milliseconds. No message is as old; one
    for later would come at once, without a word.
    """
    if not 1e9 <= time_ms < 1e11:
        return ""
    return f"is in milliseconds since 1970, and {time_ms!r} is a time in seconds: give 1000 times as much"


class StoreError(BrokerError):
    """Something about a store as a whole."""

    def __init__(self, message: str, *, path: str | os.PathLike[str] | None = None) -> None:
        super().__init__(message)
        self.path: str | None = None if path is None else os.fspath(path)
        """The file or directory that it is about; None when there is no single one."""


class NotAStore(StoreError):
    """The path holds nothing that RocketMQ or checkback wrote."""


class StoreLocked(StoreError):
    """Another process is alone with the store, or works on it."""


class StoreFull(StoreError):
    """The disk has no room for what was asked; nothing was lost and sends work again when there is space."""

    def __init__(
        self, message: str, *, path: str | os.PathLike[str] | None = None, needed_bytes: int = 0, free_bytes: int = 0
    ) -> None:
        super().__init__(message, path=path)
        self.needed_bytes: int = needed_bytes
        """How many bytes were asked for."""
        self.free_bytes: int = free_bytes
        """How many bytes were free then."""


class NotUnderstood(StoreError):
    """A repair would replace, or leave behind, what checkback cannot make. Nothing was changed; `path` names it."""


class SyncFailed(StoreError):
    """The disk failed an fsync: nobody knows what of it is there, so the store must be opened again."""


class CorruptStore(StoreError):
    """The store holds something that no crash explains."""


class CorruptRecord(CorruptStore):
    """Bytes that are not the value they should be."""

    def __init__(
        self,
        reason: str,
        *,
        at: int = 0,
        commitlog_offset: int | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        place = f"at {at}" if commitlog_offset is None else f"at CommitLog offset {commitlog_offset}"
        super().__init__(
            f"{os.fspath(path)} {place}: {reason}" if path is not None else f"{place}: {reason}", path=path
        )
        self.reason: str = reason
        """The sentence without the place."""
        self.at: int = at
        """Position in the buffer that was decoded, in bytes from 0."""
        self.commitlog_offset: int | None = commitlog_offset
        """Byte position in the CommitLog; None where it is not known, or the bytes are not of the CommitLog."""

    def __reduce__(self) -> tuple[object, ...]:  # from another process it would name its place twice
        made = functools.partial(type(self), at=self.at, commitlog_offset=self.commitlog_offset, path=self.path)
        return made, (self.reason,), self.__dict__


class MessageRejected(BrokerError, ValueError):
    """A message that RocketMQ would refuse: too large, a bad topic, a bad property."""


class BodyError(BrokerError):
    """The body of a message does not decode as the value that its handler takes; the sentence is the reason."""


class NotPermitted(BrokerError):
    """The store does not take this by the way it was opened or by its topic's configuration; nothing was written."""

    def __init__(self, message: str, *, code: str = "NO_PERMISSION") -> None:
        super().__init__(message)
        self.code: str = code
        """What RocketMQ answers: NO_PERMISSION, SLAVE_NOT_AVAILABLE or SYSTEM_BUSY."""


class ProtocolError(BrokerError):
    """Bytes from the network that are not RocketMQ's remoting protocol, or lack what they must have."""

    def __init__(self, message: str, *, code: int = 1) -> None:
        super().__init__(message)
        self.code: int = code
        """The response code that a server answers where it still can: 1 (SYSTEM_ERROR), or a more exact one."""


class ClusterError(BrokerError):
    """A name server or a broker of a cluster did not answer in time, or refused a request."""

    def __init__(self, message: str, *, code: int | None = None, was_sent: bool = False) -> None:
        super().__init__(message)
        self.code: int | None = code
        """The response code (RocketMQ: ResponseCode, 5.3.3); None when there was no response."""
        self.was_sent: bool = was_sent
        """Whether the request went out: without a response it may have been obeyed."""


class NotInCluster(BrokerError, AttributeError):
    """What a store on this machine has, and a client of a cluster cannot have."""


class TransactionError(BrokerError):
    """Something about one transaction."""

    def __init__(self, message: str, *, message_id: str | None = None) -> None:
        super().__init__(message)
        self.message_id: str | None = message_id
        """The offset message id of its half message; None where the caller has none."""


class AlreadyEnded(TransactionError):
    """The transaction was already ended the other way; the first decision stands."""

    def __init__(self, message: str, *, message_id: str | None = None, state: int = 0) -> None:
        super().__init__(message, message_id=message_id)
        self.state: int = state
        """How it was ended, a number of TransactionState: 8 committed, 12 rolled back; 0 where it is not known."""


class UnknownOutcome(TransactionError):
    """Nobody can say yet how the transaction ended; check-back will decide."""
