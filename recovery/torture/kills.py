"""Processes that append and end transactions on one store while one after another is killed.

`python -m recovery.torture.kills PLAN` (a KillPlan as JSON) forks four workers, kills one of them with SIGKILL at a
random moment, forks another in its place, and so on. Each worker notes what the store acknowledged (`notes.py`).
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
from dataclasses import asdict, dataclass, field
from pathlib import Path

import broker
from broker.errors import BrokerError, StoreFull
from broker.live import open_live
from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout
from recovery.torture.notes import Notes, read_notes
from recovery.torture.promises import PromiseBroken, require
from recovery.torture.second_reader import HALF_TOPIC, OP_TOPIC, PREPARED, ROLLBACK, require_no_gap, walk
from recovery.verify.verifier import verify

WORKERS = 4
GROUP = "workers"
LAYOUT = StoreLayout(
    segment_bytes=1 << 20,
    consume_queue_bytes=60_000,
    state_table_bytes=24_000,
    redo_log_bytes=20_000,
    index_slots=1000,
    index_items=4000,
)
TOPICS = ("Topic0", "Topic1")
QUEUES = 3
_FULL = 75  # how a process ends for which the disk had no room
_PAUSE_S = 0.06  # between an acknowledgement and the next kill, at most
_SLOW_S = 10.0  # how long a kill waits for an acknowledgement on a slow disk


@dataclass(frozen=True)
class KillPlan:
    """How often, how long and into how much space: the run ends at the first of these limits."""

    store: str
    notes: str
    seed: int
    engine: str
    sync: str = "os"
    kills: int = 1 << 30
    seconds: float = 1e9
    bytes_max: int = 1 << 62
    layout: StoreLayout = LAYOUT

    @classmethod
    def of(cls, text: str) -> KillPlan:
        """A plan from its JSON."""
        values = json.loads(text)
        return cls(**{**values, "layout": StoreLayout(**values["layout"])})


@dataclass(frozen=True)
class KillResult:
    """What a run of kills did: how many, and by event how much was acknowledged."""

    kills: int
    acknowledged: Counter[str]


# The workers


def work(path: str, notes: str, seed: int, sync: str) -> None:
    """Append and end transactions until killed, or until the process that forked this one is gone."""
    chance, parent = random.Random(seed), os.getppid()
    note = Notes(notes).add
    with open_live(path, sync=sync) as store:
        for number in range(1 << 40):
            if os.getppid() != parent:
                return
            end = chance.choice(["commit", "commit", "roll back", "leave"])
            answer = {"commit": "c", "roll back": "r", "leave": chance.choice("cr")}[end]  # as Settler.java reads it
            key, topic, queue_id = f"{seed}-{number}-{answer}", chance.choice(TOPICS), chance.randrange(QUEUES)
            body = chance.randbytes(chance.randint(1, 900))
            message = broker.Message(topic, body, tag="T", keys=[key])
            facts = {"key": key, "topic": topic, "queue_id": queue_id, "crc": zlib.crc32(body)}
            if chance.random() < 0.2:
                note(event="delivered", **facts, queue_offset=store.append(message, queue_id=queue_id).queue_offset)
                continue
            half = store.transactions.prepare(message, GROUP, queue_id=queue_id)
            note(event="half", **facts, slot=half.slot)
            if end == "commit":
                note(event="delivered", **facts, queue_offset=store.transactions.commit(half).queue_offset)
            elif end == "roll back":
                store.transactions.rollback(half)
                note(event="rolled back", **facts)


def fork(plan: KillPlan, seed: int) -> int:
    """A worker in a process of its own; returns the process id."""
    pid = os.fork()
    if pid == 0:
        try:
            work(plan.store, plan.notes, seed, plan.sync)
        except StoreFull:
            os._exit(_FULL)
        except BaseException:  # noqa: BLE001 - a worker that ends by itself reports the reason
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def main(text: str) -> None:
    """Keep four workers running and kill one after another; prints the number of kills, exits 1 when one ended."""
    plan = KillPlan.of(text)
    chance, parent = random.Random(plan.seed), os.getppid()
    with open_live(plan.store, sync=plan.sync, layout=plan.layout, transactions=plan.engine) as store:
        for topic in TOPICS:
            store.create_topic(topic, queues=QUEUES, message_type="MIXED")
    first, done = plan.seed * 1_000_000, 0  # of the seeds of the workers: several runs may share a store
    workers = [fork(plan, first + number) for number in range(WORKERS)]
    deadline = time.monotonic() + plan.seconds
    try:
        while not done or (done < plan.kills and time.monotonic() < deadline and os.getppid() == parent):
            _await_growth(plan.notes)
            time.sleep(chance.random() * _PAUSE_S)
            victim = workers.pop(chance.randrange(WORKERS))
            ended = _kill(victim)
            if ended != -signal.SIGKILL:
                sys.exit(_FULL if ended == _FULL else f"worker {victim} ended by itself")
            done += 1
            workers.append(fork(plan, first + WORKERS + done))
            if Disk().used_bytes(plan.store) >= plan.bytes_max:
                break
    finally:
        for worker in workers:
            _kill(worker)
    print(done)


def _await_growth(notes: str) -> None:
    """Wait until something more is acknowledged: on a slow disk workers would be killed before they had begun."""
    before, deadline = _size(notes), time.monotonic() + _SLOW_S
    while _size(notes) == before and time.monotonic() < deadline:
        time.sleep(0.001)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _kill(pid: int) -> int:
    """SIGKILL; how the process ended."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# Reconciliation, by a second reading of the log that shares no code with what it verifies


@dataclass
class LogContents:
    """What the log holds, by key."""

    halves: Counter[str] = field(default_factory=Counter)
    rolled_back: Counter[str] = field(default_factory=Counter)
    delivered: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)  # key: topic, crc, queue offset


def contents_of(store: Path) -> LogContents:
    """Read every record. Raises PromiseBroken for an op message that is there twice."""
    contents = LogContents()
    keys: dict[int, str] = {}  # of the half messages of the engine half-op, by their queue offset
    ended: list[int] = []
    for record in walk(store):
        if record.topic == HALF_TOPIC:
            keys[record.queue_offset] = record.key
            contents.halves[record.key] += 1
        elif record.topic == OP_TOPIC:
            ended += [int(number) for number in record.body.split(b",") if number]
        elif record.kind == PREPARED:
            contents.halves[record.key] += 1
        elif record.kind == ROLLBACK:
            contents.rolled_back[record.key] += 1
        else:
            place = (record.topic, zlib.crc32(record.body), record.queue_offset)
            contents.delivered.setdefault(record.key, []).append(place)
    require(len(ended) == len(set(ended)), "an op message is there twice")
    contents.rolled_back.update(keys[number] for number in ended if keys[number] not in contents.delivered)
    return contents


def reconcile(store: Path, notes: Path) -> Counter[str]:
    """Raises PromiseBroken when something acknowledged is missing or doubled; returns how much was acknowledged."""
    contents, acknowledged = contents_of(store), Counter[str]()
    for note in read_notes(notes):
        key = note["key"]
        acknowledged[note["event"]] += 1
        if note["event"] == "half":
            count = contents.halves[key]
            require(count == 1, f"the half message {key} was acknowledged and is in the log {count} times")
        elif note["event"] == "delivered":
            there, place = contents.delivered.get(key), (note["topic"], note["crc"], note["queue_offset"])
            require(there == [place], f"the message {key} was acknowledged at {place}; the log has {there}")
        else:
            count = contents.rolled_back[key]
            require(count == 1, f"the rollback of {key} was acknowledged and is in the log {count} times")
            require(key not in contents.delivered, f"{key} was rolled back and delivered")
    twice = [key for key, places in contents.delivered.items() if len(places) > 1]
    require(not twice, f"delivered twice: {', '.join(twice[:3])}")
    both = contents.delivered.keys() & contents.rolled_back.keys()
    require(not both, f"delivered and rolled back: {', '.join(sorted(both)[:3])}")
    require_no_gap(walk(store))
    report = verify(store)
    require(report.ok, f"verification finds {report.as_json()['counts']}")
    return acknowledged


def run(plan: KillPlan) -> int:
    """Kill by a plan, in processes of their own; returns the number of kills.

    Raises PromiseBroken for a worker that ended by itself, BrokerError when the disk filled up.
    """
    words = [sys.executable, "-m", "recovery.torture.kills", json.dumps(asdict(plan))]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603 - our own interpreter
    if done.returncode == _FULL:
        raise BrokerError(f"{plan.store}: its disk filled up meanwhile; nothing is known. Free some space, and repeat")
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        reason = next((line for line in reversed(lines) if "Error" in line or ":" in line), "")
        raise PromiseBroken(f"a worker ended although nothing killed it: {reason or lines[-1:]}")
    return int(done.stdout)


def kill_and_reconcile(plan: KillPlan) -> KillResult:
    """Nothing acknowledged is missing or doubled, no queue offset is skipped or used twice, verification is clean.

    Raises PromiseBroken.
    """
    kills = run(plan)
    try:
        broker.open(plan.store, sync="os").close()
        return KillResult(kills, reconcile(Path(plan.store), Path(plan.notes)))
    except StoreFull:
        raise
    except BrokerError as error:
        raise PromiseBroken(f"what the kills left cannot be used: {error}") from error


if __name__ == "__main__":
    main(sys.argv[1])
