"""Records as clients get them: as they are stored, without the CRC property that checkback adds to its own.

The CRC speaks of the bytes on disk. RocketMQ's brokers write it only when a setting says so, and an application would
see it among its properties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from broker import compiled
from broker.format.commitlog import BODY_AT, MAGIC_V1, OFFSET_IPV4, RECORD_CRC_SIZE, Record
from broker.format.record.recordcrc import RECORD_CRC_MARK
from broker.format.sysflag import BORN_IPV6, STORE_IPV6
from broker.store.read.commitlog import CommitLog

if TYPE_CHECKING:
    from broker.live import LiveStore

_sent_records: Callable[..., tuple[bytes, int] | None] | None = compiled.fast.sent_records if compiled.fast else None
_BODY_AT = BODY_AT[False, False]
_BODY_LENGTH_AT = OFFSET_IPV4["body_length"]
_MARK_END = len(RECORD_CRC_MARK) - RECORD_CRC_SIZE  # from the end of the record
_V1 = MAGIC_V1.to_bytes(4, "big", signed=True)
_SYS_FLAG_LOW_AT, _IPV6 = OFFSET_IPV4["sys_flag"] + 3, BORN_IPV6 | STORE_IPV6


def record_at(store: LiveStore, commitlog_offset: int) -> Record | None:
    """The record that a client names by its place; None where none begins, or not yet for readers.

    A client may name any place, also one inside a record. Raises CorruptRecord for a damaged one.
    """
    return store.commitlog.at(commitlog_offset) if commitlog_offset < store.visible_end else None


def as_sent(raw: bytes) -> bytes:
    """A record of ours without its CRC; any other record as it is."""
    if raw[-RECORD_CRC_SIZE:_MARK_END] != RECORD_CRC_MARK or raw[4:8] != _V1 or raw[_SYS_FLAG_LOW_AT] & _IPV6:
        return raw
    body_length = int.from_bytes(raw[_BODY_LENGTH_AT:_BODY_AT], "big")
    topic_at = _BODY_AT + body_length
    length_at = topic_at + 1 + raw[topic_at]
    size = len(raw) - RECORD_CRC_SIZE
    return b"".join(
        (
            size.to_bytes(4, "big"),
            raw[4:length_at],
            (size - length_at - 2).to_bytes(2, "big"),
            raw[length_at + 2 : size],
        )
    )


def read_records(log: CommitLog, places: Sequence[tuple[int, int]], *, cached_only: bool = False) -> list[bytes]:
    """Records by CommitLog offset and size, without those that expired.

    Raises CorruptRecord for what is none, and with `cached_only` NotCached.
    """
    return [as_sent(raw) for raw in log.raws(places, cached_only=cached_only)]


def cached_records(log: CommitLog, units: bytes, bytes_max: int) -> tuple[bytes, int] | None:
    """The records that units of a ConsumeQueue name, as they are sent, one behind the other, and how many they are.

    At most `bytes_max` bytes, but one record at least. None when one of them is not in the system's cache, or is not
    of the common kind: then `read_records` does it.
    """
    if _sent_records is None or (held := log.holder(int.from_bytes(units[:8], "big"))) is None:
        return None
    file, base, end = held
    return _sent_records(file.descriptor, base, end, units, bytes_max)
