"""Strings of many records at once: gathered from a window, split at RocketMQ's separators, hashed as Java does.

RocketMQ's strings have a length and a place, not an Arrow offset array. A BinaryView array over the window names them
where they lie, and Arrow's cast gathers them in C++.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from broker.compiled import fast
from broker.format.java import string_hash

try:
    from isal.isal_zlib import crc32 as crc32
except ImportError:  # the extra `fast`; zlib's own is about a third as fast on small records
    from zlib import crc32 as crc32

Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
_RECUR = 0.95  # of a string that stands for less than the rest, the others are distinguished by a hash table
_SHORT = 64  # bytes of a string that is compared word by word
_INLINE = 12  # a view of at most so many bytes holds them itself
_FEW_BYTES = 1 << 16  # NumPy gathers them: the first cast loads pyarrow.compute, which takes longer than a small store


def unaligned(window: Bytes, dtype: Any, at: Ints) -> npt.NDArray[Any]:
    """The values of a NumPy type that begin at the positions `at`, whatever their alignment."""
    kind = np.dtype(dtype)
    count = len(window) - kind.itemsize + 1
    if count <= 0:
        padded = np.zeros(kind.itemsize, np.uint8)
        padded[: len(window)] = window
        window, count = padded, 1
    plain = f"V{kind.itemsize}" if kind.fields else kind  # NumPy copies a structure field by field, bytes at once
    if len(at) and (int(at.min()) < 0 or int(at.max()) >= count):
        at = np.clip(at, 0, count - 1)
    return np.ndarray((count,), plain, window, strides=(1,))[at].view(kind)


def text_at(window: Bytes, at: Ints, text: bytes) -> npt.NDArray[np.bool_]:
    """Where the bytes at each position are `text`, compared eight at a time."""
    same = (at >= 0) & (at + len(text) <= len(window))
    for first in range(0, len(text), 8):
        part = text[first : first + 8]
        word, mask = int.from_bytes(part, "little"), (1 << 8 * len(part)) - 1
        same &= _words(window, at + first) & np.uint64(mask) == np.uint64(word)
    return same


def _words(window: Bytes, at: Ints) -> npt.NDArray[np.uint64]:
    """The eight bytes from each position on as one number; what lies beyond the window's end is zero."""
    words = unaligned(window, "<u8", at)
    beyond = len(at) and int(at.max()) + 8 > len(window)
    for row in np.flatnonzero(at + 8 > len(window)) if beyond else ():
        tail = window[max(int(at[row]), 0) :].tobytes()
        words[row] = int.from_bytes(tail[:8], "little")
    return words


def gather(window: Bytes, starts: Ints, lengths: Ints) -> pa.Array:
    """The strings window[start : start + length] as one Arrow binary array."""
    count = len(starts)
    if not count:
        return pa.array([], pa.binary())
    if starts.min() < 0 or lengths.min() < 0 or (starts + lengths).max() > len(window):
        raise ValueError("a string lies outside the window")  # Arrow would read it all the same, and crash
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    if offsets[-1] <= _FEW_BYTES:
        places = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(window[places])]
        return pa.Array.from_buffers(pa.binary(), count, buffers)
    views = np.zeros((count, 4), np.int32)
    views[:, 0], views[:, 3] = lengths, starts
    views[:, 1] = unaligned(window, "<i4", starts)
    short = np.flatnonzero(lengths <= _INLINE)
    if len(short):
        rows = _padded(window, starts[short], _INLINE)
        rows[np.arange(_INLINE)[None, :] >= lengths[short][:, None]] = 0
        views.view(np.uint8).reshape(-1, 16)[short, 4:] = rows
    buffers = [None, pa.py_buffer(views), pa.py_buffer(window)]
    return pa.Array.from_buffers(pa.binary_view(), count, buffers).cast(pa.binary())


def _padded(window: Bytes, starts: Ints, width: int) -> Bytes:
    """`width` bytes from each start; what lies beyond the window's end is zero."""
    over = starts + width > len(window)
    rows = unaligned(window, f"V{width}", starts).view(np.uint8).reshape(-1, width)
    for row in np.flatnonzero(over):
        tail = window[starts[row] : starts[row] + width]
        rows[row] = 0
        rows[row, : len(tail)] = tail
    return rows


class StringColumn:
    """An Arrow binary array with its bytes and offsets in reach of NumPy."""

    def __init__(self, array: pa.Array) -> None:
        if array.offset or array.null_count:
            array = pa.concat_arrays([array.fill_null(b"")])
        self.array = array
        _, offsets, data = array.buffers()
        self.offsets = np.frombuffer(offsets, np.int32, len(array) + 1) if len(array) else np.zeros(1, np.int32)
        filled = data is not None and data.size
        self.data = np.frombuffer(data, np.uint8)[: self.offsets[-1]] if filled else np.zeros(0, np.uint8)
        self._items: _Items | None = None
        self._codes: tuple[npt.NDArray[np.int32], list[bytes]] | None = None

    @classmethod
    def gather(cls, window: Bytes, starts: Ints, lengths: Ints) -> StringColumn:
        return cls(gather(window, starts, lengths))

    def __len__(self) -> int:
        return len(self.array)

    @property
    def lengths(self) -> Ints:
        return np.diff(self.offsets).astype(np.int64)

    def codes(self) -> tuple[npt.NDArray[np.int32], list[bytes]]:
        """A small number for each string, and the strings those numbers stand for."""
        if self._codes is None:
            encoded = self.array.dictionary_encode()
            self._codes = np.asarray(encoded.indices).astype(np.int32), encoded.dictionary.to_pylist()
        return self._codes

    @property
    def starts(self) -> Ints:
        """Where each begins in `data`."""
        return self.offsets[:-1].astype(np.int64)

    def property_slices(self, name: str) -> StringViews:
        """Of each string, taken as RocketMQ properties, the value of `name`; empty where it is missing.

        RocketMQ: MessageDecoder.string2messageProperties (5.3.3): the last one wins, an empty value does not count.
        """
        rows, values, stops = self._split().named(self.data, name.encode())
        filled = stops > values
        if not filled.all():
            rows, values, stops = rows[filled], values[filled], stops[filled]
        starts, lengths = np.zeros(len(self), np.int64), np.zeros(len(self), np.int64)
        starts[rows], lengths[rows] = values, stops - values
        return StringViews(self.data, starts, lengths)

    def all_properties(self) -> tuple[Ints, pa.Array, pa.Array]:
        """Every property of every string: the row it stands in, its name and its value, in order."""
        items = self._split()
        filled = np.flatnonzero((items.stops > items.equals + 1) & (items.equals > items.begins))
        begins, equals, stops = items.begins[filled], items.equals[filled], items.stops[filled]
        rows = items.rows[filled].astype(np.int64)
        return rows, gather(self.data, begins, equals - begins), gather(self.data, equals + 1, stops - equals - 1)

    def _split(self) -> _Items:
        if self._items is None:
            self._items = _Items.of(self.data, self.offsets)
        return self._items


@dataclass(frozen=True, slots=True)
class StringViews:
    """Strings where they lie: data[start : start + length] of each, not copied."""

    data: Bytes
    starts: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.starts)

    def take(self, which: Any) -> StringViews:
        """The chosen ones (a slice, a mask or indices)."""
        return StringViews(self.data, self.starts[which], self.lengths[which])

    def array(self) -> pa.Array:
        """A copy as an Arrow binary array; null where a string is empty."""
        there = self.lengths > 0
        found = gather(self.data, self.starts, self.lengths)
        if there.all():
            return found
        _, offsets, data = found.buffers()
        bits = pa.py_buffer(np.packbits(there, bitorder="little"))
        return pa.Array.from_buffers(pa.binary(), len(found), [bits, offsets, data])

    def codes(self) -> tuple[npt.NDArray[np.int32], list[bytes]]:
        """A small number for each string, and the strings that those numbers stand for.

        Mostly a few strings recur: all are compared with the first, the rest with the first of the rest, and so on, and
        each comparison adds 1 to the code of every string that differs. An example with the strings AA B A C A:
          codes 0 0 0 0 0   at the beginning
          with AA           B A C A differ: codes 0 1 1 1 1
          with B            A C A differ:   codes 0 1 2 2 2
          with A            C differs:      codes 0 1 2 3 2
          with C            none is left:   texts AA B A C
        Strings are compared as words of eight bytes. Where more than 95 % differ from the first, or where a string has
        more than 64 bytes, Arrow's hash table codes the rest. tests/scan/test_columns_against_scalars.py compares both.
        """
        codes, texts = np.zeros(len(self), np.int32), list[bytes]()
        if fast is not None:
            starts, lengths = _int64(self.starts), _int64(self.lengths)
            return codes, fast.string_codes(self.data, starts, lengths, codes)
        longest, which = int(self.lengths.max(initial=0)), np.arange(len(self))
        words, lengths = np.zeros((len(self), 0), np.uint64), self.lengths
        if 0 < longest <= _SHORT:
            words = _padded(self.data, self.starts, -(-longest // 8) * 8).view(np.uint64)
        while len(which) and longest <= _SHORT:
            size = int(lengths[0])
            other = lengths != size
            for number in range(-(-size // 8)):
                mask = np.uint64((1 << 8 * min(size - 8 * number, 8)) - 1)
                other |= (words[:, number] ^ words[0, number]) & mask != 0
            texts.append(words[0].tobytes()[:size])
            codes[which] += other
            before, rest = len(which), np.flatnonzero(other)
            which, words, lengths = which[rest], words[rest], lengths[rest]
            if len(which) > before * _RECUR:
                break
        if len(which):
            encoded = gather(self.data, self.starts[which], self.lengths[which]).dictionary_encode()
            codes[which] = np.asarray(encoded.indices) + len(texts)
            texts += encoded.dictionary.to_pylist()
        return codes, texts

    def are(self, text: bytes) -> npt.NDArray[np.bool_]:
        """Which of them are `text`."""
        return np.asarray((self.lengths == len(text)) & text_at(self.data, self.starts, text))


@dataclass(frozen=True, slots=True)
class _Items:
    """The `name 0x01 value` items in the bytes of many property strings, in order."""

    begins: Ints
    equals: Ints  # where the name ends
    stops: Ints  # where the value ends
    words: npt.NDArray[np.uint64]  # the first eight bytes of the name, as one number
    rows: npt.NDArray[np.int32]  # the string that it stands in

    @classmethod
    def of(cls, data: Bytes, offsets: npt.NDArray[np.int32]) -> _Items:
        """Split at the separators; an item without a name's end is none."""
        begins, equals, ends = _split(data, offsets)
        stops = ends - (data[np.maximum(ends - 1, 0)] == 2) if len(ends) else ends
        masks = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
        words = _words(data, begins) & masks[np.minimum(equals - begins, 8)]
        counts = np.diff(np.searchsorted(begins, offsets))
        return cls(begins, equals, stops, words, np.repeat(np.arange(len(counts), dtype=np.int32), counts))

    def named(self, data: Bytes, name: bytes) -> tuple[npt.NDArray[np.int32], Ints, Ints]:
        """The string, begin and end of the value, of each item of that name."""
        same = self.words == np.uint64(int.from_bytes(name[:8], "little"))
        hits = np.flatnonzero(same)
        hits = hits[self.equals[hits] - self.begins[hits] == len(name)]
        if len(name) > 8:
            hits = hits[text_at(data, self.begins[hits] + 8, name[8:])]
        return self.rows[hits], self.equals[hits] + 1, self.stops[hits]


def _split(data: Bytes, offsets: npt.NDArray[np.int32]) -> tuple[Ints, Ints, Ints]:
    """Begin of each item, where its name ends, and where the next item begins."""
    twos, equals = np.flatnonzero(data == 2), np.flatnonzero(data == 1)
    last = offsets[1:][offsets[1:] > offsets[:-1]] - 1
    if len(twos) == len(equals) and bool((data[last] == 2).all()):
        begins = np.concatenate(([0], twos + 1))[: len(twos)]
        if bool(((begins <= equals) & (equals < twos)).all()):
            return begins, equals, twos + 1
    starts = np.zeros(len(data) + 1, np.bool_)
    starts[offsets] = True
    starts[twos + 1] = True
    bounds = np.flatnonzero(starts)
    bounds = bounds if len(bounds) and bounds[-1] == len(data) else np.append(bounds, len(data))
    begins, ends = bounds[:-1], bounds[1:]
    if len(equals) != len(begins) or not ((begins <= equals) & (equals < ends)).all():
        first = np.searchsorted(equals, begins)
        inside = first < len(equals)
        inside[inside] = equals[first[inside]] < ends[inside]
        begins, ends, equals = begins[inside], ends[inside], equals[first[inside]]
    return begins, equals, ends


def java_hashes(strings: StringColumn | StringViews) -> npt.NDArray[np.int32]:
    """Java's String.hashCode of each UTF-8 string.

    Hashed a column of characters at a time, longest strings first, so that the strings that still have a character are
    the first `longer` ones: of ab, c, def the order is def, ab, c; column 0 takes d a c, column 1 takes e b, column 2
    takes f. What is not ASCII goes through `broker.format.java.string_hash`, one by one, and
    tests/scan/test_columns_against_scalars.py compares all with it.
    """
    if fast is not None:
        return _java_hashes_compiled(np.zeros(0, np.int32), strings)
    return _hashes(strings)[0].view(np.int32)


def _int64(numbers: Ints) -> Ints:
    """As the C module takes them."""
    return np.ascontiguousarray(numbers, np.int64)


def _java_hashes_compiled(
    prefixes: npt.NDArray[np.int32], strings: StringColumn | StringViews
) -> npt.NDArray[np.int32]:
    """By the C module; what it marks as not ASCII is hashed here."""
    assert fast is not None
    hashes, wide = np.empty(len(strings), np.int32), np.empty(len(strings), np.bool_)
    starts, lengths = _int64(strings.starts), _int64(strings.lengths)
    if fast.java_hashes(strings.data, starts, lengths, np.ascontiguousarray(prefixes), hashes, wide.view(np.uint8)):
        which = np.flatnonzero(wide)
        found, texts = _hashes(StringViews(strings.data, starts[which], lengths[which]))
        hashes[which] = (
            _joined(prefixes[which], found, texts, lengths[which]) if len(prefixes) else found.view(np.int32)
        )
    return hashes


def _hashes(strings: StringColumn | StringViews) -> tuple[npt.NDArray[np.uint32], dict[int, str]]:
    """The hashes, and those strings that are not ASCII."""
    lengths, begins = strings.lengths, strings.starts
    hashes = np.zeros(len(strings), np.uint32)
    longest = int(lengths.max(initial=0))
    if not longest:
        return hashes, {}
    order = np.argsort(-lengths, kind="stable") if int(lengths.min()) != longest else None
    ranked, at = (lengths, begins.copy()) if order is None else (lengths[order], begins[order])
    high = np.zeros(len(strings), np.uint8)
    longer = len(strings)
    for column in range(longest):
        if ranked[longer - 1] <= column:
            longer = int(np.searchsorted(-ranked, -column, side="left"))
        characters = strings.data[at[:longer]]
        at += 1
        high[:longer] |= characters
        hashes[:longer] *= np.uint32(31)
        hashes[:longer] += characters
    wide = np.flatnonzero(high >= 0x80)
    if order is not None:
        ranks, wide = hashes, order[wide]
        hashes = np.empty_like(ranks)
        hashes[order] = ranks
    texts = {}
    for row in wide.tolist():
        text = strings.data[begins[row] : begins[row] + lengths[row]].tobytes()
        texts[row] = text.decode("utf-8", "replace")
        hashes[row] = string_hash(texts[row]) & 0xFFFFFFFF
    return hashes, texts


def java_hashes_joined(prefixes: npt.NDArray[np.int32], strings: StringColumn | StringViews) -> npt.NDArray[np.int32]:
    """Java's hash of a prefix followed by a string, from the prefix's hash.

    The hash is a polynomial in 31, so h(a + b) = h(a) * 31 ** len(b) + h(b) modulo 2 ** 32, where len counts UTF-16
    code units: h("Orders#ab") = h("Orders#") * 31 ** 2 + h("ab"). So a topic is hashed once for all its keys.
    """
    if fast is not None and len(strings):
        return _java_hashes_compiled(prefixes, strings)
    return _joined(prefixes, *_hashes(strings), strings.lengths)


def _joined(
    prefixes: npt.NDArray[np.int32], hashes: npt.NDArray[np.uint32], texts: dict[int, str], lengths: Ints
) -> npt.NDArray[np.int32]:
    units = lengths.copy() if texts else lengths
    for row, text in texts.items():
        units[row] = len(text.encode("utf-16-le")) // 2
    powers = np.ones(int(units.max(initial=0)) + 1, np.uint32)
    np.multiply.accumulate(np.concatenate(([1], np.full(len(powers) - 1, 31))).astype(np.uint32), out=powers)
    return (prefixes.view(np.uint32) * powers[units] + hashes).view(np.int32)


def utf8(values: pa.Array) -> pa.Array:
    """Binary as text; what is not UTF-8 gets replacement characters, as in Java."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = [None if value is None else value.decode("utf-8", "replace") for value in values.to_pylist()]
        return pa.array(texts, pa.string())
