"""Bodies: how they are compressed and back, bounded so that a few bytes cannot fill the memory.

RocketMQ's clients compress bodies over 4 KiB with zlib; since 4.9.4 also with LZ4 (frame format) or Zstandard.
"""

from __future__ import annotations

import zlib
from typing import Any

from broker.errors import BrokerError, CorruptRecord
from broker.format.sysflag import Compression

PLAIN_SIZE_MAX = 64 << 20  # no client sends more than 4 MiB by default, and none can send more than a record holds
_STEP = 1 << 20
LZ4_MAGIC, ZSTD_MAGIC = 0x04224D18, 0x28B52FFD  # the first four bytes, big endian
_DEFLATE = 8


def decompress(stored: bytes, kind: Compression, size_max: int = PLAIN_SIZE_MAX) -> bytes:
    """The body as the producer sent it. Raises CorruptRecord when it does not decompress, or to more than `size_max`.

    An empty body stays empty whatever the flags say. Quirk (3.0): a rollback record has no body but keeps the
    COMPRESSED bit of the half message. RocketMQ: Compressor.decompress (5.3.3).
    """
    if kind is Compression.NONE or not stored:
        return bytes(stored)
    plain = _inflate(stored, size_max) if kind is Compression.ZLIB else _decompress_by_arrow(stored, kind, size_max)
    if len(plain) > size_max:
        raise CorruptRecord(f"the body decompresses to more than {size_max} bytes")
    return plain


def begins_as(stored: bytes, kind: Compression) -> bool:
    """Whether a body begins as a compressed one of its kind does; one that is empty or plain begins as it likes.

    RocketMQ: CompressorFactory, CompressionType (5.3.3).
    """
    if kind is Compression.NONE or not stored:
        return True
    if kind is Compression.ZLIB:
        return stored[0] & 0xF == _DEFLATE and int.from_bytes(stored[:2], "big") % 31 == 0
    return int.from_bytes(stored[:4], "big") == (LZ4_MAGIC if kind is Compression.LZ4 else ZSTD_MAGIC)


def compress(plain: bytes, kind: Compression) -> bytes:
    """A body that RocketMQ's clients can decompress."""
    if kind is Compression.NONE:
        return plain
    if kind is Compression.ZLIB:
        return zlib.compress(plain, 5)  # the level of Java's client
    arrow = _arrow(kind)
    sink = arrow.BufferOutputStream()
    with arrow.CompressedOutputStream(sink, kind.name.lower()) as stream:
        stream.write(plain)
    return bytes(sink.getvalue())


def _inflate(stored: bytes, size_max: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(stored, size_max + 1)
        if len(plain) <= size_max and not stream.eof:
            raise CorruptRecord("the zlib body ends too early")
    except zlib.error as error:
        raise CorruptRecord(f"the body is not what zlib wrote: {error}") from None
    return plain


def _decompress_by_arrow(stored: bytes, kind: Compression, size_max: int) -> bytes:
    arrow = _arrow(kind)
    parts: list[bytes] = []
    size = 0
    try:
        with arrow.CompressedInputStream(arrow.BufferReader(stored), kind.name.lower()) as stream:
            while size <= size_max and (part := stream.read(min(_STEP, size_max + 1 - size))):
                parts.append(part)
                size += len(part)
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise CorruptRecord(f"the body is not what {kind.name.lower()} wrote: {error}") from None
    return b"".join(parts)


def _arrow(kind: Compression) -> Any:
    try:
        import pyarrow as pa

        return pa
    except ImportError:
        raise BrokerError(f"a body is compressed with {kind.name.lower()}, which needs pyarrow: install it") from None
