"""What differs between the engines of transactions: which records they append, and what those mean for the slots.

A store has one engine, which store.json names. Each keeps the state of its transactions in a table of slots of one
layout (`broker.format.statetable`); appending, dispatch, replay, recovery and retention are the same code for all. The
engines are in `broker.store.engines`.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import ClassVar, Unpack

from broker.format.commitlog import Record
from broker.format.sysflag import TransactionType
from broker.message import ReceivedMessage
from broker.store.disk.paths import Paths
from broker.store.write.pending_record import PendingRecord, SenderFields


class TransactionEngine(abc.ABC):
    """One way to record transactions. Engines have no state: one instance serves all stores."""

    name: ClassVar[str]  # in store.json and in broker.open
    has_redo_log: ClassVar[bool]
    half_queue: ClassVar[tuple[str, int] | None] = None  # topic and queue of half messages that are moved aside
    op_model: ClassVar[PendingRecord | None] = None  # an op message without its body, where each end is one

    def table(self, paths: Paths) -> str:
        """The directory of the table of slots."""
        return paths.table_of(self.name)

    def directories(self, paths: Paths) -> tuple[str, ...]:
        """The directories of files that are derived for transactions, the table's included."""
        return (self.table(paths), paths.redo_log) if self.has_redo_log else (self.table(paths),)

    # What is appended

    @abc.abstractmethod
    def half(
        self, topic: str, body: bytes, properties: dict[str, str], *, queue_id: int, **sender: Unpack[SenderFields]
    ) -> PendingRecord:
        """The half message of a message for a queue; `properties` get what the engine adds. Raises MessageRejected."""

    @abc.abstractmethod
    def ends(
        self, half: PendingRecord, half_offset: int, slot: int, kind: TransactionType, now_ms: int
    ) -> tuple[PendingRecord, ...]:
        """The records that end a half message, to be appended as one; the first one says how, and may say more."""

    # What is in the log

    @abc.abstractmethod
    def read_half(self, raw: bytes) -> tuple[PendingRecord, Record]:
        """A half message from the log as a draft that ends can be made of, whichever program wrote it.

        Raises CorruptRecord, and TransactionError when it is not a half message, or cannot be ended here.
        """

    @abc.abstractmethod
    def is_half(self, record: Record) -> bool:
        """Whether a record is a half message of this engine."""

    @abc.abstractmethod
    def recognise(self, record: PendingRecord, properties: Mapping[str, str]) -> None:
        """Note in a record from the log what it means for the slots."""

    @abc.abstractmethod
    def opens_slot(self, record: PendingRecord) -> bool:
        """Whether a record is a half message: its slot is the queue offset that it gets."""

    @abc.abstractmethod
    def target(self, half: PendingRecord) -> str:
        """The topic in which consumers find the message of a half message."""

    @abc.abstractmethod
    def received(self, record: Record) -> ReceivedMessage:
        """The message in a half message, as consumers would get it."""
