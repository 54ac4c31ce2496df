"""A store of ours for real brokers to open: `python -m tests.compat.ours STORE SEED COUNT [ENGINE]` says what it does.

One JSON object a line, written when the call came back: what is in a line was acknowledged. The last letter of a key is
the answer that `Settler.java` gives when a broker asks about the transaction.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import broker
from broker.store.read.layout import StoreLayout

if TYPE_CHECKING:
    from broker.live import LiveStore

GROUP = "order_producer"
TOPICS = ("OrderTopic", "PayTopic")
QUEUES = 4

# The sizes that tests/compat/rocketmq.py gives to the brokers.
LAYOUT = StoreLayout(
    segment_bytes=4 << 20,
    consume_queue_bytes=60_000,
    state_table_bytes=24_000,
    redo_log_bytes=20_000,
    index_slots=1000,
    index_items=4000,
)

Event = dict[str, Any]


def write(store: LiveStore, seed: int, count: int) -> Iterator[Event]:
    """Send messages of all kinds; some transactions are left in doubt."""
    chance = random.Random(seed)
    for topic in TOPICS:
        store.create_topic(topic, queues=QUEUES, message_type="MIXED")
    for number in range(count):
        queue_id, body = chance.randrange(QUEUES), chance.randbytes(chance.randint(1, 3000))
        answer = chance.choice("ccru")
        key = f"{seed}-{number}-{answer}"
        message = broker.Message(chance.choice(TOPICS), body, tag=chance.choice(["", "TagA"]), keys=[key, "common"])
        said = {
            "key": key,
            "topic": message.topic,
            "queue_id": queue_id,
            "body_len": len(body),
            "body_crc": zlib.crc32(body),
        }
        if chance.random() < 0.3:
            appended = store.append(message, queue_id=queue_id)
            yield _delivered(said, appended)
        else:
            yield from _transaction(store, message, queue_id, chance.choice(["commit", "roll back", "leave"]), said)


def _transaction(store: LiveStore, message: broker.Message, queue_id: int, end: str, said: Event) -> Iterator[Event]:
    half = store.transactions.prepare(message, GROUP, queue_id=queue_id)
    yield {"event": "half", **said, "slot": half.slot, "commitlog_offset": half.commitlog_offset}
    if end == "commit":
        ended = store.transactions.commit(half)
        yield _delivered(said, ended)
    elif end == "roll back":
        store.transactions.rollback(half)
        yield {"event": "rolled back", **said}


def _delivered(said: Event, place: Any) -> Event:
    found = {"queue_offset": place.queue_offset, "commitlog_offset": place.commitlog_offset}
    return {"event": "delivered", **said, **found}


def in_doubt(events: list[Event]) -> dict[str, int]:
    """The slots of the transactions that nobody ended, by key."""
    halves = {event["key"]: event["slot"] for event in events if event["event"] == "half"}
    ended = {event["key"] for event in events if event["event"] in ("delivered", "rolled back")}
    return {key: slot for key, slot in halves.items() if key not in ended}


def written_clean(path: Path, seed: int, count: int = 1500, transactions: str = "state-table") -> list[Event]:
    """Write a store and close it."""
    with broker.open(path, layout=LAYOUT, transactions=transactions) as store:
        return list(write(store, seed, count))


def written_killed(path: Path, seed: int, count: int = 1500, transactions: str = "state-table") -> list[Event]:
    """Write a store in another process, and kill that with SIGKILL after so many things were acknowledged."""
    words = [sys.executable, "-m", "tests.compat.ours", str(path), str(seed), "1000000", transactions]
    events: list[Event] = []
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        for line in process.stdout:
            events.append(json.loads(line))
            if len(events) == count:
                break
        process.send_signal(signal.SIGKILL)
        events += [json.loads(line) for line in process.stdout if line.endswith(b"\n")]
    return events


def main(path: str, seed: str, count: str, transactions: str = "state-table") -> None:
    with broker.open(path, layout=LAYOUT, transactions=transactions) as store:
        for event in write(store, int(seed), int(count)):
            sys.stdout.write(json.dumps(event) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])


def places(events: list[Event], kind: str) -> Counter[tuple[Any, ...]]:
    """Each message with its place in its queue and its body."""
    return Counter(place(event) for event in events if event["event"] == kind)


def place(event: Event) -> tuple[Any, ...]:
    """Where a message stands in its queue, and its body."""
    return tuple(event[name] for name in ("topic", "queue_id", "queue_offset", "body_len", "body_crc"))
