"""Exchange derived directories for ones that were built beside them, while other processes have the store open.

    STORE/checkback/replaced/TIME/...  what was built, and afterwards what it replaced (recovery.rebuild.replaced)
    STORE/checkback/swap               the journal: which directories are being exchanged (sealed as a checkpoint is)

Each exchange is one step of the file system where it has such a step, two renames elsewhere. A process that finds the
journal goes on where its writer was killed: the inode of a directory says whether it is there already. The control word
GENERATION is odd from before the journal is written until after it is removed; then it is even, higher, and all maps
are stale.

A store of another program that is taken over becomes ours between its journal and the first exchange. Killed before
that, it is as it was, and the journal is dropped; killed later, its next recovery ends the exchange.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from broker.errors import CorruptStore
from broker.store.disk.files import Disk, Missing, NotSupported
from broker.store.disk.paths import Paths
from broker.store.shared.checkpoint_file import seal, unseal
from broker.store.shared.control import ControlPage, Word


@dataclass(frozen=True, slots=True)
class DirectoryExchange:
    """A directory of the store, the one that takes its place, and the number by which that one is known."""

    live: str  # relative to the store, as all names in the journal: a store may be moved
    built: str
    inode: int  # 0 when nothing takes its place: the live one goes


def begin_swap(
    disk: Disk,
    paths: Paths,
    directories: Sequence[tuple[str, str]],
    words: dict[str, int] | None = None,
    *,
    is_take_over: bool = False,
) -> None:
    """Write the journal for (live, built) directories, which must be flushed already: from here on the swap goes
    forward.

    `words` are the values that the control page must have afterwards, by their names. A take-over goes forward only
    from when the store is ours, which is the next step of its caller.
    """
    exchanges = [
        asdict(
            DirectoryExchange(
                os.path.relpath(live, paths.store), os.path.relpath(built, paths.store), disk.inode_if_any(built)
            )
        )
        for live, built in directories
    ]
    content = {"exchanges": exchanges, "words": words or {}, "is_take_over": is_take_over}
    disk.write_file(paths.swap, seal(json.dumps(content).encode()))


def _journal(disk: Disk, paths: Paths) -> tuple[list[DirectoryExchange], dict[str, int]]:
    """What is to be exchanged, and the words; nothing where no exchange was begun, or one that never was to be."""
    try:
        content = unseal(disk.read(paths.swap))
    except Missing:
        return [], {}
    if content is None:
        text = f"{paths.swap} is damaged: an exchange of directories was begun. Remove it and run: checkback rebuild"
        raise CorruptStore(text, path=paths.swap)
    if content.get("is_take_over") and disk.entry(paths.store_json) is None:
        return [], {}
    return [DirectoryExchange(**one) for one in content["exchanges"]], content["words"]


def pending_swaps(disk: Disk, paths: Paths) -> list[str]:
    """The directories of a swap that was begun and not finished; those that are in place already included."""
    return [exchange.live for exchange in _journal(disk, paths)[0]]


def finish_swap(disk: Disk, paths: Paths, control: ControlPage | None = None) -> list[str]:
    """Bring a swap that was begun to its end, and forget it; nothing begun is not an error. Returns the directories.

    Call alone, or under the append lock. With a control page, its words follow, and GENERATION becomes even.
    """
    exchanges, words = _journal(disk, paths)
    for exchange in exchanges:
        live, built = os.path.join(paths.store, exchange.live), os.path.join(paths.store, exchange.built)
        if disk.inode_if_any(live) != exchange.inode:
            _put_in_place(disk, live, built, goes=exchange.inode == 0)
        if disk.entry(f"{built}.old") is not None:
            disk.rename(f"{built}.old", built)
    if control is not None:
        for name, value in words.items():
            control[Word[name]] = value
    if disk.entry(paths.swap) is not None:  # one without exchanges would keep what was built, too
        disk.remove(paths.swap)
    if control is not None:
        control[Word.GENERATION] += control[Word.GENERATION] % 2
    return [exchange.live for exchange in exchanges]


def _put_in_place(disk: Disk, live: str, built: str, *, goes: bool) -> None:
    """The built directory under the live name, and what was there under the name of the built one.

    A live one that `goes` and lies at its place already has gone: what has its name now was made since.
    """
    if goes or disk.entry(built) is None:
        if goes and disk.entry(built) is None:
            disk.rename(live, built)
        return
    if disk.entry(os.path.dirname(live)) is None:
        disk.create_directory(os.path.dirname(live))
    if disk.entry(live) is None:
        disk.rename(built, live)
        return
    try:
        disk.exchange(live, built)
    except NotSupported:  # the caller brings the old one to its name
        disk.rename(live, f"{built}.old")
        disk.rename(built, live)


def remove_built(disk: Disk, paths: Paths) -> None:
    """Remove what a rebuild built and did not use."""
    if disk.entry(paths.rebuild) is not None and disk.entry(paths.swap) is None:
        disk.remove_tree(paths.rebuild)
