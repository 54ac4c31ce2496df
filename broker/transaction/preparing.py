"""From a message to a half message in the log. Nobody has waited for the disk yet.

The common case is one call of the C module; what is not common goes the longer way, which says what it refuses.

RocketMQ: TransactionalMessageBridge.putHalfMessage (5.3.3).
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from broker.errors import MessageRejected
from broker.format import properties as names
from broker.message import Message, check_texts
from broker.store.clock import StoreClock
from broker.store.write.admission import DELAYS, Admission
from broker.store.write.compose import (
    KEPT_FLAGS,
    Composed,
    Origin,
    Statement,
    check_arguments,
    compose_half,
    statement_of,
)
from broker.store.write.pending_record import Appended
from broker.store.write.uniquekey import new_unique_key
from broker.store.writer import StoreWriter
from broker.transaction.service import Half


class HalfWriter:
    """Stores the half messages of one open store. Threads may share it."""

    def __init__(self, writer: StoreWriter, admission: Admission) -> None:
        self._writer, self._admission = writer, admission
        self._appender, self._engine = writer.appender, writer.dispatcher.engine
        self._record_bytes_max = writer.layout.record_bytes_max

    def store(
        self, message: Message, group: str, queue_id: int, extra: Mapping[str, str] | None, origin: Origin | None
    ) -> Half:
        """A half message in the log. Raises what `TransactionalMessageService.prepare` raises, but for SyncFailed."""
        try:
            half = self.store_at_once(message, group, queue_id, extra, origin)
            if half is None:
                half = self._composed(message, group, queue_id, extra, origin)
        except (AttributeError, TypeError):
            check_arguments(message, queue_id, extra, origin)
            raise
        return half

    def store_at_once(
        self, message: Message, group: str, queue_id: int, extra: Mapping[str, str] | None, origin: Origin | None
    ) -> Half | None:
        """The same by the C module, which waits for no lock; None where it stored nothing: `store` does it, or refuses.

        A topic is made when a message is known to be stored: the first one of a topic goes the longer way.
        """
        now_ms = time.time_ns() // 1_000_000
        if type(message) is not Message or not self._admission.takes_half(message.topic, queue_id, now_ms):
            return None
        if extra and not DELAYS.isdisjoint(extra):
            return None
        if not self._writer.upkeep.runs[0]:
            self._writer.upkeep.start()
        key = (extra and extra.get(names.UNIQ_KEY)) or new_unique_key(now_ms)
        prepare, fields = self._appender.compiled_prepare, message.__dict__
        half: Half | None
        if origin is None:
            half = prepare(Half, fields, extra, key, queue_id, now_ms, group, None)
        elif origin.sys_flag & ~KEPT_FLAGS:
            half = None
        else:
            half = prepare(Half, fields, extra, key, queue_id, origin.born_timestamp_ms, group, origin)
            half = half and _from_origin(half, origin)
        return half

    def _composed(
        self, message: Message, group: str, queue_id: int, extra: Mapping[str, str] | None, origin: Origin | None
    ) -> Half:
        statement = _statement(message, group, queue_id, extra, origin, self._admission.clock)
        composed = compose_half(
            message, self._admission, statement, self._engine, queue_id=queue_id, size_max=self._record_bytes_max,
            origin=origin,
        )  # fmt: skip
        if not self._writer.upkeep.runs[0]:
            self._writer.upkeep.start()
        placed = self._appender.append_one(composed.record)
        return _new_half(composed, message, queue_id, group, placed, origin)


def _statement(
    message: Message,
    group: object,
    queue_id: int,
    extra: Mapping[str, str] | None,
    origin: Origin | None,
    clock: StoreClock,
) -> Statement:
    """What the record of a half message will say. Raises MessageRejected, also for a group that no record can hold."""
    if not isinstance(group, str) or not group:
        raise MessageRejected("a half message needs a producer group, as text: it says whom to ask how it ended")
    if not group.isascii():
        check_texts("producer group", group)
    if "\x01" in group or "\x02" in group:
        raise MessageRejected(f"the producer group {group!r:.60} contains 0x01 or 0x02, which separate properties")
    is_local = origin is None
    return statement_of(message, queue_id=queue_id, clock=clock, extra=extra, group=group, is_local=is_local)


def _new_half(
    composed: Composed, message: Message, queue_id: int, group: str, placed: Appended, origin: Origin | None
) -> Half:
    """What the caller of a prepare gets."""
    _, properties, born_ms = composed
    half = object.__new__(Half)  # as Half(...) does, in a third of the time: a frozen dataclass sets field by field
    half.__dict__.update(
        commitlog_offset=placed.commitlog_offset,
        slot=placed.queue_offset,
        producer_group=group,
        topic=message.topic,
        queue_id=queue_id,
        unique_key=properties[names.UNIQ_KEY],
        keys=tuple(message.keys),
        born_timestamp_ms=born_ms,
        store_timestamp_ms=placed.store_timestamp_ms,
        size=placed.size,
        properties=properties,
    )
    return half if origin is None else _from_origin(half, origin)


def _from_origin(half: Half, origin: Origin) -> Half:
    """The same half message, with the address that its message id names."""
    half.__dict__["store_host"] = origin.store_host
    return half
