"""What a store takes: RocketMQ's limits and the types of topics, asked before anything is written.

RocketMQ: AbstractSendMessageProcessor.msgCheck, HookUtils.checkBeforePutMessage, TopicMessageType (5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from broker.errors import BrokerError, MessageRejected, NotPermitted, shown
from broker.format import properties as names
from broker.format.commitlog import MESSAGE_SIZE_MAX
from broker.format.config import DEFAULT_QUEUES, TopicConfig, new_topic
from broker.format.topics import (
    DELAYS_MS,
    DLQ_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SEND_REFUSED_TOPICS,
    is_system_topic,
)
from broker.message import Message
from broker.store.clock import StoreClock
from broker.store.shared.topicfile import Rules, TopicFile

ROLES = ("master", "slave")

TIMER_MAX_MS = 3 * 86_400_000  # RocketMQ: timerMaxDelaySec
LOCAL_TIMER_MAX_MS = 366 * 86_400_000  # of a message that this process sends: it is copied once in two hours
_TIMERS = ((names.TIMER_DELAY_SEC, 1000, None), (names.TIMER_DELAY_MS, 1, None), (names.TIMER_DELIVER_MS, 1, 0))
DELAYS = frozenset((names.DELAY, names.TIMER_DELAY_SEC, names.TIMER_DELAY_MS, names.TIMER_DELIVER_MS))
NOT_PLAIN = DELAYS | {names.SHARDING_KEY}  # what makes a message of another type than NORMAL


def message_type(properties: Mapping[str, str], *, prepared: bool) -> str:
    """TRANSACTION, DELAY, FIFO or NORMAL. RocketMQ: TopicMessageType.parseFromMessageProperty (5.3.3)."""
    if prepared:
        return "TRANSACTION"
    if not DELAYS.isdisjoint(properties):
        return "DELAY"
    return "FIFO" if names.SHARDING_KEY in properties else "NORMAL"


def _types(properties: Mapping[str, str], *, prepared: bool) -> tuple[str, ...]:
    """The types of topics that take a message: a delayed transaction, which RocketMQ lacks, is of two."""
    kind = message_type(properties, prepared=prepared)
    return (kind, "DELAY") if prepared and names.DELAY in properties else (kind,)


def delay_level(properties: Mapping[str, str]) -> int:
    """The delay level that a message asks for; 0 for none, as also for a number below 0: RocketMQ's dead letters state
    -1. Levels above the last mean the last.

    Raises MessageRejected for what is not a level. RocketMQ: HookUtils.transformDelayLevelMessage (5.3.3).
    """
    stated = properties.get(names.DELAY)
    if stated is None:
        return 0
    level = _signed(stated, 9)
    if level is None:
        raise MessageRejected(f"{names.DELAY} is a level from 1 to {len(DELAYS_MS)}, not {stated!r:.40}")
    return min(max(level, 0), len(DELAYS_MS))


def deliver_at_ms(properties: Mapping[str, str], now_ms: int, max_ms: int = TIMER_MAX_MS) -> int | None:
    """When a message with a delay of any length is due; None without one. A delay below 0, as of a deadline that is
    over, is due already.

    Raises MessageRejected for what is not a time, and for more than `max_ms` from now, by default three days.
    RocketMQ: HookUtils.transformTimerMessage (5.3.3).
    """
    for name, unit_ms, begin_ms in _TIMERS:
        stated = properties.get(name)
        if stated is None:
            continue
        number = _signed(stated)
        if number is None:
            raise MessageRejected(f"{name} is a number, not {stated!r:.40}")
        due_ms = number * unit_ms + (now_ms if begin_ms is None else begin_ms)
        if due_ms > now_ms + max_ms:
            raise MessageRejected(f"{name} {stated} is more than {max_ms // 86_400_000} days from now")
        return due_ms
    return None


def _signed(text: str, digits: int = 18) -> int | None:
    """As `properties.decimal`, and with a minus in front."""
    number = names.decimal(text.removeprefix("-"), digits)
    return -number if number is not None and text.startswith("-") else number


def timer_level(left_ms: int, delays_ms: Sequence[int] = DELAYS_MS) -> int:
    """The delay level that a message with a delay of any length waits in next: the longest that is not too long.

    The last step takes the first level, so that it is never early and at most that late.
    """
    fitting = [level for level, delay_ms in enumerate(delays_ms, 1) if delay_ms <= left_ms]
    return max(fitting, default=1)


class HalfLimit(Protocol):
    """May refuse a half message for now."""

    def check(self, *, at_once: bool = False) -> bool: ...


class Admission:
    """The gate before the log. `lock` is the append lock, under which a topic is made on first use."""

    def __init__(
        self,
        topics: TopicFile,
        lock: AbstractContextManager[None],
        clock: StoreClock,
        *,
        role: str,
        reject_transactions: bool,
    ) -> None:
        if role not in ROLES:
            raise BrokerError(f"role is one of {', '.join(ROLES)}, not {role!r}")
        self.topics, self._lock, self.clock = topics, lock, clock
        self.is_slave, self._reject_transactions = role == "slave", reject_transactions
        self.limit: HalfLimit | None = None

    def check_role(self) -> None:
        """Raises NotPermitted in a store that was opened as a slave."""
        if self.is_slave:
            text = "this store was opened as a slave, which only reads: send to the master, or open it as one"
            raise NotPermitted(text, code="SLAVE_NOT_AVAILABLE")

    def check_transactions(self, *, at_once: bool = False) -> bool:
        """Raises NotPermitted where half messages are refused, always or now; with `at_once` False where it would wait.

        RocketMQ: rejectTransactionMessage.
        """
        if self._reject_transactions:
            text = "this store takes no transactional messages: it was opened with reject_transactions=True"
            raise NotPermitted(text)
        return self.limit is None or self.limit.check(at_once=at_once)

    def takes_half(self, topic: str, queue_id: int, now_ms: int) -> bool:
        """Whether a half message without a delay is let in as things are; where not, `admit` looks closer."""
        rules = self.topics.rules(topic, now_ms)
        return rules is not None and type(queue_id) is int and 0 <= queue_id < rules.half_queues and not self.is_slave

    def takes_plain(self, topic: str, queue_id: int, now_ms: int) -> bool:
        """The same for a message that is neither one nor has an order or a delay."""
        rules = self.topics.rules(topic, now_ms)
        return rules is not None and type(queue_id) is int and 0 <= queue_id < rules.plain_queues and not self.is_slave

    def admit(
        self,
        topic: str,
        properties: Mapping[str, str],
        queue_id: int,
        now_ms: int,
        *,
        prepared: bool = False,
        system: bool = False,
        is_copy: bool = False,
    ) -> None:
        """Let a message in, whose topic is made if it is the first. Raises MessageRejected, NotPermitted.

        `is_copy`: of one that consumers got. It is plain, whatever its topic takes from producers.
        """
        if self.is_slave:
            self.check_role()
        rules = self.topics.rules(topic, now_ms)
        if rules is None:
            rules = self._first_use(topic, now_ms, system=system)
        try:
            _check(topic, rules, properties, queue_id, prepared=prepared, system=system, is_copy=is_copy)
        except (MessageRejected, NotPermitted):  # another process may have changed the topic within this second
            self.topics.look(now_ms)
            changed = self.topics.rules(topic, now_ms)
            if changed is None or changed == rules:
                raise
            _check(topic, changed, properties, queue_id, prepared=prepared, system=system, is_copy=is_copy)

    def _first_use(self, topic: str, now_ms: int, *, system: bool) -> Rules:
        """A topic that is new here: another process may have made it a moment ago.

        It has no type and takes every message, as with RocketMQ: only a topic that was declared has a type.
        RocketMQ: TopicConfigManager.createTopicInSendMessageMethod, createTopicInSendMessageBackMethod (5.3.3).
        """
        with self._lock:
            self.topics.look(now_ms)
            if self.topics.rules(topic, now_ms) is None:
                self.topics.put(_first(topic, system=system), now_ms)
        rules = self.topics.rules(topic, now_ms)
        if rules is None:  # config/topics.json was taken away between two lines
            raise BrokerError(f"config/topics.json does not keep the topic {topic}: who else writes to it?")
        return rules


def _first(topic: str, *, system: bool) -> TopicConfig:
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        return new_topic(topic, 1)
    if not system and (topic in SEND_REFUSED_TOPICS):
        raise MessageRejected(f"{topic} is the broker's own topic; applications cannot send to it")
    if topic == SCHEDULE_TOPIC:
        return new_topic(topic, len(DELAYS_MS))
    return new_topic(topic, 1) if system or is_system_topic(topic) else new_topic(topic, DEFAULT_QUEUES)


def _check(
    topic: str, rules: Rules, properties: Mapping[str, str], queue_id: int, *, prepared: bool, system: bool,
    is_copy: bool,
) -> None:  # fmt: skip
    """Raises MessageRejected, NotPermitted for what a topic with these rules does not take."""
    if not system:
        if topic in SEND_REFUSED_TOPICS:
            raise MessageRejected(f"{topic} is the broker's own topic; applications cannot send to it")
        accepts = "" if is_copy else rules.message_type
        if accepts and accepts != "MIXED" and accepts not in _types(properties, prepared=prepared):
            raise MessageRejected(_wrong_type(topic, accepts, message_type(properties, prepared=prepared)))
    if not rules.may_write or rules.write_queues < 1:
        lacks = "writeQueueNums in config/topics.json is 0" if rules.may_write else "perm in config/topics.json lacks 2"
        raise NotPermitted(f"the topic {topic} may not be written: its {lacks}")
    try:
        has_queue = 0 <= queue_id < rules.write_queues
        if type(queue_id) is not int:  # a property states it as text: not as True, nor as 1.0
            has_queue = has_queue and str(queue_id).isdecimal()
    except TypeError:  # it is not a number
        has_queue = False
    if not has_queue:
        reason = f"queues 0 to {rules.write_queues - 1}, and no queue {queue_id!r:.60}"
        raise MessageRejected(f"the topic {topic} has {reason}")


def _wrong_type(topic: str, accepts: str, kind: str) -> str:
    next_step = "Use another topic, or make it take all: checkback topic STORE NAME --create --type MIXED"
    return f"the topic {topic} takes {accepts} messages, and this is a {kind} one. {next_step}"


def check_batch(messages: Sequence[Message]) -> None:
    """Raises MessageRejected for what cannot be sent together. A Message has no delay of its own.

    RocketMQ: MessageBatch.generateFromList, Validators.checkMessage (5.3.3).
    """
    if not isinstance(messages, list | tuple):
        raise MessageRejected(f"a batch is a list of messages, not {shown(messages)}")
    if not messages:
        raise MessageRejected("a batch needs at least one message")
    for message in messages:
        if not isinstance(message, Message):
            raise MessageRejected(f"a batch holds messages, broker.Message(topic, body), not {shown(message)}")
    topic = messages[0].topic
    if topic.startswith(RETRY_PREFIX):
        raise MessageRejected(f"messages to the retry topic {topic} cannot be sent as a batch")
    for message in messages:
        if message.topic != topic:
            raise MessageRejected(f"a batch has one topic, and this one has {topic} and {message.topic}")
    size = sum(len(message.body) for message in messages)
    if size > MESSAGE_SIZE_MAX:
        raise MessageRejected(f"the batch has {size} bytes; at most {MESSAGE_SIZE_MAX} are allowed: divide it")
