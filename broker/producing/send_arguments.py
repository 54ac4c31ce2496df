"""What a producer is asked for: each argument out of range, or of the wrong type, is a sentence and no TypeError."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

from broker.errors import MessageRejected
from broker.format import properties as names
from broker.format.topics import parse_delay_levels
from broker.message import Message

DELAY_LEVELS = len(parse_delay_levels())

_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
_RESERVED_PREFIX = "CHECKBACK_"


def check_group(group: object) -> None:
    """Raises MessageRejected for what cannot name a producer group."""
    if not isinstance(group, str) or not _GROUP.fullmatch(group):
        raise MessageRejected(f"the producer group {group!r:.60} takes 1 to 255 ASCII letters, digits and % | _ -")


def order_and_delay(sharding_key: str | None, delay_level: int | None) -> dict[str, str]:
    """The properties that RocketMQ keeps an order and a delay in. Raises MessageRejected for what is neither."""
    extra = {}
    if sharding_key is not None:
        if not isinstance(cast(object, sharding_key), str) or not sharding_key:
            raise MessageRejected(f"a sharding_key is text that is not empty, not {sharding_key!r:.60}")
        extra[names.SHARDING_KEY] = sharding_key
    if delay_level is not None:
        if type(delay_level) is not int or not 1 <= delay_level <= DELAY_LEVELS:
            text = f"a delay_level is a level from 1 (1 s) to {DELAY_LEVELS} (2 h), not {delay_level!r:.60}"
            raise MessageRejected(text)
        extra[names.DELAY] = str(delay_level)
    return extra


def check_message(message: Message) -> None:
    """Raises MessageRejected for what is not a message, or has a property of ours."""
    if not isinstance(cast(object, message), Message):
        text = f"a producer sends a message, send(broker.Message(topic, body)), not {type(message).__name__}"
        raise MessageRejected(text)
    for name in message.properties:
        if name.startswith(_RESERVED_PREFIX):
            raise MessageRejected(f"the property {name!r} is checkback's own; choose another name")


def checked_batch(messages: object) -> list[Message]:
    """The messages as a list. Raises MessageRejected for what is none."""
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes):
        raise MessageRejected(f"send_batch takes a list of messages, not {messages!r:.60}")
    return list(messages)


def checked_topics(topics: object) -> frozenset[str]:
    """The topics of a producer. Raises MessageRejected for what are none."""
    names_given = (topics,) if isinstance(topics, str) else topics
    if not isinstance(names_given, Iterable) or not all(isinstance(one, str) for one in names_given):
        raise MessageRejected(f"topics is a list of topic names, not {topics!r:.60}")
    return frozenset(names_given)
