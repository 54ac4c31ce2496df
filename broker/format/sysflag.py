"""The bits of a record's SYSFLAG: transaction type, compression, address families.

RocketMQ: MessageSysFlag (5.3.3). 3.0 knows only the lowest four bits.
"""

from __future__ import annotations

from enum import IntEnum

from broker.errors import CorruptRecord

COMPRESSED = 0x1  # the stored body is compressed
MULTI_TAGS = 0x2  # the topic's filter type is MULTI_TAG
TRANSACTION_MASK = 0xC
BORN_IPV6 = 0x10  # since 4.6.0
STORE_IPV6 = 0x20  # since 4.6.0
NEED_UNWRAP = 0x40  # an inner batch on its way; never seen in a plain topic
INNER_BATCH = 0x80  # belongs to a BatchConsumeQueue
COMPRESSION_MASK = 0x700  # since 4.9.4
COMPRESSION_SHIFT = 8


class TransactionType(IntEnum):
    """What a record is in the life of a transaction, as 3.0 says it; the values are the bits themselves."""

    NONE = 0x0
    PREPARED = 0x4
    COMMIT = 0x8
    ROLLBACK = 0xC


class Compression(IntEnum):
    """How a body is compressed; the values of LZ4, ZSTD and ZLIB are those of the three bits in SYSFLAG."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2
    ZLIB = 3


_TYPES = tuple(TransactionType)


def transaction_type(sys_flag: int) -> TransactionType:
    """RocketMQ: MessageSysFlag.getTransactionValue (5.3.3)."""
    return _TYPES[(sys_flag & TRANSACTION_MASK) >> 2]


def with_transaction_type(sys_flag: int, kind: TransactionType) -> int:
    """The same flags with another transaction type. RocketMQ: MessageSysFlag.resetTransactionValue (5.3.3)."""
    return (sys_flag & ~TRANSACTION_MASK) | kind


def compression(sys_flag: int) -> Compression:
    """How the stored body is compressed. Raises CorruptRecord for a kind that no version writes.

    Quirk (before 4.9.4): the three type bits are 0 where zlib was used, and they stay when the body is not compressed.
    RocketMQ: CompressionType.findByValue (5.3.3).
    """
    if not sys_flag & COMPRESSED:
        return Compression.NONE
    kind = (sys_flag & COMPRESSION_MASK) >> COMPRESSION_SHIFT
    if kind > Compression.ZLIB:
        raise CorruptRecord(f"compression type {kind} is unknown")
    return Compression(kind) if kind else Compression.ZLIB


def with_compression(sys_flag: int, kind: Compression) -> int:
    """The same flags for a body compressed in another way."""
    bare = sys_flag & ~(COMPRESSED | COMPRESSION_MASK)
    return bare if kind is Compression.NONE else bare | COMPRESSED | (kind << COMPRESSION_SHIFT)
