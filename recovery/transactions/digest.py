"""One number for the state of every transaction of a store, the same for every engine and in any order.

The encoding stands in docs/format.md, "Digest".
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from broker.compiled import fast
from recovery.scan.strings import unaligned

ENTRY = np.dtype([("generation", "u1"), ("state", "u1"), ("key_hi", ">u8"), ("key_lo", ">u8"), ("lowest", ">i8")])
_MODULUS = 1 << 128


class Digest:
    """A sum modulo 2^128 of the first 16 bytes of SHA-256 over each transaction."""

    def __init__(self) -> None:
        self.total = 0

    def add(self, entry: bytes, delivered: Iterable[int] = ()) -> None:
        """One transaction: its 26 bytes (`ENTRY`) and the CommitLog offsets of its deliverable records."""
        offsets = sorted(delivered)
        tail = struct.pack(f">{len(offsets)}q", *offsets)
        self.total += int.from_bytes(hashlib.sha256(entry + tail).digest()[:16], "big")

    def add_many(self, entries: npt.NDArray[np.void], starts: Sequence[int], delivered: npt.NDArray[np.int64]) -> None:
        """Many: transaction i delivered the sorted offsets delivered[starts[i] : starts[i + 1]]."""
        if fast is not None:
            bounds, offsets = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(delivered, np.int64)
            self._add_sums(fast.digest_sums(np.ascontiguousarray(entries).view(np.uint8), bounds, offsets))
            return
        first, counts = np.asarray(starts[:-1]), np.diff(starts)
        for count in np.unique(counts).tolist():  # few: nearly all deliver nothing or once
            which = np.flatnonzero(counts == count)
            rows = np.zeros(len(which), np.dtype([("entry", ENTRY), ("delivered", ">i8", (count,))]))
            rows["entry"] = entries[which]
            rows["delivered"] = delivered[first[which][:, None] + np.arange(count)]
            self._add_rows(rows.tobytes(), rows.dtype.itemsize)

    def _add_rows(self, raw: bytes, size: int) -> None:
        sha256 = hashlib.sha256
        digests = [sha256(raw[at : at + size]).digest() for at in range(0, len(raw), size)]
        words = np.frombuffer(b"".join(digests), ">u4").reshape(-1, 8)[:, :4].astype(np.uint64)
        self._add_sums(words.sum(axis=0).tolist())

    def _add_sums(self, of_words: Sequence[int]) -> None:
        for shift, column in zip((96, 64, 32, 0), of_words, strict=True):
            self.total += column << shift

    def merge(self, other: Digest) -> None:
        """Add what another engine or partition summed."""
        self.total += other.total

    def hex(self) -> str:
        return f"{self.total % _MODULUS:032x}"


_NIBBLE = np.full(256, 255, np.uint8)
_NIBBLE[np.frombuffer(b"0123456789ABCDEF", np.uint8)] = np.arange(16)


def identities_of_unique_keys(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    """The 16 bytes that stand for each unique key data[start : start + length], as two numbers.

    Nearly every client's key is 32 upper-case hexadecimal digits: then the 16 bytes that they spell. Any other key is
    the first 16 bytes of its SHA-256.
    """
    spelled = np.flatnonzero(lengths == 32)
    digits = np.take(_NIBBLE, unaligned(data, "V32", starts[spelled]).view(np.uint8))
    raw, fine = (digits[0::2] << 4 | digits[1::2]).reshape(-1, 16), (digits.reshape(-1, 32) < 16).all(axis=1)
    if len(raw) < len(starts) or not fine.all():
        others = np.ones(len(starts), np.bool_)
        others[spelled[fine]] = False
        spelled_raw, raw = raw[fine], np.zeros((len(starts), 16), np.uint8)
        raw[~others] = spelled_raw
        for row in np.flatnonzero(others):
            key = data[starts[row] : starts[row] + lengths[row]].tobytes()
            raw[row] = np.frombuffer(hashlib.sha256(key).digest()[:16], np.uint8)
    words = raw.view(">u8").astype(np.uint64)
    return words[:, 0], words[:, 1]
