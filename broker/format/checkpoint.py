"""The file `checkpoint`: how far the CommitLog and what is derived from it have reached the disk.

4096 bytes: six longs, the rest zero. 3.0 knows only the first three. RocketMQ: StoreCheckpoint (5.5.0; 5.3.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from broker.errors import CorruptRecord
from broker.format.layout import Layout, i64

FILE_SIZE = 4096


@dataclass(frozen=True)
class Checkpoint(Layout, size=48):
    """Store timestamps of the newest records that are on disk."""

    commitlog_timestamp_ms: i64 = 0  # of the newest record whose CommitLog bytes were flushed
    queue_timestamp_ms: i64 = 0  # of the newest record whose ConsumeQueue unit was flushed
    index_timestamp_ms: i64 = 0  # of the newest record in an index file that is full
    master_flushed_offset: i64 = 0  # since 5.0, for replication
    confirm_commitlog_offset: i64 = 0  # since 5.1.1; after a recovery, where the last record begins
    queue_commitlog_offset: i64 = 0  # since 5.5: where the last record begins whose unit was written


def decode(raw: Any) -> Checkpoint:
    """The checkpoint in the bytes of its file. What follows the longs is not looked at, as in RocketMQ."""
    if len(raw) != FILE_SIZE:
        raise CorruptRecord(f"a checkpoint has {FILE_SIZE} bytes, this one {len(raw)}")
    return Checkpoint.unpack_from(raw)


def encode(checkpoint: Checkpoint) -> bytes:
    """The bytes of the file."""
    return checkpoint.pack().ljust(FILE_SIZE, b"\0")
