"""What a record says about a transaction: the one place that knows how each generation of RocketMQ says it.

| says | state table (3.0.0–3.1.4, and checkback) | gap (3.1.5–4.2) | half-op (4.3 and later) |
|---|---|---|---|
| prepared | type PREPARED, queueOffset = its slot | type PREPARED, queueOffset 0 | a record in the half topic |
| committed | type COMMIT that names the prepared record | the same | type COMMIT that names a half record |
| rolled back | type ROLLBACK that names the prepared record | the same | an op message that names its last half |
| renewed, checked | never | never | a later half with the same unique key; TRANSACTION_CHECK_TIMES |
| parked | a record in the park topic that names the half | never | a record in the park topic with its unique key |

Halves of 5.5 may be in a topic of its RocksDB, whose op messages name them by their CommitLog offsets. Its broker parks
none of them: it forgets those that nobody answers for.

Everything here is a table or a function of plain values. The functions use only operators that NumPy arrays have too,
so the live broker, the local engine and Spark ask the same question of one record or of a million.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, NamedTuple

from broker.format import properties as names
from broker.format.statetable import RENEWED
from broker.format.sysflag import TransactionType
from broker.format.topics import (
    HALF_TOPIC,
    HALF_TOPIC_OF_ROCKSDB,
    OP_TOPIC,
    OP_TOPIC_OF_ROCKSDB,
    PARK_TOPIC,
    SCHEDULE_TOPIC,
)


class TransactionState(enum.IntEnum):
    """How a transaction stands. The first three are RocketMQ's numbers on disk; PARKED is never written as a number."""

    PREPARED = 4
    """In doubt: nobody ended it."""
    COMMITTED = 8
    """Its message is delivered."""
    ROLLED_BACK = 12
    """Its message is never delivered."""
    PARKED = 16
    """In doubt, and check-back leaves it alone until a person decides."""
    RENEWED = RENEWED
    """Of a slot, never of a transaction: its broker stored the half message again."""


class Generation(enum.IntEnum):
    """How a store says what became of its transactions."""

    NONE = 0
    STATE_TABLE = 1
    GAP = 2
    HALF_OP = 3
    MIXED = 4

    @property
    def label(self) -> str:
        """The word that reports and the verification's JSON use."""
        return self.name.lower().replace("_", "-")


class EventKind(enum.IntEnum):
    """What one record says."""

    PLAIN = 0
    PREPARED = 1
    COMMITTED = 2
    ROLLED_BACK = 3
    HALF = 4
    OP = 5
    PARKED = 6


class TopicKind(enum.IntEnum):
    """The topics that mean something to transactions."""

    ORDINARY = 0
    HALF = 1
    OP = 2
    PARK = 3
    SCHEDULE = 4


_TOPIC_KINDS = {
    HALF_TOPIC: TopicKind.HALF,
    OP_TOPIC: TopicKind.OP,
    HALF_TOPIC_OF_ROCKSDB: TopicKind.HALF,
    OP_TOPIC_OF_ROCKSDB: TopicKind.OP,
    PARK_TOPIC: TopicKind.PARK,
    SCHEDULE_TOPIC: TopicKind.SCHEDULE,
}

_BY_TYPE = (EventKind.PLAIN, EventKind.PREPARED, EventKind.COMMITTED, EventKind.ROLLED_BACK)

# EVENTS[topic kind][transaction type >> 2]. In the system topics the topic speaks and the type bits do not: a half
# message that a timer delayed comes back into the half topic with type COMMIT, and is a half message still.
EVENTS: tuple[tuple[EventKind, ...], ...] = (
    _BY_TYPE,
    (EventKind.HALF,) * 4,
    (EventKind.OP,) * 4,
    (EventKind.PARKED,) * 4,
    _BY_TYPE,
)

# Which topic a message is meant for stands in REAL_TOPIC for records of these kinds of topics.
TARGET_IN_PROPERTIES = frozenset({TopicKind.HALF, TopicKind.PARK, TopicKind.SCHEDULE})

# Our own park record (state table): the CommitLog offset of the half it parks, and whether it parks or takes it back.
PARKED_OFFSET = "PARKED_OFFSET"
PARKED = "PARKED"

# What an end of ours may have that its half has not: why it was decided so, and by whom.
WHY = "CHECKBACK_WHY"
BY = "CHECKBACK_BY"

# What a half of ours says that took the place of another: the CommitLog offset of that one, which is rolled back.
MOVED_FROM = "CHECKBACK_MOVED_FROM"


def topic_kind(topic: str) -> TopicKind:
    """Which of the topics that mean something to transactions this is."""
    return _TOPIC_KINDS.get(topic, TopicKind.ORDINARY)


def kind_of(topic: str, transaction_type: int) -> EventKind:
    """What a record in this topic with this transaction type (0, 4, 8 or 12) says."""
    return EVENTS[topic_kind(topic)][transaction_type >> 2]


class Identity(NamedTuple):
    """What a half and its end must share. Any type that has == and & will do, arrays included."""

    group: Any
    topic: Any  # the target topic
    body_crc: Any
    born_timestamp_ms: Any


def names_half(half: Identity, end: Identity, *, rolls_back: Any) -> Any:
    """Whether an end record that names the offset of `half` really ends it.

    Consumer send-backs and deliveries of scheduled messages copy the COMMIT flag of the message they repeat, with
    prepared offset 0: by their topic they are not an end of the transaction at CommitLog offset 0. A rollback has no
    body.
    """
    same_sender = (half.group == end.group) & (half.topic == end.topic)
    same_message = (half.body_crc == end.body_crc) & (half.born_timestamp_ms == end.born_timestamp_ms)
    return same_sender & (same_message | rolls_back)


# How the first end decides, state table and gap: by its kind.
STATE_OF_END = {
    EventKind.COMMITTED: TransactionState.COMMITTED,
    EventKind.ROLLED_BACK: TransactionState.ROLLED_BACK,
}

# How a half-op transaction stands: HALF_OP_STATES[delivered][parked][its last half is named by an op].
# An op carries no verdict and comes late, so a delivered record outweighs it; an op without delivery can only mean a
# rollback, of a parked one too, since parking writes none; one that is parked was given up by the check loop.
HALF_OP_STATES: tuple[tuple[tuple[TransactionState, ...], ...], ...] = (
    (
        (TransactionState.PREPARED, TransactionState.ROLLED_BACK),
        (TransactionState.PARKED, TransactionState.ROLLED_BACK),
    ),
    ((TransactionState.COMMITTED,) * 2,) * 2,
)


def target_topic(topic: str, properties: dict[str, str]) -> str:
    """The topic that consumers will see the message in."""
    if topic_kind(topic) in TARGET_IN_PROPERTIES:
        return properties.get(names.REAL_TOPIC, topic)
    return topic


def checks(properties: dict[str, str]) -> int:
    """How often RocketMQ checked this half message, as the half itself says."""
    return names.decimal(properties.get(names.TRANSACTION_CHECK_TIMES, "")) or 0


class GenerationEvidence(NamedTuple):
    """What speaks for each generation in a CommitLog, as a scan counts it."""

    state_table: int = 0  # prepared records with a slot above 0
    gap: int = 0  # prepared records with queueOffset 0 right after another such record
    lone: int = 0  # any prepared record
    half_op: int = 0  # records in the half or op topic


def generation(evidence: GenerationEvidence) -> Generation:
    """Recognise a store from its records, never from its directories.

    A state table numbers its prepared records, the gap generation leaves them all at 0. A single prepared record at 0
    is taken for the first slot of a state table.
    """
    found: list[Generation] = []
    if evidence.state_table or (evidence.lone and not evidence.gap):
        found.append(Generation.STATE_TABLE)
    if evidence.gap:
        found.append(Generation.GAP)
    if evidence.half_op:
        found.append(Generation.HALF_OP)
    if len(found) > 1:
        return Generation.MIXED
    return found[0] if found else Generation.NONE


def gap_evidence(queue_offsets: Iterable[int], previous: int | None) -> GenerationEvidence:
    """Count what the queueOffsets of prepared records, in log order, say; `previous` is the one before them."""
    state_table = gap = lone = 0
    for queue_offset in queue_offsets:
        lone += 1
        state_table += queue_offset > 0
        gap += queue_offset == 0 and previous == 0
        previous = queue_offset
    return GenerationEvidence(state_table, gap, lone)


def prepared_generation(evidence: GenerationEvidence) -> Generation:
    """Which generation the prepared records of a store belong to."""
    only_gap = evidence.gap and not evidence.state_table
    return Generation.GAP if only_gap else Generation.STATE_TABLE


__all__ = [
    "BY",
    "EVENTS",
    "HALF_OP_STATES",
    "MOVED_FROM",
    "PARKED",
    "PARKED_OFFSET",
    "STATE_OF_END",
    "TARGET_IN_PROPERTIES",
    "WHY",
    "EventKind",
    "Generation",
    "GenerationEvidence",
    "Identity",
    "TopicKind",
    "TransactionState",
    "TransactionType",
    "checks",
    "gap_evidence",
    "generation",
    "kind_of",
    "names_half",
    "prepared_generation",
    "target_topic",
    "topic_kind",
]
