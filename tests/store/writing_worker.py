"""A process that appends and ends transactions until it is killed, and notes down what was acknowledged.

python -m tests.store.writing_worker STORE NOTES NUMBER
"""

from __future__ import annotations

import os
import sys

from broker.format.sysflag import TransactionType
from broker.store.disk.files import Disk
from broker.store.write.pending_record import draft, end_draft
from broker.store.writer import StoreWriter, open_writer

_ENDS = (TransactionType.COMMIT, TransactionType.ROLLBACK, None)


def work(store: StoreWriter, notes: int, number: int) -> None:
    """Note `half KEY` when a half message was acknowledged, `end KEY KIND` when its end was."""
    serial = 0
    while True:
        serial += 1
        key = f"{number}-{os.getpid()}-{serial}"
        properties = {"KEYS": key, "UNIQ_KEY": key, "PGROUP": "workers", "TRAN_MSG": "true", "TAGS": f"T{serial % 3}"}
        half = draft(
            f"Topic{serial % 2}",
            key.encode() * (serial % 20 + 1),
            properties,
            queue_id=serial % 3,
            born_timestamp_ms=serial,
            kind=TransactionType.PREPARED,
        )
        (placed,) = store.append([half])
        os.write(notes, f"half {key}\n".encode())
        kind = _ENDS[serial % 3]
        if kind is not None:
            store.append([end_draft(half, placed.commitlog_offset, placed.queue_offset, kind)])
            os.write(notes, f"end {key} {int(kind)}\n".encode())


def main() -> None:
    """Open the store and work."""
    path, notes, number = sys.argv[1:4]
    descriptor = os.open(notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    work(open_writer(path, Disk(), sync="os"), descriptor, int(number))


if __name__ == "__main__":
    main()
