"""A process that decides about every half message of a store, as fast as it can, and notes what became of each.

python -m tests.transaction.race_worker STORE commit|rollback COUNT READY_FD GO_FD
"""

from __future__ import annotations

import os
import sys

import broker


def main() -> None:
    """Wait for the start, then end each half message; print `won`, `lost` or `again` for each."""
    path, decision, count, ready, go = sys.argv[1:6]
    with broker.open(path, sync="os") as store:
        halves = list(store.transactions.in_doubt(limit=int(count)))
        end = getattr(store.transactions, decision)
        os.write(int(ready), b".")
        os.read(int(go), 1)
        told = []
        for half in halves:
            try:
                told.append("again" if end(half).again else "won")
            except broker.AlreadyEnded:
                told.append("lost")
    sys.stdout.write("\n".join(told))


if __name__ == "__main__":
    main()
