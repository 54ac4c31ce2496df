"""What a salvage cannot carry over, and no broker can make from the log: it is named, or the salvage refuses."""

from __future__ import annotations

import os
from collections.abc import Sequence

from broker.errors import NotUnderstood
from broker.store.read.inventory import CONFIG_IN_ROCKSDB, Inventory
from broker.store.read.kinds.rocksdb import INSTALL, missing_extra
from broker.store.read.kinds.rocksdb_config import READ
from recovery.repair.queue_gaps import Gap
from recovery.repair.salvage_config import CopiedConfig

# The compacted topics, and how far topics were compacted, which is nothing to lose.
COMPACTED = ("compaction/", ("compaction/position-checkpoint", "compaction/position-checkpoint.bak"))

# Directories with what only their broker can read; the files beside which there must be more for it to matter.
_ONLY_THERE = (
    (
        "kvStore/",
        (),
        "messages that consumers popped and did not acknowledge are noted in it, and are delivered to no consumer",
    ),
    ("rocksdbstore/", ("rocksdbstore/CURRENT",), "5.5 may keep its timers and the index in it"),
    (*COMPACTED, "messages of compacted topics may be in no segment any more"),
    ("timerlog/", (), "messages that wait in the timer wheel are in the new log, but no timer delivers them"),
)
_NOT_READ = ("a CommitLog of DLedger", "tiered storage")


def check_config(contents: Inventory, *, without_config: bool) -> None:
    """Raises NotUnderstood when a part of the configuration is in a RocksDB, and `without_config` is not given."""
    names = _of_clients(contents)
    if not names or without_config:
        return
    place = os.path.join(contents.store, "config", names[0])
    text = f"{place} is a RocksDB that holds {_held(names)}, which salvage cannot copy. Nothing was written. "
    text += f"{INSTALL} to read topics, groups and positions. " if missing_extra() else ""
    text += "Give --without-config to copy the messages alone, and keep the old store for the rest"
    raise NotUnderstood(text, path=place)


def left_behind(contents: Inventory, config: CopiedConfig, *, is_lossy: bool) -> list[str]:
    """A sentence for each thing that the new store lacks."""
    sentences = []
    names = _of_clients(contents)
    if names:
        places = ", ".join(f"config/{name}" for name in names)
        sentences.append(f"{places}: {_held(names)} are in RocksDB and were NOT copied")
    sentences += [f"config/{name} cannot be read, and was NOT copied" for name in config.unreadable]
    for prefix, beside, why in _ONLY_THERE:
        if contents.holds(prefix, beside=beside) and (prefix != "rocksdbstore/" or _is_filled(contents)):
            sentences.append(f"{prefix.rstrip('/')} was NOT copied: {why}")
    for path, _, kind in contents.entries:
        if kind is None and path.count("/") <= path.endswith("/"):
            sentences.append(f"{path.rstrip('/')} was NOT copied: checkback does not know it")
        elif kind is not None and kind.name in _NOT_READ:
            sentences.append(f"{path.rstrip('/')} was NOT copied: {kind.name}")
    if is_lossy and "lmqConsumerOffset.json" in config.copied:
        sentences.append(
            "lmqConsumerOffset.json was copied as it is: behind a loss, groups of light queues may skip messages"
        )
    return sentences


def numbered_by_queue(gaps: Sequence[Gap], contents: Inventory) -> list[Gap]:
    """The gaps of plain queues. A broker that builds a BatchConsumeQueue keeps the numbers that its records state."""
    others = {topic for topic, _ in contents.queue_types}
    return [gap for gap in gaps if gap.topic not in others]


def _of_clients(contents: Inventory) -> list[str]:
    order = list(CONFIG_IN_ROCKSDB)
    copied = () if missing_extra() else READ  # they become JSON files, which a broker takes over
    names = [name for name in contents.rocksdb_config if name not in copied]
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def _held(names: Sequence[str]) -> str:
    return ", ".join(dict.fromkeys(CONFIG_IN_ROCKSDB.get(name, f"what {name} says") for name in names))


def _is_filled(contents: Inventory) -> bool:
    return any(one.path.endswith("rocksdbstore") for one in contents.misfits())
