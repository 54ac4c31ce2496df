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

from broker.format import properties as names
from broker.format.commitlog import Record
from broker.format.java import Host, encode_message_id
from broker.format.topics import HALF_TOPIC
from broker.message import Message, ReceivedMessage
from broker.store.read.store import Store
from broker.store.write.admission import Admission
from broker.store.write.compose import Origin
from broker.store.write.pending_record import LOCAL_HOST
from broker.store.writer import StoreWriter
from broker.transaction.events import TransactionState


class HalfReference(NamedTuple):
    """What names a transaction from elsewhere: the fields of RocketMQ's END_TRANSACTION."""

    commitlog_offset: int
    slot: int
    producer_group: str


@dataclass(frozen=True)
class Half:
    """A half message: stored, not delivered, waiting for its end."""

    commitlog_offset: int
    slot: int  # its place in the state table; of the engine half-op its queue offset in the half topic
    producer_group: str
    topic: str  # where consumers will find it
    queue_id: int
    unique_key: str | None  # 3.x made none
    keys: tuple[str, ...]
    born_timestamp_ms: int
    store_timestamp_ms: int
    size: int  # of the record, in bytes
    properties: Mapping[str, str] = field(repr=False, compare=False)
    store_host: Host = field(default=LOCAL_HOST, repr=False)  # stands in the class: see StateTableService._half

    @classmethod
    def of(cls, record: Record) -> Self:
        """The half message that a record is; one in the half topic says where it belongs."""
        properties = record.property_map
        is_aside = record.topic == HALF_TOPIC
        return cls(
            record.commitlog_offset,
            record.queue_offset,
            properties.get(names.PGROUP, ""),
            properties.get(names.REAL_TOPIC, "") if is_aside else record.topic,
            int(properties.get(names.REAL_QID, 0)) if is_aside else record.queue_id,
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
        """Where its record ends in the CommitLog: it is on disk when the log is durable up to here."""
        return self.commitlog_offset + self.size

    @property
    def message_id(self) -> str:
        """The offset message id. RocketMQ: MessageDecoder.createMessageId (5.3.3)."""
        return encode_message_id(self.store_host, self.commitlog_offset)

    @property
    def broker_name(self) -> str:
        """Which broker of a cluster has it; empty for a store on this machine."""
        return ""

    @property
    def reference(self) -> HalfReference:
        return HalfReference(self.commitlog_offset, self.slot, self.producer_group)


@dataclass(frozen=True)
class Ended:
    """How a transaction ended."""

    state: TransactionState
    commitlog_offset: int | None  # of the end record; None when another process had written it before
    queue_offset: int | None  # of a commit: where consumers find the message; None while it waits for its delay
    again: bool = False  # it had been decided the same way before; nothing was written


class LocalTransactionState(enum.Enum):
    """What a producer says about its local transaction. RocketMQ: LocalTransactionState (5.3.3)."""

    COMMIT_MESSAGE = "commit"
    ROLLBACK_MESSAGE = "rollback"
    UNKNOW = "unknown"  # Quirk: RocketMQ's spelling


class CheckListener(abc.ABC):
    """Answers for half messages that were left in doubt.

    RocketMQ: AbstractTransactionalMessageCheckListener (5.3.3), which asks a connected producer.
    """

    @abc.abstractmethod
    def resolve_half_message(self, half: Half, message: ReceivedMessage) -> LocalTransactionState:
        """How the local transaction of a half message ended; UNKNOW asks again in a later round."""

    def resolve_discard_message(self, service: TransactionalMessageService, half: Half) -> None:
        """Do something with a half message that was checked too often: it is parked."""
        service.park(half, "nobody could say how the local transaction ended")


class ParkNote(NamedTuple):
    """A record of the park topic: somebody parked a half message, or took it back."""

    half_offset: int  # CommitLog offset of the half message
    parks: bool  # False: it was taken back
    why: str
    by: str
    commitlog_offset: int  # of the record itself
    stored_ms: int
    queue_offset: int


class TransactionalMessageBridge(NamedTuple):
    """What a service works on. RocketMQ: TransactionalMessageBridge (5.3.3)."""

    store: Store  # for reading
    writer: StoreWriter
    admission: Admission


Reference = Half | HalfReference


class HalfMessageService(abc.ABC):
    """What becomes of half messages that are stored: the part of the service that a local transaction needs.

    A store on this machine implements it, and so does a client of a cluster.
    """

    @abc.abstractmethod
    def wait_durable(self, half: Half) -> None:
        """Return when a half message, and all before it, are as durable as the sync mode says. Raises SyncFailed."""

    @abc.abstractmethod
    def commit(self, half: Half, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """Deliver a half message. Raises BrokerError when it cannot be ended now: check-back will do it.

        `extra_properties` are for the end record, where there is a place for them.
        """

    @abc.abstractmethod
    def rollback(self, half: Half, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """Never deliver a half message; else like `commit`."""

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
        """Get ready; called once, when the store has been opened."""

    @abc.abstractmethod
    def close(self) -> None:
        """Let go; called before the store is closed."""

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
        """Store a half message; as durable as the sync mode says when this returns.

        Without `wait` it need not be: call `wait_durable` before anything rests on it, so that many half messages, and
        those of other threads, cost one fsync. `extra_properties` may have names that are RocketMQ's own. With
        DELAY, a level, the message is delivered that long after its commit. `origin` says who sent a message that comes
        from elsewhere. Raises MessageRejected, NotPermitted,
        StoreFull, SyncFailed.
        RocketMQ: TransactionalMessageService.prepareMessage.
        """

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

        What `prepare` refuses is raised at once. RocketMQ: TransactionalMessageService.asyncPrepareMessage.
        """

    @abc.abstractmethod
    def commit(self, half: Reference, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """Deliver a half message: once, even if others decide at the same time.

        The first decision wins: the same one again returns Ended(again=True), after a contrary one AlreadyEnded is
        raised. `extra_properties` may be events.WHY, events.BY and TRANSACTION_CHECK_TIMES. Raises TransactionError
        when the reference does not name a half message of this group and slot.
        RocketMQ: TransactionalMessageService.commitMessage.
        """

    @abc.abstractmethod
    def rollback(self, half: Reference, *, extra_properties: Mapping[str, str] | None = None) -> Ended:
        """Never deliver a half message; else like `commit`. RocketMQ: TransactionalMessageService.rollbackMessage."""

    @abc.abstractmethod
    def delete_prepare(self, half: Reference) -> bool:
        """Take a half message out of what is in doubt, after it was ended; whether it is out.

        RocketMQ: TransactionalMessageService.deletePrepareMessage, which the 4.x end processor calls after each end.
        """

    @abc.abstractmethod
    def state(self, half: Reference) -> TransactionState:
        """How a transaction stands. Raises TransactionError when the reference names none."""

    @abc.abstractmethod
    def half(self, commitlog_offset: int) -> Half:
        """The half message at a CommitLog offset, settled or not. Raises TransactionError when none begins there."""

    @abc.abstractmethod
    def message(self, half: Half) -> ReceivedMessage:
        """The message in a half, with its body."""

    @abc.abstractmethod
    def in_doubt(self, *, after_slot: int = -1, limit: int | None = None) -> Iterator[Half]:
        """The half messages that nobody ended, lowest slot first, parked ones included.

        The log is flushed first: a power cut could undo what is not durable, and nothing would report it. Raises
        SyncFailed.
        """

    @abc.abstractmethod
    def in_doubt_slots(self) -> list[int]:
        """The slots in doubt. Cheap: of each slot in the table only the state is looked at."""

    @abc.abstractmethod
    def parked(self) -> dict[int, ParkNote]:
        """The half messages that are in doubt and parked, by CommitLog offset, each with the note that parks it."""

    @abc.abstractmethod
    def park(self, half: Half, why: str) -> bool:
        """Stop checking a half message until a person decides. False when it is parked or ended already.

        It stays in doubt: it can be committed and rolled back as before. One small record says so.
        """

    @abc.abstractmethod
    def unpark(self, half: Half, why: str) -> bool:
        """Check it again from now on. False when it is not parked."""

    @abc.abstractmethod
    def check(self, timeout_ms: int, check_max: int, listener: CheckListener) -> int:
        """Ask a listener once for each half message older than a time-out; returns how many were checked.

        One that has been checked `check_max` times goes to `resolve_discard_message`. A producer's own
        CHECK_IMMUNITY_TIME_IN_SECONDS comes before the time-out. RocketMQ: TransactionalMessageService.check.
        """
