"""The files under STORE/config, and `abort`: JSON as fastjson writes and reads it.

Fastjson does not quote the keys of a map whose keys are integers (`{0:5,1:7}`); `loads` takes that, `dumps` writes it.
What we have no field for is kept in `extra` and written back. RocketMQ: ConfigManager, RemotingSerializable (5.3.3).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar

from broker.errors import CorruptRecord, MessageRejected
from broker.format.topics import check_topic_name

PERM_PRIORITY, PERM_READ, PERM_WRITE, PERM_INHERIT = 8, 4, 2, 1
MESSAGE_TYPE_ATTRIBUTE = "message.type"
MESSAGE_TYPES = ("NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")
QUEUES_MAX = 16_384  # of all topics together, see broker.store.shared.queue_offsets
DEFAULT_QUEUES = 4  # of a topic that its first message makes. RocketMQ: defaultTopicQueueNums of a producer

_T = TypeVar("_T")
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|(-?\d++)(?=\s*:)|-?\d++|[^"\d-]++|-', re.DOTALL)
_LONG_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class DataVersion:
    """How often a table changed; brokers compare it before they copy one."""

    counter: int = 0
    timestamp_ms: int = 0
    state_version: int = 0

    def changed(self, now_ms: int) -> DataVersion:
        """The version of the table that takes its place."""
        return DataVersion(self.counter + 1, now_ms, self.state_version)


@dataclass(frozen=True)
class TopicConfig:
    """One topic. RocketMQ: TopicConfig (5.3.3)."""

    name: str
    read_queue_count: int = 16
    write_queue_count: int = 16
    perm: int = PERM_READ | PERM_WRITE
    order: bool = False
    filter_type: str = "SINGLE_TAG"  # or MULTI_TAG
    sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict)  # 5.x
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def message_type(self) -> str:
        """NORMAL, FIFO, DELAY, TRANSACTION or MIXED; only a proxy enforces it."""
        return self.attributes.get(MESSAGE_TYPE_ATTRIBUTE, "NORMAL")


@dataclass(frozen=True)
class SubscriptionGroup:
    """One consumer group. RocketMQ: SubscriptionGroupConfig (5.3.3)."""

    name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_count: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    attributes: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Topics:
    """topics.json"""

    topics: Mapping[str, TopicConfig] = field(default_factory=dict)
    version: DataVersion = DataVersion()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SubscriptionGroups:
    """subscriptionGroup.json"""

    groups: Mapping[str, SubscriptionGroup] = field(default_factory=dict)
    version: DataVersion = DataVersion()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ConsumerOffsets:
    """consumerOffset.json: by (topic, group) and queue id, the queue offset to be consumed next."""

    positions: Mapping[tuple[str, str], Mapping[int, int]] = field(default_factory=dict)
    version: DataVersion = DataVersion()
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DelayOffsets:
    """delayOffset.json: by delay level, the queue offset in the schedule topic to be delivered next."""

    positions: Mapping[int, int] = field(default_factory=dict)
    version: DataVersion = DataVersion()
    extra: Mapping[str, Any] = field(default_factory=dict)


# Our name of a field, RocketMQ's name, and its type, in the order in which fastjson writes them.
_TOPIC_FIELDS = (
    ("attributes", "attributes", dict),
    ("order", "order", bool),
    ("perm", "perm", int),
    ("read_queue_count", "readQueueNums", int),
    ("filter_type", "topicFilterType", str),
    ("name", "topicName", str),
    ("sys_flag", "topicSysFlag", int),
    ("write_queue_count", "writeQueueNums", int),
)
_GROUP_FIELDS = (
    ("attributes", "attributes", dict),
    ("broker_id", "brokerId", int),
    ("consume_broadcast_enable", "consumeBroadcastEnable", bool),
    ("consume_enable", "consumeEnable", bool),
    ("consume_from_min_enable", "consumeFromMinEnable", bool),
    ("consume_message_orderly", "consumeMessageOrderly", bool),
    ("consume_timeout_minute", "consumeTimeoutMinute", int),
    ("name", "groupName", str),
    ("group_sys_flag", "groupSysFlag", int),
    ("notify_consumer_ids_changed_enable", "notifyConsumerIdsChangedEnable", bool),
    ("retry_max_times", "retryMaxTimes", int),
    ("retry_queue_count", "retryQueueNums", int),
    ("which_broker_when_consume_slowly", "whichBrokerWhenConsumeSlowly", int),
)


def new_topic(
    name: str,
    queues: int = DEFAULT_QUEUES,
    message_type: str = "",
    perm: int = PERM_READ | PERM_WRITE,
    write_queues: int | None = None,
) -> TopicConfig:
    """A topic's configuration. Raises MessageRejected for a name or a number that RocketMQ would not take.

    Without a `message_type` the topic takes every message, as all topics of RocketMQ 3.x and 4.x do. Without
    `write_queues` it takes them in all of its queues.
    """
    write_queues = queues if write_queues is None else write_queues
    check_topic_name(name)
    if message_type and message_type not in MESSAGE_TYPES:
        raise MessageRejected(f"the type of a topic is one of {', '.join(MESSAGE_TYPES)}, not {message_type!r:.60}")
    for what, number in (("queues", queues), ("write_queues", write_queues), ("perm", perm)):
        if type(number) is not int:
            raise MessageRejected(f"{what} is a whole number, not {number!r:.60}")
    if not 1 <= queues <= QUEUES_MAX:
        raise MessageRejected(f"a topic has from 1 to {QUEUES_MAX} queues, not {queues}")
    if not 0 <= write_queues <= queues:
        raise MessageRejected(f"of its {queues} queues a topic takes messages in 0 to {queues}, not {write_queues}")
    if not 0 <= perm <= 0xF:
        raise MessageRejected(f"perm is 6 (read and write), 4 (read), 2 (write) or 0, not {perm}")
    attributes = {MESSAGE_TYPE_ATTRIBUTE: message_type} if message_type else {}
    return TopicConfig(name, queues, write_queues, perm, order=message_type == "FIFO", attributes=attributes)


def decode_topics(raw: bytes) -> Topics:
    root = _root(raw)
    table = _table(root, "topicConfigTable", _bean_maker(TopicConfig, _TOPIC_FIELDS))
    return Topics(table, _version(root), root)


def encode_topics(topics: Topics) -> bytes:
    table = {name: _unbean(_TOPIC_FIELDS, topic) for name, topic in topics.topics.items()}
    return _file(topics.version, topics.extra, topicConfigTable=table)


def decode_subscription_groups(raw: bytes) -> SubscriptionGroups:
    root = _root(raw)
    table = _table(root, "subscriptionGroupTable", _bean_maker(SubscriptionGroup, _GROUP_FIELDS))
    return SubscriptionGroups(table, _version(root), root)


def encode_subscription_groups(groups: SubscriptionGroups) -> bytes:
    table = {name: _unbean(_GROUP_FIELDS, group) for name, group in groups.groups.items()}
    return _file(groups.version, {"forbiddenTable": {}, **groups.extra}, subscriptionGroupTable=table)


def subscription_group_of(name: str, value: Any) -> SubscriptionGroup:
    """A group from one of RocketMQ's JSON objects. Raises CorruptRecord."""
    return _bean(SubscriptionGroup, _GROUP_FIELDS, name, value)


def as_json(value: TopicConfig | SubscriptionGroup) -> dict[str, Any]:
    """RocketMQ's JSON object of a topic or a group."""
    return _unbean(_TOPIC_FIELDS if isinstance(value, TopicConfig) else _GROUP_FIELDS, value)


def decode_consumer_offsets(raw: bytes) -> ConsumerOffsets:
    """RocketMQ: ConsumerOffsetManager.decode (5.3.3). The derived groupTopicMap is not looked at."""
    root = _root(raw)
    root.pop("groupTopicMap", None)
    table = _table(root, "offsetTable", _numbers)
    positions = {}
    for name, queues in table.items():
        topic, at, group = name.partition("@")
        if not at or not topic or not group:
            _bad(f"{name!r} is not TOPIC@GROUP")
        positions[topic, group] = queues
    return ConsumerOffsets(positions, _version(root), root)


def encode_consumer_offsets(offsets: ConsumerOffsets) -> bytes:
    topics: dict[str, list[str]] = {}
    for topic, group in offsets.positions:
        topics.setdefault(group, []).append(topic)
    table = {f"{topic}@{group}": queues for (topic, group), queues in offsets.positions.items()}
    return _file(offsets.version, {**offsets.extra, "groupTopicMap": topics}, offsetTable=table)


def decode_delay_offsets(raw: bytes) -> DelayOffsets:
    root = _root(raw)
    return DelayOffsets(_numbers("offsetTable", root.pop("offsetTable", {})), _version(root), root)


def encode_delay_offsets(offsets: DelayOffsets) -> bytes:
    return _file(offsets.version, offsets.extra, offsetTable=dict(offsets.positions))


def decode_abort(raw: bytes) -> int | None:
    """The process that has the store open, from the file `abort`; None when it does not say (3.0: it is empty).

    RocketMQ never reads it: that the file is there means that the last exit was not clean.
    """
    text = raw.strip()
    return int(text) if text.isdigit() and len(text) < 20 else None


def loads(raw: bytes) -> Any:
    """JSON with unquoted integer keys, which become strings. Raises CorruptRecord for anything else."""
    try:
        text = raw.decode()
        try:
            return json.loads(text, parse_constant=_no_number)  # most have none: quotes cost three times as much
        except json.JSONDecodeError:
            quoted = _TOKEN.sub(lambda token: f'"{token[1]}"' if token[1] else token[0], text)
            return json.loads(quoted, parse_constant=_no_number)
    except RecursionError:
        raise CorruptRecord("not JSON: nested too deeply") from None
    except ValueError as error:
        raise CorruptRecord(f"not JSON: {error}") from None


def dumps(value: Any, depth: int = 0) -> str:
    """JSON as fastjson's pretty format has it: tabs, a line for each member, integer keys unquoted on one line."""
    if not isinstance(value, Mapping):
        return _compact(value)
    if not value:
        return "{}"
    indent = "\n" + "\t" * (depth + 1)
    parts = []
    for key, inner in value.items():
        name = str(key) if isinstance(key, int) else indent + _compact(key)
        parts.append(f"{name}:{str(inner) if type(inner) is int else dumps(inner, depth + 1)}")
    return "{" + ",".join(parts) + "\n" + "\t" * depth + "}"


# Made once: json.dumps makes one for each call that has options.
_compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _root(raw: bytes) -> dict[str, Any]:
    root = loads(raw)
    return root if isinstance(root, dict) else _bad("the file holds no JSON object")


def _file(version: DataVersion, extra: Mapping[str, Any], **table: Mapping[Any, Any]) -> bytes:
    stated = {"counter": version.counter, "stateVersion": version.state_version, "timestamp": version.timestamp_ms}
    members = {"dataVersion": stated, **extra, **table}
    return dumps({name: members[name] for name in sorted(members)}).encode("utf-8", "backslashreplace")


def _version(root: dict[str, Any]) -> DataVersion:
    """Quirk (3.0): the timestamp's name was misspelt `timestatmp`."""
    version = _mapping("dataVersion", root.pop("dataVersion", {}))
    counter, state = version.get("counter", 0), version.get("stateVersion", 0)
    timestamp = version.get("timestamp", version.get("timestatmp", 0))
    return DataVersion(_long("counter", counter), _long("timestamp", timestamp), _long("stateVersion", state))


def _table(root: dict[str, Any], name: str, make: Callable[[str, Any], _T]) -> dict[str, _T]:
    return {key: make(key, value) for key, value in _mapping(name, root.pop(name, {})).items()}


def _bean_maker(kind: Callable[..., _T], fields: tuple[tuple[str, str, type], ...]) -> Callable[[str, Any], _T]:
    return lambda name, value: _bean(kind, fields, name, value)


def _bean(kind: Callable[..., _T], fields: tuple[tuple[str, str, type], ...], name: str, value: Any) -> _T:
    """A dataclass from one of RocketMQ's objects; the key in the table is its name when it states none."""
    rest = dict(_mapping(name, value))
    found: dict[str, Any] = {"name": name}
    for ours, theirs, type_ in fields:
        if theirs not in rest:
            continue
        member = rest.pop(theirs)
        if member is None:
            continue
        if type(member) is not type_:
            _bad(f"{theirs} of {name!r} is {member!r}")
        if type_ is int:
            _long(theirs, member)
        if isinstance(member, dict) and not all(isinstance(text, str) for text in member.values()):
            _bad(f"{theirs} of {name!r} is {member!r}")
        found[ours] = member
    return kind(**found, extra=rest)


def _unbean(fields: tuple[tuple[str, str, type], ...], value: Any) -> dict[str, Any]:
    members = {**value.extra, **{theirs: getattr(value, ours) for ours, theirs, _ in fields}}
    return {name: members[name] for name in sorted(members)}


def _numbers(name: str, value: Any) -> dict[int, int]:
    found = {}
    for key, number in _mapping(name, value).items():
        if not re.fullmatch(r"-?[0-9]{1,10}", key):
            _bad(f"{key!r} in {name!r} is not a queue id or level")
        found[int(key)] = _long(key, number)
    return found


def _mapping(name: str, value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else _bad(f"{name!r} is {value!r:.60}, not an object")


def _long(name: str, value: Any) -> int:
    if type(value) is not int or not -_LONG_MAX - 1 <= value <= _LONG_MAX:
        _bad(f"{name!r} is {value!r:.60}, not a long")
    return int(value)


def _no_number(name: str) -> NoReturn:
    _bad(f"not JSON: {name} is not a number")


def _bad(reason: str) -> NoReturn:
    raise CorruptRecord(reason)
