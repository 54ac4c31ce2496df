"""What a consumer is asked for: each argument out of range, or of the wrong type, is a sentence and no TypeError."""

from __future__ import annotations

from collections.abc import Iterable

from broker.database.dedup import Processed
from broker.errors import BrokerError, MessageRejected, shown
from broker.format.topics import (
    DELAYS_MS,
    DLQ_PREFIX,
    GROUP_SIZE_MAX,
    check_topic_name,
    dlq_topic,
    retry_topic,
)
from broker.message import ReceivedMessage
from broker.store.maintain.retention import SECONDS_MAX


def check_consumer_names(group: object, topics: object) -> tuple[str, ...]:
    """The topics as a tuple. Raises MessageRejected for a bad name, BrokerError for topics that cannot be consumed."""
    if not isinstance(group, str):
        raise MessageRejected(f"a consumer group is text, not {shown(group)}")
    listed = (topics,) if isinstance(topics, str) else topics
    if not isinstance(listed, list | tuple | set | frozenset):
        raise MessageRejected(f"group {group}: a topic is text, or a list of texts, not {shown(topics)}")
    if not listed:
        raise BrokerError(f"group {group}: name a topic to consume")
    check_topic_name(retry_topic(group))
    if not group or len(group) > GROUP_SIZE_MAX:
        raise MessageRejected(f"a consumer group has from 1 to {GROUP_SIZE_MAX} characters, not {len(group)}")
    for topic in listed:
        if not isinstance(topic, str):
            raise MessageRejected(f"group {group}: a topic is text, not {shown(topic)}")
        check_topic_name(topic)
        if topic.startswith(DLQ_PREFIX) and topic == dlq_topic(group):
            raise BrokerError(f"group {group} cannot consume its own dead letters: run checkback dlq")
    return tuple(listed)


def check_consumer_options(
    *, ordered: object, retries_first: object, max_retries: object, retry_delay_level: object, ack_timeout_s: object
) -> None:
    """Raises BrokerError for an option of a consumer that is out of range."""
    check_flag("ordered", ordered)
    check_flag("retries_first", retries_first)
    check_max_retries(max_retries)
    check_retry_level("retry_delay_level", retry_delay_level)
    check_seconds("ack_timeout_s", ack_timeout_s)


def check_retry(message: object, delay_level: object, delay_s: object, reason: object) -> str:
    """The reason as text. Raises BrokerError for an argument of `retry` that is out of range."""
    check_received("retry", message)
    check_retry_level("delay_level", delay_level)
    check_seconds("delay_s", delay_s, may_be_zero=True)
    return reason_text(reason)


def check_max_retries(count: object) -> None:
    """Raises BrokerError for what is not a number of retries."""
    if type(count) is not int or count < 0:
        raise BrokerError(f"max_retries is a whole number from 0 on, not {shown(count)}")


def check_flag(name: str, value: object) -> None:
    """Raises BrokerError for what is neither True nor False: the text "false" would count as True."""
    if not isinstance(value, bool):
        raise BrokerError(f"{name} is True or False, not {shown(value)}")


def check_retry_level(name: str, level: object) -> None:
    """Raises BrokerError for what is neither a delay level, nor 0 for at once, nor -1 for the dead letters."""
    if level is not None and (type(level) is not int or not -1 <= level <= len(DELAYS_MS)):
        reason = f"a level from 1 (1 s) to {len(DELAYS_MS)} (2 h), 0 for at once, or -1 for the dead letters"
        raise BrokerError(f"{name} is {reason}, not {shown(level)}")


def check_seconds(name: str, seconds: object, *, may_be_zero: bool = False) -> None:
    """Raises BrokerError for what is not a time; None is not a limit."""
    if seconds is None and may_be_zero:
        return
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool) and 0 <= seconds <= SECONDS_MAX
    if not is_number or not (seconds or may_be_zero):
        least = "from 0 on" if may_be_zero else "above 0"
        raise BrokerError(f"{name} is a number of seconds {least}, not {shown(seconds)}")


def check_limit(limit: object) -> None:
    """Raises BrokerError for what is not a number of messages."""
    if type(limit) is not int or limit < 1:
        raise BrokerError(f"limit is a whole number from 1 on, not {shown(limit)}")


def check_received(verb: str, message: object) -> None:
    """Raises BrokerError for what no consumer handed out."""
    if not isinstance(message, ReceivedMessage):
        raise BrokerError(f"{verb}() takes a message that receive() returned, not {shown(message)}")


def check_messages(messages: object) -> None:
    """Raises BrokerError for what is not a list of messages."""
    if not isinstance(messages, Iterable) or isinstance(messages, str | bytes):
        step = ": acknowledge one by ack(message)" if isinstance(messages, ReceivedMessage) else ""
        raise BrokerError(f"ack_all() takes a list of messages that were received, not {shown(messages)}{step}")


def check_processed(processed: Processed | None) -> Processed | None:
    """The table that was given. Raises BrokerError for anything else."""
    if processed is None or isinstance(processed, Processed):
        return processed
    raise BrokerError(f"processed= takes the table, broker.Processed(), not {shown(processed)}")


def reason_text(reason: object) -> str:
    """Why a message is given back, as text; of an exception its text or, without one, its name. Raises BrokerError."""
    if isinstance(reason, BaseException):
        try:
            return str(reason) or type(reason).__name__
        except Exception:  # noqa: BLE001 - of another library, which does not know its own text
            return type(reason).__name__
    if not isinstance(reason, str):
        raise BrokerError(f"reason is text, or the exception that was raised, not {shown(reason)}")
    return reason
