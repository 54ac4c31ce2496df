"""Names that RocketMQ gives a meaning: system topics, prefixes, the group of the check loop, delay levels.

RocketMQ: TopicValidator, MixAll, TransactionalMessageUtil (5.3.3). Names on disk are RocketMQ's, oddities included.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from broker.errors import MessageRejected, shown

HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"  # since 4.3.0
OP_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
OP_TAG = "d"
# Since 5.5.0, with transRocksDBEnable and without transWriteOriginTransHalfEnable; a RocksDB says what is in doubt.
HALF_TOPIC_OF_ROCKSDB = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
OP_TOPIC_OF_ROCKSDB = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
PARK_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"  # since 4.5.2: half messages that nobody would answer for
CHECK_GROUP = "CID_RMQ_SYS_TRANS"  # its offsets are the progress of the check loop
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # queue id = delay level - 1
REDOLOG_TOPIC = "TRANSACTION_REDOLOG_TOPIC_XXXX"  # 3.0 only: a directory, never the topic of a record
RETRY_PREFIX = "%RETRY%"  # and the consumer group: messages to be consumed again
DLQ_PREFIX = "%DLQ%"  # and the consumer group: messages given up
LMQ_PREFIX = "%LMQ%"
QUEUE_TYPE = "queue.type"  # the attribute of a topic, and two values: what its queues are made of
SIMPLE_QUEUE = "SimpleCQ"
BATCH_QUEUE = "BatchCQ"
SYSTEM_PREFIX = "rmq_sys_"
AUTO_CREATE_TOPIC = "TBW102"
TIMER_TOPIC = "rmq_sys_wheel_timer"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"  # and the cluster's name: what was popped, and what was acknowledged of it
REVIVE_GROUP = "CID_RMQ_SYS_REVIVE_GROUP"

# fmt: off
SYSTEM_TOPICS = frozenset((
    AUTO_CREATE_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, PARK_TOPIC, "BenchmarkTest", "RMQ_SYS_TRACE_TOPIC",
    "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "CHECKPOINT_TOPIC", HALF_TOPIC_OF_ROCKSDB, OP_TOPIC_OF_ROCKSDB,
))
# fmt: on
# fmt: off
SEND_REFUSED_TOPICS = frozenset((
    SCHEDULE_TOPIC, HALF_TOPIC, OP_TOPIC, PARK_TOPIC, "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", HALF_TOPIC_OF_ROCKSDB,
    OP_TOPIC_OF_ROCKSDB,
))
# fmt: on
"""Topics to which applications may not send. RocketMQ: TopicValidator.NOT_ALLOWED_SEND_TOPIC_SET (5.5.0)."""

TOPIC_SIZE_MAX = 127
GROUP_SIZE_MAX = 119  # characters: its retry topic must fit in a record
RETRY_TOPIC_SIZE_MAX = 255  # a retry topic's, in bytes; it is made from a group's name, not validated
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
LONGEST_DELAY_MS = 366 * 86_400_000  # of a unit of the schedule topic that is believed

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def check_topic_name(topic: str) -> None:
    """Raises MessageRejected when RocketMQ would not take the name. RocketMQ: TopicValidator.validateTopic (5.3.3)."""
    if not isinstance(topic, str):
        raise MessageRejected(f"the name of a topic is text, not {shown(topic)}")
    if not topic.strip():
        raise MessageRejected("the topic has no name")
    if not _LEGAL.fullmatch(topic):
        raise MessageRejected(f"the topic {topic!r} may only have ASCII letters, digits and the signs % | _ -")
    size_max = RETRY_TOPIC_SIZE_MAX if topic.startswith(RETRY_PREFIX) else TOPIC_SIZE_MAX
    if len(topic) > size_max:
        raise MessageRejected(f"the topic {topic!r} has {len(topic)} characters; at most {size_max} are allowed")


def check_send_topic(topic: str) -> None:
    """Raises MessageRejected when an application may not send to the topic, or it has no legal name."""
    check_topic_name(topic)
    if topic in SEND_REFUSED_TOPICS:
        raise MessageRejected(f"{topic} is the broker's own topic; applications cannot send to it")


def is_system_topic(topic: str) -> bool:
    """RocketMQ: TopicValidator.isSystemTopic (5.3.3)."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def pop_retry_topics(group: str, topic: str) -> tuple[str, str]:
    """Where POP puts what a group did not acknowledge in time, as RocketMQ 5 is set: KeyBuilder.buildPopRetryTopic."""
    return f"{RETRY_PREFIX}{group}_{topic}", f"{RETRY_PREFIX}{group}+{topic}"


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def parse_delay_levels(text: str = DELAY_LEVELS) -> list[int]:
    """The delay of each level in milliseconds; level 1 is the first. Raises ValueError for a table like no other.

    RocketMQ: DefaultMessageStore.parseDelayLevel (5.3.3).
    """
    delays_ms = []
    for word in text.split(" "):
        number, unit = word[:-1], word[-1:]
        if unit not in _UNIT_MS or not (number.isascii() and number.isdecimal()):
            raise ValueError(f"{word!r} is not a delay: a number and one of s, m, h, d")
        delays_ms.append(int(number) * _UNIT_MS[unit])
    return delays_ms


DELAYS_MS = tuple(parse_delay_levels())
"""The delay of each level in milliseconds; level 1 is the first."""


def deliver_time_ms(delay_level: int, store_timestamp_ms: int, delays_ms: Sequence[int] = DELAYS_MS) -> int:
    """When a record in the schedule topic is due; it stands in its ConsumeQueue unit where the tag's hash would.

    A level above the table's end means the last one. Quirk: a level below 1 means one second.
    RocketMQ: DefaultMessageStore.computeDeliverTimestamp (5.3.3).
    """
    if delay_level < 1:
        return store_timestamp_ms + 1000
    return store_timestamp_ms + delays_ms[min(delay_level, len(delays_ms)) - 1]
