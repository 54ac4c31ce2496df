"""What log lines say besides their sentence: a stable event name, and fields by which lines are found.

    log.warning("%s is delivered again", message_id, extra=event("handler-failed", topic=..., message_key=...))

The names of events and fields are part of the interface: `docs/telemetry.md` lists them, and a test compares. Sentences
may change.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Protocol

from broker.enlisting.ledger_key import LEDGER_KEY

_ATTRIBUTE = "checkback"

EVENTS = MappingProxyType({
    "handler-failed": "A handler raised: its message is delivered again later.",
    "handler-loop": "A task of an async handler raised SystemExit, or a handler went on after it was cancelled.",
    "dead-letter": "A message went to the dead letters of its group.",
    "database-away": "A handler waits, since its database did not answer.",
    "store-full": "There is no room: what is in hand is settled when there is.",
    "consumer-not-closed": "A consumer could not give its queues back.",
    "store-dropped": "A store that nobody closed was closed, since nothing referred to it.",
    "consumer-dropped": "A consumer that nobody closed left its group.",
    "delayed-waits": "A message that is delayed or overdue cannot be delivered now.",
    "ledger-away": "A ledger's database did not answer.",
    "ledger-rows-stay": "Old rows of a ledger could not be removed.",
    "commit-unseen": "A COMMIT went past the session: its messages are delivered, since their rows are saved.",
    "left-in-doubt": "The outcome of a transaction is not known: check-back finds out.",
    "parked": "A message waits for a manual decision.",
    "end-contradicted": "A message was ended contrary to its local transaction.",
    "end-postponed": "A message could not be ended now: check-back ends it.",
    "local-transaction-raised": "An application's function for a local transaction raised.",
    "check-round-failed": "A round of check-back failed, and is tried again.",
    "check-waits": "Another process leads check-back: this one waits until it ends.",
    "check-failed": "A half message cannot be checked; the others are.",
    "retention": "Old messages were removed, or could not be.",
    "serving": "A server begins to answer.",
    "few-files": "A server may not open as many files as its connections need.",
    "background-failed": "A server's background work failed, and is tried again.",
    "connection-closed": "A client's connection was closed.",
    "request-failed": "A request could not be answered.",
    "end-refused": "A client's end of a transaction was refused.",
    "resolver-failed": "An application's resolver raised.",
    "check-unanswered": "Nobody could say how a transaction ended.",
    "name-server": "A name server does not take the registration.",
    "topics-unreadable": "The topics, or the messages of one, could not be read.",
    "slave": "A slave came, left, or was refused.",
    "protocol-error": "The other side does not speak RocketMQ's protocol.",
    "heartbeat-failed": "A broker of the cluster does not answer.",
    "pull-waits": "A broker of the cluster gives no messages now.",
    "queue-waits": "A queue of the cluster is not consumed now.",
    "queues-unchanged": "A group of the cluster keeps the queues that it has.",
    "position-not-written": "The position of a group in a cluster could not be written.",
    "queue-shrank": "A queue of the cluster ends before what a group had read.",
    "spark-unused": "The local engine does the work of Spark.",
    "log-lines-left-out": "Nobody read the log for a while: lines are missing.",
    "report-not-kept": "The report of a verification could not be written.",
})  # fmt: skip
"""Each event, and what it means."""

FIELDS = ("store", "topic", "message_key", "transaction", "group", "queue", "peer")
"""What an event may say besides its name: the path of the store; a topic; the UNIQ_KEY of a message, else its message
id; the key of the ledger row; a consumer's or producer's group; a queue id; an address. Lists, of several.
"""


def event(name: str, **fields: Any) -> dict[str, Mapping[str, Any]]:
    """The `extra` of a log call. Fields that are None are left out."""
    assert name in EVENTS, name
    assert fields.keys() <= set(FIELDS), fields
    return {_ATTRIBUTE: {"event": name, **{key: value for key, value in fields.items() if value is not None}}}


class HalfFields(Protocol):
    @property
    def topic(self) -> str: ...
    @property
    def unique_key(self) -> str | None: ...
    @property
    def message_id(self) -> str: ...
    @property
    def producer_group(self) -> str: ...
    @property
    def properties(self) -> Mapping[str, str]: ...


def fields_of_half(half: HalfFields) -> dict[str, Any]:
    """The fields of an event about one half message."""
    return {
        "topic": half.topic, "message_key": half.unique_key or half.message_id, "group": half.producer_group,
        "transaction": half.properties.get(LEDGER_KEY),
    }  # fmt: skip


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """The event and its fields, for a formatter; empty for a line that has none."""
    found: Mapping[str, Any] = getattr(record, _ATTRIBUTE, {})
    return found
