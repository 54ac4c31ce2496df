"""JSON bodies between clients and brokers, as values. Raises ProtocolError for what they cannot be.

RocketMQ: HeartbeatData, SubscriptionData, LockBatchRequestBody (5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from broker.errors import ProtocolError
from broker.format.commitlog import crc32
from broker.remoting.fastjson import dumps, loads_object

_T = TypeVar("_T")
GROUPS_MAX, SUBSCRIPTIONS_MAX, QUEUES_MAX = 256, 1024, 4096  # of one client, in one body
BATCH_MESSAGES_MAX = 65_536
# By their ordinals, which the C++ client writes. RocketMQ: ConsumeType, MessageModel, ConsumeFromWhere (5.3.3).
_CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
_MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
_CONSUME_FROM = (
    "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP",
)  # fmt: skip


@dataclass(frozen=True)
class MessageQueue:
    """One queue of a topic on one broker."""

    topic: str
    queue_id: int
    broker_name: str = ""

    def as_json(self, broker_name: str) -> dict[str, Any]:
        return {"brokerName": broker_name, "queueId": self.queue_id, "topic": self.topic}


@dataclass(frozen=True)
class SubscriptionData:
    """Which messages of a topic a group wants."""

    topic: str
    expression: str = "*"
    expression_type: str = "TAG"
    sub_version: int = 0  # grows with every change: milliseconds in Java, nanoseconds in Go
    tags: tuple[str, ...] = ()
    codes: tuple[int, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "classFilterMode": False, "codeSet": list(self.codes), "expressionType": self.expression_type,
            "subString": self.expression, "subVersion": self.sub_version, "tagsSet": list(self.tags),
            "topic": self.topic,
        }  # fmt: skip


@dataclass(frozen=True)
class ConsumerData:
    """One consumer group of a client."""

    group: str
    consume_type: str
    message_model: str
    consume_from_where: str
    subscriptions: tuple[SubscriptionData, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "consumeFromWhere": self.consume_from_where, "consumeType": self.consume_type, "groupName": self.group,
            "messageModel": self.message_model, "unitMode": False,
            "subscriptionDataSet": [one.as_json() for one in self.subscriptions],
        }  # fmt: skip


@dataclass(frozen=True)
class HeartbeatData:
    """A client, and the groups that it is in."""

    client_id: str
    producer_groups: tuple[str, ...]
    consumers: tuple[ConsumerData, ...]

    def encode(self) -> bytes:
        """The body of HEART_BEAT."""
        producers = [{"groupName": group} for group in self.producer_groups]
        consumers = [one.as_json() for one in self.consumers]
        root = {"clientID": self.client_id, "producerDataSet": producers, "consumerDataSet": consumers}
        return dumps(root, quote_numbers=True)


@dataclass(frozen=True)
class LockBatch:
    """Queues that one client of a group wants for itself, or gives back."""

    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]

    def encode(self) -> bytes:
        """The body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""
        queues = [queue.as_json(queue.broker_name) for queue in self.queues]
        return dumps({"clientId": self.client_id, "consumerGroup": self.group, "mqSet": queues}, quote_numbers=True)


@dataclass(frozen=True)
class AssignmentQuery:
    """A client's question which queues of a topic are its own: one that does not divide them itself."""

    topic: str
    group: str
    client_id: str
    strategy: str
    message_model: str


def decode_heartbeat(body: bytes) -> HeartbeatData:
    """The body of HEART_BEAT."""
    root = loads_object(body)
    producers = tuple(_get(one, "groupName", str) for one in _objects(root, "producerDataSet", GROUPS_MAX))
    consumers = tuple(_consumer(one) for one in _objects(root, "consumerDataSet", GROUPS_MAX))
    return HeartbeatData(_get(root, "clientID", str), producers, consumers)


def _consumer(root: dict[str, Any]) -> ConsumerData:
    return ConsumerData(
        _get(root, "groupName", str),
        _constant(root, "consumeType", _CONSUME_TYPES, "CONSUME_PASSIVELY"),  # PUSH and PULL from Go 2.0.0
        _constant(root, "messageModel", _MESSAGE_MODELS, "CLUSTERING"),
        _constant(root, "consumeFromWhere", _CONSUME_FROM, "CONSUME_FROM_LAST_OFFSET"),
        tuple(decode_subscription(one) for one in _objects(root, "subscriptionDataSet", SUBSCRIPTIONS_MAX)),
    )


def decode_subscription(root: dict[str, Any]) -> SubscriptionData:
    """One subscription of a heartbeat, or of CHECK_CLIENT_CONFIG."""
    tags, codes = _get(root, "tagsSet", list, []), _get(root, "codeSet", list, [])
    if not all(isinstance(tag, str) for tag in tags):
        raise ProtocolError("tagsSet of a subscription holds something else than text")
    return SubscriptionData(
        _get(root, "topic", str),
        _get(root, "subString", str, "*"),
        _get(root, "expressionType", str, "TAG") or "TAG",
        _get(root, "subVersion", int, 0),
        tuple(tags),
        tuple(_integer("codeSet", code) for code in codes),
    )


def decode_lock_batch(body: bytes) -> LockBatch:
    """The body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ."""
    root = loads_object(body)
    return LockBatch(_get(root, "consumerGroup", str), _get(root, "clientId", str), _queues(root, "mqSet"))


def decode_assignment_query(body: bytes) -> AssignmentQuery:
    """The body of QUERY_ASSIGNMENT."""
    root = loads_object(body)
    topic, group, client_id = (_get(root, name, str) for name in ("topic", "consumerGroup", "clientId"))
    strategy, model = _get(root, "strategyName", str, "AVG"), _get(root, "messageModel", str, "CLUSTERING")
    return AssignmentQuery(topic, group, client_id, strategy, model)


def decode_locked(body: bytes) -> tuple[MessageQueue, ...]:
    """The queues that the answer to LOCK_BATCH_MQ grants."""
    return _queues(loads_object(body), "lockOKMQSet")


def decode_consumer_list(body: bytes) -> tuple[str, ...]:
    """The client ids in the answer to GET_CONSUMER_LIST_BY_GROUP."""
    ids = _get(loads_object(body), "consumerIdList", list, [])
    if not all(isinstance(one, str) for one in ids):
        raise ProtocolError("consumerIdList holds something else than text")
    return tuple(ids)


def _queues(root: dict[str, Any], name: str) -> tuple[MessageQueue, ...]:
    return tuple(
        MessageQueue(_get(one, "topic", str), _get(one, "queueId", int), _get(one, "brokerName", str, ""))
        for one in _objects(root, name, QUEUES_MAX)
    )


@dataclass(frozen=True)
class BatchedMessage:
    """One message in the body of SEND_BATCH_MESSAGE."""

    body: bytes
    flag: int
    properties: bytes

    def encode(self) -> bytes:
        """Its bytes in the batch. RocketMQ: MessageDecoder.encodeMessage (5.3.3)."""
        lengths = (len(self.body).to_bytes(4, "big"), len(self.properties).to_bytes(2, "big"))
        flag = self.flag.to_bytes(4, "big", signed=True)
        size = 22 + len(self.body) + len(self.properties)
        return b"".join((size.to_bytes(4, "big"), bytes(8), flag, lengths[0], self.body, lengths[1], self.properties))


def decode_batch(body: bytes) -> list[BatchedMessage]:
    """The messages in a batch: size, magic, CRC, flag, body and properties of each; clients send magic and CRC as 0.

    RocketMQ: MessageDecoder.decodeMessages (5.3.3).
    """
    found: list[BatchedMessage] = []
    at = 0
    while at < len(body):
        if len(found) >= BATCH_MESSAGES_MAX:
            raise ProtocolError(f"a batch has at most {BATCH_MESSAGES_MAX} messages")
        size = int.from_bytes(body[at : at + 4], "big", signed=True)
        length = int.from_bytes(body[at + 16 : at + 20], "big", signed=True)
        body_end = at + 20 + length
        if size < 22 or at + size > len(body) or length < 0 or body_end + 2 > at + size:
            raise ProtocolError(f"the batch ends inside the message at {at}")
        stated = int.from_bytes(body[at + 8 : at + 12], "big", signed=True)
        content = body[at + 20 : body_end]
        if stated and stated != crc32(content):
            raise ProtocolError(f"the body's CRC of the message at {at} in the batch is wrong")
        flag = int.from_bytes(body[at + 12 : at + 16], "big", signed=True)
        properties_end = body_end + 2 + int.from_bytes(body[body_end : body_end + 2], "big", signed=True)
        if properties_end != at + size:
            raise ProtocolError(f"the lengths of the message at {at} in the batch do not add up")
        found.append(BatchedMessage(content, flag, body[body_end + 2 : properties_end]))
        at += size
    return found


def _objects(root: dict[str, Any], name: str, most: int) -> Iterator[dict[str, Any]]:
    found = root.get(name) or []
    if not isinstance(found, list) or len(found) > most or not all(isinstance(one, dict) for one in found):
        raise ProtocolError(f"{name} is not a list of at most {most} objects")
    return iter(found)


def _integer(name: str, value: Any) -> int:
    """A long. Quirk (Go client 2.1): it writes the hashes of tags as text, and Java reads that."""
    if isinstance(value, str) and value.removeprefix("-").isascii() and value.removeprefix("-").isdigit():
        value = int(value[:20])
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ProtocolError(f"{name} is not a whole number of 64 bits")
    return int(value)


def _constant(root: dict[str, Any], name: str, names: tuple[str, ...], default: str) -> str:
    """The name of an enumeration's constant.

    Quirk (C++ client): it writes the ordinal, and fastjson reads that.
    """
    value = root.get(name)
    if type(value) is int and 0 <= value < len(names):
        return names[value]
    return _get(root, name, str, default)


def _get(root: dict[str, Any], name: str, kind: type[_T], default: _T | None = None) -> _T:
    """A member of an object; null counts as missing."""
    value = root.get(name)
    if value is None:
        value = default
    if kind is int:
        return _integer(name, value)  # type: ignore[return-value]
    if type(value) is not kind:
        raise ProtocolError(f"{name} is not what it must be: {kind.__name__}")
    return value
