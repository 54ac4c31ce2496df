"""A store on this machine as the destination of a producer's messages."""

from __future__ import annotations

import itertools
import os
import random
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from broker.database.ledger_binding import KnownLedgers
from broker.errors import MessageRejected, TransactionError
from broker.format import properties as names
from broker.format.config import DEFAULT_QUEUES, MESSAGE_TYPE_ATTRIBUTE, TopicConfig
from broker.format.java import encode_message_id
from broker.message import Message
from broker.producing.destination import Destination, SendResult, place_of
from broker.store.write.pending_record import LOCAL_HOST, Appended
from broker.transaction.service import Half, HalfMessageService

if TYPE_CHECKING:
    from broker.database.bound_ledger import BoundLedger
    from broker.writable_store import WritableStore

_TRANSACTIONAL = b"transactional\n"
_TAKEN_TYPES = ("", "TRANSACTION", "MIXED")
_ID_OF_HOST = encode_message_id(LOCAL_HOST, 0)[:-16]  # an id begins with it, and ends with the CommitLog offset

_marking = threading.Lock()  # two threads of a process would write the same temporary file


class StoreDestination(Destination):
    """Appends to a store, round robin over the queues of a topic."""

    def __init__(self, store: WritableStore, group: str) -> None:
        self._store, self._group = store, group
        self._turns: dict[str, itertools.count[int]] = {}

    @property
    def prepare_waits(self) -> bool:
        """In the mode `each` an append waits for its fsync; in the others all wait together, before COMMIT."""
        return self._store.writer.sync == "each"

    @property
    def store_id(self) -> str:
        return self._store.writer.store_id

    @property
    def transactions(self) -> HalfMessageService:
        return self._store.transactions

    @property
    def _mark(self) -> str:
        """The file that says that a group is transactional; losing it loses this check and nothing else."""
        return os.path.join(self._store.writer.paths.own, "producers", self._group)

    def open_plain(self) -> None:
        if self._store.writer.disk.entry(self._mark) is not None:
            text = f"the producer group {self._group} is transactional: take another one for other messages"
            raise TransactionError(text)

    def open_transactional(self, topics: frozenset[str], ledger: BoundLedger | None, resolver: Any) -> None:  # noqa: ARG002
        """Check-back asks the resolver; here nothing needs to know it."""
        if ledger is not None:
            ledger.bind(self.store_id, KnownLedgers(self._store.path, self._store.writer.disk))
        for topic in sorted(topics):
            known = self._store.topic(topic)
            if known is None or not _takes_halves(known):  # as far as is known: this looks again
                known = self._store.create_topic(topic, message_type="TRANSACTION", change=False)
            if not _takes_halves(known):
                accepts = known.attributes[MESSAGE_TYPE_ATTRIBUTE]
                text = f"the topic {topic} takes {accepts} messages: make it take TRANSACTION or MIXED, or use another"
                raise TransactionError(text)
        disk, directory = self._store.writer.disk, os.path.dirname(self._mark)
        with _marking:
            if disk.entry(self._mark) is None:
                disk.create_directory(directory)
                disk.write_file(self._mark, _TRANSACTIONAL)

    def send(self, message: Message, extra_properties: Mapping[str, str], sharding_key: str | None) -> SendResult:
        queue_id = self._queue(message.topic, sharding_key)
        try:
            placed = self._store.append(message, queue_id=queue_id, extra_properties=extra_properties)
        except MessageRejected:
            if not self._takes_no_more(message.topic, queue_id):
                raise
            return self.send(message, extra_properties, sharding_key)
        return _result(message.topic, queue_id, placed, extra_properties.get(names.UNIQ_KEY))

    def send_batch(self, messages: Sequence[Message]) -> list[SendResult]:
        topic = messages[0].topic if messages else ""
        queue_id = self._queue(topic, None)
        try:
            placed = self._store.append_batch(messages, queue_id=queue_id)
        except MessageRejected:
            if not self._takes_no_more(topic, queue_id):
                raise
            return self.send_batch(messages)
        return [_result(topic, queue_id, one, None) for one in placed]

    def prepare(
        self, message: Message, extra_properties: Mapping[str, str], sharding_key: str | None, *, wait: bool
    ) -> Half:
        queue_id = self._queue(message.topic, sharding_key)
        try:
            return self._store.transactions.prepare(
                message, self._group, queue_id=queue_id, extra_properties=extra_properties, wait=wait
            )
        except MessageRejected:
            if not self._takes_no_more(message.topic, queue_id):
                raise
            return self.prepare(message, extra_properties, sharding_key, wait=wait)

    def _takes_no_more(self, topic: str, queue_id: int) -> bool:
        """Whether another process made the topic smaller since its queue was chosen: the refusal has had it read."""
        known = self._store.topic(topic)
        return known is not None and queue_id >= max(1, known.write_queue_count)

    def _queue(self, topic: str, sharding_key: str | None) -> int:
        """The next queue, or that of a sharding key. RocketMQ: TopicPublishInfo.selectOneMessageQueue (5.3.3)."""
        known = self._store.topic(topic)
        count = DEFAULT_QUEUES if known is None else max(1, known.write_queue_count)
        if sharding_key is not None:
            return place_of(sharding_key, count)
        turn = self._turns.get(topic)
        if turn is None:
            turn = self._turns.setdefault(topic, itertools.count(random.randrange(count)))
        return next(turn) % count


def _takes_halves(topic: TopicConfig) -> bool:
    return topic.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "") in _TAKEN_TYPES  # without a type it takes all


def _result(topic: str, queue_id: int, placed: Appended, unique_key: str | None) -> SendResult:
    message_id = f"{_ID_OF_HOST}{placed.commitlog_offset:016X}"
    return SendResult(message_id, unique_key, topic, queue_id, placed.queue_offset, placed.commitlog_offset)
