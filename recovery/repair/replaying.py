"""Send exported messages again: what would be sent is known before anything is, and a killed run goes on where it was.

    plan = plan_replay("orders.jsonl")             nothing is sent
    replay("orders.jsonl", "shop.store")           appends them, in the order of the file

Each is a new message, with a new unique key; the property CHECKBACK_REPLAY_OF names the one that it repeats. How far a
run came is kept in FILE.replayed: killed between an append and its note, it sends one message twice.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import broker
from broker.errors import MessageRejected, StoreError
from recovery.views.messages.export import exported

REPLAY_OF = "CHECKBACK_REPLAY_OF"
Progress = Callable[[int, int], None]  # messages done, messages in all


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What a replay sends."""

    file: str
    store: str
    topics: dict[str, int]  # how many messages of each topic are left to send
    done: int  # sent by an earlier run
    first_stored_ms: int
    last_stored_ms: int
    sent: int = 0  # by this run

    @property
    def total(self) -> int:
        """How many are left to send."""
        return sum(self.topics.values())

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        return {**asdict(self), "total": self.total}


def plan_replay(file: str, store: str, topic: str = "") -> ReplayPlan:
    """Read the whole file. Raises StoreError for a line that cannot be sent, and for a run into another store.

    Raises NotAStore where there is none to send to.
    """
    broker.open(store, read_only=True).close()
    done, topics = _done(file, store, topic), Counter[str]()
    first_ms = last_ms = 0
    for number, one in enumerate(exported(file)):
        if number >= done:
            _renewed(one.message, one.message_id, topic)
            topics[topic or one.message.topic] += 1
            first_ms = min(first_ms or one.store_timestamp_ms, one.store_timestamp_ms)
            last_ms = max(last_ms, one.store_timestamp_ms)
    return ReplayPlan(file, store, dict(topics), done, first_ms, last_ms)


def replay(file: str, store: str, topic: str = "", progress: Progress = lambda _done, _total: None) -> ReplayPlan:
    """Append what is left of the file to a store. Raises what `plan_replay` raises, before anything is sent."""
    plan = plan_replay(file, store, topic)
    sent = 0
    with broker.open(store, create=False) as opened:
        for number, one in enumerate(exported(file)):
            if number < plan.done:
                continue
            message = _renewed(one.message, one.message_id, topic)
            known = opened.topic_configs().topics.get(message.topic)
            queues = known.write_queue_count if known is not None else 1
            opened.append(message, queue_id=one.queue_id % max(queues, 1))
            sent += 1
            _note(file, store, topic, number + 1)
            progress(sent, plan.total)
    return replace(plan, sent=sent)


def _renewed(message: broker.Message, message_id: str, topic: str) -> broker.Message:
    properties = {**message.properties, REPLAY_OF: message_id}
    try:
        return broker.Message(topic or message.topic, message.body, message.tag, message.keys, properties)
    except MessageRejected as error:
        raise StoreError(f"message {message_id} cannot be sent again: {error}. Nothing was sent") from error


def _done(file: str, store: str, topic: str) -> int:
    """How many messages an earlier run sent. Raises StoreError where it sent them elsewhere."""
    try:
        with open(_notes(file), encoding="utf-8") as notes:
            noted = json.load(notes)
    except FileNotFoundError:
        return 0
    here = {"store": os.path.realpath(store), "topic": topic}
    if {name: noted.get(name) for name in here} != here:
        text = (
            f"{_notes(file)} says that an earlier run sent messages to {noted.get('store')} {noted.get('topic') or ''}"
        )
        raise StoreError(f"{text.rstrip()}. Remove that note to send all of the file again", path=file)
    return int(noted["done"])


def _note(file: str, store: str, topic: str, done: int) -> None:
    beside = f"{_notes(file)}.new"
    with open(beside, "w", encoding="utf-8") as notes:
        json.dump({"store": os.path.realpath(store), "topic": topic, "done": done}, notes)
        notes.flush()
        os.fsync(notes.fileno())
    os.replace(beside, _notes(file))


def _notes(file: str) -> str:
    return f"{file}.replayed"
