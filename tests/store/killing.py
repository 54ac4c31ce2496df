"""Processes that append and end transactions on one store while one after another is killed.

`python -m tests.store.killing STORE NOTES KILLS SEED ENGINE` forks four workers, kills one of them with SIGKILL at a
random moment, forks another in its place, and so on. Each worker notes what the store acknowledged, a line each; a
line is written in one call, so that a kill leaves it whole or out.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import traceback
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import broker
from broker.store.read.layout import StoreLayout
from recovery.verify.verifier import verify
from tests.compat.witness import HALF, OP, records

WORKERS = 4
GROUP = "workers"
LAYOUT = StoreLayout(1 << 20, 60_000, 24_000, 20_000, 1000, 4000)
TOPICS = ("Topic0", "Topic1")
PREPARED, COMMIT, ROLLBACK = 4, 8, 12


# The workers


def work(path: str, notes: str, seed: int) -> None:
    """Append and end transactions until killed."""
    chance = random.Random(seed)
    out = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(**said: object) -> None:
        os.write(out, (json.dumps(said) + "\n").encode())

    with broker.open(path, sync="os", layout=LAYOUT) as store:
        for number in range(1 << 40):
            end = chance.choice(["commit", "commit", "roll back", "leave"])
            answer = {"commit": "c", "roll back": "r", "leave": chance.choice("cr")}[end]  # as Settler.java reads it
            key, topic, queue_id = f"{seed}-{number}-{answer}", chance.choice(TOPICS), chance.randrange(3)
            body = chance.randbytes(chance.randint(1, 900))
            message = broker.Message(topic, body, tag="T", keys=[key])
            said = {"key": key, "topic": topic, "queue_id": queue_id, "crc": zlib.crc32(body)}
            if chance.random() < 0.2:
                note(event="delivered", **said, queue_offset=store.append(message, queue_id=queue_id).queue_offset)
                continue
            half = store.transactions.prepare(message, GROUP, queue_id=queue_id)
            note(event="half", **said, slot=half.slot)
            if end == "commit":
                note(event="delivered", **said, queue_offset=store.transactions.commit(half).queue_offset)
            elif end == "roll back":
                store.transactions.rollback(half)
                note(event="rolled back", **said)


def fork(path: str, notes: str, seed: int) -> int:
    """A worker in a process of its own; returns the process id."""
    pid = os.fork()
    if pid == 0:
        try:
            work(path, notes, seed)
        except BaseException:  # noqa: BLE001 - a worker that ends by itself says why
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def main(path: str, notes: str, kills: str, seed: str, engine: str) -> None:
    """Keep four workers at work and kill one after another; exit 1 when one ended by itself."""
    chance = random.Random(int(seed))
    with broker.open(path, sync="os", layout=LAYOUT, transactions=engine) as store:
        for topic in TOPICS:
            store.create_topic(topic, queues=3, message_type="MIXED")
    first = int(seed) * 1_000_000  # of the seeds of the workers: several runs may share a store
    workers = [fork(path, notes, first + number) for number in range(WORKERS)]
    for number in range(int(kills)):
        time.sleep(chance.random() * 0.06)
        victim = workers.pop(chance.randrange(WORKERS))
        os.kill(victim, signal.SIGKILL)
        _, status = os.waitpid(victim, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            sys.exit(f"worker {victim} ended by itself")
        workers.append(fork(path, notes, first + WORKERS + number))
    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)


# The judge: a second reading of the log that shares no code with what it judges


@dataclass
class Account:
    """What the log says."""

    halves: Counter[str] = field(default_factory=Counter)
    rolled_back: Counter[str] = field(default_factory=Counter)
    delivered: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)  # key: topic, crc, queue offset


def take_account(store: Path) -> Account:
    """Read every record."""
    account = Account()
    keys: dict[int, str] = {}  # of the half messages of the engine half-op, by their queue offset
    ended: list[int] = []
    for record in records(store):
        if record.topic == HALF:
            keys[record.queue_offset] = record.key
            account.halves[record.key] += 1
        elif record.topic == OP:
            ended += [int(number) for number in record.body.split(b",") if number]
        elif record.kind == PREPARED:
            account.halves[record.key] += 1
        elif record.kind == ROLLBACK:
            account.rolled_back[record.key] += 1
        else:
            one = (record.topic, zlib.crc32(record.body), record.queue_offset)
            account.delivered.setdefault(record.key, []).append(one)
    assert len(ended) == len(set(ended)), "an op message is there twice"
    account.rolled_back.update(keys[number] for number in ended if keys[number] not in account.delivered)
    return account


def judge(store: Path, notes: Path) -> Counter[str]:
    """Raises AssertionError when something acknowledged is missing or doubled; returns how much was acknowledged."""
    account, acknowledged = take_account(store), Counter[str]()
    for line in notes.read_text().splitlines():
        said = json.loads(line)
        acknowledged[said["event"]] += 1
        key = said["key"]
        if said["event"] == "half":
            assert account.halves[key] == 1, f"the half message {key} is there {account.halves[key]} times"
        elif said["event"] == "delivered":
            assert account.delivered.get(key) == [(said["topic"], said["crc"], said["queue_offset"])], key
        else:
            assert account.rolled_back[key] == 1, key
            assert key not in account.delivered, f"{key} was rolled back and delivered"
    assert all(len(places) == 1 for places in account.delivered.values()), "a message was delivered twice"
    assert not account.delivered.keys() & account.rolled_back.keys()
    _assert_queues_have_no_gap(store)
    report = verify(store)
    assert report.ok, report.as_json()["counts"]
    return acknowledged


def _assert_queues_have_no_gap(store: Path) -> None:
    """Each queue numbers its messages 0, 1, 2 and so on."""
    queues: dict[tuple[str, int], list[int]] = {}
    with broker.open(store, read_only=True) as reader:
        for record in reader.records():
            if record.sys_flag & 12 in (0, COMMIT):
                queues.setdefault((record.topic, record.queue_id), []).append(record.queue_offset)
    for queue, numbers in queues.items():
        assert numbers == list(range(len(numbers))), f"{queue} skips or repeats a queue offset"


def run(store: Path, notes: Path, kills: int, seed: int, engine: str) -> None:
    """So many kills, in processes of their own."""
    words = [sys.executable, "-m", "tests.store.killing", str(store), str(notes), str(kills), str(seed), engine]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def kill_and_judge(folder: Path, kills: int, seed: int, engine: str) -> None:
    """Nothing acknowledged is missing or doubled, no queue offset is skipped or used twice, verification is clean."""
    store, notes = folder / "store", folder / "notes"
    run(store, notes, kills, seed, engine)
    broker.open(store, sync="os").close()
    acknowledged = judge(store, notes)
    assert min(acknowledged.values()) > kills, acknowledged


if __name__ == "__main__":
    main(*sys.argv[1:])
