"""The control page: the few numbers that all processes on one store share, in one small map.

    STORE/checkback/control     4096 bytes of native 64-bit words

Every word is written with one move instruction (`words[i] = n` on a memoryview cast to "Q"), so that no reader ever
sees half of one and a process that is killed leaves each either old or new. DURABLE is changed under the sync lock;
POISON, SHARED and the hints WARM and WRITTEN need none; all others are changed under the append lock, or by a process
that is alone. RocketMQ does not know this file; without it the log is walked.
"""

from __future__ import annotations

import enum
import struct
from typing import cast

from broker.store.disk.files import Disk
from broker.store.disk.maps import Map
from broker.store.disk.os_errors import closed_store
from broker.store.disk.paths import Paths

PAGE_SIZE = 4096
MAGIC = 0x31304B4342_545243  # "CRT" "BCK01", native order: a page of another byte order is not ours
VERSION = 1


class Word(enum.IntEnum):
    """Where each number stands in the page."""

    MAGIC = 0
    VERSION = 1
    BOOT_HIGH = 2  # the boot in which the page was made: after another boot no map can be trusted
    BOOT_LOW = 3
    STORE_HIGH = 4
    STORE_LOW = 5
    INODE = 6  # of the page itself: a copied store brings a page that speaks of other files
    SEGMENT_SIZE = 7
    TAIL = 8  # where the log ends: everything below is published
    INTENT = 9  # where the append that is under way will end; equal to TAIL when none is
    DISPATCHED = 10  # derived files are complete up to here
    DURABLE = 11  # flushed to disk up to here
    GENERATION = 12  # to be raised when derived files are swapped: every map of them is stale then
    POISON = 13  # an fsync failed in some process: nothing is acknowledged until recovery
    SLOTS = 14  # of the state table
    REDO_UNITS = 15
    QUEUES = 16  # cells in use
    STORE_MS = 17  # store timestamp of the newest record: the clock never goes back in a log
    CHECKPOINTED = 18  # CommitLog offset of the last checkpoint
    INDEX = 19  # the name of the index file in use, a number of 17 digits; 0 for none
    SHARED = 20  # 1 once a second process joined: then nobody keeps the append lock from one append to the next
    LOCK_NS = 21  # when STORE/lock was modified last: a broker that starts writes to it, checkback never does
    WARM = 22  # the log was read ahead up to here: a hint, of whichever process appends fast
    WRITTEN = 23  # where the next flush of few records has the pages behind them written ahead: a hint, too


# TAIL … INDEX together, for the holder of the append lock: one call instead of twelve.
STATE = struct.Struct("@12Q")
STATE_AT = 8 * Word.TAIL


class ControlPage:
    """The words by name, on the map that all processes share."""

    def __init__(self, page: Map) -> None:
        self.page = page
        self.words = page.words
        self.view = page.view

    def __getitem__(self, word: Word) -> int:
        return self.words[word]

    def __setitem__(self, word: Word, value: int) -> None:
        self.words[word] = value

    def is_initialised(self) -> bool:
        return self.words[Word.MAGIC] == MAGIC and self.words[Word.VERSION] == VERSION

    def fits(self, boot: tuple[int, int], store: tuple[int, int], inode: int, segment_size: int) -> bool:
        """Whether what the page says can be true of this boot, this store, this file and these segments."""
        here = (*boot, *store, inode, segment_size)
        stored = tuple(self.words[Word.BOOT_HIGH : Word.SEGMENT_SIZE + 1])
        in_order = self.words[Word.DISPATCHED] <= self.words[Word.TAIL] <= self.words[Word.INTENT]
        known = boot != (0, 0)  # a system that does not tell its boots may have been started since
        return known and self.is_initialised() and stored == here and in_order

    def initialise(self, boot: tuple[int, int], store: tuple[int, int], inode: int, segment_size: int) -> None:
        """Make the page this boot's; the magic comes last, so that half a page is none."""
        self.words[Word.MAGIC] = 0
        first = (Word.BOOT_HIGH, Word.BOOT_LOW, Word.STORE_HIGH, Word.STORE_LOW, Word.INODE, Word.SEGMENT_SIZE)
        for word, value in zip(first, (*boot, *store, inode, segment_size), strict=True):
            self.words[word] = value
        self.words[Word.VERSION] = VERSION
        self.words[Word.MAGIC] = MAGIC

    @property
    def is_open(self) -> bool:
        return not isinstance(self.words, _ClosedWords)

    def close(self) -> None:
        """Release the page. A call that reads or writes a word afterwards raises StoreError."""
        self.words = cast("memoryview[int]", _ClosedWords(self.page.path))
        self.page.close()


class _ClosedWords:
    """Stands for the words of a page that was closed; a memoryview would speak of itself."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __getitem__(self, word: int) -> int:
        raise closed_store(self._path)

    def __setitem__(self, word: int, value: int) -> None:
        raise closed_store(self._path)


def two_words(number: int) -> tuple[int, int]:
    """A 128-bit number as the control page holds it: the high and the low 64 bits."""
    return number >> 64, number & ((1 << 64) - 1)


def boot_words(disk: Disk) -> tuple[int, int]:
    """This boot's id in the same form; (0, 0) where the system does not tell it."""
    return two_words(int(disk.boot_id().replace("-", "") or "0", 16))


def lock_written_ns(disk: Disk, paths: Paths) -> int:
    """When the lock file of a store was modified last; 0 without one.

    RocketMQ: DefaultMessageStore.start (4.3 and later) writes to it.
    """
    entry = disk.entry(paths.lock)
    return 0 if entry is None else entry.changed_ns
