"""Records side by side: the fields of every record in a window of bytes, as NumPy and Arrow columns.

A records is a window and the positions at which records begin in it. A column is decoded when it is first asked for, for
all records at once; nothing here loops over records in Python but the CRCs. What a field means is said in
`broker.format.commitlog`; this module only reads many of them at a time.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.format import properties as names
from broker.format.commitlog import BODY_AT, MAGIC_V1, MAGIC_V2, RECORD_CRC_SIZE, RECORD_SIZE_MIN, RecordHead, head_dtype
from broker.format.sysflag import BORN_IPV6, STORE_IPV6
from recovery.columns import Strings, crc32, text_starts_with, unaligned

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]

_IPV4 = head_dtype(born_ipv6=False, store_ipv6=False)
_SYS_FLAG_AT = RecordHead.OFFSET["sys_flag"]
_CRC_NAME = names.CRC32.encode() + b"\x01"


class Records:
    """The records that begin at `positions` in `window`; `base` is the CommitLog offset of the window's first byte."""

    def __init__(self, window: Bytes, base: int, positions: Ints) -> None:
        self.window = window
        self.base = base
        self.at = positions

    def __len__(self) -> int:
        return len(self.at)

    def take(self, which: Any) -> Records:
        """The chosen records (a slice, a mask or indices) of the same window."""
        return Records(self.window, self.base, self.at[which])

    @cached_property
    def offsets(self) -> Ints:
        """The CommitLog offset at which each record really begins."""
        return self.at + self.base

    @cached_property
    def _heads(self) -> dict[str, npt.NDArray[Any]]:
        flags = unaligned(self.window, ">i4", self.at + _SYS_FLAG_AT)
        shape = flags & (BORN_IPV6 | STORE_IPV6)
        if not shape.any():
            rows = unaligned(self.window, np.dtype(_IPV4), self.at)
            return {name: rows[name] for name, _ in _IPV4}
        columns: dict[str, npt.NDArray[Any]] = {
            name: np.zeros(len(self.at), "V16" if kind.startswith("V") else kind) for name, kind in _IPV4
        }
        for bits in np.unique(shape):
            which = np.flatnonzero(shape == bits)
            dtype = np.dtype(head_dtype(born_ipv6=bool(bits & BORN_IPV6), store_ipv6=bool(bits & STORE_IPV6)))
            room = len(self.window) - dtype.itemsize
            rows = unaligned(self.window, dtype, np.minimum(self.at[which], max(room, 0)))
            for name in columns:
                columns[name][which] = rows[name]
        return columns

    def field(self, name: str) -> Ints:
        """A fixed field of the record by its name in `broker.format.commitlog`, as int64."""
        return self._heads[name].astype(np.int64)

    def address(self, name: str) -> npt.NDArray[Any]:
        """`born_address` or `store_address`, as raw bytes of 4 or 16."""
        return self._heads[name]

    @cached_property
    def sizes(self) -> Ints:
        return self.field("total_size")

    @cached_property
    def sys_flags(self) -> Ints:
        return self.field("sys_flag")

    @cached_property
    def body_at(self) -> Ints:
        """Where the body begins in the window."""
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
        return (self.field("magic") == MAGIC_V2).astype(np.int64)

    @cached_property
    def _topic(self) -> tuple[Ints, Ints]:
        last = len(self.window) - 4
        at = np.clip(self.body_at + self.body_lengths, 0, last)
        short = unaligned(self.window, ">i1", at).astype(np.int64)
        if not self._v2.any():
            return at + 1, short
        return at + 1 + self._v2, np.where(self._v2 == 1, unaligned(self.window, ">i2", at).astype(np.int64), short)

    @cached_property
    def _properties(self) -> tuple[Ints, Ints]:
        starts, lengths = self._topic
        at = np.clip(starts + lengths, 0, len(self.window) - 2)
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
        return known & (properties[0] + properties[1] == self.at + sizes)

    @cached_property
    def topics(self) -> Strings:
        return Strings.gather(self.window, *self._topic)

    @cached_property
    def properties(self) -> Strings:
        """The properties as stored, for `columns.property_values`."""
        return Strings.gather(self.window, *self._properties)

    @cached_property
    def bodies(self) -> Strings:
        """The bodies as stored (maybe compressed)."""
        return Strings.gather(self.window, self.body_at, self.body_lengths)

    def property(self, name: str) -> pa.Array:
        """The value of a property for each record as Arrow binary; null where it is missing."""
        return self.properties.property_values(name)

    def bad_crcs(self) -> Ints:
        """Which records (by index) fail the body's CRC, or the whole record's where they carry one."""
        view = memoryview(self.window)
        starts, lengths = self.body_at, self.body_lengths
        stops = (starts + lengths).tolist()
        found = np.fromiter(
            (crc32(view[start:stop]) for start, stop in zip(starts.tolist(), stops, strict=True)),
            np.int64,
            len(self),
        )
        bad = ((found & 0x7FFFFFFF) != (self.field("body_crc") & 0xFFFFFFFF)) & (lengths > 0)
        bad |= (lengths == 0) & (self.field("body_crc") != 0)
        return np.flatnonzero(bad | self._bad_record_crcs(view))

    def _bad_record_crcs(self, view: memoryview) -> Bools:
        bad = np.zeros(len(self), np.bool_)
        stops = self.at + self.sizes
        item = stops - RECORD_CRC_SIZE
        carries = (self._properties[1] >= RECORD_CRC_SIZE) & text_starts_with(self.window, item, _CRC_NAME)
        which = np.flatnonzero(carries)
        if not len(which):
            return bad
        digits = unaligned(self.window, "V10", item[which] + len(_CRC_NAME)).view(np.uint8).reshape(-1, 10)
        said = ((digits.astype(np.int64) - ord("0")) * 10 ** np.arange(10)).sum(axis=1)
        legal = ((digits >= ord("0")) & (digits <= ord("9"))).all(axis=1) & (self.window[stops[which] - 1] == 2)
        real = np.fromiter(
            (
                crc32(view[start:stop]) & 0x7FFFFFFF
                for start, stop in zip(self.at[which].tolist(), item[which].tolist(), strict=True)
            ),
            np.int64,
            len(which),
        )
        bad[which] = (said != real) | ~legal
        return bad

