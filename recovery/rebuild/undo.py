"""Take a rebuild back: what it replaced becomes live again, and what it built is kept in its place.

    undo("shop.store")                              the last one that is in place
    undo("shop.store", "20261122T023501.123456Z")   that one

Only as long as nothing was written since: the files that come back say nothing of later records.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from broker.errors import CorruptStore, StoreError
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths, given_path
from broker.store.disk.store_lock import StoreLock
from broker.store.maintain.checkpointing import checkpoint_as_is
from broker.store.read.layout import read_store_file
from broker.store.shared.control import Word
from broker.store.shared.directory_swap import begin_swap, finish_swap
from broker.store.writer import open_writer
from recovery.rebuild import replaced
from recovery.rebuild.quiescence import STILL_S, check_still
from recovery.rebuild.replaced import BEGUN, REPLACED, TAKEN_OVER, TAKING_OVER, UNDONE, Replacement
from recovery.scan.store_files import StoreFiles


def undo(
    path: str | os.PathLike[str],
    which: str | None = None,
    *,
    broker_is_stopped: bool = False,
    disk: Disk | None = None,
    still_s: float = STILL_S,
    wait: Callable[[float], None] = time.sleep,
) -> Replacement:
    """Exchange back what a rebuild replaced.

    Raises StoreError when nothing is to be taken back or the store was written to since, StoreLocked when a broker may
    be at work, CorruptStore when the kept files are no longer what they were.
    """
    text, disk = given_path(path), disk or Disk()
    paths = Paths(StoreFiles.open(text).path)
    _chosen(disk, paths, which)  # a wrong name is refused before anything is opened
    if read_store_file(disk, paths) is not None:
        return _undo_ours(disk, paths, which)
    check_still(text, disk, broker_is_stopped=broker_is_stopped, still_s=still_s, wait=wait)
    return _undo_foreign(disk, paths, which)


def _chosen(disk: Disk, paths: Paths, which: str | None) -> Replacement:
    kept = replaced.replacements(disk, paths)
    named = [made for made in kept if which in (None, made.name)]
    if which is not None and not named:
        raise replaced.unknown(paths, which)
    in_place = [made for made in named if made.state in (BEGUN, REPLACED)]
    if not in_place:
        text = f"{named[-1].directory(paths)} is {named[-1].state}" if which else "no rebuild put anything in place"
        raise StoreError(
            f"{paths.store}: {text}. There is nothing to undo{_taken_over(paths, named)}", path=paths.store
        )
    made = in_place[-1]
    later = [other for other in kept if other.name > made.name and other.state in (BEGUN, REPLACED)]
    if later:
        text = f"{later[-1].name} was put in place after {made.name}: undo that one first"
        raise StoreError(f"{paths.store}: {text}", path=paths.store)
    return made


def _taken_over(paths: Paths, kept: Sequence[Replacement]) -> str:
    """Where the files are that lay in the store when checkback took it over; they are not exchanged back."""
    found = [made.directory(paths) for made in kept if made.state in (TAKING_OVER, TAKEN_OVER)]
    where = f"the files of its broker, from before checkback took the store over, are in {', '.join(found)}"
    return f"; {where}" if found else ""


def _places(paths: Paths, made: Replacement) -> list[str]:
    return [place for exchange in replaced.exchanges(paths, made) for place in exchange]


def _check_kept(disk: Disk, paths: Paths, made: Replacement) -> None:
    changed = replaced.changed_files(disk, paths, made)
    if changed:
        text = f"{changed[0]} is not what was kept there: it was changed or removed. Nothing was taken back"
        raise CorruptStore(text, path=changed[0])


def _undo_ours(disk: Disk, paths: Paths, which: str | None) -> Replacement:
    store = open_writer(paths.store, disk, sync="os")
    try:
        with store.append_lock:
            store.appender.heal()  # finishes the exchange of an undo that was killed
            made = _chosen(disk, paths, which)
            if not _is_back(disk, paths, made):
                _check_tail(paths, made, store.control[Word.TAIL])
                _check_kept(disk, paths, made)
                replaced.check_exchangeable(paths, _places(paths, made))
                if disk.entry(paths.own_checkpoint) is not None:
                    disk.remove(paths.own_checkpoint)  # it speaks of the files that go
                store.control[Word.GENERATION] += 1  # odd, as in a rebuild
                begin_swap(disk, paths, replaced.exchanges(paths, made), made.words)
                finish_swap(disk, paths, store.control)
                store.dispatcher.refresh()
                checkpoint_as_is(store.parts)
        replaced.finish(disk, paths, made, state=UNDONE, is_ours=True)
    finally:
        store.close()
    return made


def _check_tail(paths: Paths, made: Replacement, tail: int) -> None:
    """Raises StoreError when records were appended since."""
    if tail != made.tail:
        text = f"{paths.store} holds {tail - made.tail} bytes of records that were appended since {made.name}"
        text = f"{text}, and the files from before know nothing of them. Nothing was taken back"
        raise StoreError(text, path=paths.store)


def _undo_foreign(disk: Disk, paths: Paths, which: str | None) -> Replacement:
    lock = StoreLock(paths.lock, disk)
    if not lock.try_exclusive():
        raise lock.locked()
    try:
        finish_swap(disk, paths)  # of an undo that was killed
        made = _chosen(disk, paths, which)
        if not _is_back(disk, paths, made):
            _check_unchanged(disk, paths, made)
            _check_kept(disk, paths, made)
            replaced.check_exchangeable(paths, _places(paths, made))
            begin_swap(disk, paths, replaced.exchanges(paths, made))
            finish_swap(disk, paths)
        for name, was_there in made.files.items():
            live = os.path.join(paths.store, name)
            if was_there:
                disk.write_file(live, disk.read(os.path.join(made.directory(paths), name)))
            elif disk.entry(live) is not None:
                disk.remove(live)
        replaced.finish(disk, paths, made, state=UNDONE, is_ours=False)
    finally:
        lock.release()
    return made


def _is_back(disk: Disk, paths: Paths, made: Replacement) -> bool:
    """Whether the exchange was done already, by an undo that was killed afterwards."""
    lives = [os.path.join(paths.store, part.live) for part in made.parts]
    old = [part.old_inode for part in made.parts]
    return bool(made.parts) and [disk.inode_if_any(live) for live in lives] == old


def _check_unchanged(disk: Disk, paths: Paths, made: Replacement) -> None:
    """Raises StoreError when a file of the store is not as the rebuild left it."""
    now = replaced.shape_now(disk, paths)
    if made.state == BEGUN:  # its rebuild was killed before it wrote down how it left what it exchanged
        now = replaced.unreplaced(made, now)
    changed = sorted(set(now) ^ set(made.after))
    if changed:
        path = os.path.join(paths.store, changed[0][0])
        text = f"{path} changed since {made.name}: a broker was at work on the store, and the files from before do not"
        raise StoreError(f"{text} know what it did. Nothing was taken back", path=path)
