"""From a value that an application sends to the message, and what the producer and the table of keys need to know."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypedDict

from broker.app.bodies import TopicBody
from broker.app.cloud_events import attributes
from broker.app.sent_keys import check_key
from broker.errors import MessageRejected, shown
from broker.message import Message

_DAY_S = 86_400.0
_WINDOW_MAX_S = 1e9  # 30 years: what it reaches back to is still a time that a database holds


class SendKeywords(TypedDict, total=False):
    """What a send may say besides topic and value."""

    tag: str
    """What consumers select by. By default none."""
    keys: Sequence[str]
    """What the message is found by later. By default none."""
    properties: Mapping[str, str]
    """The application's own, text to text."""
    sharding_key: str | None
    """Messages with the same one are consumed in the order of sending. None: the queues take turns."""
    deliver_at: datetime | int | None
    """When it is delivered: a datetime with a time zone, or milliseconds since 1970. None: at once."""
    delay: timedelta | float | None
    """How long from now on it is delivered: a timedelta, or seconds. None: at once."""
    dedup_key: str | None
    """Text of 1 to 255 characters: the topic gets one message for it within the window. None: no such limit."""
    dedup_window: timedelta | float
    """How long a `dedup_key` counts: a timedelta, or seconds. By default a day."""


class Outgoing(NamedTuple):
    """A message that is to be sent."""

    message: Message
    placing: dict[str, Any]  # keyword arguments of Producer.send
    dedup_key: str | None
    window_ms: int


def outgoing(
    topic: str,
    value: Any,
    declared: TopicBody,
    application: str,
    *,
    tag: str = "",
    keys: Sequence[str] = (),
    properties: Mapping[str, str] | None = None,
    sharding_key: str | None = None,
    deliver_at: datetime | int | None = None,
    delay: timedelta | float | None = None,
    dedup_key: str | None = None,
    dedup_window: timedelta | float = _DAY_S,
) -> Outgoing:
    """The message of a value, with the attributes of its event. Raises MessageRejected."""
    body, content_type = declared.encode(value)
    window_ms = _window_ms(dedup_window)
    if dedup_key is not None:
        check_key(dedup_key, window_ms)
    event = attributes(
        event_type=declared.event_type or _type_name(value) or topic, source=f"/{application}",
        content_type=content_type, now_ms=time.time_ns() // 1_000_000, version=declared.version, key=dedup_key,
    )  # fmt: skip
    if properties is not None and not isinstance(properties, Mapping):
        raise MessageRejected(f"properties is a dict of text to text, not {shown(properties)}")
    _check_sharding_key(sharding_key)
    message = Message(topic, body, tag, keys, {**event, **(properties or {})})
    placing = {"sharding_key": sharding_key, "deliver_at": deliver_at, "delay": delay}
    return Outgoing(message, placing, dedup_key, window_ms)


def check_keywords(options: Mapping[str, Any]) -> None:
    """Raises MessageRejected for an option that a send does not have."""
    if unknown := options.keys() - SendKeywords.__annotations__.keys():
        known = ", ".join(SendKeywords.__annotations__)
        raise MessageRejected(f"a send has no option {min(unknown)!r}; it takes {known}")


def _type_name(value: Any) -> str:
    """The class of a value that an application made; nothing for plain values."""
    kind = type(value)
    return "" if kind.__module__ == "builtins" else kind.__name__


def _window_ms(window: timedelta | float) -> int:
    seconds: Any = window.total_seconds() if isinstance(window, timedelta) else window
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not -_WINDOW_MAX_S <= seconds <= _WINDOW_MAX_S:
        text = f"dedup_window is a timedelta or a number of seconds up to {_WINDOW_MAX_S:.0f}"
        raise MessageRejected(f"{text}, not {window!r:.60}")
    return int(seconds * 1000)


def _check_sharding_key(key: object) -> None:
    """Raises MessageRejected for text that UTF-8 does not have; another type is refused by the producer."""
    if isinstance(key, str):
        try:
            key.encode()
        except UnicodeEncodeError as error:
            raise MessageRejected(f"the sharding_key {key!r:.60} cannot be written in UTF-8: {error}") from None
