"""The interface to transactions, whatever keeps their state: prepare, commit, rollback, what is in doubt.

RocketMQ: TransactionalMessageService, and its AbstractTransactionalMessageCheckListener (5.3.3).
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, Self

from broker.errors import CorruptRecord, CorruptStore
from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.java import Host, encode_message_id
from broker.format.sysflag import TransactionType
from broker.format.topics import HALF_TOPIC
from broker.message import Message, ReceivedMessage
from broker.store.read.store import Store
from broker.store.write.admission import Admission
from broker.store.write.compose import Origin
from broker.store.write.pending_record import LOCAL_HOST
from broker.store.writer import StoreWriter
from broker.transaction.events import TransactionState


class HalfReference(NamedTuple):
    """What names a transaction from elsewhere. RocketMQ: EndTransactionRequestHeader (5.3.3)."""

    commitlog_offset: int
    """Byte position of the half message in the CommitLog."""
    slot: int
    """Its place in the state table, from 0; with half-op its queue offset in the half topic."""
    producer_group: str
    """The group that sent it."""


@dataclass(frozen=True)
class Half:
    """A half message: stored, not delivered, waiting for its end."""

    commitlog_offset: int
    """Byte position of the record in the CommitLog."""
    slot: int
    """Its place in the state table, from 0; with half-op its queue offset in the half topic."""
    producer_group: str
    """The group that sent it: whom check-back asks."""
    topic: str
    """Where consumers will find it."""
    queue_id: int
    """The queue of that topic, from 0."""
    unique_key: str | None
    """The producer's id of the message (UNIQ_KEY); None of RocketMQ 3.x, which made none."""
    keys: tuple[str, ...]
    """The message's keys; empty: none."""
    born_timestamp_ms: int
    """When it was sent, by the producer's clock, in milliseconds since 1970."""
    store_timestamp_ms: int
    """When it was stored, by the broker's clock, in milliseconds since 1970."""
    size: int
    """Of the record, in bytes."""
    properties: Mapping[str, str] = field(repr=False, compare=False)
    """All of them, RocketMQ's own included."""
    store_host: Host = field(default=LOCAL_HOST, repr=False)  # stands in the class: see preparing.py
    """Address (4 or 16 bytes) and port that its message id names."""

    @classmethod
    def of(cls, record: Record) -> Self:
        """The half message that a record is; one in the half topic says where it belongs.

        Raises CorruptRecord when the properties do not decode, or name no queue.
        """
        properties = record.property_map
        is_aside = record.topic == HALF_TOPIC
        queue_id = names.decimal(properties.get(names.REAL_QID, "0"), 10) if is_aside else record.queue_id
        if queue_id is None:
            reason = f"the half message says {names.REAL_QID} {properties[names.REAL_QID]!r:.40}, which is not a queue"
            raise CorruptRecord(reason, commitlog_offset=record.commitlog_offset)
        return cls(
            record.commitlog_offset,
            record.queue_offset,
            properties.get(names.PGROUP, ""),
            properties.get(names.REAL_TOPIC, "") if is_aside else record.topic,
            queue_id,
            properties.get(names.UNIQ_KEY),
            tuple(names.keys(properties)),
            record.born_timestamp_ms,
            record.store_timestamp_ms,
            record.total_size,
            MappingProxyType(properties),
            record.store_host,
        )

    @property
    def end(self) -> int:
        """The CommitLog offset where its record ends: it is on disk when the log is durable up to here."""
        return self.commitlog_offset + self.size

    @property
    def message_id(self) -> str:
        """The offset message id, 32 hexadecimal digits for IPv4. RocketMQ: MessageDecoder.createMessageId (5.3.3)."""
        return encode_message_id(self.store_host, self.commitlog_offset)

    @property
    def broker_name(self) -> str:
        """Which broker of a cluster has it; empty for a store on this machine."""
        return ""

    @property
    def reference(self) -> HalfReference:
        """The three fields that name it."""
        return HalfReference(self.commitlog_offset, self.slot, self.producer_group)


@dataclass(frozen=True)
class Ended:
    """How a transaction ended."""

    state: TransactionState
    """COMMITTED or ROLLED_BACK."""
    commitlog_offset: int | None
    """Byte position of the end record; None when it was written before, or in a cluster."""
    queue_offset: int | None
    """Of a commit: where consumers find the message, from 0. None of a rollback, and while it waits for its delay."""
    again: bool = False
    """Whether it had been decided the same way before: then nothing was written."""


class LocalTransactionState(enum.Enum):
    """What a producer says about its local transaction. RocketMQ: LocalTransactionState (5.3.3)."""

    COMMIT_MESSAGE = "commit"
    """It committed: deliver the message."""
    ROLLBACK_MESSAGE = "rollback"
    """It did not: never deliver the message."""
    UNKNOW = "unknown"
    """Ask again later. Quirk: RocketMQ's spelling."""


class CheckListener(abc.ABC):
    """Answers for half messages that were left in doubt.

    RocketMQ: AbstractTransactionalMessageCheckListener (5.3.3), which asks a connected producer.
    """

    @abc.abstractmethod
    def resolve_half_message(self, half: Half, message: ReceivedMessage) -> LocalTransactionState:
        """How the local transaction of a half message ended; UNKNOW, and what it raises, ask again in a later round."""

    def resolve_discard_message(self, service: TransactionalMessageService, half: Half) -> None:
        """Do something with a half message that was checked too often: by default park it. Raises as `park`."""
        service.park(half, "nobody could say how the local transaction ended")


class ParkNote(NamedTuple):
    """A record of the park topic: somebody parked a half message, or took it back."""

    half_offset: int
    """CommitLog offset of the half message; -1 in a copy that RocketMQ wrote, which does not name it."""
    parks: bool
    """False: it was taken back."""
    why: str
    """The reason; empty: none was given."""
    by: str
    """Who did it; empty: it is not known."""
    commitlog_offset: int
    """Of the record itself."""
    stored_ms: int
    """When it was stored, in milliseconds since 1970."""
    queue_offset: int
    """Its index in the park topic, from 0."""


class TransactionalMessageBridge(NamedTuple):
    """What a service works on. RocketMQ: TransactionalMessageBridge (5.3.3)."""

    store: Store
    """The store, for reading."""
    writer: StoreWriter
    """The process's hold on the store: appends, fsync."""
    admission: Admission
    """Which messages the store takes."""


Reference = Half | HalfReference
"""What names a transaction: the half message itself, or its three fields."""


class HalfMessageService(abc.ABC):
    """What becomes of half messages that are stored: the part of the service that a local transaction needs.

    A store on this machine implements it, and so does a client of a cluster.
    """

    def begin_flush(self, half: Half) -> bool:  # noqa: ARG002 - one that can says so
        """Let a half message become durable beside what the caller does next, until it calls `wait_durable`.

        False when the caller does better to wait now.
        """
        return False

    @abc.abstractmethod
    def wait_durable(self, half: Half) -> None:
        """Return when a half message, and all before it, are as durable as the sync mode says.

        Raises SyncFailed, StoreError when files of the store were deleted or cut.
        """

    @abc.abstractmethod
    def commit(self, half: Half, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """Deliver a half message. Raises BrokerError when it cannot be ended now: check-back will do it.

        `extra_properties` are for the end record, where there is a place for them: in a store, not in a cluster.
        """

    @abc.abstractmethod
    def rollback(self, half: Half, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """Never deliver a half message; else like `commit`, with its errors."""

    @abc.abstractmethod
    def park(self, half: Half, why: str) -> bool:
        """Stop checking a half message until a person decides. False when it is parked or ended already."""


class TransactionalMessageService(HalfMessageService):
    """Transactions of one open store. Threads may share it; every decision is made once, whichever process makes it.

    Implementations are found by the entry point group `checkback.transaction_service`; each is called with
    a `TransactionalMessageBridge`.
    """

    @abc.abstractmethod
    def open(self) -> None:
        """Get ready; the store calls it once, when it has been opened."""

    @abc.abstractmethod
    def close(self) -> None:
        """Finish what runs; the store calls it before it is closed."""

    @abc.abstractmethod
    def prepare(
        self,
        message: Message,
        producer_group: str,
        *,
        queue_id: int = 0,
        extra_properties: Mapping[str, str] | None = None,
        wait: bool = True,
        origin: Origin | None = None,
    ) -> Half:
        """Store a half message for a queue (from 0) of its topic; as durable as the sync mode says when this returns.

        Without `wait` it need not be: call `wait_durable` before anything rests on it, so that many half messages, and
        those of other threads, cost one fsync. `extra_properties` may have names that are RocketMQ's own. With
        DELAY, a level, the message is delivered that long after its commit. `origin` says who sent a message that comes
        from elsewhere; None: this process, now. Raises MessageRejected for an empty group and for what the topic, the
        queue or a segment does not take; NotPermitted in a slave, with `reject_transactions`, at `in_doubt_max` and for
        a topic that may not be written; StoreFull; StoreError for a store that was closed, lost files or failed an
        fsync before: then nothing was written. Raises SyncFailed when its fsync failed: it may be there.
        RocketMQ: TransactionalMessageService.prepareMessage (5.3.3).
        """

    def prepare_at_once(
        self,
        message: Message,  # noqa: ARG002 - a service that never waits says more
        producer_group: str,  # noqa: ARG002
        *,
        queue_id: int,  # noqa: ARG002
        extra_properties: Mapping[str, str],  # noqa: ARG002
        origin: Origin,  # noqa: ARG002
    ) -> Half | None:
        """`prepare` for an event loop, without `wait`: None, and nothing stored, where it would wait for a lock, count
        what is in doubt, or refuse the message.

        Raises NotPermitted while half messages are refused.
        """
        return None

    @abc.abstractmethod
    def prepare_async(
        self,
        message: Message,
        producer_group: str,
        *,
        queue_id: int = 0,
        extra_properties: Mapping[str, str] | None = None,
    ) -> Future[Half]:
        """The same, without waiting for the disk: the future is done when the half message is durable.

        Raises what `prepare` raises at once, but for SyncFailed, which the future has.
        RocketMQ: TransactionalMessageService.asyncPrepareMessage (5.3.3).
        """

    def end_at_once(self, half: Reference, kind: TransactionType) -> Ended | None:  # noqa: ARG002
        """`commit` or `rollback` for an event loop: None, and nothing stored, where that would wait, or refuse."""
        return None

    @abc.abstractmethod
    def commit(self, half: Reference, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """Deliver a half message: once, even if others decide at the same time.

        The first decision wins: the same one again returns Ended(again=True). `extra_properties` may be CHECKBACK_WHY,
        CHECKBACK_BY and TRANSACTION_CHECK_TIMES. Raises AlreadyEnded after a contrary decision, TransactionError when
        the reference does not name a half message of this group and slot, MessageRejected for other properties,
        NotPermitted in a slave, StoreFull, SyncFailed, StoreError as `prepare`.
        RocketMQ: TransactionalMessageService.commitMessage (5.3.3).
        """

    @abc.abstractmethod
    def rollback(self, half: Reference, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """Never deliver a half message; else like `commit`, with its errors.

        RocketMQ: TransactionalMessageService.rollbackMessage (5.3.3).
        """

    @abc.abstractmethod
    def delete_prepare(self, half: Reference) -> bool:
        """Take a half message out of what is in doubt, after it was ended; whether it is out.

        Raises TransactionError when the reference names none.
        RocketMQ: TransactionalMessageService.deletePrepareMessage (5.3.3): the end processor calls it after each end.
        """

    @abc.abstractmethod
    def state(self, half: Reference) -> TransactionState:
        """How a transaction stands; PARKED for one in doubt that is parked.

        Raises TransactionError when the reference names none.
        """

    @abc.abstractmethod
    def half(self, commitlog_offset: int) -> Half:
        """The half message at a CommitLog offset, settled or not.

        Raises TransactionError when none begins there, CorruptRecord for one that is damaged.
        """

    @abc.abstractmethod
    def message(self, half: Half) -> ReceivedMessage:
        """The message in a half, with its body, as its consumers would get it. Raises as `half`."""

    @abc.abstractmethod
    def in_doubt(
        self, *, after_slot: int = -1, limit: int | None = None, damaged: list[CorruptStore] | None = None
    ) -> Iterator[Half]:
        """The half messages that nobody ended, lowest slot first, parked ones included.

        Those with a slot above `after_slot` (-1: all), at most `limit` (None: all). The log is flushed first: a power
        cut could undo what is not durable, and nothing would report it. Raises TransactionError for bounds that are not
        numbers; at the first one SyncFailed, and StoreError as `prepare`; CorruptStore for one that cannot be read, or
        adds that to `damaged` and goes on.
        """

    @abc.abstractmethod
    def in_doubt_slots(self) -> list[int]:
        """The slots in doubt, ascending. Cheap: of each slot in the table only the state is looked at."""

    @abc.abstractmethod
    def parked(self) -> dict[int, ParkNote]:
        """The half messages that are in doubt and parked, by CommitLog offset, each with the note that parks it."""

    @abc.abstractmethod
    def park(self, half: Half, why: str) -> bool:
        """Stop checking a half message until a person decides. False when it is parked or ended already.

        It stays in doubt: it can be committed and rolled back as before. One small record says so, with the reason
        `why`. Raises NotPermitted in a slave, TransactionError when there is no such half message, MessageRejected for
        a reason that no property can hold, StoreFull, SyncFailed.
        """

    @abc.abstractmethod
    def unpark(self, half: Half, why: str) -> bool:
        """Check it again from now on. False when it is not parked. Raises as `park`."""

    @abc.abstractmethod
    def check(self, timeout_ms: int, check_max: int, listener: CheckListener) -> int:
        """Ask a listener once for each half message that was sent `timeout_ms` ago; returns how many were checked.

        One that has been checked `check_max` times by this process goes to `resolve_discard_message`. A producer's own
        CHECK_IMMUNITY_TIME_IN_SECONDS comes before the time-out; parked ones are left alone. Raises what `in_doubt`,
        `commit` and `rollback` raise, but for AlreadyEnded; and once all were checked what `resolve_discard_message`
        raised first. RocketMQ: TransactionalMessageService.check (5.3.3).
        """
