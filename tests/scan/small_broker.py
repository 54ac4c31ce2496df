"""What a RocketMQ broker writes, record by record, into a store so small that every bit of it can be flipped.

    broker = SmallBroker(V5)
    half = broker.append(HALF_TOPIC, b"body", {...})
    broker.write(directory)

It dispatches as the brokers do (ConsumeQueue, index, state table, redo log) and shares no code with the verification:
that an untouched store has no finding is the first thing that the tests ask.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from broker.format import checkpoint, index, properties, redolog, statetable
from broker.format.commitlog import BLANK_SIZE, Record, encode, encode_blank, make_record
from broker.format.config import dumps
from broker.format.consumequeue import Unit, tags_code
from broker.format.index import IndexHeader, IndexItem
from broker.format.java import Host
from broker.format.sysflag import TransactionType
from broker.format.topics import SCHEDULE_TOPIC, deliver_time_ms

BORN_HOST, STORE_HOST = Host.parse("192.168.7.21:40392"), Host.parse("10.0.3.4:10911")
START_MS = 1_795_245_196_254
STEP_MS = 2371  # between two records, so that whole seconds differ


class Generation(NamedTuple):
    """How a broker writes."""

    name: str
    state_table: bool = False
    record_crc: bool = False
    segment_size: int = 4096
    index_items: int = 24  # in a file, the unused item 0 included
    units: int = 5  # of a ConsumeQueue file
    slots: int = 4  # of a state table file
    redo_units: int = 8  # of a redo log file


V3 = Generation("3.1.4", state_table=True, segment_size=2048, index_items=6)
V5 = Generation("5.3.3")
V5_CRC = Generation("5.3.3 with record CRC", record_crc=True)
GENERATIONS = (V3, V5, V5_CRC)
INDEX_SLOTS = 7


@dataclass
class SmallBroker:
    """A broker without a network: what it is told to append, it appends and dispatches."""

    kind: Generation
    log: bytearray = field(default_factory=bytearray)
    records: list[Record] = field(default_factory=list)
    roles: dict[int, str] = field(default_factory=dict)  # by CommitLog offset: what the record is, for the table
    blanks: list[int] = field(default_factory=list)
    queues: dict[tuple[str, int], list[Unit]] = field(default_factory=dict)
    redo_log: list[Unit] = field(default_factory=list)
    table: list[statetable.Slot] = field(default_factory=list)
    indexed: list[tuple[int, int, int]] = field(default_factory=list)  # hash, CommitLog offset, store time
    configs: dict[str, bytes] = field(default_factory=dict)
    now_ms: int = START_MS

    def append(
        self,
        role: str,
        topic: str,
        body: bytes,
        values: dict[str, str],
        *,
        own: dict[str, str] | None = None,
        queue_id: int = 0,
        sys_flag: int = 0,
        flag: int = 0,
        slot: int = 0,
        prepared_offset: int = 0,
        reconsume_times: int = 0,
        born_ms: int | None = None,
    ) -> Record:
        """Append one message and dispatch it; `role` names it in the table of unprotected bytes.

        `own` are the properties of a message in a batch: they stand before those of the batch, unmerged.
        """
        kind = TransactionType(sys_flag & 0xC)
        self.now_ms += STEP_MS
        delivered = kind in (TransactionType.NONE, TransactionType.COMMIT)
        queue_offset = len(self.queues.get((topic, queue_id), ())) if delivered else slot
        if kind is TransactionType.PREPARED:
            queue_offset = len(self.table)
        stored = properties.encode(values, java_order_capacity=None if self.kind.state_table else 128)
        stored = properties.encode(own or {}, java_order_capacity=None) + stored
        values = {**(own or {}), **values}
        made = make_record(
            topic,
            body,
            stored,
            born_host=BORN_HOST,
            store_host=STORE_HOST,
            born_timestamp_ms=self.now_ms - 7 if born_ms is None else born_ms,
            store_timestamp_ms=self.now_ms,
            queue_id=queue_id,
            queue_offset=queue_offset,
            commitlog_offset=self._make_room(91 + len(body) + len(topic.encode()) + len(stored)),
            flag=flag,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_offset,
        )
        self.log += encode(made, record_crc=self.kind.record_crc)
        self.records.append(made)
        self.roles[made.commitlog_offset] = role
        self._dispatch(made, len(self.log) - made.commitlog_offset, values)
        return made

    def _make_room(self, size: int) -> int:
        """The offset of the next record: what does not fit goes into the next segment."""
        size += 20 * self.kind.record_crc
        room = self.kind.segment_size - len(self.log) % self.kind.segment_size
        if size + BLANK_SIZE > room:
            self.blanks.append(len(self.log))
            scraps = b"scraps of another message " * 100 if self.kind.state_table else b""
            self.log += encode_blank(room) + scraps[: room - BLANK_SIZE].ljust(room - BLANK_SIZE, b"\0")
        return len(self.log)

    def _dispatch(self, record: Record, size: int, values: dict[str, str]) -> None:
        kind, at = record.transaction_type, record.commitlog_offset
        if kind in (TransactionType.NONE, TransactionType.COMMIT):
            code = tags_code(values.get("TAGS"))
            if record.topic == SCHEDULE_TOPIC:
                late_ms = 1 if self.kind.state_table and values["DELAY"] == "3" else 0
                code = deliver_time_ms(int(values["DELAY"]), record.store_timestamp_ms) + late_ms
            self.queues.setdefault((record.topic, record.queue_id), []).append(Unit(at, size, code))
        if self.kind.state_table:
            self._dispatch_transaction(record, size, values)
        self._dispatch_keys(record, values)

    def _dispatch_transaction(self, record: Record, size: int, values: dict[str, str]) -> None:
        kind, at = record.transaction_type, record.commitlog_offset
        if kind is TransactionType.PREPARED:
            self.redo_log.append(redolog.prepared_unit(at, size))
            self.table.append(statetable.prepared_slot(at, size, record.store_timestamp_ms, values["PGROUP"]))
        elif kind is not TransactionType.NONE:
            self.redo_log.append(redolog.end_unit(at, size, record.prepared_transaction_offset))
            for number, slot in enumerate(self.table):
                settles = record.prepared_transaction_offset or record.reconsume_times == 0
                if settles and slot.commitlog_offset == record.prepared_transaction_offset and slot.state == 4:
                    fields = (slot.commitlog_offset, slot.size, slot.store_time_s, slot.group_hash, int(kind))
                    self.table[number] = statetable.Slot(*fields)

    def _dispatch_keys(self, record: Record, values: dict[str, str]) -> None:
        keys = [key for key in values.get("KEYS", "").split(" ") if key]
        if self.kind.state_table:
            left_out = (TransactionType.COMMIT, TransactionType.ROLLBACK)
        else:
            left_out = (TransactionType.ROLLBACK, TransactionType.ROLLBACK)
            keys = [*([values["UNIQ_KEY"]] if "UNIQ_KEY" in values else []), *keys]
        hashed = index.key_hash_3_0 if self.kind.state_table else index.key_hash
        if record.transaction_type not in left_out:
            at, store_ms = record.commitlog_offset, record.store_timestamp_ms
            self.indexed.extend((hashed(record.topic, key), at, store_ms) for key in keys)

    def write(self, store: Path, *, killed: bool = False) -> Path:
        """Put all files down. A broker that was killed leaves `abort` and the segment that it allocated ahead."""
        log, size = bytes(self.log), self.kind.segment_size
        whole = (-(-len(log) // size) + killed) * size
        _segments(store / "commitlog", log.ljust(whole, b"\0"), size)
        for (topic, queue_id), units in self.queues.items():
            raw = b"".join(unit.pack() for unit in units)
            _segments(store / "consumequeue" / topic / str(queue_id), raw, self.kind.units * 20)
        if self.kind.state_table:
            raw = b"".join(unit.pack() for unit in self.redo_log)
            _segments(store / "transaction" / "redolog" / redolog.TOPIC / "0", raw, self.kind.redo_units * 20)
            raw = b"".join(slot.pack() for slot in self.table)
            _segments(store / "transaction" / "statetable", raw, self.kind.slots * 24)
        index_ms = self._write_index(store / "index")
        last_ms = self.records[-1].store_timestamp_ms
        (store / "checkpoint").write_bytes(checkpoint.encode(checkpoint.Checkpoint(last_ms, last_ms, index_ms)))
        (store / "config").mkdir()
        for name, raw in self.configs.items():
            (store / "config" / name).write_bytes(raw)
        if not self.kind.state_table:
            (store / "lock").write_bytes(b"lock")
        if killed:
            (store / "abort").write_bytes(b"" if self.kind.state_table else b"4711")
        return store

    def _write_index(self, directory: Path) -> int:
        """The index, a file after another; returns what the checkpoint says of it: the end of the last full one."""
        directory.mkdir()
        fit, full_ms = self.kind.index_items - 1, 0
        for number, first in enumerate(range(0, len(self.indexed), fit)):
            part = self.indexed[first : first + fit]
            (directory / f"{20261121071316270 + number * 1117}").write_bytes(self._index_file(part))
            full_ms = part[-1][2] if len(part) == fit else full_ms
        return full_ms

    def _index_file(self, part: list[tuple[int, int, int]]) -> bytes:
        raw, begin_ms, used = bytearray(index.file_size(INDEX_SLOTS, self.kind.index_items)), part[0][2], 0
        for number, (code, at, store_ms) in enumerate(part, 1):
            slot = index.slot_at(index.slot_of(code, INDEX_SLOTS))
            previous = int.from_bytes(raw[slot : slot + 4], "big")
            used += previous == 0 or self.kind.state_table
            item = IndexItem(code, at, index.time_diff_s(store_ms, begin_ms), previous)
            place = index.item_at(number, INDEX_SLOTS)
            raw[place : place + 20] = item.pack()
            raw[slot : slot + 4] = number.to_bytes(4, "big")
        header = IndexHeader(begin_ms, part[-1][2], part[0][1], part[-1][1], used, len(part) + 1)
        raw[:40] = header.pack()
        return bytes(raw)

    def configure(self, topics: dict[str, int], groups: list[str], positions: dict[str, dict[int, int]]) -> None:
        """The tables as the generation writes them; `topics` has the number of queues of each."""
        stamp = "timestatmp" if self.kind.state_table else "timestamp"
        version = {"counter": 5, **({} if self.kind.state_table else {"stateVersion": 0}), stamp: START_MS}
        newer = {} if self.kind.state_table else {"attributes": {}, "order": False}
        table = {
            name: {
                **newer,
                "perm": 6,
                "readQueueNums": count,
                "topicFilterType": "SINGLE_TAG",
                "topicName": name,
                **({} if self.kind.state_table else {"topicSysFlag": 0}),
                "writeQueueNums": count,
            }
            for name, count in topics.items()
        }
        subscriptions = {
            name: {"brokerId": 0, "consumeEnable": True, "groupName": name, "retryMaxTimes": 16} for name in groups
        }
        offsets = {"offsetTable": positions}
        self.configs["topics.json"] = dumps({"dataVersion": version, "topicConfigTable": table}).encode()
        self.configs["topics.json.bak"] = self.configs["topics.json"]
        self.configs["consumerOffset.json"] = dumps(offsets).encode()
        self.configs["delayOffset.json"] = dumps({"offsetTable": {1: 1, 3: 1}}).encode()
        groups_file = {"dataVersion": version, "subscriptionGroupTable": subscriptions}
        self.configs["subscriptionGroup.json"] = dumps(groups_file).encode()


def _segments(directory: Path, raw: bytes, size: int) -> None:
    directory.mkdir(parents=True)
    for at in range(0, max(len(raw), 1), size):
        (directory / f"{at:020}").write_bytes(raw[at : at + size].ljust(size, b"\0"))
