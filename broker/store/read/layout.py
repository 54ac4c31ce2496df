"""The sizes of a store's files: fixed when it is made, and known by every process that opens it.

    STORE/checkback/store.json    {"version": 1, "id": "32 hexadecimal digits", "layout": {"segment_bytes": ...},
                                   "crc": of all of this}
                                  {"version": 2, ..., "transactions": "half-op", "crc": ...}

    broker.open("shop.store", layout=broker.StoreLayout.small())

A file is allocated in full when its first byte is needed, so the sizes say how much disk a new store takes and by how
much it grows. Every preset holds the largest message (4 MiB). `docs/layouts-and-retention.md` has them measured.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Self
from zlib import crc32

from broker.errors import BrokerError, CorruptStore, StoreError, shown
from broker.format import consumequeue, index, redolog, statetable
from broker.format.commitlog import BLANK_SIZE, SEGMENT_SIZE
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import STATE_TABLE, Paths

_SEGMENT_BYTES_MIN = 4096
_FILE_BYTES_MAX = (1 << 31) - 1  # RocketMQ: MessageStoreConfig, MappedFile, IndexFile (5.3.3) have it in an int
_MIB = 1 << 20
_VERSION = 1
_VERSION_OF_ENGINE = 2  # of a store with another engine than the first, which version 1 knows no name for


def is_segment_size(size: int) -> bool:
    """Whether a segment of the CommitLog may have so many bytes."""
    return size >= _SEGMENT_BYTES_MIN


@dataclass(frozen=True, slots=True)
class StoreLayout:
    """File sizes of a new store, `StoreLayout.default()` unless another is given. Name the fields: all are integers.

    Raises BrokerError for sizes that no store can have: segments have at least 4,096 bytes, other files a whole number
    of units, and no file 2 GiB or more. The names in brackets are the settings of RocketMQ 5.3.3 with which it opens
    such a store; `tranStateTableMapedFileSize`, `tranRedoLogMapedFileSize` are those of 3.1.4.
    """

    segment_bytes: int = 16 * _MIB
    """Of a CommitLog file, in bytes: the unit by which a store grows and retention removes (mappedFileSizeCommitLog).
    A message must fit into one."""
    consume_queue_bytes: int = 15_000 * consumequeue.UNIT_SIZE
    """Of a file of each queue of each topic, in bytes: 20 for each message (mappedFileSizeConsumeQueue)."""
    state_table_bytes: int = 50_000 * statetable.SLOT_SIZE
    """Of a file of the state table, in bytes: 24 for each transaction (tranStateTableMapedFileSize)."""
    redo_log_bytes: int = 50_000 * consumequeue.UNIT_SIZE
    """Of a file of the redo log, in bytes: 20 for each half message and each end (tranRedoLogMapedFileSize)."""
    index_slots: int = 50_000
    """Hash slots of an index file, 4 bytes each (maxHashSlotNum)."""
    index_items: int = 200_000
    """Keys of an index file, 20 bytes each: the unique key and each key of a message (maxIndexNum)."""

    def __post_init__(self) -> None:
        for name, size in asdict(self).items():
            if type(size) is not int:
                raise BrokerError(f"{name} is a whole number, not {size!r:.60}")
        if not is_segment_size(self.segment_bytes):
            raise BrokerError(f"a segment has at least {_SEGMENT_BYTES_MIN} bytes")
        units = (
            ("consume_queue_bytes", self.consume_queue_bytes, consumequeue.UNIT_SIZE),
            ("state_table_bytes", self.state_table_bytes, statetable.SLOT_SIZE),
            ("redo_log_bytes", self.redo_log_bytes, consumequeue.UNIT_SIZE),
        )
        for name, size, unit in units:
            if size <= 0 or size % unit:
                text = f"{name} is {shown(size)}, and no multiple of {unit}: a unit would lie in two files"
                raise BrokerError(text)
        if self.index_slots < 1 or self.index_items < 2:
            raise BrokerError("an index file has at least 1 slot and 2 items, of which the first is never used")
        files = (("segment_bytes", self.segment_bytes), *((name, size) for name, size, _ in units))
        for name, size in files:
            if size > _FILE_BYTES_MAX:
                text = f"{name} is {shown(size)}, and RocketMQ's files have at most {_FILE_BYTES_MAX} bytes"
                raise BrokerError(f"{text}: it keeps their sizes in 32 bits")
        if index.file_size(self.index_slots, self.index_items) > _FILE_BYTES_MAX:
            text = f"index_slots is {shown(self.index_slots)} and index_items {shown(self.index_items)}"
            room = f"{index.SLOT_SIZE} and {index.ITEM_SIZE} bytes each, at most {_FILE_BYTES_MAX} in all"
            raise BrokerError(f"{text}: an index file has {room}, since RocketMQ keeps its size in 32 bits")

    @classmethod
    def small(cls) -> Self:
        """For tests, devices and many stores on one disk: 10 MiB for the first message, then 8 MiB at a time."""
        return cls(
            segment_bytes=8 * _MIB,
            consume_queue_bytes=5_000 * consumequeue.UNIT_SIZE,
            state_table_bytes=10_000 * statetable.SLOT_SIZE,
            redo_log_bytes=10_000 * consumequeue.UNIT_SIZE,
            index_slots=10_000,
            index_items=40_000,
        )

    @classmethod
    def default(cls) -> Self:
        """What a new store gets: 23 MiB for the first message, then 16 MiB at a time."""
        return cls()

    @classmethod
    def rocketmq(cls) -> Self:
        """RocketMQ's own sizes, for a broker without settings or a store beyond 100 GB: 1.5 GiB for the first message,
        then 1 GiB at a time. RocketMQ: MessageStoreConfig (5.3.3; 3.1.4 for state table and redo log)."""
        return cls(
            segment_bytes=SEGMENT_SIZE,
            consume_queue_bytes=consumequeue.FILE_SIZE,
            state_table_bytes=statetable.FILE_SIZE,
            redo_log_bytes=redolog.FILE_SIZE,
            index_slots=index.SLOT_COUNT,
            index_items=index.ITEM_COUNT,
        )

    @property
    def record_bytes_max(self) -> int:
        """The largest record that a segment holds, in bytes: a blank (8 bytes) must always fit behind it."""
        return self.segment_bytes - BLANK_SIZE

    @property
    def first_bytes(self) -> int:
        """What the first transaction of a store allocates, in bytes; a topic with more queues takes more."""
        index_bytes = index.file_size(self.index_slots, self.index_items)
        queues = self.consume_queue_bytes + self.state_table_bytes + self.redo_log_bytes
        return self.segment_bytes + index_bytes + queues


@dataclass(frozen=True, slots=True)
class StoreFile:
    """What store.json states. `store_id`: 32 hexadecimal digits; the ledger's rows carry it, too."""

    store_id: str
    layout: StoreLayout
    transactions: str = STATE_TABLE  # the engine, see broker.store.engines

    @classmethod
    def new(cls, layout: StoreLayout, transactions: str = STATE_TABLE) -> StoreFile:
        """The file of a store that is made now."""
        import secrets  # it loads hashlib and random, and only a new store needs it

        return cls(secrets.token_hex(16), layout, transactions)

    @classmethod
    def decode(cls, raw: bytes, path: str) -> StoreFile:
        """Raises CorruptStore for bytes that are damaged, StoreError for a version that this one does not know."""
        try:
            content = json.loads(raw)
            version = content["version"]
            if version in (_VERSION, _VERSION_OF_ENGINE):
                transactions = str(content["transactions"]) if version == _VERSION_OF_ENGINE else STATE_TABLE
                layout = StoreLayout(**content["layout"])
                for name in asdict(layout):  # the default of a size that is not stated is another store's
                    _ = content["layout"][name]
                if "crc" in content and content["crc"] != _crc(content):  # a file of an earlier version has none
                    raise ValueError("it was edited, or lost a bit; the sizes are fixed when a store is made")
                return cls(f"{int(content['id'], 16):032x}", layout, transactions)
        except (KeyError, TypeError, ValueError, RecursionError, BrokerError) as error:
            text = f"{path} is damaged ({_reason(error)}). Put it back from a copy of the store"
            raise CorruptStore(text, path=path) from error
        text = f"{path} was made by a version of checkback that this one does not know ({version!s:.40}): update it"
        raise StoreError(text, path=path)  # whatever else the file holds, which is that version's to say

    def encode(self) -> bytes:
        """The bytes of the file."""
        content = {"version": _VERSION, "id": self.store_id, "layout": asdict(self.layout)}
        if self.transactions != STATE_TABLE:
            content |= {"version": _VERSION_OF_ENGINE, "transactions": self.transactions}
        return json.dumps(content | {"crc": _crc(content)}, indent=1).encode()


def _crc(content: dict[str, Any]) -> int:
    """Of what a store.json states: with other sizes new files would lie between those that are there."""
    stated = {name: value for name, value in content.items() if name != "crc"}
    return crc32(json.dumps(stated, sort_keys=True).encode())


def _reason(error: Exception) -> str:
    """What is wrong with the file, without the bytes that are in it."""
    if isinstance(error, KeyError):
        return f"it has no {error}"
    return "it is not JSON" if isinstance(error, UnicodeDecodeError | RecursionError) else f"{error!s:.100}"


def read_store_file(disk: Disk, paths: Paths) -> StoreFile | None:
    """The file of a store; None when checkback did not make the store.

    Raises CorruptStore when it is damaged, StoreError for one of a later version.
    """
    try:
        raw = disk.read(paths.store_json)
    except Missing:
        return None
    return StoreFile.decode(raw, paths.store_json)


def read_engine(disk: Disk, paths: Paths) -> str:
    """The name of a store's engine of transactions; the first one's where checkback did not make the store."""
    try:
        file = read_store_file(disk, paths)
    except StoreError:
        return STATE_TABLE
    return file.transactions if file else STATE_TABLE


def read_layout(disk: Disk, paths: Paths) -> StoreLayout | None:
    """The sizes that checkback made a store with; None where it did not, or where its file is damaged.

    For readers: what store.json does not say they work out from the files.
    """
    try:
        file = read_store_file(disk, paths)
    except StoreError:
        return None
    return file.layout if file else None
