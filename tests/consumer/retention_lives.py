"""Lives of a store under retention, at any length: kills, power cuts, anything in any order."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from hypothesis import strategies as st

import broker
from broker.consuming.group.positions import Positions, Start
from broker.live import open_live
from broker.store.read.layout import StoreLayout
from broker.testing.crash_disk import CrashDisk, Crashed
from recovery.verify.verifier import verify

TINY = StoreLayout(4096, 400, 240, 200, 16, 24)
NOW = broker.Retention(keep_s=0)  # everything that everybody has read


def later_ms() -> int:
    """After every message that was sent by now."""
    return time.time_ns() // 1_000_000 + 1


def send(store: broker.LiveStore, numbers: range, topic: str = "orders") -> None:
    for number in numbers:
        store.append(broker.Message(topic, b"%d" % number + bytes(300)))


def take(store: broker.LiveStore, group: str, most: int, topic: str = "orders") -> list[int]:
    """Receive and acknowledge so many; what they were."""
    found: list[int] = []
    with store.consumer(group, topic) as consumer:
        while len(found) < most and (message := consumer.receive(0.3)) is not None:
            found.append(int(message.body.rstrip(b"\0")))
            assert consumer.ack(message)
    return found


def kill_again_and_again(path: Path, lives: int) -> None:
    """So many processes, one after another. What was said to be sent and not acknowledged must come in the end."""
    chance = random.Random(7)
    sent: set[int] = set()
    acknowledged: set[int] = set()
    removed: set[int] = set()
    begun: set[int] = set()  # acknowledgements: the kill may come between one and the line that reports it
    for life in range(lives):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            with contextlib.suppress(BaseException):
                _live(path, write, life * 100_000)
            os._exit(1)
        os.close(write)
        stop = chance.randint(110, 220)
        with os.fdopen(read) as told:
            for number, line in enumerate(told):
                if line.endswith("\n"):
                    word, value = line.split()
                    {"s": sent, "b": begun, "a": acknowledged, "r": removed}[word].add(int(value))
                if number == stop:
                    os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with broker.open(path, sync="os") as store:
        left = take(store, "billing", 1_000_000)
    assert sent - begun <= set(left)
    assert len((begun - acknowledged) - set(left)) <= lives  # one a life, at most
    assert len(removed) >= lives
    assert len(sent) > 40 * lives
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings][:4]


def _live(path: Path, write: int, first: int) -> None:
    with broker.open(path, layout=TINY, sync="os") as store, store.consumer("billing", "orders") as consumer:
        for number in itertools.count(first):
            send(store, range(number, number + 1))
            os.write(write, b"s %d\n" % number)
            for _ in range((number // 40) % 3):  # it falls behind, keeps up, and catches up again
                if (message := consumer.receive_now()) is not None:
                    number_read = int(message.body.rstrip(b"\0"))
                    os.write(write, b"b %d\n" % number_read)
                    consumer.ack(message)
                    os.write(write, b"a %d\n" % number_read)
            if number % 10 == 0:
                done = store.retain(NOW, now_ms=later_ms())
                if done.segments:
                    os.write(write, b"r %d\n" % done.begin)


def cut_the_power(tmp_path: Path, every: int) -> None:
    """At each so-many-th step of a short life, with nothing, all, and some of what was not forced surviving."""
    disk = CrashDisk(tmp_path / "dry")
    _short_life(disk)
    for step in range(1, disk.steps + 1, every):
        life = CrashDisk(tmp_path / f"life-{step}", crash_at=step)
        reached = [(0, 0)]
        with contextlib.suppress(Crashed):
            reached.extend(_lives(life))
        sent, position = reached[-1]
        for seed in (0, 1, 2 + step):
            image = life.survivors(seed)
            with open_live(f"{image}/store", layout=TINY, sync="os") as store:
                first, end = store.queue_range("orders", 0)
                assert first <= position
                assert end >= sent
                for number in range(position, sent):
                    assert store.message("orders", 0, number) is not None
            report = verify(f"{image}/store")
            assert report.ok, [str(finding) for finding in report.findings][:4]


def _short_life(disk: CrashDisk) -> None:
    removed = 0
    for _ in _lives(disk):
        removed += 1
    with open_live(f"{disk.root}/store", disk=disk) as store:
        assert store.begin_offset > 0
    assert removed > 3


def _lives(disk: CrashDisk) -> Iterator[tuple[int, int]]:
    """How many were sent, and up to which the group acknowledged, after each step of a short life."""
    with open_live(f"{disk.root}/store", disk=disk, layout=TINY, sync="each") as store:
        positions = Positions(store)
        positions.begin("billing", "orders", Start())
        cell = positions.cell("billing", "orders", 0)
        with positions.cells.lock:
            fence = positions.cells.give(cell, 1, 1)
        sent = 0
        for position in (0, 9, 17, 26):
            while sent < position + 12:
                send(store, range(sent, sent + 1))
                sent += 1
                yield sent, position
            assert positions.cells.advance(cell, fence, position)
            store.retain(NOW, now_ms=later_ms())
            yield sent, position
        positions.close()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 25)),
        st.tuples(st.sampled_from(["a", "b"]), st.integers(1, 20)),
        st.tuples(st.just("retain"), st.integers(0, 1)),
        st.tuples(st.just("reopen"), st.just(0)),
    ),
    min_size=5,
    max_size=18,
)


def do_anything(path: Path, steps: list[tuple[str, int]]) -> None:
    """What two groups have not acknowledged after all that must come to them."""
    chance = random.Random(len(steps))
    least = TINY.first_bytes + TINY.segment_bytes
    sent, done = 0, {"a": set[int](), "b": set[int]()}
    store = broker.open(path, layout=TINY, sync="os")
    for group in done:
        store.consumer(group, "orders").close()
    for what, count in steps:
        if what == "send":
            send(store, range(sent, sent + count))
            sent += count
        elif what == "retain":
            store.retain(broker.Retention(max_bytes=least) if count else NOW, now_ms=later_ms())
        elif what == "reopen":
            store.close()
            store = broker.open(path, sync="os")
        else:
            done[what] |= _some(store, what, count, chance)
    for group, acknowledged in done.items():
        assert set(range(sent)) - acknowledged <= set(take(store, group, sent + 1)), group
    store.close()
    assert verify(path).ok


def _some(store: broker.LiveStore, group: str, count: int, chance: random.Random) -> set[int]:
    """Receive so many, acknowledge some of them, in any order."""
    with store.consumer(group, "orders") as consumer:
        messages = [found for _ in range(count) if (found := consumer.receive(0.05)) is not None]
        chosen = [one for one in messages if chance.random() < 0.7]
        chance.shuffle(chosen)
        return {int(one.body.rstrip(b"\0")) for one in chosen if consumer.ack(one)}
