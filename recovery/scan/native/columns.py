"""The pass of the C module over a window: it goes from record to record and fills a column for each field.

It reads each record once, while its bytes are in the processor's cache, and without the GIL: the thread that walks
ahead and the one that compares overlap. What it accepts as a record is what `Records.whole` accepts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from broker.compiled import fast

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

# In the order of the enum in broker/_fast_scan.h.
COLUMNS = (
    "at", "total_size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "commitlog_offset", "sys_flag",
    "born_timestamp_ms", "born_port", "store_timestamp_ms", "store_port", "reconsume_times",
    "prepared_transaction_offset", "body_length", "body_at", "topic_at", "topic_length", "properties_at",
    "properties_length", "text_at", "bad_crc", "property_sum", "copied_sum",
)  # fmt: skip
_NUMBER = {name: number for number, name in enumerate(COLUMNS)}
_WANT_CRC, _WANT_SUMS, _WANT_TEXTS = 1, 2, 4
_NO_ROOM, _NOT_WHOLE = 1, 2  # why a call ended, besides the end of the window


class Averages(NamedTuple):
    """Of the records of a window, in bytes: how many rows, and how much room for texts, the next one begins with."""

    record: int = 512
    text: int = 128  # its topic and properties


@dataclass(frozen=True, slots=True)
class Wants:
    """What a scan needs of each record besides its fields, so that one pass makes it; the rest is made when asked."""

    crc: bool = False
    property_sums: bool = False
    texts: bool = False  # the topics and properties in one array, closer together than in the window
    properties: tuple[str, ...] = ()  # at most 16 names; their places in the texts
    copied: bytes = b""  # the 64 numbers by which recovery.transactions.fingerprint multiplies copied fields


NOTHING = Wants()


class Columns:
    """The columns of some records, as int64, and their texts."""

    def __init__(self, values: Ints, count: int, texts: Bytes, wants: Wants) -> None:
        self._values, self._count, self.texts, self.wants = values, count, texts, wants

    def __getitem__(self, name: str) -> Ints:
        """A field, a place in the window or a length; shape (records,)."""
        return self._values[_NUMBER[name], : self._count]

    def property_places(self, name: str) -> tuple[Ints, Ints] | None:
        """Where the value of a property begins in the texts, and its length (0: missing); None if it was not asked."""
        if name not in self.wants.properties:
            return None
        row = len(COLUMNS) + 2 * self.wants.properties.index(name)
        return self._values[row, : self._count], self._values[row + 1, : self._count]


class WindowPass:
    """One pass over a window, which may be read while it goes on."""

    def __init__(self, window: Bytes, base: int, wants: Wants = NOTHING, expected: Averages | None = None) -> None:
        """`expected` are those of the window before, where there was one."""
        expected = expected or Averages()
        self._window, self._base, self._wants = window, base, wants
        self._flags = _WANT_CRC * wants.crc | _WANT_SUMS * wants.property_sums | _WANT_TEXTS * wants.texts
        self._names = tuple(name.encode() for name in wants.properties)
        self._values = self._empty(len(window) // max(expected.record, 1))
        self._texts = np.empty(self._values.shape[1] * expected.text if wants.texts else 0, np.uint8)
        self._used = 0
        self.count = 0
        self.at = 0
        self.is_broken = False
        """What begins at `at` is not a whole record, though its size fits."""

    def _empty(self, records: int) -> Ints:
        # Columns at distances that are not powers of two: each would take the same lines of the cache.
        return np.empty((len(COLUMNS) + 2 * len(self._names), records // 512 * 512 + 536), np.int64)

    def advance(self, limit: int) -> None:
        """Take the records that end at or before a place in the window."""
        module: Any = fast
        while not self.is_broken and self.at <= limit:
            self.count, self._used, self.at, stop = module.scan_window(
                self._window, self.at, limit, self._base, self._values, self.count, self._texts, self._used,
                self._flags, self._names, self._wants.copied,
            )  # fmt: skip
            self.is_broken = stop == _NOT_WHOLE
            if stop != _NO_ROOM:
                return
            self._grow()

    def _grow(self) -> None:
        """Make room for as many records again; the next one's texts have at most 64 KiB and its topic."""
        before, self._values = self._values, self._empty(2 * self.count)
        self._values[:, : self.count] = before[:, : self.count]
        if self._wants.texts:
            texts, self._texts = self._texts, np.empty(2 * len(self._texts) + (1 << 17), np.uint8)
            self._texts[: self._used] = texts[: self._used]

    @property
    def averages(self) -> Averages:
        """Of the records so far, rounded to the side that makes room for more."""
        return Averages(self.at // self.count, -(-self._used // self.count) or 1) if self.count else Averages()

    def columns(self) -> Columns:
        """The columns of the records so far."""
        return Columns(self._values, self.count, self._texts[: self._used], self._wants)
