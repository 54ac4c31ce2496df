"""Send exported messages again: what would be sent is known before anything is, and a killed run goes on where it was.

    plan = plan_replay("orders.jsonl")             nothing is sent
    replay("orders.jsonl", "shop.store")           appends them, in the order of the file

Each is a new message, with a new unique key; the property CHECKBACK_REPLAY_OF names the one that it repeats. How far a
run came is kept in FILE.replayed: killed (SIGKILL) between an append and its note, it sends one message twice. Of two
runs of a file at once the second is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from shlex import quote
from typing import Any

import broker
from broker.errors import MessageRejected, StoreError, StoreLocked
from broker.format.config import PERM_WRITE, TopicConfig
from broker.store.disk.opening import new_text
from broker.store.disk.os_errors import explained, not_written
from recovery.interrupts import interrupts_later
from recovery.views.messages.export import exported

REPLAY_OF = "CHECKBACK_REPLAY_OF"
_AGAIN = "Remove that note to send all of the file again"
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
    """Read the whole file. Raises StoreError for a line that cannot be sent, and for notes of another run.

    Raises NotAStore where there is none to send to.
    """
    with broker.open(store, read_only=True) as opened:
        known = opened.topic_configs().topics
    done, topics = _done(file, store, topic), Counter[str]()
    first_ms = last_ms = 0
    for number, one in enumerate(exported(file)):
        if number >= done:
            _renewed(one.message, one.message_id, topic)
            topics[topic or one.message.topic] += 1
            first_ms = min(first_ms or one.store_timestamp_ms, one.store_timestamp_ms)
            last_ms = max(last_ms, one.store_timestamp_ms)
    for name in topics:
        _check_may_be_written(known.get(name), store)
    return ReplayPlan(file, store, dict(topics), done, first_ms, last_ms)


def replay(file: str, store: str, topic: str = "", progress: Progress = lambda _done, _total: None) -> ReplayPlan:
    """Append what is left of the file to a store. Raises what `plan_replay` raises, before anything is sent.

    Raises StoreLocked while another run sends the same file, and StoreError where FILE.replayed cannot be written.
    """
    plan = plan_replay(file, store, topic)
    with _alone(file), broker.open(store, create=False) as opened:
        if _done(file, store, topic) != plan.done:  # another run ended meanwhile
            plan = plan_replay(file, store, topic)
        notes, sent = _ReplayNotes(file, store, topic), 0
        notes.write(plan.done)  # a place that takes no note takes no message: each run would send the first again
        for number, one in enumerate(exported(file)):
            if number < plan.done:
                continue
            message = _renewed(one.message, one.message_id, topic)
            known = opened.topic_configs().topics.get(message.topic)
            queues = known.write_queue_count if known is not None else 1
            with interrupts_later():  # after a Ctrl-C between the two the next run would send it again
                opened.append(message, queue_id=one.queue_id % max(queues, 1), is_copy=True)
                notes.write(number + 1)
            sent += 1
            progress(sent, plan.total)
    return replace(plan, sent=sent)


def _renewed(message: broker.Message, message_id: str, topic: str) -> broker.Message:
    properties = {**message.properties, REPLAY_OF: message_id}
    try:
        return broker.Message(topic or message.topic, message.body, message.tag, message.keys, properties)
    except MessageRejected as error:
        raise StoreError(f"message {message_id} cannot be sent again: {error}. Nothing was sent") from error


def _check_may_be_written(topic: TopicConfig | None, store: str) -> None:
    """Raises StoreError for a topic that takes no message: the store would refuse it behind what was sent before."""
    if topic is not None and not (topic.perm & PERM_WRITE and topic.write_queue_count > 0):
        text = f"the topic {topic.name} of {store} may not be written. Nothing was sent. Give another by --topic, or"
        queues = "" if topic.write_queue_count else f" --queues {max(topic.read_queue_count, 1)}"
        step = f"let it be written: checkback topic {quote(store)} {quote(topic.name)} --create --perm 6{queues}"
        raise StoreError(f"{text} {step}", path=store)


@contextlib.contextmanager
def _alone(file: str) -> Iterator[None]:
    """Two runs of one file at once would send each message twice. The lock goes with its process."""
    with open(file, "rb") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked(f"{file} is being sent by another run: wait until it has ended", path=file) from None
        yield


def _done(file: str, store: str, topic: str) -> int:
    """How many messages an earlier run sent. Raises StoreError where it sent others, or elsewhere."""
    notes = _notes(file)
    try:
        with open(notes, encoding="utf-8") as kept:
            noted = json.load(kept)
        done = noted["done"]
        if type(done) is not int or done < 0:
            raise ValueError(done)
    except FileNotFoundError:
        return 0
    except (ValueError, TypeError, KeyError) as error:
        text = f"{notes} cannot be read as the note of an earlier run, so nobody knows what of {file} was sent"
        raise StoreError(f"{text}. {_AGAIN}", path=notes) from error
    except OSError as error:
        raise explained(error, notes) from error
    if (noted.get("store"), noted.get("topic")) != (os.path.realpath(store), topic):
        elsewhere = f"{noted.get('store')} {noted.get('topic') or ''}".rstrip()
        raise StoreError(f"{notes} says that an earlier run sent messages to {elsewhere}. {_AGAIN}", path=file)
    if noted.get("file") != _digest(file):
        raise StoreError(f"{notes} is about another export, which {file} has replaced. {_AGAIN}", path=file)
    return int(done)


class _ReplayNotes:
    """How far a run came, on the disk after each message."""

    def __init__(self, file: str, store: str, topic: str) -> None:
        self._file, self._about = file, {"store": os.path.realpath(store), "topic": topic, "file": _digest(file)}

    def write(self, done: int) -> None:
        """Raises StoreError, StoreFull."""
        beside = f"{_notes(self._file)}.new"
        try:
            with new_text(beside) as notes:
                json.dump({**self._about, "done": done}, notes)
                notes.flush()
                os.fsync(notes.fileno())
            os.replace(beside, _notes(self._file))
        except OSError as error:
            raise not_written(error, _notes(self._file)) from error


def _digest(file: str) -> str:
    with open(file, "rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _notes(file: str) -> str:
    return f"{file}.replayed"
