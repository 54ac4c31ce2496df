"""Any history: whatever is sent, ended, parked, killed, cut off and opened again, there is one truth, and it is kept.

The judge is a model of plain dicts and three readings of the same bytes (`rebuilt.py`); neither shares code with what
it judges. Two stores on one directory stand for two processes.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

import broker
from broker.live import LiveStore, open_live
from broker.store.read.layout import StoreLayout
from broker.testing.crash_disk import CrashDisk
from recovery.torture.second_reader import COMMIT, HALF_TOPIC, OP_TOPIC, PREPARED, ROLLBACK, Seen, assert_one_truth
from recovery.verify.verifier import verify

TINY = StoreLayout(8192, 400, 240, 200, 16, 24)
PARK_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TOPICS = ("plain", "half", "SCHEDULE_TOPIC_" + "X" * 4)
STATES = {"commit": 8, "rollback": 12}
BUSY = ("prepare", "prepare", *STATES, "again commit", "again rollback", "park")


class Killed(BaseException):
    """The process dies here."""


which = st.integers(0, 1 << 30)
who = st.integers(0, 1)


class Histories(RuleBasedStateMachine):
    """A store, up to two openers of it, and the model beside them."""

    transactions = "state-table"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="histories-"))
        self.disk = CrashDisk(self.directory / "disk")
        self.openers: list[LiveStore] = []
        self.boots = 0
        self.number = 0
        self.plain: dict[tuple[str, int], list[int]] = {}  # queue → numbers of the messages, in order
        self.halves: dict[int, dict[str, Any]] = {}  # number → what is known of the transaction
        self.unsure: set[int] = set()  # numbers of messages whose send or end nobody acknowledged
        self.soft: set[int] = set()  # numbers of transactions whose end is not forced yet

    @property
    def path(self) -> Path:
        return self.disk.root / "store"

    @initialize(mode=st.sampled_from(["each", "group", "os"]))
    def begin(self, mode: str) -> None:
        self.mode = mode
        self.open()

    def open(self) -> None:
        store = open_live(self.path, disk=self.disk, layout=TINY, sync=self.mode, transactions=self.transactions)
        self.openers.append(store)

    def store(self, who: int) -> LiveStore:
        return self.openers[who % len(self.openers)]

    def body(self, size: int) -> bytes:
        self.number += 1
        return b"%d." % self.number + b"x" * size

    def message(self, topic: str, size: int) -> broker.Message:
        return broker.Message(topic, self.body(size), tag="t", keys=[f"k{self.number % 5}"])

    # What applications do

    @rule(who=who, queue_id=st.integers(0, 3), size=st.integers(0, 600))
    def send(self, who: int, queue_id: int, size: int) -> None:
        placed = self.store(who).append(self.message("plain", size), queue_id=queue_id)
        queue = self.plain.setdefault(("plain", queue_id), [])
        queue.append(self.number)
        assert placed.queue_offset == len(queue) - 1
        self.forced()

    @rule(who=who, count=st.integers(1, 4), size=st.integers(0, 200))
    def batch(self, who: int, count: int, size: int) -> None:
        messages = [self.message("plain", size) for _ in range(count)]
        self.store(who).append_batch(messages, queue_id=1)
        self.plain.setdefault(("plain", 1), []).extend(range(self.number - count + 1, self.number + 1))
        self.forced()

    @rule(
        who=who,
        queue_id=st.integers(0, 3),
        size=st.integers(0, 600),
        group=st.sampled_from(["shop", "Bücher"]),
        level=st.sampled_from([0, 0, 1, 18]),
    )
    def prepare(self, who: int, queue_id: int, size: int, group: str, level: int) -> None:
        extra = {"DELAY": str(level)} if level else {}
        half = self.store(who).transactions.prepare(
            self.message("half", size), group, queue_id=queue_id, extra_properties=extra
        )
        goes_to = (TOPICS[2], level - 1) if level else ("half", queue_id)
        self.halves[self.number] = {"half": half, "state": PREPARED, "parked": False, "goes to": goes_to}
        assert half.slot == len(self.halves) - 1
        self.forced()

    @precondition(lambda self: any(known["state"] == PREPARED for known in self.halves.values()))
    @rule(who=who, which=which, decision=st.sampled_from(["commit", "rollback"]), by_reference=st.booleans())
    def end(self, who: int, which: int, decision: str, by_reference: bool) -> None:
        open_ones = [number for number, known in sorted(self.halves.items()) if known["state"] == PREPARED]
        known = self.halves[number := open_ones[which % len(open_ones)]]
        end = getattr(self.store(who).transactions, decision)
        half = known["half"].reference if by_reference else known["half"]
        assert not end(half).again
        known["state"] = STATES[decision]
        if decision == "commit":
            self.plain.setdefault(known["goes to"], []).append(number)
        self.soft.add(number)
        self.forced(end=True)

    @precondition(lambda self: any(known["state"] != PREPARED for known in self.halves.values()))
    @rule(who=who, which=which, decision=st.sampled_from(["commit", "rollback"]))
    def end_again(self, who: int, which: int, decision: str) -> None:
        """The same decision says so, a contrary one is refused; neither changes anything."""
        ended = [known for _, known in sorted(self.halves.items()) if known["state"] != PREPARED]
        known = ended[which % len(ended)]
        end = getattr(self.store(who).transactions, decision)
        if known["state"] == STATES[decision]:
            assert end(known["half"]).again
        else:
            with pytest.raises(broker.AlreadyEnded):
                end(known["half"])

    def pick(self, which: int) -> tuple[int, dict[str, Any]]:
        number = sorted(self.halves)[which % len(self.halves)]
        return number, self.halves[number]

    @precondition(lambda self: self.halves)
    @rule(who=who, which=which, parks=st.booleans())
    def park(self, who: int, which: int, parks: bool) -> None:
        _, known = self.pick(which)
        service = self.store(who).transactions
        does = known["state"] == PREPARED and known["parked"] is not parks
        assert (service.park if parks else service.unpark)(known["half"], "why not") is does
        if does:
            known["parked"] = parks
            self.forced()

    @rule(calls=st.lists(st.tuples(st.sampled_from(BUSY), who, which), min_size=4, max_size=12))
    def be_busy(self, calls: list[tuple[str, int, int]]) -> None:
        """Much happens between two accidents."""
        for what, who, which in calls:
            settled = {known["state"] != PREPARED for known in self.halves.values()}
            if what == "prepare":
                self.prepare(who=who, queue_id=which % 4, size=which % 99, group="shop", level=which % 3)
            elif what == "park" and settled:
                self.park(who=who, which=which, parks=which % 2 == 0)
            elif what in STATES and False in settled:
                self.end(who=who, which=which, decision=what, by_reference=which % 2 == 0)
            elif what.startswith("again") and True in settled:
                self.end_again(who=who, which=which, decision=what.split()[1])

    def forced(self, *, end: bool = False) -> None:
        """After this call everything acknowledged is on disk, but for ends that are left for later."""
        if self.mode == "each" or (self.mode == "group" and not end):
            self.soft.clear()

    # What happens to processes

    @precondition(lambda self: len(self.openers) == 1)
    @rule()
    def another_process_opens_it(self) -> None:
        self.open()

    @precondition(lambda self: len(self.openers) == 2)
    @rule(who=who)
    def one_leaves(self, who: int) -> None:
        self.openers.pop(who).close()

    @rule()
    def reopen(self) -> None:
        while self.openers:
            self.openers.pop().close()
        self.soft.clear()
        self.open()

    @rule(who=who)
    def kill(self, who: int) -> None:
        """It vanishes between two calls: nothing is closed, its locks are free."""
        self.vanish(self.openers.pop(who % len(self.openers)))
        if not self.openers:
            self.open()

    def vanish(self, store: LiveStore) -> None:
        store.writer.lock.release()
        store.writer.append_lock.close()

    @precondition(lambda self: self.halves)
    @rule(
        who=who, which=which, what=st.sampled_from(["send", "prepare", "commit", "rollback"]), step=st.integers(0, 14)
    )
    def kill_inside(self, who: int, which: int, what: str, step: int) -> None:
        """It is killed while it appends: at one of the places where it touches what others see."""
        store = self.openers.pop(who % len(self.openers))
        places = Places(store, step)
        with contextlib.suppress(Killed):
            if what == "send":
                self.unsure.add(self.number + 1)
                store.append(self.message("plain", 50), queue_id=2)
            elif what == "prepare":
                self.unsure.add(self.number + 1)
                store.transactions.prepare(self.message("half", 50), "shop")
            else:
                number, known = self.pick(which)
                self.unsure.add(number)
                with contextlib.suppress(broker.AlreadyEnded):
                    getattr(store.transactions, what)(known["half"])
        places.restore()
        self.vanish(store)
        self.openers or self.open()
        with (writer := self.openers[0].writer).append_lock:
            writer.appender.heal()  # whoever comes next clears what was begun and finishes what was published
        self.learn()

    @precondition(lambda self: self.mode != "os")
    @rule(seed=st.integers(0, 5))
    def power_cut(self, seed: int) -> None:
        image = self.disk.survivors(seed)
        for store in self.openers:
            self.vanish(store)
        self.openers.clear()
        self.boots += 1
        self.disk = CrashDisk(image.rename(self.directory / f"boot-{self.boots}"))
        self.open()
        self.unsure |= self.soft
        self.soft.clear()
        self.learn()

    def learn(self) -> None:
        """What nobody acknowledged may have happened or not: ask the log, once."""
        log = self.log()
        for number in self.unsure:
            found = [one for one in log if one.body.startswith(b"%d." % number)]
            self.relearn(number, found, log)
        self.unsure.clear()

    def relearn(self, number: int, found: list[Seen], log: list[Seen]) -> None:
        for queue in self.plain.values():
            if number in queue:
                queue.remove(number)
        for one in found:
            if one.topic == PARK_TOPIC:  # a copy of the half message that it parks
                continue
            if one.kind in (0, COMMIT) and one.topic != HALF_TOPIC:
                queue = self.plain.setdefault((one.topic, one.queue_id), [])
                queue.insert(one.queue_offset, number)
            else:
                queue_id = int(one.properties.get("REAL_QID", one.queue_id))
                known = self.halves.setdefault(number, {"parked": False, "goes to": ("half", queue_id)})
                known.setdefault("half", self.openers[0].transactions.half(one.commitlog_offset))
                ends = [end.kind for end in log if end.kind > PREPARED and end.names == one.commitlog_offset]
                if one.topic == HALF_TOPIC and not ends:
                    ops = [end for end in log if end.topic == OP_TOPIC and end.body == b"%d" % one.queue_offset]
                    ends = [ROLLBACK for _ in ops]
                known["state"] = ends[0] if ends else PREPARED

    def log(self) -> list[Seen]:
        self.openers[0].sync_now()
        return assert_one_truth(self.path)

    # What must be so

    @rule()
    def there_is_one_truth(self) -> None:
        log = self.log()
        bodies = {(one.topic, one.queue_id, one.queue_offset): one.body for one in log if one.kind in (0, COMMIT)}
        told = {
            (topic, queue_id, place): number
            for (topic, queue_id), numbers in self.plain.items()
            for place, number in enumerate(numbers)
        }
        ours = {key: body for key, body in bodies.items() if key[0] in TOPICS}
        assert {key: int(body.split(b".")[0]) for key, body in ours.items()} == told
        for store in self.openers:
            self.agrees(store, ours)

    def agrees(self, store: LiveStore, bodies: dict[tuple[str, int, int], bytes]) -> None:
        """The store says what the model says."""
        for key, body in bodies.items():
            message = store.message(*key)
            assert message is not None
            assert message.body == body
        in_doubt = {known["half"].slot: known for known in self.halves.values() if known["state"] == PREPARED}
        assert store.transactions.in_doubt_slots() == sorted(in_doubt)
        assert [half.slot for half in store.transactions.in_doubt()] == sorted(in_doubt)
        parked = {known["half"].commitlog_offset for known in in_doubt.values() if known["parked"]}
        assert set(store.transactions.parked()) == parked
        for known in self.halves.values():
            state = 16 if known["parked"] and known["state"] == PREPARED else known["state"]
            assert store.transactions.state(known["half"]) == state

    @rule()
    def verification_is_clean(self) -> None:
        self.openers[0].sync_now()
        report = verify(self.path)
        assert report.ok, [str(finding) for finding in report.findings][:4]
        counts = report.transactions
        assert counts["total"] == len(self.halves)
        states = [known["state"] for known in self.halves.values()]
        assert counts["committed"] == states.count(8)
        assert counts["rolled_back"] == states.count(12)

    def teardown(self) -> None:
        try:
            if self.openers:
                self.there_is_one_truth()
                self.verification_is_clean()
        finally:
            for store in self.openers:
                store.close()
            shutil.rmtree(self.directory)


class Places:
    """Counts the stores to what other processes see, and dies before one of them."""

    def __init__(self, store: LiveStore, step: int) -> None:
        self.left = step
        appender, dispatcher = store.writer.appender, store.writer.dispatcher
        fast = appender._fast
        words = [(appender, "_words"), (fast, "_words"), (fast, "_cell_words"), (dispatcher, "_words")]
        calls = [(dispatcher, "settle"), (dispatcher.index, "put")]
        self.patched = [(owner, name, getattr(owner, name)) for owner, name in words + calls]
        for owner, name, was in self.patched:
            setattr(owner, name, self.dying(was) if callable(was) else Words(was, self))

    def dying(self, call: Any) -> Any:
        def dies(*arguments: Any, **named: Any) -> Any:
            self.step()
            found = call(*arguments, **named)
            self.step()
            return found

        return dies

    def step(self) -> None:
        if self.left == 0:
            raise Killed
        self.left -= 1

    def restore(self) -> None:
        for owner, name, was in self.patched:
            setattr(owner, name, was)


class Words:
    """Shared words, whose every change is a place to die at."""

    def __init__(self, words: Any, places: Places) -> None:
        self.words, self.places = words, places

    def __getitem__(self, at: int) -> int:
        return int(self.words[at])

    def __setitem__(self, at: int, value: int) -> None:
        self.places.step()
        self.words[at] = value


class HalfOpHistories(Histories):
    """The same with the engine half-op."""

    transactions = "half-op"


_SETTINGS = settings(max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))
TestHistories, TestHalfOpHistories = Histories.TestCase, HalfOpHistories.TestCase
TestHistories.settings = TestHalfOpHistories.settings = _SETTINGS
