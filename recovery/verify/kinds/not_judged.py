"""What a verification does not compare, and why: no finding, but nobody should take it for verified.

The inventory of the store (`broker.store.read.inventory`) says which entries no comparison reads; what a broker writes
that is newer than checkback knows is among them.
"""

from __future__ import annotations

import os

from broker.store.read.inventory import inventory, kind_of
from broker.store.read.kinds.rocksdb import NoRocksDB
from recovery.findings import NotJudged
from recovery.scan.store_files import StoreFiles
from recovery.verify.kinds.rocksdb_queues import rocksdb_fault


def not_judged(files: StoreFiles) -> tuple[NotJudged, ...]:
    """Everything in a store that is not compared with its log: where, what it is, why."""
    entries = inventory(files.path, files.disk).unjudged()
    found = [NotJudged(one.path, one.what, one.why) for one in entries if one.path not in files.log_directories]
    found += _beside_segments(files)
    found += _of_rocksdb(files)
    if files.commitlog.begin and files.watermark is None:
        what = f"the records below CommitLog offset {files.commitlog.begin}"
        why = "their segments are not there: retention removed them, or they were lost"
        found.append(NotJudged(files.commitlog.segments[0].path, what, why))
    return tuple(found)


def _beside_segments(files: StoreFiles) -> list[NotJudged]:
    """What lies in commitlog/ and is not named as a segment is: nothing reads it, and it may be a part of the log."""
    why = "it is a directory, or its name is not a position in 20 digits. A broker may not start beside it"
    names = [os.path.relpath(path, files.path) for path in files.commitlog.others]
    unknown = [name for name in names if kind_of(name) is None and kind_of(f"{name}/") is None]
    return [NotJudged(os.path.join(files.path, name), "an unknown entry of the CommitLog", why) for name in unknown]


def _of_rocksdb(files: StoreFiles) -> list[NotJudged]:
    """The queues in a RocksDB that cannot be read, and what of them its broker had in memory when it was killed."""
    fault = rocksdb_fault(files)
    if isinstance(fault, NoRocksDB):
        return [NotJudged(files.rocksdb or files.path, "a RocksDB of queues", fault.reason)]
    up_to = None if fault is not None else files.rocksdb_up_to
    if up_to is None:
        return []
    what = f"the units of records behind CommitLog offset {up_to}"
    why = "the broker had them in memory: it writes them when it goes on, or when it starts again"
    return [NotJudged(files.rocksdb or files.path, what, why)]
