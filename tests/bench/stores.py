"""Large stores for measurements, written as real brokers write them, at a gigabyte a second.

A store is one short story told over and over (a period): the same few records with other numbers in them. So every
record of a kind has the same size, and NumPy writes a column of a hundred thousand of them at a time. The verification
judges the result: it must have no finding.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa

from broker.format import consumequeue, index, redolog, statetable
from broker.format.checkpoint import Checkpoint
from broker.format.checkpoint import encode as encode_checkpoint
from broker.format.commitlog import MAGIC_V1, Record, encode, encode_blank, head_dtype
from broker.format.java import Host, string_hash
from broker.format.topics import HALF_TOPIC, OP_TOPIC
from recovery.scan.strings import StringColumn, java_hashes

SEGMENT_BYTES = 1 << 30
START_MS = 1_700_000_000_000
GROUP, TOPIC, TAG = "order_producer", "OrderTopic", "TagA"
HOST = Host(bytes([127, 0, 0, 1]), 10911)
_PERIODS_AT_ONCE = 4096
_DIGITS = 12
_HEAD = np.dtype(head_dtype(born_ipv6=False, store_ipv6=False))


@dataclass(frozen=True)
class Step:
    """One record of the story: what it says, and about which transaction of the period."""

    kind: str  # plain, prepared, commit, rollback, half, op
    transaction: int = -1


STORIES = {
    "state-table": (
        Step("plain"),
        Step("prepared", 0),
        Step("prepared", 1),
        Step("commit", 0),
        Step("prepared", 2),
        Step("commit", 1),
        Step("rollback", 2),
        Step("plain"),
    ),
    "half-op": (
        Step("plain"),
        Step("half", 0),
        Step("half", 1),
        Step("commit", 0),
        Step("half", 2),
        Step("commit", 1),
        Step("op"),
        Step("plain"),
    ),
}
TRANSACTIONS = 3  # in each period


class Story:
    """The records of one period as bytes, and where the numbers go."""

    def __init__(self, generation: str, body_bytes: int) -> None:
        self.generation, self.steps = generation, STORIES[generation]
        self.body = np.random.default_rng(7).bytes(body_bytes)
        self.records = [self._record(step) for step in self.steps]
        self.sizes = np.array([len(record) for record in self.records])
        self.at = np.concatenate(([0], np.cumsum(self.sizes)))
        self.template = np.frombuffer(b"".join(self.records), np.uint8)

    def _record(self, step: Step) -> bytes:
        five = self.generation == "half-op"
        zeros = "0" * _DIGITS
        texts = {"KEYS": f"order-{zeros}"}
        if step.kind != "plain" and step.kind != "op":
            texts |= {"TRAN_MSG": "true"}
        if five:
            texts |= {"UNIQ_KEY": "7F000001ABCD18B4AAC2" + zeros}
        if step.transaction >= 0:
            texts |= {"PGROUP": GROUP}
            texts |= {"REAL_TOPIC": TOPIC, "REAL_QID": "0"} if five else {}
        texts |= {"TAGS": TAG}
        body = self.body
        if step.kind == "op":
            texts, body = {"TAGS": "d"}, ",".join([zeros] * TRANSACTIONS).encode() + b","
        types = {"prepared": 4, "commit": 8, "rollback": 12}
        topic = {"half": HALF_TOPIC, "op": OP_TOPIC}.get(step.kind, TOPIC)
        properties = "".join(f"{name}\x01{value}\x02" for name, value in texts.items()).encode()
        return encode(
            Record(
                magic=MAGIC_V1,
                queue_id=0,
                flag=0,
                queue_offset=0,
                commitlog_offset=0,
                sys_flag=types.get(step.kind, 0),
                born_timestamp_ms=START_MS,
                born_host=HOST,
                store_timestamp_ms=START_MS,
                store_host=HOST,
                reconsume_times=0,
                prepared_transaction_offset=0,
                body=b"" if step.kind == "rollback" else body,
                topic=topic,
                properties=properties,
                body_crc=0,
            )
        )


class StoreWriter:
    """Writes the log a block of periods at a time, then everything derived from it."""

    def __init__(self, path: Path, generation: str, body_bytes: int) -> None:
        self.path, self.story = path, Story(generation, body_bytes)
        self.periods = 0
        self._starts: list[np.ndarray[Any, Any]] = []

    def write(self, total_bytes: int) -> None:
        """A store with about so many bytes of records."""
        (self.path / "commitlog").mkdir(parents=True)
        period = int(self.story.at[-1])
        base = 0
        left = max(total_bytes // period, 1)
        while left:
            count = min((SEGMENT_BYTES - 8) // period, left)
            self._segment(base, count)
            left -= count
            base += SEGMENT_BYTES
        self.starts = np.concatenate(self._starts)
        self._derive()

    def _segment(self, base: int, count: int) -> None:
        period = int(self.story.at[-1])
        with open(self.path / "commitlog" / f"{base:020}", "wb") as file:
            file.truncate(SEGMENT_BYTES)
            for first in range(0, count, _PERIODS_AT_ONCE):
                block = self._block(base + first * period, min(_PERIODS_AT_ONCE, count - first))
                file.write(block.data)
            if count * period + period + 8 > SEGMENT_BYTES:
                file.write(encode_blank(SEGMENT_BYTES - count * period))

    def _block(self, offset: int, count: int) -> np.ndarray[Any, Any]:
        """`count` periods that begin at a CommitLog offset, with their numbers filled in."""
        story, period = self.story, int(self.story.at[-1])
        rows = np.tile(story.template, (count, 1))
        numbers = self.periods + np.arange(count)
        starts = offset + np.arange(count) * period
        halves = {step.transaction: starts + story.at[i] for i, step in enumerate(story.steps) if _opens(step)}
        for number, step in enumerate(story.steps):
            begin = int(story.at[number])
            heads = rows[:, begin : begin + _HEAD.itemsize].copy().view(_HEAD).reshape(count)
            heads["commitlog_offset"] = starts + begin
            heads["queue_offset"] = self._queue_offsets(number, numbers)
            heads["store_timestamp_ms"] = self._times(numbers)
            if step.kind in ("commit", "rollback"):
                heads["prepared_transaction_offset"] = halves[step.transaction]
            self._fill_digits(rows, number, numbers)
            if step.kind == "op":
                heads["body_crc"] = self._op_body(rows, begin, numbers)
            rows[:, begin : begin + _HEAD.itemsize] = heads.view(np.uint8).reshape(count, -1)
        self._starts.append(starts)
        self.periods += count
        return rows

    def _times(self, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return START_MS + numbers // 20

    def _queue_offsets(self, number: int, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """In its own queue, as a slot, or in the half queue: the n-th of its kind in each period."""
        step = self.story.steps[number]
        if step.kind == "rollback":
            return numbers * TRANSACTIONS + step.transaction
        kinds = [_queue_of(other) for other in self.story.steps]
        kind = kinds[number]
        return numbers * kinds.count(kind) + kinds[:number].count(kind)

    def _key_number(self, number: int, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Whose key a record carries: an end carries that of its half."""
        step = self.story.steps[number]
        if step.transaction >= 0:
            number = next(i for i, other in enumerate(self.story.steps) if other.transaction == step.transaction)
        return numbers * len(self.story.steps) + number

    def _fill_digits(self, rows: np.ndarray[Any, Any], number: int, numbers: np.ndarray[Any, Any]) -> None:
        if self.story.steps[number].kind == "op":
            return
        record = self.story.records[number]
        digits = _digits(self._key_number(number, numbers))
        for mark in (b"KEYS\x01order-", b"UNIQ_KEY\x017F000001ABCD18B4AAC2"):
            at = record.rfind(mark)
            if at >= 0:
                begin = int(self.story.at[number]) + at + len(mark)
                rows[:, begin : begin + _DIGITS] = digits

    def _op_body(self, rows: np.ndarray[Any, Any], begin: int, numbers: np.ndarray[Any, Any]) -> Any:
        """The op names the three halves of its period; returns the CRCs of the bodies."""
        at = begin + _HEAD.itemsize
        for transaction in range(TRANSACTIONS):
            place = at + transaction * (_DIGITS + 1)
            rows[:, place : place + _DIGITS] = _digits(numbers * TRANSACTIONS + transaction)
        size = TRANSACTIONS * (_DIGITS + 1)
        return [crc32(row.tobytes()) & 0x7FFFFFFF for row in rows[:, at : at + size]]

    # Derived files

    def _column(self, number: int) -> np.ndarray[Any, Any]:
        return self.starts + self.story.at[number]

    def _derive(self) -> None:
        numbers = np.arange(self.periods)
        self._queues()
        self._index(numbers)
        if self.story.generation == "state-table":
            self._table(numbers)
        (self.path / "checkpoint").write_bytes(encode_checkpoint(Checkpoint(START_MS, START_MS)))

    def _units(self, which: list[int], tags: Any) -> np.ndarray[Any, Any]:
        """Units of some steps of every period, in log order."""
        units = np.zeros((self.periods, len(which)), np.dtype(consumequeue.Unit.DTYPE))
        for column, number in enumerate(which):
            units["commitlog_offset"][:, column] = self._column(number)
            units["size"][:, column] = self.story.sizes[number]
            units["tags_code"][:, column] = tags(number)
        return units.reshape(-1)

    def _queues(self) -> None:
        for topic, tag in ((TOPIC, TAG), (HALF_TOPIC, TAG), (OP_TOPIC, "d")):
            which = [i for i, step in enumerate(self.story.steps) if _queue_of(step) == topic]
            if which:
                units = self._units(which, lambda _, tag=tag: string_hash(tag))
                _write_files(self.path / "consumequeue" / topic / "0", units.tobytes(), 6_000_000)

    def _table(self, numbers: np.ndarray[Any, Any]) -> None:
        slots = np.zeros((self.periods, TRANSACTIONS), np.dtype(statetable.Slot.DTYPE))
        states = {
            step.transaction: {"commit": 8, "rollback": 12}[step.kind] for step in self.story.steps if _ends(step)
        }
        prepared = {step.transaction: i for i, step in enumerate(self.story.steps) if _opens(step)}
        for transaction, number in prepared.items():
            slots["commitlog_offset"][:, transaction] = self._column(number)
            slots["size"][:, transaction] = self.story.sizes[number]
            slots["store_time_s"][:, transaction] = self._times(numbers) // 1000
            slots["group_hash"][:, transaction] = string_hash(GROUP)
            slots["state"][:, transaction] = states[transaction]
        _write_files(self.path / "transaction" / "statetable", slots.tobytes(), 48_000_000)
        which = [i for i, step in enumerate(self.story.steps) if step.transaction >= 0]

        def tags(number: int) -> Any:
            step = self.story.steps[number]
            return redolog.PREPARED_TAG if _opens(step) else self._column(prepared[step.transaction])

        directory = self.path / "transaction" / "redolog" / "TRANSACTION_REDOLOG_TOPIC_XXXX" / "0"
        _write_files(directory, self._units(which, tags).tobytes(), 40_000_000)

    def _index(self, numbers: np.ndarray[Any, Any]) -> None:
        """One file for each 20 million keys, as its generation indexes."""
        items = np.concatenate(list(self._items(numbers)), axis=1).reshape(-1)
        (self.path / "index").mkdir()
        room = index.ITEM_COUNT - 1
        for number, first in enumerate(range(0, len(items), room)):
            _write_index(self.path / "index" / f"2023111422132{number:04}", items[first : first + room])

    def _items(self, numbers: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
        five = self.story.generation == "half-op"
        for number, step in enumerate(self.story.steps):
            if step.kind in ("op", "rollback") or (step.kind == "commit" and not five):
                continue
            topic = HALF_TOPIC if step.kind == "half" else TOPIC
            digits = _digits(self._key_number(number, numbers))
            prefixes = ["7F000001ABCD18B4AAC2", "order-"] if five else ["order-"]
            for prefix in prefixes:
                items = np.zeros((self.periods, 1), _ITEM)
                items["key_hash"][:, 0] = _hashes(f"{topic}#{prefix}", digits, keep_sign=not five)
                items["commitlog_offset"][:, 0], items["store_ms"][:, 0] = self._column(number), self._times(numbers)
                yield items


_ITEM = np.dtype([("key_hash", "i4"), ("commitlog_offset", "i8"), ("store_ms", "i8")])


def _opens(step: Step) -> bool:
    return step.kind in ("prepared", "half")


def _ends(step: Step) -> bool:
    return step.kind in ("commit", "rollback")


def _queue_of(step: Step) -> str:
    """The queue whose offsets a record counts; prepared records count slots."""
    return {"half": HALF_TOPIC, "op": OP_TOPIC, "prepared": "slots", "rollback": "none"}.get(step.kind, TOPIC)


def _digits(numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    powers = 10 ** np.arange(_DIGITS - 1, -1, -1)
    return ((numbers[:, None] // powers) % 10 + ord("0")).astype(np.uint8)


def _hashes(prefix: str, digits: np.ndarray[Any, Any], *, keep_sign: bool) -> np.ndarray[Any, Any]:
    """Java's hash of the prefix followed by the digits of each row."""
    rows = np.hstack([np.tile(np.frombuffer(prefix.encode(), np.uint8), (len(digits), 1)), digits])
    offsets = np.arange(len(rows) + 1, dtype=np.int32) * rows.shape[1]
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(rows))]
    found = java_hashes(StringColumn(pa.Array.from_buffers(pa.binary(), len(rows), buffers)))
    return found if keep_sign else np.abs(found)


def _write_files(directory: Path, data: bytes, size: int) -> None:
    directory.mkdir(parents=True)
    for at in range(0, len(data), size):
        with open(directory / f"{at:020}", "wb") as file:
            file.truncate(size)
            file.write(data[at : at + size])


def _write_index(path: Path, items: np.ndarray[Any, Any]) -> None:
    slots = np.abs(items["key_hash"].astype(np.int64)) % index.SLOT_COUNT
    order = np.argsort(slots, kind="stable")
    again = np.concatenate(([False], slots[order][1:] == slots[order][:-1]))
    rows = np.zeros(len(items), np.dtype(index.IndexItem.DTYPE))
    rows["previous"][order] = np.where(again, np.concatenate(([0], order[:-1] + 1)), 0)
    rows["key_hash"], rows["commitlog_offset"] = items["key_hash"], items["commitlog_offset"]
    rows["time_diff_s"] = (items["store_ms"] - items["store_ms"][0]) // 1000
    heads = np.zeros(index.SLOT_COUNT, ">i4")
    heads[slots] = np.arange(1, len(items) + 1)
    header = index.IndexHeader(
        int(items["store_ms"][0]),
        int(items["store_ms"][-1]),
        int(items["commitlog_offset"][0]),
        int(items["commitlog_offset"][-1]),
        int(np.count_nonzero(heads)),
        len(items) + 1,
    )
    with open(path, "wb") as file:
        file.truncate(index.file_size())
        file.write(header.pack() + heads.tobytes())
        file.seek(index.item_at(1, index.SLOT_COUNT))
        file.write(rows.tobytes())


def make_store(path: str | os.PathLike[str], generation: str, total_bytes: int, body_bytes: int = 1024) -> None:
    """Write a store of `generation` ("state-table" or "half-op") with about `total_bytes` of records."""
    StoreWriter(Path(path), generation, body_bytes).write(total_bytes)
