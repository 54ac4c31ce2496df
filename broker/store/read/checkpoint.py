"""The file `checkpoint`, which a store may lack. RocketMQ: StoreCheckpoint (5.3.3)."""

from __future__ import annotations

from shlex import quote

from broker.errors import CorruptRecord
from broker.format import checkpoint
from broker.format.checkpoint import Checkpoint
from broker.store.disk.files import Missing
from broker.store.read.directory import StoreDirectory


def read_checkpoint(directory: StoreDirectory) -> Checkpoint | None:
    """The checkpoint as it is now; None when there is none. Raises CorruptRecord when the file has a wrong size."""
    path = directory.paths.checkpoint
    try:
        return checkpoint.decode(directory.disk.read(path))
    except Missing:
        return None
    except CorruptRecord as error:
        reason = f"{error.reason}. Run: checkback verify {quote(directory.path)}"
        raise CorruptRecord(reason, at=error.at, path=path) from None
