"""Declare a fixed layout once: struct, sizes, offsets, NumPy dtype and the table in docs/format.md all come from it.

    @dataclass(frozen=True)
    class Unit(Layout, size=20):
        commitlog_offset: i64  # where the record starts
        size: i32              # of the record, in bytes
        tags_code: i64         # Java's String.hashCode() of the tag

Everything that RocketMQ stores is big-endian and signed (Java's ByteBuffer).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from operator import attrgetter
from typing import Annotated, Any, ClassVar, Self, get_type_hints

from broker.errors import CorruptRecord

i8 = Annotated[int, "b"]
i16 = Annotated[int, "h"]
i32 = Annotated[int, "i"]
i64 = Annotated[int, "q"]

_DTYPE = {"b": ">i1", "h": ">i2", "i": ">i4", "q": ">i8"}
_NAME = {"b": "i8", "h": "i16", "i": "i32", "q": "i64"}


class Layout:
    """A value of fixed size: subclasses are frozen dataclasses whose every field is one of i8, i16, i32, i64."""

    SIZE: ClassVar[int]
    STRUCT: ClassVar[struct.Struct]
    OFFSET: ClassVar[dict[str, int]]  # of each field, in bytes
    TYPE: ClassVar[dict[str, str]]  # of each field: "i8", "i16", "i32" or "i64"
    DTYPE: ClassVar[list[tuple[str, str]]]  # what numpy.dtype() takes
    _values: ClassVar[Any]

    def __init_subclass__(cls, *, size: int) -> None:
        hints = get_type_hints(cls, include_extras=True)
        codes = {name: hints[name].__metadata__[0] for name in cls.__annotations__}
        cls.STRUCT = struct.Struct(">" + "".join(codes.values()))
        cls.SIZE = cls.STRUCT.size
        if size != cls.SIZE:
            raise TypeError(f"{cls.__name__} takes {cls.SIZE} bytes, not {size}")
        cls.OFFSET, at = {}, 0
        for name, code in codes.items():
            cls.OFFSET[name] = at
            at += struct.calcsize(">" + code)
        cls.TYPE = {name: _NAME[code] for name, code in codes.items()}
        cls.DTYPE = [(name, _DTYPE[code]) for name, code in codes.items()]
        get = attrgetter(*codes)
        cls._values = staticmethod(get if len(codes) > 1 else lambda value: (get(value),))

    def pack(self) -> bytes:
        """The bytes on disk. Raises struct.error when a field is out of its range."""
        return self.STRUCT.pack(*self._values(self))

    @classmethod
    def unpack_from(cls, buffer: Any, at: int = 0) -> Self:
        """The value at position `at` of any bytes-like object. Raises CorruptRecord when too few bytes are there."""
        if at < 0 or len(buffer) - at < cls.SIZE:
            raise CorruptRecord(f"{cls.__name__} takes {cls.SIZE} bytes, {max(0, len(buffer) - at)} are there", at=at)
        return cls(*cls.STRUCT.unpack_from(buffer, at))

    @classmethod
    def iter_unpack(cls, buffer: Any) -> Iterator[Self]:
        """Each whole value in a bytes-like object, in order; a remainder is passed over."""
        whole = len(buffer) - len(buffer) % cls.SIZE
        for values in cls.STRUCT.iter_unpack(memoryview(buffer)[:whole]):
            yield cls(*values)
