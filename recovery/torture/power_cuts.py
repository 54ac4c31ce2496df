"""Lives of a store on a disk whose power fails, with a reader beside the writers; and what must be left of them.

Two openers send and end transactions; a third one reads beside them: as a consumer before each step of the disk, also
in the middle of an append and of an fsync, and as check-back between two calls. Then the power fails, and any subset of
the blocks that were not flushed survives, torn at 512 bytes (`broker.testing.crash_disk`).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import broker
from broker.errors import BrokerError
from broker.live import LiveStore, open_live
from broker.store.read.layout import StoreLayout
from broker.testing.crash_disk import CrashDisk, Crashed
from recovery.torture.promises import PromiseBroken, require
from recovery.torture.second_reader import (
    COMMIT,
    HALF_TOPIC,
    OP_TOPIC,
    PREPARED,
    ROLLBACK,
    Seen,
    assert_one_truth,
)
from recovery.verify.verifier import verify

# So small that a life of seven transactions begins new files of each kind.
TINY = StoreLayout(
    segment_bytes=4096,
    consume_queue_bytes=400,
    state_table_bytes=240,
    redo_log_bytes=200,
    index_slots=16,
    index_items=24,
)
QUEUES = (("plain", 0), ("plain", 1), ("orders", 0), ("orders", 1))
PLAIN = 0
_TRANSACTIONS = 7


class WatchedDisk(CrashDisk):
    """A CrashDisk with a reader that looks before each step."""

    look: Callable[[], None] | None = None

    def _step(self, name: str, *about: str) -> None:
        look, self.look = self.look, None  # what it reads is not a step, but might become one
        if look is not None and not self.crashed:
            look()
        self.look = look
        super()._step(name, *about)


class WatchingReader:
    """What was seen of a store: by consumers of its queues, by a reader of its records, by check-back."""

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
        """The half messages in doubt."""
        self.halves |= {half.commitlog_offset for half in self.store.transactions.in_doubt()}

    def require_all(self, again: LiveStore) -> None:
        """Raise PromiseBroken unless all that was seen is in a store that was opened after the power cut."""
        for (topic, queue_id, place), was in self.messages.items():
            one = again.message(topic, queue_id, place)
            name = f"message {place} of queue {queue_id} of {topic}"
            require(one is not None, f"a consumer received {name}, which a power cut took back")
            same = one is not None and (one.commitlog_offset, one.body) == was
            require(same, f"a consumer received {name}, which was another one after a power cut")
        for commitlog_offset, fields in self.records.items():
            record = again.record(commitlog_offset)
            name = f"the record at CommitLog offset {commitlog_offset}"
            require(record is not None, f"{name} was read, and a power cut took it back")
            same = record is not None and (record.transaction_type, record.queue_offset, record.body) == fields
            require(same, f"{name} was read, and was another one after a power cut")
        for commitlog_offset in self.halves:
            half = again.transactions.half(commitlog_offset)
            there = half.commitlog_offset == commitlog_offset
            require(there, f"check-back saw the half message at {commitlog_offset}, which a power cut took back")


def promises_kept(log: list[Seen]) -> set[tuple[int, int]]:
    """What a log holds: a kind, and the record's offset; of an end, that of its half message."""
    halves = {one.queue_offset: one.commitlog_offset for one in log if one.topic == HALF_TOPIC}
    ended = {halves[int(one.body)] for one in log if one.topic == OP_TOPIC}
    delivered = {one.names for one in log if one.kind == COMMIT}
    kept = {(one.kind, one.names if one.kind > PREPARED else one.commitlog_offset) for one in log}
    return kept | {(PREPARED, at) for at in halves.values()} | {(ROLLBACK, at) for at in ended - delivered}


class Life:
    """A short life of a store: what was acknowledged, and what was seen.

    In sync mode `os` a power cut may take back what was acknowledged; what is left must be whole.
    """

    def __init__(self, disk: WatchedDisk, sync: str, engine: str) -> None:
        self.disk, self.path, self.sync, self.engine = disk, disk.root / "store", sync, engine
        self.promised: set[tuple[int, int]] = set()  # a record's kind, and its offset, or that of the half it ends
        self.reader: WatchingReader | None = None

    def open(self) -> LiveStore:
        """One more opener."""
        return open_live(self.path, disk=self.disk, layout=TINY, sync=self.sync, transactions=self.engine)

    def live(self, count: int = _TRANSACTIONS) -> None:
        """Transactions that commit, roll back and stay in doubt, by turns, and plain messages. Raises Crashed."""
        first, second, third = self.open(), self.open(), self.open()
        self.reader = reader = WatchingReader(third)
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

    def require_kept(self, image: Path) -> None:
        """Open what survived: all that was promised and seen is there, nothing half-written is, all files agree.

        Raises PromiseBroken.
        """
        again = open_live(image / "store", disk=CrashDisk(image), layout=TINY, sync="each", transactions=self.engine)
        log = assert_one_truth(image / "store")
        held = promises_kept(log)
        if self.sync != "os":
            lost = sorted(self.promised - held)
            require(not lost, f"acknowledged, and taken back by a power cut: (kind, CommitLog offset) {lost[:3]}")
        for half in again.transactions.in_doubt():
            ended = {(COMMIT, half.commitlog_offset), (ROLLBACK, half.commitlog_offset)} & held
            require(not ended, f"the half message at {half.commitlog_offset} has an end and is in doubt")
        if self.reader is not None and self.sync != "os":
            self.reader.require_all(again)
        report = verify(image / "store")
        require(report.ok, f"verification finds {[str(finding) for finding in report.findings][:4]}")
        again.transactions.commit(again.transactions.prepare(broker.Message("orders", b"it goes on"), "shop"))
        again.close()


DiskMaker = Callable[..., WatchedDisk]


def steps_of_a_life(directory: Path, sync: str, engine: str, make: DiskMaker = WatchedDisk) -> tuple[int, int]:
    """How many steps a life has, and at which the first record is appended. Raises PromiseBroken for an empty life."""
    life = Life(make(directory / f"dry-{sync}"), sync, engine)
    life.live()
    reader = life.reader
    seen = reader is not None and len(reader.messages) > _TRANSACTIONS and len(reader.halves) == _TRANSACTIONS
    require(seen, "a reader beside the writers did not see what they wrote")
    first = [name.startswith("reserve store/commitlog") for name in life.disk.trace].index(True)
    steps = life.disk.steps
    shutil.rmtree(life.disk.root)
    return steps, first


def cut_at(
    directory: Path, sync: str, engine: str, step: int, seeds: Sequence[int], make: DiskMaker = WatchedDisk
) -> None:
    """Cut the power at one step, and look at one outcome for each seed. Raises PromiseBroken."""
    disk = make(directory / f"life-{step}", crash_at=step)
    life = Life(disk, sync, engine)
    try:
        life.live()
    except Crashed:
        pass
    else:
        raise PromiseBroken(f"the life ended before step {step}")
    for seed in seeds:
        image = disk.survivors(seed)
        try:
            life.require_kept(image)
        except BrokerError as error:
            raise PromiseBroken(f"what a power cut left cannot be used: {error}") from error
        shutil.rmtree(image)
    disk.close()
    shutil.rmtree(disk.root)
