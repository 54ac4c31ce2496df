"""Stores of ours with transactions that were committed, rolled back and left in doubt, by turns."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from broker.format.sysflag import TransactionType
from broker.store.disk.files import Disk
from broker.store.read.layout import StoreLayout
from broker.store.write.pending_record import PendingRecord, draft, end_draft
from broker.store.writer import StoreWriter, open_writer
from recovery.verify.verifier import verify

SMALL = StoreLayout(1 << 18, 6000, 2400, 2000, 100, 400)
TINY = StoreLayout(8192, 400, 240, 200, 16, 24)


def half(number: int, topic: str = "Orders") -> PendingRecord:
    """A half message with a key of its own."""
    properties = {"KEYS": f"k{number}", "UNIQ_KEY": f"U{number}", "PGROUP": "shop", "TRAN_MSG": "true", "TAGS": "new"}
    return draft(topic, b"b" * (number % 300), properties, queue_id=number % 4, born_timestamp_ms=number + 1,
                 kind=TransactionType.PREPARED)  # fmt: skip


def fill(store: StoreWriter, first: int, count: int) -> None:
    """Transactions that commit, roll back, or stay in doubt, by turns; the log rolls over several segments."""
    for number in range(first, first + count):
        one = half(number)
        (placed,) = store.append([one])
        kind = (TransactionType.COMMIT, TransactionType.ROLLBACK, None)[number % 3]
        if kind is not None:
            store.append([end_draft(one, placed.commitlog_offset, placed.queue_offset, kind)])


def reopened(path: Path) -> None:
    open_writer(str(path), Disk(), sync="os").close()


def assert_right(path: Path, committed: int, rolled_back: int, in_doubt: int) -> None:
    """No finding, and these many transactions."""
    report = verify(path)
    assert report.ok, [str(finding) for finding in report.findings][:5]
    counts = report.transactions
    assert (counts["committed"], counts["rolled_back"], counts["in_doubt"]) == (committed, rolled_back, in_doubt)


@contextmanager
def few_open_files(more: int) -> Iterator[None]:
    """This process may open so many files more than it has open."""
    gc.collect()  # stores that other tests left behind, as if they had crashed, keep theirs open until then
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {int(name) for name in os.listdir("/proc/self/fd")}
    highest = [number for number in range(before[0]) if number not in taken][more]
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def fill_queues(store: StoreWriter, count: int) -> None:
    """Two messages in each of `count` queues, by turns."""
    for number in range(2 * count):
        properties = {"UNIQ_KEY": f"Q{number}"}
        store.append([draft("Many", b"x", properties, queue_id=number % count, born_timestamp_ms=number + 1)])
