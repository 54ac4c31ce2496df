"""Where the messages of a producer go: into a store on this machine, or to the brokers of a cluster.

A producer knows messages, groups and local transactions. What differs between a store and a cluster is here: which
queue, how a message is stored, what remembers a group and its ledger, and how a half message is ended.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from broker.format.java import string_hash
from broker.message import Message
from broker.transaction.service import Half, HalfMessageService, LocalTransactionState

if TYPE_CHECKING:
    from broker.database.bound_ledger import BoundLedger

STORED = "SEND_OK"


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message went. RocketMQ: SendResult (5.3.3)."""

    message_id: str
    """The offset message id, 32 hexadecimal digits for IPv4: the broker's address, the place in its CommitLog."""
    unique_key: str | None
    """The producer's id of the message (UNIQ_KEY), 32 hexadecimal digits; None of a batch: the store makes it."""
    topic: str
    """The topic that the message was sent to."""
    queue_id: int
    """The queue of the topic, from 0."""
    queue_offset: int
    """Index in the queue, from 0; of a half message its slot, of a delayed one its place in the schedule topic."""
    commitlog_offset: int
    """Byte position of the record in the CommitLog; of a cluster in that of the broker that has it."""
    local_state: LocalTransactionState | None = None
    """How the local transaction ended, of `send_message_in_transaction`; None of other sends."""
    status: str = STORED
    """SEND_OK; of a cluster also FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE."""
    broker_name: str = ""
    """Of a cluster: which broker has it. Empty of a store on this machine."""

    @classmethod
    def of_half(cls, half: Half, local_state: LocalTransactionState | None = None) -> SendResult:
        """The place of a half message: its slot is the queue offset."""
        place = (half.topic, half.queue_id, half.slot, half.commitlog_offset)
        return cls(half.message_id, half.unique_key, *place, local_state, broker_name=half.broker_name)


class Destination(abc.ABC):
    """Takes the messages of one producer group."""

    @property
    @abc.abstractmethod
    def prepare_waits(self) -> bool:
        """Whether `prepare` waits for a disk or a network even without `wait`: then not in an event loop."""

    @property
    @abc.abstractmethod
    def store_id(self) -> str:
        """What a ledger is bound to: the store, or the cluster."""

    @property
    @abc.abstractmethod
    def transactions(self) -> HalfMessageService:
        """What ends half messages."""

    @abc.abstractmethod
    def open_plain(self) -> None:
        """Get ready for a producer that sends no half messages. Raises TransactionError for a transactional group."""

    @abc.abstractmethod
    def open_transactional(self, topics: frozenset[str], ledger: BoundLedger | None, resolver: Any) -> None:
        """Get ready for half messages: the topics are there, the group is remembered, the ledger is bound.

        Raises TransactionError.
        """

    @abc.abstractmethod
    def send(self, message: Message, extra_properties: Mapping[str, str], sharding_key: str | None) -> SendResult:
        """Store a message; see `Producer.send`."""

    @abc.abstractmethod
    def send_batch(self, messages: Sequence[Message]) -> list[SendResult]:
        """Store messages of one topic together, all or none."""

    @abc.abstractmethod
    def prepare(
        self, message: Message, extra_properties: Mapping[str, str], sharding_key: str | None, *, wait: bool
    ) -> Half:
        """Store a half message; without `wait` it need not be durable before `transactions.wait_durable`."""


def place_of(sharding_key: str, count: int) -> int:
    """Which of so many queues the messages of a sharding key go to. RocketMQ: SelectMessageQueueByHash (5.3.3)."""
    return abs(string_hash(sharding_key)) % count  # |a % b| by Java's %, which keeps the sign


class Destinations(Protocol):
    """What makes producers: an open store, or a client of a cluster."""

    @property
    def path(self) -> str:
        """Where it is: the directory of a store, the URL of a cluster."""

    def destination(self, group: str) -> Destination:
        """Where the messages of a producer group go."""
