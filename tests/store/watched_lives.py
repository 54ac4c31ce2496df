"""Lives of a store on a disk whose power fails, with somebody who reads beside the writers; and the judge of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.live import LiveStore, open_live
from broker.store.read.layout import StoreLayout
from broker.store.shared.control import Word
from broker.store.write.mapped import MappedQueue
from broker.store.write.sync import Syncer
from broker.store.writer import StoreWriter
from broker.testing.crash_disk import CrashDisk, Crashed
from recovery.verify.verifier import verify
from tests.transaction.rebuilt import COMMIT, HALF_TOPIC, OP_TOPIC, PREPARED, ROLLBACK, Seen, assert_one_truth

TINY = StoreLayout(4096, 400, 240, 200, 16, 24)
QUEUES = (("plain", 0), ("plain", 1), ("orders", 0), ("orders", 1))
PLAIN = 0


class WatchedDisk(CrashDisk):
    """Somebody looks before each step."""

    look: Callable[[], None] | None = None

    def _step(self, name: str, *about: str) -> None:
        look, self.look = self.look, None  # what it reads is no step, but might become one
        if look is not None and not self.crashed:
            look()
        self.look = look
        super()._step(name, *about)


class Reader:
    """What was seen of a store: by consumers of its queues, by whoever reads its records, by check-back."""

    def __init__(self, store: LiveStore) -> None:
        self.store = store
        self.messages: dict[tuple[str, int, int], tuple[int, bytes]] = {}
        self.records: dict[int, tuple[int, int, bytes]] = {}
        self.halves: set[int] = set()
        self._at = 0

    def consume(self) -> None:
        """The next messages of each queue, and the next records."""
        for topic, queue_id in QUEUES:
            place = sum(key[:2] == (topic, queue_id) for key in self.messages)
            while (one := self.store.message(topic, queue_id, place)) is not None:
                self.messages[topic, queue_id, place] = (one.commitlog_offset, one.body)
                place += 1
        for record in self.store.records(self._at):
            self.records[record.commitlog_offset] = (record.transaction_type, record.queue_offset, record.body)
            self._at = record.commitlog_offset + record.total_size

    def check_back(self) -> None:
        self.halves |= {half.commitlog_offset for half in self.store.transactions.in_doubt()}

    def is_all_there(self, again: LiveStore) -> None:
        """What was seen, in a store that came back."""
        for (topic, queue_id, place), seen in self.messages.items():
            one = again.message(topic, queue_id, place)
            assert one is not None, f"a consumer saw {seen}, which is gone"
            assert (one.commitlog_offset, one.body) == seen
        for commitlog_offset, said in self.records.items():
            record = again.record(commitlog_offset)
            assert record is not None, f"somebody read the record at {commitlog_offset}, which is gone"
            assert (record.transaction_type, record.queue_offset, record.body) == said
        for commitlog_offset in self.halves:
            assert again.transactions.half(commitlog_offset).commitlog_offset == commitlog_offset


def promises_kept(log: list[Seen]) -> set[tuple[int, int]]:
    """What a log holds: a kind, and the record's offset; of an end, that of its half message."""
    halves = {one.queue_offset: one.offset for one in log if one.topic == HALF_TOPIC}
    ended = {halves[int(one.body)] for one in log if one.topic == OP_TOPIC}
    delivered = {one.names for one in log if one.kind == COMMIT}
    kept = {(one.kind, one.names if one.kind > PREPARED else one.offset) for one in log}
    return kept | {(PREPARED, at) for at in halves.values()} | {(ROLLBACK, at) for at in ended - delivered}


class Life:
    """A short life of a store: what was acknowledged, and what was seen."""

    def __init__(self, disk: WatchedDisk, sync: str, engine: str) -> None:
        self.disk, self.path, self.sync, self.engine = disk, disk.root / "store", sync, engine
        self.promised: set[tuple[int, int]] = set()  # a record's kind, and its offset, or that of the half it ends
        self.reader: Reader | None = None

    def open(self) -> LiveStore:
        return open_live(self.path, disk=self.disk, layout=TINY, sync=self.sync, transactions=self.engine)

    def live(self, count: int = 7) -> None:
        first, second, third = self.open(), self.open(), self.open()
        self.reader = reader = Reader(third)
        self.disk.look = reader.consume
        for number in range(count):
            store, other = (first, second) if number % 2 else (second, first)
            queue_id = number % 2
            text = b"%d" % number + b"x" * (250 if number % 3 else 20)
            half = store.transactions.prepare(broker.Message("orders", text, keys=["k"]), "shop", queue_id=queue_id)
            self.promised.add((PREPARED, half.commitlog_offset))
            reader.check_back()
            if number % 3 != 2:
                kind, end = [(COMMIT, other.transactions.commit), (ROLLBACK, other.transactions.rollback)][number % 3]
                end(half)
                self.promise_end(kind, half.commitlog_offset)
            reader.check_back()
            placed = other.append(broker.Message("plain", text), queue_id=queue_id)
            self.promised.add((PLAIN, placed.commitlog_offset))
            if number % 3 == 1:  # what a thread does in the background
                store.writer.checkpoint()
                store.writer.upkeep.make_segment_ahead()
                store.writer.upkeep.persist_bound()
            if number == 3:
                reader.store.sync_now()
        self.disk.look = None
        for store in (third, first, second):
            store.close()

    def promise_end(self, kind: int, half_offset: int) -> None:
        """An end is left for later in mode `group` (decision 0033): check-back would make it again."""
        if self.sync == "each":
            self.promised.add((kind, half_offset))

    def judge(self, image: Path) -> None:
        """Open what survived: all that was promised and seen is there, nothing half-written is, all files agree."""
        again = open_live(image / "store", disk=CrashDisk(image), layout=TINY, sync="each")
        log = assert_one_truth(image / "store")
        held = promises_kept(log)
        assert held >= self.promised, f"promised, and gone: {sorted(self.promised - held)}"
        for half in again.transactions.in_doubt():
            assert not {(COMMIT, half.commitlog_offset), (ROLLBACK, half.commitlog_offset)} & held
        if self.reader is not None:
            self.reader.is_all_there(again)
        report = verify(image / "store")
        assert report.ok, [str(finding) for finding in report.findings][:4]
        again.transactions.commit(again.transactions.prepare(broker.Message("orders", b"it goes on"), "shop"))
        again.close()


def steps_of_a_life(tmp_path: Path, sync: str, engine: str) -> tuple[int, int]:
    """How many steps a life has, and at which the first record is appended."""
    life = Life(WatchedDisk(tmp_path / f"dry-{sync}"), sync, engine)
    life.live()
    assert life.reader is not None
    assert len(life.reader.messages) > 7  # else the test would prove nothing
    assert len(life.reader.halves) == 7
    trace = life.disk.trace
    return life.disk.steps, [name.startswith("reserve store/commitlog") for name in trace].index(True)


def cut_at(tmp_path: Path, sync: str, engine: str, step: int, seeds: tuple[int, ...]) -> None:
    disk = WatchedDisk(tmp_path / f"life-{step}", crash_at=step)
    life = Life(disk, sync, engine)
    with pytest.raises(Crashed):
        life.live()
    for seed in seeds:
        image = disk.survivors(seed)
        life.judge(image)
        shutil.rmtree(image)


def _tail(writer: StoreWriter) -> int:
    return writer.control[Word.TAIL]


def _durable_before_it_is(syncer: Syncer) -> None:
    """The word first, then the forced write."""
    words = syncer._words
    start, words[Word.DURABLE] = words[Word.DURABLE], words[Word.TAIL]
    syncer.log.sync(start, words[Word.TAIL])


MUTATIONS: dict[str, tuple[type, str, Any]] = {
    "readers see what is published": (StoreWriter, "visible_end", property(_tail)),
    "nobody waits for the disk": (Syncer, "wait_durable", lambda self, commitlog_offset: None),
    "nothing is forced": (MappedQueue, "sync", lambda self, start, stop: None),
    "durable is said before the forced write": (Syncer, "_force", _durable_before_it_is),
    "a message's place is not looked at": (LiveStore, "_record_of", broker.Store._record_of),
    "a record's place is not looked at": (LiveStore, "records", broker.Store.records),
}


def is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, engine: str) -> None:
    monkeypatch.setattr(*MUTATIONS[name])
    life = Life(WatchedDisk(tmp_path / "dry"), "group", engine)
    life.live()
    for step in range(life.disk.steps // 3, life.disk.steps, 2):
        try:
            cut_at(tmp_path, "group", engine, step, (0,))
        except AssertionError:
            return
    pytest.fail("every promise was kept")
