"""Events out of batches: what each record says about a transaction, as rows that can be joined.

The meaning comes from `broker.transaction.events`; this module asks it for many records at a time.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from broker.errors import CorruptRecord
from broker.format import properties as names
from broker.format.record import opmessage
from broker.format.topics import HALF_TOPIC, HALF_TOPIC_OF_ROCKSDB, OP_TAG, OP_TOPIC_OF_ROCKSDB, TIMER_TOPIC
from broker.transaction.events import (
    PARKED,
    PARKED_OFFSET,
    TARGET_IN_PROPERTIES,
    EventKind,
    Identity,
    TopicKind,
    names_half,
)
from recovery.scan.kinds import Kinds
from recovery.scan.records import Ints, Records
from recovery.scan.spill import pick
from recovery.scan.strings import StringColumn, StringViews
from recovery.transactions.digest import identities_of_unique_keys

Rows = npt.NDArray[Any]

EVENT = np.dtype(
    [
        ("half", "i8"),  # CommitLog offset of the half record this is about: its own, or the one it names; -1: by key
        ("offset", "i8"),  # CommitLog offset of the record itself
        ("kind", "u1"),  # an EventKind
        ("size", "i4"),
        ("queue_id", "i4"),  # OF_ROCKSDB for a half message that an op message names by its CommitLog offset
        ("queue_offset", "i8"),  # of a prepared record its slot, of a half record its place in the half queue
        ("store_ms", "i8"),
        ("born_ms", "i8"),
        ("body_crc", "i4"),
        ("group", "i4"),  # numbers in Names
        ("topic", "i4"),  # the target topic
        ("key_hi", "u8"),  # identity of the unique key, see recovery.transactions.digest
        ("key_lo", "u8"),
        (
            "copy",
            "u8",
        ),  # of a half or an end: fingerprint of what both have in common, see recovery.transactions.fingerprint
        ("checks", "i4"),  # of a half: how often RocketMQ asked; of our park record: 1 parks, 0 takes it back
    ]
)

_IS_ELSEWHERE = np.isin(np.arange(256), list(TARGET_IN_PROPERTIES))  # by kind of topic

OP = np.dtype([("queue_id", "i4"), ("queue_offset", "i8"), ("offset", "i8")])  # one for each half that an op names
OF_ROCKSDB = -1


class Names:
    """Numbers for strings that recur (producer groups, topics), the same for the whole scan; 0 is the empty string."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {b"": 0}
        self._names: list[bytes] = [b""]

    def number(self, name: bytes) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number

    def numbers(self, values: StringViews) -> npt.NDArray[np.int32]:
        """The number of each string."""
        codes, distinct = values.codes()
        return np.array([self.number(name) for name in distinct], np.int32)[codes] if len(codes) else codes

    def encoded(self, number: int) -> bytes:
        """The bytes of a string, by its number."""
        return self._names[number]

    def __getitem__(self, number: int) -> str:
        return self._names[number].decode("utf-8", "replace")

    def __len__(self) -> int:
        return len(self._names)


def with_events(kinds: Kinds) -> Ints:
    """Which records say something about a transaction, op messages left out."""
    return np.flatnonzero((kinds.events != EventKind.PLAIN) & (kinds.events != EventKind.OP))


def extract(records: Records, kinds: Kinds, interned: Names) -> Rows:
    """A row for each record of `with_events`."""
    which = with_events(kinds)
    rows = np.zeros(len(which), EVENT)
    if not len(which):
        return rows
    part = records.take(which)
    rows["offset"], rows["kind"], rows["size"] = part.offsets, kinds.events[which], part.sizes
    of_rocksdb = part.in_topic(HALF_TOPIC_OF_ROCKSDB.encode())
    rows["queue_id"] = np.where(of_rocksdb, OF_ROCKSDB, part.field("queue_id"))
    rows["queue_offset"] = part.field("queue_offset")
    rows["store_ms"], rows["born_ms"] = part.field("store_timestamp_ms"), part.field("born_timestamp_ms")
    rows["body_crc"] = part.field("body_crc")
    rows["group"] = interned.numbers(part.values(names.PGROUP))
    rows["topic"] = _targets(part, kinds, which, interned)
    own = (rows["kind"] == EventKind.PREPARED) | (rows["kind"] == EventKind.HALF)
    rows["half"] = np.where(own, rows["offset"], part.field("prepared_transaction_offset"))
    _set_keys(rows, part)
    _set_parked(rows, part)
    return rows


def _targets(part: Records, kinds: Kinds, which: Ints, interned: Names) -> npt.NDArray[np.int32]:
    own = np.array([interned.number(topic) for topic in kinds.topics], np.int32)[kinds.codes[which]]
    elsewhere = _IS_ELSEWHERE[kinds.topic_kinds[which]]
    if elsewhere.any():
        real = interned.numbers(part.values(names.REAL_TOPIC))
        own = np.where(elsewhere & (real > 0), real, own)
    return own


def _set_keys(rows: Rows, part: Records) -> None:
    """The identity of each half and each parked message of the half-op generation; its ends take it from the half."""
    which = np.flatnonzero((rows["kind"] == EventKind.HALF) | (rows["kind"] == EventKind.PARKED))
    if not len(which):
        return
    keyed = part.take(which)
    keys = keyed.values(names.UNIQ_KEY)
    high, low = identities_of_unique_keys(keys.data, keys.starts, keys.lengths)
    nameless = keys.lengths == 0  # known by its offset, as a prepared record is
    rows["key_hi"][which] = np.where(nameless, 0, high)
    rows["key_lo"][which] = np.where(nameless, keyed.offsets.astype(np.uint64), low)
    rows["checks"][which] = numbers_in(keyed.values(names.TRANSACTION_CHECK_TIMES))


def _set_parked(rows: Rows, part: Records) -> None:
    """Our own park records name their half by offset."""
    which = np.flatnonzero(rows["kind"] == EventKind.PARKED)
    if len(which):
        parked = part.take(which)
        rows["half"][which] = numbers_in(parked.values(PARKED_OFFSET), missing=-1)
        rows["checks"][which] = [value != b"false" for value in parked.property(PARKED).to_pylist()]


def numbers_in(values: StringViews, missing: int = 0) -> Ints:
    """Decimal numbers in properties; anything else counts as missing."""
    codes, distinct = values.codes()
    read = [int(text) if text.isdigit() and len(text) < 19 else missing for text in distinct]
    return np.array(read, np.int64)[codes] if len(codes) else np.zeros(0, np.int64)


def extract_ops(records: Records, kinds: Kinds) -> Rows:
    """A row for each half that the op messages of a batch name; other tags than an op's mean nothing."""
    which = np.flatnonzero(kinds.events == EventKind.OP)
    if not len(which):
        return np.zeros(0, OP)
    part = records.take(which)
    part = part.take(np.flatnonzero(part.values(names.TAGS).are(OP_TAG.encode())))
    of_rocksdb = part.in_topic(OP_TOPIC_OF_ROCKSDB.encode())
    if of_rocksdb.any():
        others = part.take(np.flatnonzero(~of_rocksdb))
        return np.concatenate((_ops(others), _ops_of_rocksdb(part.take(np.flatnonzero(of_rocksdb)))))
    return _ops(part)


def _ops_of_rocksdb(part: Records) -> Rows:
    """Each names one half message. RocketMQ: TransMessageRocksDBStore.makeOpMessageInner (5.5.0)."""
    rows = np.zeros(len(part), OP)
    rows["queue_id"], rows["offset"] = OF_ROCKSDB, part.offsets
    rows["queue_offset"] = numbers_in(part.values(names.TRANS_OFFSET), missing=-1)
    return rows[rows["queue_offset"] >= 0]


def named_numbers(halves: Rows) -> Ints:
    """The number by which op messages name each half message: its queue offset, or its CommitLog offset."""
    return np.where(halves["queue_id"] == OF_ROCKSDB, halves["offset"], halves["queue_offset"])


def _ops(part: Records) -> Rows:
    counts, numbers = _op_numbers(part.bodies)
    rows = np.zeros(len(numbers), OP)
    rows["queue_id"], rows["offset"] = part.field("queue_id").repeat(counts), part.offsets.repeat(counts)
    rows["queue_offset"] = numbers
    return rows


def _op_numbers(bodies: StringColumn) -> tuple[Ints, Ints]:
    """How many halves each op names, and which: all at once where every body is digits and commas, as they are."""
    raw = bodies.data.tobytes()
    if not raw:
        return np.zeros(len(bodies), np.int64), np.zeros(0, np.int64)
    commas, ends = np.flatnonzero(bodies.data == ord(",")), bodies.offsets[1:]
    longest = int(np.diff(commas, prepend=-1).max(initial=0)) - 1
    regular = not raw.translate(None, b"0123456789,") and b",," not in raw and raw[:1] != b"," and longest < 19
    if regular and bool((bodies.data[np.maximum(ends - 1, 0)] == ord(",")).all()):
        return np.diff(np.searchsorted(commas, bodies.offsets)), np.fromstring(raw[:-1], np.int64, sep=",")
    lists = [_op_body(body) for body in bodies.array.to_pylist()]
    return np.array([len(numbers) for numbers in lists], np.int64), np.array(list(chain.from_iterable(lists)), np.int64)


def _op_body(body: bytes) -> list[int]:
    """RocketMQ passes over what it cannot parse, number by number."""
    numbers: list[int] = []
    for part in body.split(b","):
        with suppress(CorruptRecord):
            numbers.extend(opmessage.decode(part) if part else ())
    return numbers


def diverted_halves(records: Records, kinds: Kinds) -> tuple[Ints, Ints]:
    """Offsets of half messages that carried a delay: those in the schedule topic, and those in the timer's.

    A message that waits longer than the wheel turns is put into the timer's topic again; only the first time counts.
    RocketMQ: HookUtils.handleScheduleMessage, transformTimerMessage (5.3.3) do not ask whether the topic that they
    take a message from is the half topic.
    """
    scheduled = kinds.topic_kinds == TopicKind.SCHEDULE
    timed = np.array([topic == TIMER_TOPIC.encode() for topic in kinds.topics], np.bool_)[kinds.codes]
    which = np.flatnonzero((scheduled | timed) & (kinds.events == EventKind.PLAIN))
    if not len(which):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    part = records.take(which)
    targets = part.values(names.REAL_TOPIC)
    halves = targets.are(HALF_TOPIC.encode()) | targets.are(HALF_TOPIC_OF_ROCKSDB.encode())
    again = timed[which] & (part.values(names.TIMER_ROLL_TIMES).lengths > 0)
    return part.offsets[halves & scheduled[which]], part.offsets[halves & timed[which] & ~again]


def identity(rows: Rows) -> Identity:
    """The part of rows that a half and its end must share."""
    return Identity(rows["group"], rows["topic"], rows["body_crc"], rows["born_ms"])


class Redeliveries:
    """Tells the ends of the transaction at CommitLog offset 0 from redeliveries, which say 0 as well."""

    def __init__(self, zero: Rows | None = None) -> None:
        """`zero` is the event of the half message at offset 0, where it was taken before."""
        self._zero = np.zeros(0, EVENT) if zero is None else zero

    def drop(self, rows: Rows) -> Rows:
        """The rows without the redeliveries among them."""
        if not len(self._zero):
            own = (rows["kind"] == EventKind.PREPARED) | (rows["kind"] == EventKind.HALF)
            self._zero = rows[own & (rows["offset"] == 0)]
        suspects = (rows["kind"] == EventKind.COMMITTED) & (rows["half"] == 0)
        if not suspects.any():
            return rows
        if len(self._zero):
            suspects &= ~names_half(identity(self._zero[:1]), identity(rows), rolls_back=False)
        return pick(rows, ~suspects)
