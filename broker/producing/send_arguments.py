"""What a producer is asked for: each argument out of range, or of the wrong type, is a sentence and no TypeError."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from inspect import getattr_static, iscoroutinefunction
from typing import Any, NamedTuple, cast

from broker.database.bound_ledger import BoundLedger
from broker.errors import MessageRejected, TransactionError, given_in_seconds, shown
from broker.format import properties as names
from broker.format.topics import DELAYS_MS
from broker.message import Message

_GROUP = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
_DELAY_MAX_S = 1e9  # far above what a store takes, which says its own limit
_RESERVED_PREFIX = "CHECKBACK_"
_RUN = "execute_local_transaction"  # RocketMQ: TransactionListener.executeLocalTransaction
_ASK = "check_local_transaction"  # RocketMQ: TransactionListener.checkLocalTransaction


def check_group(group: object, step: str = "") -> None:
    """Raises MessageRejected for what cannot name a producer group, with the next step where there is one to say."""
    if not isinstance(group, str) or not _GROUP.fullmatch(group):
        text = f"the producer group {shown(group)} takes 1 to 255 ASCII letters, digits and % | _ -"
        raise MessageRejected(text + step)


def check_producer(group: object, ledger: object, resolver: object) -> None:
    """Raises MessageRejected for what cannot name a group, TransactionError for what cannot say how something ended."""
    check_group(group)
    if ledger is not None and not isinstance(ledger, BoundLedger):
        text = "a producer's ledger is a broker.Ledger, store.producer(ledger=broker.Ledger(engine))"
        raise TransactionError(f"{text}, not {shown(ledger)}")
    ask = getattr(resolver, _ASK, resolver)
    check_sync(ask, "a producer's resolver")
    needs_an_object = isinstance(resolver, type) and not isinstance(
        getattr_static(resolver, _ASK, None), staticmethod | classmethod
    )
    if resolver is not None and (needs_an_object or not callable(ask)):
        text = f"a producer's resolver is a function of a message, or an object with {_ASK}(message)"
        raise TransactionError(f"{text}, not {shown(resolver)}")


def check_sync(function: object, what: str) -> None:
    """Raises TransactionError for a coroutine function: nobody would await what it returns, which says nothing."""
    if iscoroutinefunction(function):
        raise TransactionError(f"{what} is called by a thread without an event loop: make it a plain def, not async")


def local_transaction_of(listener: object) -> Callable[[Message, Any], Any]:
    """What runs a listener's local transaction. Raises TransactionError for a listener without it, or an async one."""
    execute: Any = getattr(listener, _RUN, None)
    if execute is None:
        raise TransactionError(f"the listener has no {_RUN}(message, arg)")
    check_sync(execute, f"{_RUN}(message, arg)")
    return cast("Callable[[Message, Any], Any]", execute)


class SendOptions(NamedTuple):
    """What a send says besides its message: its order and its delay, as the application gave them, unchecked."""

    sharding_key: str | None = None
    delay_level: int | None = None
    deliver_at: datetime | int | None = None
    delay: timedelta | float | None = None

    def properties(self) -> dict[str, str]:
        """The properties that RocketMQ keeps an order and a delay in. Raises MessageRejected for what is neither."""
        if self == _NONE:  # most sends
            return {}
        extra = {}
        key, level = self.sharding_key, self.delay_level
        if key is not None:
            if not isinstance(cast(object, key), str) or not key:
                raise MessageRejected(f"a sharding_key is text that is not empty, not {shown(key)}")
            if not key.isascii() and any("\ud800" <= sign <= "\udfff" for sign in key):
                text = f"the sharding_key {key!r:.60} holds half a surrogate pair, which UTF-8 cannot write"
                raise MessageRejected(text)
            extra[names.SHARDING_KEY] = key
        if sum(one is not None for one in (level, self.deliver_at, self.delay)) > 1:
            raise MessageRejected("a message has one delay: say delay_level, deliver_at or delay")
        if level is not None:
            if type(level) is not int or not 1 <= level <= len(DELAYS_MS):
                text = f"a delay_level is a level from 1 (1 s) to {len(DELAYS_MS)} (2 h), not {shown(level)}"
                raise MessageRejected(text)
            extra[names.DELAY] = str(level)
        if (due_ms := self._due_ms()) is not None:
            extra[names.TIMER_DELIVER_MS] = str(due_ms)
        return extra

    def _due_ms(self) -> int | None:
        if self.delay is not None:
            delay = self.delay.total_seconds() if isinstance(self.delay, timedelta) else self.delay
            if (
                isinstance(delay, bool)
                or not isinstance(cast(object, delay), int | float)
                or not 0 <= delay < _DELAY_MAX_S
            ):
                raise MessageRejected(f"delay is a timedelta or a number of seconds from 0 on, not {shown(self.delay)}")
            return time.time_ns() // 1_000_000 + int(delay * 1000)
        at = self.deliver_at
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise MessageRejected(f"deliver_at={at!r} has no time zone: nobody knows which moment is meant")
            return max(0, int(at.timestamp() * 1000))
        if at is not None and (type(at) is not int or not 0 <= at < 1 << 63):
            raise MessageRejected(
                f"deliver_at is a datetime with a time zone or milliseconds since 1970, not {shown(at)}"
            )
        if at is not None and (wrong := given_in_seconds(at)):
            raise MessageRejected(f"deliver_at {wrong}, or a datetime with a time zone")
        return at


_NONE = SendOptions()


def check_message(message: object) -> None:
    """Raises MessageRejected for what is not a message, or has a property of ours."""
    if not isinstance(message, Message):
        text = f"a producer sends a message, send(broker.Message(topic, body)), not {type(message).__name__}"
        raise MessageRejected(text)
    for name in message.properties:
        if name.startswith(_RESERVED_PREFIX):
            raise MessageRejected(f"the property {name!r} is checkback's own; choose another name")


def checked_batch(messages: object) -> list[Message]:
    """The messages as a list. Raises MessageRejected for what is none."""
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes):
        raise MessageRejected(f"send_batch takes a list of messages, not {shown(messages)}")
    return list(messages)


def checked_topics(topics: object) -> frozenset[str]:
    """The topics of a producer. Raises MessageRejected for what are none."""
    names_given = (topics,) if isinstance(topics, str) else topics
    listed = tuple(names_given) if isinstance(names_given, Iterable) else (None,)  # a generator is read once
    if not all(isinstance(one, str) for one in listed):
        raise MessageRejected(f"topics is a list of topic names, not {shown(topics)}")
    return frozenset(listed)
