"""Directories of segments beside commitlog/, as storePathCommitLog of a broker may name several.

RocketMQ: MultiPathMappedFileQueue (5.3.3).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator

from broker.store.disk.files import Disk, Entry
from broker.store.disk.paths import Paths
from broker.store.read.inventory import Misfit, kind_of
from broker.store.read.segments import is_base


def other_log_directories(disk: Disk, store: str) -> Iterator[str]:
    """Those inside a store, for which they are stands in the configuration of its broker alone.

    They hold nothing but segments, and none that commitlog/ has. None in a store of ours: what lies there is a
    person's, be it closed to this user or an archive of segments that retention removed.
    """
    if disk.entry(Paths(store).store_json) is not None:
        return
    own = _bases(disk.entries_if_any(os.path.join(store, "commitlog")))
    for entry in disk.entries_if_any(store):
        if entry.is_directory and kind_of(f"{entry.name}/") is None:
            inside = disk.entries_if_any(entry.path)
            bases = _bases(inside)
            if bases and len(bases) == len(inside) and not bases & own:
                yield entry.path


def with_log_directories(misfits: Iterable[Misfit], directories: Collection[str]) -> list[Misfit]:
    """The misfits of a store, with what these are that hold a part of its log: nobody may move them out."""
    why = "a part of the log is in it, and only its broker's configuration (storePathCommitLog) names all of these"
    what = "a directory of segments beside commitlog/"
    return [Misfit(one.path, what, why) if one.path in directories else one for one in misfits]


def _bases(entries: list[Entry]) -> set[int]:
    return {int(one.name) for one in entries if one.is_file and is_base(one.name)}
