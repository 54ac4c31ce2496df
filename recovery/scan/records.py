"""Records side by side: the fields of every record in a window of bytes, as NumPy and Arrow columns.

`Records` is a window and the positions at which records begin in it. A column is decoded when it is first asked for,
for all records at once; nothing here loops over records in Python but the CRCs. What a field means is declared in
`broker.format.commitlog`; this module only reads many of them at a time.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.format import properties as names
from broker.format.commitlog import (
    BODY_AT,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_CRC_SIZE,
    RECORD_SIZE_MIN,
    RecordHead,
    head_dtype,
)
from broker.format.sysflag import BORN_IPV6, STORE_IPV6
from recovery.scan.native.columns import Columns
from recovery.scan.strings import StringColumn, StringViews, crc32, text_at, unaligned

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_IPV4 = np.dtype(head_dtype(born_ipv6=False, store_ipv6=False))
_EITHER = np.dtype(head_dtype(born_ipv6=True, store_ipv6=True))
_SYS_FLAG_AT = RecordHead.OFFSET["sys_flag"]
_ITEM_END = np.uint8(2)
_CRC_MARK = names.CRC32.encode()
_CRC_NAME = np.frombuffer(_CRC_MARK + b"\x01", np.uint8)


class Records:
    """The records that begin at `positions` in `window`; `base` is the CommitLog offset of the window's first byte.

    A choice of records (`take`) takes its columns from the whole, where each is decoded once.
    """

    def __init__(self, window: Bytes, base: int, positions: Ints, columns: Columns | None = None) -> None:
        """`columns` are what the pass of the C module made of these records."""
        self.window = window
        self.base = base
        self.at = positions
        self.columns = columns
        self._fields: dict[str, Ints] = {}
        self._values: dict[str, StringViews] = {}
        self._whole: tuple[Records, Ints] | None = None

    def __len__(self) -> int:
        return len(self.at)

    @property
    def whole_and_numbers(self) -> tuple[Records, Ints]:
        """The records that these were taken from, and which of them they are."""
        return self._whole or (self, np.arange(len(self)))

    def take(self, which: Any) -> Records:
        """The chosen records (a slice, a mask or indices) of the same window."""
        part = Records(self.window, self.base, self.at[which])
        whole, numbers = self.whole_and_numbers
        part._whole = (whole, numbers[which])
        return part

    @cached_property
    def offsets(self) -> Ints:
        """The CommitLog offset at which each record really begins."""
        return self.at + self.base

    def _column(self, name: str) -> Ints | None:
        """What the C module has put into a column; None without it."""
        whole, numbers = self._whole or (self, slice(None))
        return None if whole.columns is None else whole.columns[name][numbers]

    @cached_property
    def _heads(self) -> npt.NDArray[Any]:
        """The fixed part of each record; addresses of either family in 16 bytes once one record has the longer."""
        shape = unaligned(self.window, ">i4", self.at + _SYS_FLAG_AT) & (BORN_IPV6 | STORE_IPV6)
        if not shape.any():
            return unaligned(self.window, _IPV4, self.at)
        heads = np.zeros(len(self.at), _EITHER)
        for bits in np.unique(shape):
            which = np.flatnonzero(shape == bits)
            dtype = np.dtype(head_dtype(born_ipv6=bool(bits & BORN_IPV6), store_ipv6=bool(bits & STORE_IPV6)))
            rows = unaligned(self.window, dtype, self.at[which])
            for name in _IPV4.names or ():
                heads[name][which] = rows[name]
        return heads

    def field(self, name: str) -> Ints:
        """A fixed field of the record by its name in `broker.format.commitlog`, as int64."""
        if name not in self._fields:
            if self._whole is not None:
                whole, numbers = self._whole
                self._fields[name] = whole.field(name)[numbers]
            elif self.columns is not None:
                self._fields[name] = self.columns[name]
            else:
                self._fields[name] = self._heads[name].astype(np.int64)
        return self._fields[name]

    def address(self, name: str) -> npt.NDArray[Any]:
        """`born_address` or `store_address`, as raw bytes of 4, or of 16 (zeros behind the shorter)."""
        if self._whole is not None:
            whole, numbers = self._whole
            return whole.address(name)[numbers]
        return np.asarray(self._heads[name])

    @cached_property
    def sizes(self) -> Ints:
        return self.field("total_size")

    @cached_property
    def sys_flags(self) -> Ints:
        return self.field("sys_flag")

    @cached_property
    def body_at(self) -> Ints:
        """Where the body begins in the window."""
        made = self._column("body_at")
        if made is not None:
            return made
        sizes = np.full(len(self.at), BODY_AT[False, False], np.int64)
        born, store = (self.sys_flags & BORN_IPV6) != 0, (self.sys_flags & STORE_IPV6) != 0
        sizes[born] += BODY_AT[True, False] - BODY_AT[False, False]
        sizes[store] += BODY_AT[False, True] - BODY_AT[False, False]
        return self.at + sizes

    @cached_property
    def body_lengths(self) -> Ints:
        return self.field("body_length")

    @cached_property
    def _v2(self) -> Ints:
        return np.asarray(self.field("magic") == MAGIC_V2, np.int64)

    @cached_property
    def _topic(self) -> tuple[Ints, Ints]:
        starts, lengths = self._column("topic_at"), self._column("topic_length")
        if starts is not None and lengths is not None:
            return starts, lengths
        at = np.clip(self.body_at + self.body_lengths, 0, len(self.window) - 1)
        short = unaligned(self.window, ">i1", at).astype(np.int64)
        if not self._v2.any():
            return at + 1, short
        return at + 1 + self._v2, np.where(self._v2 == 1, unaligned(self.window, ">i2", at).astype(np.int64), short)

    @cached_property
    def _properties(self) -> tuple[Ints, Ints]:
        made, sizes = self._column("properties_at"), self._column("properties_length")
        if made is not None and sizes is not None:
            return made, sizes
        starts, lengths = self._topic
        at = np.clip(starts + lengths, 0, max(len(self.window) - 2, 0))
        return at + 2, unaligned(self.window, ">i2", at).astype(np.int64)

    def whole(self, end: int) -> Bools:
        """Which of these are records: a known magic, lengths that add up within `end`, and their own true offset.

        RocketMQ: CommitLog.checkMessageAndReturnSize (5.3.3) asks the same but for the offset, which it never compares.
        """
        magic, sizes, bodies = self.field("magic"), self.sizes, self.body_lengths
        known = ((magic == MAGIC_V1) | (magic == MAGIC_V2)) & (sizes >= RECORD_SIZE_MIN) & (self.at + sizes <= end)
        known &= (bodies >= 0) & (bodies <= sizes) & (self.field("commitlog_offset") == self.offsets)
        topics, properties = self._topic, self._properties
        known &= (topics[1] >= 0) & (properties[1] >= 0)
        stops = self.at + sizes
        # Where a wrong length leads beyond the window, other bytes were read: the answer must not depend on them.
        known &= (self.body_at + bodies + self._v2 + 3 <= stops) & (topics[0] + topics[1] + 2 <= stops)
        return np.asarray(known & (properties[0] + properties[1] == stops))

    @cached_property
    def topics(self) -> StringColumn:
        """The topic of each record, as bytes."""
        return StringColumn.gather(self.window, *self._topic)

    @cached_property
    def topic_codes(self) -> tuple[npt.NDArray[np.int32], list[bytes]]:
        """A small number for the topic of each record, and the topics that those numbers stand for."""
        if self._whole is not None and self._whole[0].columns is not None:
            codes, topics = self._whole[0].topic_codes
            return codes[self._whole[1]], topics
        if self.columns is not None and self.columns.wants.texts:
            return StringViews(self.columns.texts, self.columns["text_at"], self.columns["topic_length"]).codes()
        return StringViews(self.window, *self._topic).codes()

    def in_topic(self, topic: bytes) -> Bools:
        """Which of these are in a topic."""
        if self._whole is not None and self._whole[0].columns is not None:
            codes, topics = self.topic_codes
            return np.array([one == topic for one in topics], np.bool_)[codes]
        starts, lengths = self._topic
        found = lengths == len(topic)
        return found & text_at(self.window, starts, topic) if found.any() else np.asarray(found)

    @cached_property
    def properties(self) -> StringColumn:
        """The properties as stored; `property_slices` of the column reads one of them."""
        return StringColumn.gather(self.window, *self._properties)

    @cached_property
    def bodies(self) -> StringColumn:
        """The bodies as stored (maybe compressed)."""
        return StringColumn.gather(self.window, self.body_at, self.body_lengths)

    @cached_property
    def property_sums(self) -> npt.NDArray[np.uint32]:
        """The sum of the bytes of each record's properties, each less the 2 that ends an item; its CRC is left out.

        Modulo 256 no two bytes become the same by that, and the end of an item counts nothing, whether it is there or
        not.
        """
        if self.columns is not None and self.columns.wants.property_sums:
            return self.columns["property_sum"].astype(np.uint32)
        strings = self.properties
        sums = np.zeros(len(self), np.uint32)
        if not len(strings.data):
            return sums
        filled = np.flatnonzero(strings.lengths)
        sums[filled] = np.add.reduceat(strings.data - _ITEM_END, strings.offsets[filled], dtype=np.uint32)
        item = strings.offsets[1:].astype(np.int64) - RECORD_CRC_SIZE
        carries = np.flatnonzero((item >= strings.offsets[:-1]) & text_at(strings.data, item, _CRC_NAME.tobytes()))
        if len(carries):
            rows = unaligned(strings.data, f"V{RECORD_CRC_SIZE}", item[carries]).view(np.uint8)
            sums[carries] -= (rows.reshape(-1, RECORD_CRC_SIZE) - _ITEM_END).sum(axis=1, dtype=np.uint32)
        return sums

    def values(self, name: str) -> StringViews:
        """The value of a property for each record, where it lies; empty where it is missing."""
        if name not in self._values:
            if self._whole is not None:
                whole, numbers = self._whole
                self._values[name] = whole.values(name).take(numbers)
            elif self.columns is not None and (places := self.columns.property_places(name)) is not None:
                self._values[name] = StringViews(self.columns.texts, *places)
            else:
                self._values[name] = self.properties.property_slices(name)
        return self._values[name]

    def property(self, name: str) -> pa.Array:
        """The value of a property for each record as Arrow binary; null where it is missing."""
        return self.values(name).array()

    def bad_crcs(self) -> Ints:
        """Which records (by index) fail the body's CRC, or the whole record's where they carry one."""
        return self._bad_crcs

    @cached_property
    def _bad_crcs(self) -> Ints:
        whole, numbers = self._whole or (self, slice(None))
        if whole.columns is not None and whole.columns.wants.crc:
            return np.flatnonzero(whole.columns["bad_crc"][numbers])
        starts, lengths = self.body_at, self.body_lengths
        found = _crcs(self.window, starts, starts + lengths)
        return np.flatnonzero((found != self.field("body_crc")) | self.bad_record_crcs())

    def bad_record_crcs(self) -> Bools:
        """Which records fail the whole record's CRC; never one that carries none.

        A last property with no more than one byte wrong in it is a record CRC that was damaged.
        """
        bad = np.zeros(len(self), np.bool_)
        stops = self.at + self.sizes
        begins = stops - RECORD_CRC_SIZE
        likely = text_at(self.window, begins, _CRC_MARK[:4]) | text_at(self.window, begins + 4, _CRC_MARK[4:])
        which = np.flatnonzero(likely & (self._properties[1] >= RECORD_CRC_SIZE))
        if not len(which):
            return bad
        items = unaligned(self.window, f"V{RECORD_CRC_SIZE}", stops[which] - RECORD_CRC_SIZE)
        items = items.view(np.uint8).reshape(-1, RECORD_CRC_SIZE)
        digits = items[:, len(_CRC_NAME) : -1]
        legal = (digits >= ord("0")) & (digits <= ord("9"))
        faults = (items[:, : len(_CRC_NAME)] != _CRC_NAME).sum(axis=1) + (items[:, -1] != 2) + (~legal).sum(axis=1)
        carries = faults <= 1
        which, digits, faults = which[carries], digits[carries], faults[carries]
        if len(which):
            numbers = ((digits.astype(np.int64) - ord("0")) * 10 ** np.arange(digits.shape[1])).sum(axis=1)
            real = _crcs(self.window, self.at[which], stops[which] - RECORD_CRC_SIZE)
            bad[which] = (numbers != real) | (faults > 0)
        return bad


def _crcs(window: Bytes, starts: Ints, stops: Ints) -> Ints:
    """RocketMQ's CRC of each window[start : stop]: the only loop over records, in a library made for it."""
    view = window.data
    found = [crc32(view[start:stop]) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
    return np.array(found, np.int64) & 0x7FFFFFFF
