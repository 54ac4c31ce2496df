"""The other process of `recovery.torture.disk`: it stores a word through a shared map, and holds a lock until killed.

`python -m recovery.torture.neighbour MAPPED LOCK`
"""

from __future__ import annotations

import sys
import time

from broker.store.disk.files import Disk
from broker.store.disk.store_lock import StoreLock

WORD = b"neighbor"  # 8 bytes: one store
MAPPED_BYTES = 4096
_LIFE_S = 60  # nothing of it stays when the process that started it is gone


def main(mapped: str, lock: str) -> None:
    """Take the lock, store the word, report it, and wait to be killed."""
    held = StoreLock(lock)
    if not held.try_exclusive():
        sys.exit("the lock is taken")
    area = Disk().open_map(mapped, MAPPED_BYTES)
    area.view[: len(WORD)] = WORD
    print("ready", flush=True)
    time.sleep(_LIFE_S)
    held.release()


if __name__ == "__main__":
    main(*sys.argv[1:])
