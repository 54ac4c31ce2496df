"""Messages: what an application sends, and what it gets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from broker import compiled
from broker.errors import MessageRejected
from broker.format import properties as names
from broker.format.commitlog import MESSAGE_SIZE_MAX, Record
from broker.format.java import encode_message_id
from broker.format.sysflag import TransactionType
from broker.format.topics import check_send_topic

_new = object.__new__
_NO_PROPERTIES: dict[str, str] = {}  # copied, never kept
_fast_message: Callable[..., bool | None] | None = compiled.fast.message if compiled.fast else None
_check_topic = lru_cache(maxsize=4096)(check_send_topic)  # what it raises is not remembered
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BLANK_OR_CONTROL = re.compile(r"[\s\x00-\x1f\x7f]")
_has_blank_or_control = _BLANK_OR_CONTROL.search


@dataclass(frozen=True, init=False)
class Message:
    """What an application sends; it cannot be changed once it is made.

    Raises MessageRejected for what RocketMQ would refuse or could not give back: a type or a size that is wrong, a name
    that it keeps for itself. The properties, with tag and keys, take at most 32,767 bytes as UTF-8.
    RocketMQ: Validators.checkMessage, Message (5.3.3).
    """

    topic: str
    """Up to 127 ASCII letters, digits and the signs % | _ -."""
    body: bytes
    """1 byte to 4 MiB, kept as bytes. Other bytes-like objects are copied; text is refused: encode it first."""
    tag: str = ""
    """What consumers select by, one for each message. Empty: none."""
    keys: Sequence[str] = ()
    """What `Store.by_key` finds the message by, without blanks. Kept as a tuple; a str is one key."""
    properties: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The application's own, text to text, kept as a read-only copy. RocketMQ's names are refused."""

    def __init__(
        self,
        topic: str,
        body: bytes,
        tag: str = "",
        keys: Sequence[str] = (),
        properties: Mapping[str, str] = _NO_PROPERTIES,
    ) -> None:
        """Raises MessageRejected."""
        fields = self.__dict__
        if (
            type(self) is not Message  # it may have checks of its own
            or _fast_message is None
            or not _fast_message(fields, topic, body, tag, keys, properties, _check_topic, names.RESERVED)
        ):
            fields.update(topic=topic, body=body, tag=tag, keys=keys, properties=properties)
            self.__post_init__()

    def __post_init__(self) -> None:
        try:
            keys = (self.keys,) if isinstance(self.keys, str) else tuple(self.keys)
            properties = dict(self.properties)
        except (TypeError, ValueError):
            text = "the keys of a message are a list of texts, its properties a dict of texts"
            raise MessageRejected(f"{text}, not {self.keys!r:.60} and {self.properties!r:.60}") from None
        characters = self._checked_length(keys, properties)
        _check_topic(self.topic)
        keys = tuple(plain_text(key) for key in keys)
        properties = {plain_text(name): plain_text(value) for name, value in properties.items()}
        # A frozen dataclass lets nobody set a field; so past it, all at once, which is faster than one by one.
        self.__dict__.update(
            topic=plain_text(self.topic),
            body=_checked_body(self.body),
            tag=plain_text(self.tag),
            keys=keys,
            properties=MappingProxyType(properties),
        )
        if self.tag:
            _check_tag(self.tag)
        for key in keys:
            _check_key(key)
        for name, value in properties.items():
            if name in names.RESERVED:
                raise MessageRejected(f"the property {name!r} is RocketMQ's own; choose another name")
            names.check(name, value)
        if 4 * characters > names.SIZE_MAX:  # a character takes four bytes at most: encode only what might be too large
            names.encode(self.stored_properties)

    def _checked_length(self, keys: tuple[str, ...], properties: dict[str, str]) -> int:
        """How many characters the properties have at most, separators and our own names included; all are text."""
        try:
            everything = "\x01".join((self.topic, self.tag, *keys, *properties, *properties.values()))
        except TypeError:  # then one below is not text
            everything = "\x80"
        if not everything.isascii():
            check_texts("topic", self.topic)
            check_texts("tag", self.tag)
            check_texts("key", *keys)
            check_texts("property", *properties, *properties.values())
        return len(everything) + 16

    @property
    def stored_properties(self) -> dict[str, str]:
        """The properties as a record holds them: a new dict, also with TAGS (the tag) and KEYS (joined by blanks)."""
        stored = dict(self.properties)
        if self.tag:
            stored[names.TAGS] = self.tag
        if self.keys:
            stored[names.KEYS] = names.KEY_SEPARATOR.join(self.keys)
        return stored

    def __reduce__(self) -> tuple[Any, ...]:  # a mappingproxy does not pickle
        return Message, (self.topic, self.body, self.tag, self.keys, dict(self.properties))


@dataclass(frozen=True)
class ReceivedMessage:
    """What an application gets: one record of the CommitLog, its body decompressed. RocketMQ: MessageExt (5.3.3)."""

    topic: str
    """The topic that the record states; after a retry %RETRY% and the group: then RETRY_TOPIC is the first one."""
    body: bytes = field(repr=False)
    """As the producer gave it; where it does not decompress, although its flag says so, as it is stored."""
    tag: str
    """Empty: none."""
    keys: tuple[str, ...]
    """Empty: none."""
    properties: Mapping[str, str] = field(repr=False, hash=False)
    """All of them, read-only, RocketMQ's own included."""
    queue_id: int
    """The queue of the topic, from 0."""
    queue_offset: int
    """Index in the queue, from 0, as the record states it: a half message of 3.x states its slot."""
    commitlog_offset: int
    """Byte position of the record in the CommitLog; of a cluster in that of the broker that has it."""
    born_timestamp_ms: int
    """When it was sent, by the producer's clock, in milliseconds since 1970."""
    store_timestamp_ms: int
    """When it was stored, by the broker's clock, in milliseconds since 1970."""
    unique_key: str | None
    """The producer's id of the message (UNIQ_KEY); None before RocketMQ 3.2, which has none."""
    message_id: str
    """The offset message id, 32 hexadecimal digits for IPv4: the broker's address, the place in its CommitLog."""
    reconsume_times: int
    """How often the group sent it back before; 0 at the first delivery."""
    flag: int
    """The application's 32 bits, opaque."""
    transaction_type: TransactionType
    """Of the record: NONE and COMMIT are delivered, PREPARED and ROLLBACK are not."""

    @classmethod
    def of(cls, record: Record) -> ReceivedMessage:
        """The message in a record.

        A body that does not decompress although its flag says so comes as it is stored. The application can send it
        back: nothing waits behind it.
        """
        properties = record.property_map
        keys = properties.get(names.KEYS)
        received = _new(cls)
        # A frozen dataclass sets its fields one by one, past itself; all at once takes a third of that.
        received.__dict__.update(
            topic=record.topic,
            body=record.delivered_body,
            tag=properties.get(names.TAGS, ""),
            keys=tuple(names.keys(properties)) if keys else (),
            properties=MappingProxyType(properties),
            queue_id=record.queue_id,
            queue_offset=record.queue_offset,
            commitlog_offset=record.commitlog_offset,
            born_timestamp_ms=record.born_timestamp_ms,
            store_timestamp_ms=record.store_timestamp_ms,
            unique_key=properties.get(names.UNIQ_KEY),
            message_id=encode_message_id(record.store_host, record.commitlog_offset),
            reconsume_times=record.reconsume_times,
            flag=record.flag,
            transaction_type=record.transaction_type,
        )
        return received

    def __reduce__(self) -> tuple[Any, ...]:  # a mappingproxy does not pickle
        values = {**self.__dict__, "properties": dict(self.properties)}
        return _received, (values,)


def _received(values: dict[str, Any]) -> ReceivedMessage:
    return ReceivedMessage(**{**values, "properties": MappingProxyType(values["properties"])})


def plain_text(text: str) -> str:
    """The same text as an exact str: an enum of texts formats itself as its name, not as its value."""
    return text if type(text) is str or not isinstance(text, str) else str.__str__(text)


def check_texts(what: str, *texts: Any) -> None:
    """Raises MessageRejected for what is not text, and for text that UTF-8 cannot write."""
    for text in texts:
        if not isinstance(text, str):
            raise MessageRejected(f"a {what} is text, not {type(text).__name__}: {text!r:.60}")
        if not text.isascii() and any("\ud800" <= sign <= "\udfff" for sign in text):
            raise MessageRejected(f"the {what} {text!r:.60} holds half a surrogate pair, which UTF-8 cannot write")


def _checked_body(body: Any) -> bytes:
    if type(body) is not bytes and not isinstance(body, bytes | bytearray | memoryview):
        raise MessageRejected(f"a body is bytes, not {type(body).__name__}; encode it first")
    if not body:
        raise MessageRejected("the body is empty; RocketMQ takes no message without one")
    if len(raw := bytes(body)) > MESSAGE_SIZE_MAX:
        raise MessageRejected(f"the body has {len(raw)} bytes; at most {MESSAGE_SIZE_MAX} are allowed")
    return raw


def _check_tag(tag: str) -> None:
    if tag.strip() != tag or "||" in tag or _CONTROL.search(tag):  # RocketMQ too strips what a consumer selects
        text = "begins or ends with a blank, has || or a control character"
        raise MessageRejected(f"the tag {tag!r} {text}: no consumer could select it")


def _check_key(key: str) -> None:
    if not key or _has_blank_or_control(key):
        raise MessageRejected(f"the key {key!r} is empty or has a blank in it, which separates keys in the store")
