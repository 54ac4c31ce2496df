"""Derived files that the control page counts, and that are not there: the page cannot be trusted then.

As after somebody emptied consumequeue/ or index/ while no process had the store open. An open store would begin new
files behind what is gone, and no consumer would receive it.
"""

from __future__ import annotations

from collections.abc import Iterator

from broker.format.consumequeue import UNIT_SIZE
from broker.format.statetable import Slot
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.layout import StoreLayout
from broker.store.read.segments import NAME_DIGITS
from broker.store.shared.control import Word
from broker.store.shared.queue_offsets import read_cells


def lost_derived_file(
    disk: Disk, paths: Paths, layout: StoreLayout, transactions: str, words: memoryview[int]
) -> str | None:
    """A file that holds the last unit of its kind and is not there; None while all are: the newest of a kind stays.

    `transactions` names the engine, `words` are those of the control page. One look for each queue.
    """
    for path in _newest_files(disk, paths, layout, transactions, words):
        if disk.entry(path) is None:
            return path
    return None


def _newest_files(
    disk: Disk, paths: Paths, layout: StoreLayout, transactions: str, words: memoryview[int]
) -> Iterator[str]:
    cells = read_cells(disk, paths.queues, words[Word.QUEUES]) or {}
    for (topic, queue_id), following in cells.items():
        if following:
            yield _file(paths.queue(topic, queue_id), following * UNIT_SIZE, layout.consume_queue_bytes)
    if words[Word.REDO_UNITS]:
        yield _file(paths.redo_log, words[Word.REDO_UNITS] * UNIT_SIZE, layout.redo_log_bytes)
    if words[Word.SLOTS]:
        yield _file(paths.table_of(transactions), words[Word.SLOTS] * Slot.SIZE, layout.state_table_bytes)
    if words[Word.INDEX]:
        yield f"{paths.index}/{words[Word.INDEX]:017}"


def _file(directory: str, end: int, file_bytes: int) -> str:
    return f"{directory}/{(end - 1) // file_bytes * file_bytes:0{NAME_DIGITS}}"
