"""Is there a store at this path? If not: one sentence that says what is there, and where the store may be."""

from __future__ import annotations

import os

from broker.errors import NotAStore, StoreError
from broker.store.disk.files import Disk, Entry
from broker.store.disk.paths import PARTS, Paths, why_not_a_path
from broker.store.read.segments import NAME_DIGITS, is_base

_DLEDGER = "dledger-"  # RocketMQ: DLedgerConfig.getDataStorePath
_ONLY_IN_STORES = ("checkback", "config", "consumequeue")  # one of them beside commitlog/
_SHOWN = 3  # names from a directory that is not a store
_COMPRESSED = (".gz", ".zst", ".lz4")  # recovery.pipeline.store_location reads such segments
LOST_AND_FOUND = "lost+found"  # which a new volume has, for root alone
_GIVE = "Give the directory that a broker calls storePathRootDir"


def check_is_store(path: str, disk: Disk) -> None:
    """Raises NotAStore when the path is not a directory with a CommitLog, StoreError when this user may not look."""
    fault = _fault(path, disk)
    if fault is not None:
        raise NotAStore(fault, path=path)


def check_place(path: str, disk: Disk, *, create: bool) -> None:
    """Raises NotAStore where a store may not be opened for writing: there is none and none is to be made, or the
    directory in which it would be made is missing, be it for a typing error or a volume that is not mounted."""
    if not create:
        check_is_store(path, disk)
    if disk.entry(path) is None:
        if (fault := _dangling(path)) is not None:
            raise NotAStore(fault, path=path)
        parent = os.path.dirname(os.path.abspath(path))
        found = disk.entry(parent)
        if found is None or not found.is_directory:
            text = f"{path} cannot be made, for there is no directory {parent}. {_where_it_ends(path, disk)}"
            raise NotAStore(f"{text}. Correct the path, mount the volume, or make the directory", path=path)


def check_outside_stores(path: str) -> None:
    """Raises StoreError when what a person wants written would lie in a store, be it one of its files or a new one.

    A new file there makes `rebuild` refuse the store, for a newer broker may have written it. Missing directories and
    symbolic links on the way count as where they lead.
    """
    above = os.path.realpath(path)
    while above != os.path.dirname(above):
        if any(os.path.isdir(os.path.join(above, part)) for part in _ONLY_IN_STORES) and os.path.isdir(
            Paths(above).commitlog
        ):
            raise StoreError(
                f"{path} lies in the store {above}, whose files are its own. Give another place", path=path
            )
        above = os.path.dirname(above)


def _fault(path: str, disk: Disk) -> str | None:
    found = disk.entry(path)
    if found is None:
        if (fault := _dangling(path)) is not None:
            return fault
        if reason := why_not_a_path(path):
            return reason
        text = f"{path}: there is no such directory. {_where_it_ends(path, disk)}"
        return f"{text}. Correct the path, or mount the volume"
    if not found.is_directory:
        return f"{path} is {_kind(found)}, and a store is a directory that holds commitlog/. Give that directory"
    entries = disk.entries(path)
    commitlog = disk.entry(Paths(path).commitlog)
    ledger = next((entry.path for entry in entries if entry.is_directory and entry.name.startswith(_DLEDGER)), None)
    if ledger is not None and (commitlog is None or not disk.entries(commitlog.path)):
        text = f"the log of {path} is one of DLedger ({ledger}), which checkback does not read"
        return f"{text}. Give a store whose log is in commitlog/"
    if commitlog is None:
        return f"{path} is not a store, for it holds no commitlog/: {_what_is_there(path, entries, disk)}"
    if not commitlog.is_directory:
        return f"{path} is not a store: commitlog in it is {_kind(commitlog)}, not a directory of segments. {_GIVE}"
    inside = disk.entries(commitlog.path)
    if inside and not any(is_base(entry.name) for entry in inside):
        reason = f"nothing in {commitlog.path} ({_names(inside)}) is named as a segment is, by {NAME_DIGITS} digits"
        if any(os.path.splitext(entry.name)[1] in _COMPRESSED for entry in inside):
            text = "Unpack them; compressed segments are read by `transactions` and by `verify --spark` alone"
            return f"{path} is not a store: {reason}. {text}"
        return f"{path} is not a store: {reason}. {_GIVE}"
    return None


def _dangling(path: str) -> str | None:
    """What is wrong with a path at which nothing is found although a name is there; None when none is."""
    if not os.path.islink(path):
        return None
    text = f"{path} is a symbolic link that leads nowhere: there is no {os.path.realpath(path)}"
    return f"{text}. Mount the volume, make the directory, or remove the link"


def _where_it_ends(path: str, disk: Disk) -> str:
    parent = os.path.dirname(os.path.abspath(path))
    while (found := disk.entry(parent)) is None:
        parent = os.path.dirname(parent)
    if not found.is_directory:
        return f"{parent} is {_kind(found)}"
    return f"The path exists as far as {parent}"


def _what_is_there(path: str, entries: list[Entry], disk: Disk) -> str:
    """What the directory holds instead, and the next step."""
    if not entries:
        return f"it is empty. {_GIVE}"
    if any(is_base(entry.name) for entry in entries):
        parent = os.path.dirname(os.path.abspath(path))
        return f"it holds segments itself. Give the store that it is a part of, perhaps {parent}"
    below = [entry.path for entry in entries if entry.is_directory and _has_log(entry.path, disk)]
    if below:
        return f"there is one in it. Give {below[0]}"
    parts = [entry.name for entry in entries if entry.name in PARTS]
    if parts:
        others = ", ".join(parts)
        text = f"it has {others}, which are worth nothing without their CommitLog. Put commitlog/ back beside them"
        return f"{text}; where its broker has it elsewhere (storePathCommitLog): ln -s DIRECTORY {path}/commitlog"
    return f"it holds {_names(entries)}. {_GIVE}"


def _has_log(path: str, disk: Disk) -> bool:
    try:
        return disk.entry(Paths(path).commitlog) is not None
    except StoreError:  # closed to this user, as root's directories beside a store
        return False


def _names(entries: list[Entry]) -> str:
    shown = ", ".join(entry.name for entry in entries[:_SHOWN])
    rest = len(entries) - _SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown


def _kind(entry: Entry) -> str:
    return "a directory" if entry.is_directory else "a file" if entry.is_file else "neither a file nor a directory"
