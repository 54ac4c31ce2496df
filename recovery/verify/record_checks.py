"""What a verification asks of each record by itself, whichever engine reads it: its CRC, its fields, its place.

A field is wrong when no broker can have written it. Each rule is an invariant of RocketMQ's code, not a habit of its
users: a producer may send any flag, any time, any property.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from broker.format import properties as names
from broker.format.record.body import LZ4_MAGIC, ZSTD_MAGIC
from broker.format.sysflag import COMPRESSED, COMPRESSION_MASK, COMPRESSION_SHIFT, Compression, TransactionType
from recovery.findings import CRC_MISMATCH, Finding
from recovery.scan.kinds import Kinds
from recovery.scan.native.columns import Wants
from recovery.scan.records import Records
from recovery.scan.strings import unaligned
from recovery.transactions.events import diverted_halves
from recovery.transactions.fingerprint import ODD_NUMBERS

Bools = npt.NDArray[np.bool_]

# What one pass of the C module makes: what some comparison asks of most records.
WANTS = Wants(
    crc=True,
    property_sums=True,
    texts=True,
    properties=(
        names.KEYS, names.TAGS, names.PGROUP, names.UNIQ_KEY, names.REAL_TOPIC, names.REAL_QID,
        names.TRANSACTION_CHECK_TIMES, names.INNER_MULTI_QUEUE_OFFSET,
    ),
    copied=ODD_NUMBERS,
)  # fmt: skip

_PORT_MAX = 65535
_STORE_MS_END = 1 << 43  # the year 2248
_DIVERTED = "a half message with a delay, stored in the schedule topic: no end will ever find it"

_DIVERTED_BY_TIMER = (
    "a half message with a delay, stored in the timer's topic: an end puts it back into the half topic, and nobody "
    "gets the message"
)


def wrong_fields(records: Records, kinds: Kinds, file_at: Callable[[int], str]) -> Iterator[Finding]:
    """The records with fields that no broker writes, and half messages in the schedule topic."""
    for number, text in _implausible(records, kinds):
        place = int(records.offsets[number])
        yield Finding("record-implausible", place, text, file_at(place), {})
    for places, text in zip(diverted_halves(records, kinds), (_DIVERTED, _DIVERTED_BY_TIMER), strict=True):
        for place in places.tolist():
            yield Finding("half-diverted", place, text, file_at(place), {})


def have_keys(records: Records) -> bool:
    """Whether an index would have an item of one of these records."""
    return any(bool(records.values(name).lengths.any()) for name in (names.KEYS, names.UNIQ_KEY))


def wrong_crcs(
    records: Records, look: Callable[[int], Records | None], file_at: Callable[[int], str]
) -> Iterator[Finding]:
    """The records that fail their CRC. `look` reads one again: at the end of a live log it may have been half there."""
    for number in records.bad_crcs().tolist():
        place, size = int(records.offsets[number]), int(records.sizes[number])
        again = look(place)
        if again is None or len(again.bad_crcs()):
            yield Finding("crc-mismatch", place, CRC_MISMATCH, file_at(place), {"size": size})


def wrong_times(records: Records) -> Bools:
    """Which records were stored at what is not a time."""
    store_ms = records.field("store_timestamp_ms")
    return np.asarray((store_ms <= 0) | (store_ms >= _STORE_MS_END))


def _implausible(records: Records, kinds: Kinds) -> Iterator[tuple[int, str]]:
    """The records (by index) with a field that no broker writes, and which."""
    for wrong, text in (
        (_wrong_prepared_offset(records, kinds), "its prepared_transaction_offset is none that such a record can have"),
        (_wrong_port(records, "born_port"), "the producer's port is not between 0 and 65535: no client can decode it"),
        (_wrong_port(records, "store_port"), "the broker's port is not between 0 and 65535: no client can decode it"),
        (records.field("queue_id") < 0, "its queue_id is negative"),
        (wrong_times(records), "its store_timestamp_ms is not a time"),
        (_wrong_compression(records), "its body is not compressed as sys_flag says: no consumer can read it"),
        (kinds.without_directory, "its topic cannot name a directory: it is empty, too long, or a path"),
        (_nameless_end(records, kinds), "it has the type of an end, which needs a producer group, and names none"),
    ):
        if wrong.any():
            for number in np.flatnonzero(wrong).tolist():
                yield number, text


def _wrong_prepared_offset(records: Records, kinds: Kinds) -> Bools:
    """Only an end names a prepared record, and only one that stands before it.

    RocketMQ: EndTransactionProcessor.endMessageTransaction, the only caller that sets it (5.3.3; 3.1.4).
    """
    prepared_offsets = records.field("prepared_transaction_offset")
    types = kinds.types << 2
    end = (types == TransactionType.COMMIT) | (types == TransactionType.ROLLBACK)
    return np.asarray(
        np.where(
            end,
            (prepared_offsets < 0) | ((prepared_offsets >= records.offsets) & (prepared_offsets != 0)),
            prepared_offsets != 0,
        )
    )


def _wrong_port(records: Records, name: str) -> Bools:
    """RocketMQ: MessageDecoder.decode (5.3.3) makes an InetSocketAddress of it, which refuses other ports."""
    ports = records.field(name)
    return np.asarray((ports < 0) | (ports > _PORT_MAX))


def _wrong_compression(records: Records) -> Bools:
    """The body says itself how it is compressed. RocketMQ: CompressorFactory, CompressionType (5.3.3)."""
    flags = records.sys_flags
    packed = ((flags & COMPRESSED) != 0) & (records.body_lengths > 0)
    wrong = np.zeros(len(records), np.bool_)
    which = np.flatnonzero(packed)
    if len(which):
        begin = unaligned(records.window, ">u4", records.body_at[which]).astype(np.int64)
        kind = (flags[which] & COMPRESSION_MASK) >> COMPRESSION_SHIFT
        zlib = ((begin >> 24 & 0xF) == 8) & ((begin >> 16) % 31 == 0)
        right = np.where((kind == 0) | (kind == Compression.ZLIB), zlib, False)
        right |= ((kind == Compression.LZ4) & (begin == LZ4_MAGIC)) | (
            (kind == Compression.ZSTD) & (begin == ZSTD_MAGIC)
        )
        wrong[which] = ~right
    return wrong


def _nameless_end(records: Records, kinds: Kinds) -> Bools:
    """RocketMQ: EndTransactionProcessor.checkPrepareMessage (5.3.3): without its group no transaction is ended."""
    types = kinds.types << 2
    wrong = np.asarray((types == TransactionType.COMMIT) | (types == TransactionType.ROLLBACK))
    which = np.flatnonzero(wrong)
    if len(which):
        wrong[which] = records.take(which).values(names.PGROUP).lengths == 0
    return wrong
