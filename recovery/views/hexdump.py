"""Bytes beside their meaning: every field of a value with its place, its bytes, its name and what it says.

    for line in lines(record_fields(raw, commitlog_offset)): ...

           0  00 00 05 04              total_size                  1284
           4  da a3 20 a7              magic                       V1

Names, sizes and order are those of the Layout declarations in `broker.format`; nothing is spelled here a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from broker.errors import CorruptRecord
from broker.format.commitlog import MAGIC_V1, MAGIC_V2, RecordBorn, RecordHead, RecordMiddle, RecordStore
from broker.format.java import Host
from broker.format.layout import Layout
from broker.format.properties import PROPERTY_SEPARATOR
from broker.format.sysflag import BORN_IPV6, STORE_IPV6, TransactionType, compression, transaction_type
from recovery.humanize import moment, printable

_ROW_BYTES = 8


@dataclass(frozen=True, slots=True)
class Field:
    """Some bytes that mean something; without a value, each row shows its bytes as text."""

    at: int
    raw: bytes
    name: str
    value: str | None = None


def lines(fields: Iterator[Field] | list[Field]) -> Iterator[str]:
    """A line for each field; long ones take more, of eight bytes each."""
    for field in fields:
        for row in range(0, len(field.raw), _ROW_BYTES):
            piece = field.raw[row : row + _ROW_BYTES]
            name = field.name if row == 0 else ""
            text = _as_text(piece) if field.value is None else field.value if row == 0 else ""
            yield f"{field.at + row:>12}  {piece.hex(' '):<23}  {name:<27}  {text}".rstrip()


def layout_fields(layout: type[Layout], raw: bytes, at: int) -> Iterator[Field]:
    """The fields of a value of fixed size that begins with `raw`; `at` is the place of its first byte."""
    value = layout.unpack_from(raw)
    places = [*layout.OFFSET.values(), layout.SIZE]
    for name, start, stop in zip(layout.OFFSET, places, places[1:], strict=False):
        yield Field(at + start, raw[start:stop], name, _meaning(name, getattr(value, name)))


def record_fields(raw: bytes, at: int) -> Iterator[Field]:
    """The fields of a whole record of the CommitLog."""
    place = 0

    def fixed(layout: type[Layout]) -> Iterator[Field]:
        nonlocal place
        yield from layout_fields(layout, raw[place : place + layout.SIZE], at + place)
        place += layout.SIZE

    def field(name: str, size: int, say: Callable[[bytes], str] | None = None) -> Field:
        nonlocal place
        piece = raw[place : place + size]
        place += size
        return Field(at + place - size, piece, name, None if say is None else say(piece))

    flags = RecordHead.unpack_from(raw).sys_flag
    yield from fixed(RecordHead)
    yield field("born_address", 16 if flags & BORN_IPV6 else 4, _address)
    yield from fixed(RecordBorn)
    yield field("store_address", 16 if flags & STORE_IPV6 else 4, _address)
    yield from fixed(RecordStore)
    middle = RecordMiddle.unpack_from(raw, place)
    yield from fixed(RecordMiddle)
    yield field("body", middle.body_length)
    wide = 2 if RecordHead.unpack_from(raw).magic == MAGIC_V2 else 1
    topic_length = field("topic_length", wide, _number)
    yield topic_length
    yield field("topic", int.from_bytes(topic_length.raw, "big"), _text)
    yield field("properties_length", 2, _number)
    for item in raw[place:].split(bytes((PROPERTY_SEPARATOR,))):
        if place < len(raw):
            yield field("property", min(len(item) + 1, len(raw) - place), _property)


def plain_fields(raw: bytes, at: int, name: str) -> Iterator[Field]:
    """Bytes that mean nothing that we know."""
    yield Field(at, raw, name)


def _as_text(piece: bytes) -> str:
    return "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in piece)


def _number(piece: bytes) -> str:
    return str(int.from_bytes(piece, "big", signed=True))


def _text(piece: bytes) -> str:
    return printable(piece.decode("utf-8", "replace"))


def _property(piece: bytes) -> str:
    name, _, value = piece.decode("utf-8", "replace").rstrip("\x02").partition("\x01")
    return printable(f"{name} = {value}")


def _address(piece: bytes) -> str:
    return str(Host(piece, 0)).rpartition(":")[0]


def _meaning(name: str, value: Any) -> str:
    if name.endswith("_ms"):
        return f"{value}  {moment(value)}" if value > 0 else str(value)
    if name.endswith("time_s"):
        return f"{value}  {moment(1000 * value)[:-4]}"
    if name == "magic":
        return {MAGIC_V1: "V1", MAGIC_V2: "V2"}.get(value, str(value))
    if name == "state" and value in (4, 8, 12):
        return f"{value}  {TransactionType(value).name}"
    return f"{value}  {_flags(value)}".rstrip() if name == "sys_flag" else str(value)


def _flags(value: int) -> str:
    kind = transaction_type(value)
    flags = [] if kind is TransactionType.NONE else [kind.name]
    try:
        packed = compression(value)
    except CorruptRecord as error:
        return " ".join([*flags, error.reason])
    return " ".join([*flags, *([packed.name] if packed else [])])
