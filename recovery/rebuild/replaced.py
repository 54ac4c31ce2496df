"""What a rebuild took out of a store is kept aside, with a manifest, until it is taken back or deleted.

    STORE/checkback/replaced/20261122T023501.123456Z/
        manifest.json       what was where, why and by which command it was replaced, sizes and SHA-256
        consumequeue/ ...   the directories as they were
        checkpoint, abort   the small files as they were, of a store that RocketMQ wrote

A directory gets its place here before the exchange, with the built files in it; the exchange (`directory_swap`) swaps
it with the live one in one step. So the replaced files are here as soon as the built ones are live, however a process
ends. The inodes in the manifest say which of the two lies here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from shlex import quote
from typing import Any

from broker.errors import CorruptStore, StoreError
from broker.store.disk.files import Disk, Entry, Missing
from broker.store.disk.paths import Paths
from broker.store.shared.directory_swap import begin_swap, pending_swaps
from recovery.humanize import who
from recovery.rebuild.quiescence import shape

MANIFEST = "manifest.json"
BEGUN, REPLACED, UNDONE = "begun", "replaced", "undone"
TAKING_OVER, TAKEN_OVER = "taking over", "taken over"  # of a store that another program wrote
_REASONS_LISTED = 20
_WRITTEN_BY_REBUILD = frozenset(("checkpoint", "abort", "abort.bak", "lock"))
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A directory that was exchanged: its path below the store, and the inodes of the old one and of the built one."""

    name: str
    live: str
    old_inode: int  # 0 when there was none
    built_inode: int


@dataclass(slots=True)
class Replacement:
    """One exchange, as its manifest says. Paths are relative: a store may be moved."""

    name: str  # the time of the exchange, UTC; the directory under STORE/checkback/replaced
    command: str
    by: str
    state: str
    reasons: list[str]
    parts: list[Part]
    files: dict[str, bool]  # small files that were kept: whether there was one
    words: dict[str, int] = field(default_factory=dict)  # of the control page, before; of a store of ours
    tail: int = 0  # where the log ended
    # Of a store of RocketMQ's, by path, size and time of change: what is not replaced, then the whole store afterwards.
    after: list[tuple[str, int, int]] = field(default_factory=list)
    sums: dict[str, tuple[int, str]] = field(default_factory=dict)  # size and SHA-256 of each file that is kept
    version: int = 1

    def directory(self, paths: Paths) -> str:
        """Where it lies."""
        return os.path.join(paths.replaced, self.name)

    def kept(self, paths: Paths, part: Part) -> str:
        """Where a replaced directory lies."""
        return os.path.join(self.directory(paths), part.name)

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        named = ("name", "command", "by", "state", "reasons")
        size = sum(size for size, _ in self.sums.values())
        parts = [part.live for part in self.parts]
        return {**{name: getattr(self, name) for name in named}, "parts": parts, "bytes": size}


def name_now() -> str:
    """A name for a replacement: the time, UTC."""
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")


def begin(
    disk: Disk, paths: Paths, *, name: str, command: str, reasons: Sequence[str],
    parts: Sequence[tuple[str, str, str]], files: Sequence[str] = (), words: dict[str, int] | None = None,
    tail: int = 0,
) -> Replacement:  # fmt: skip
    """Give built directories (name, live, built) their place, and keep small files; the exchange itself comes next.

    Raises StoreError, with nothing changed, as `check_exchangeable` does.
    """
    check_exchangeable(paths, [live for _, live, _ in parts])
    made = Replacement(name, command, who(), BEGUN, list(reasons[:_REASONS_LISTED]), [], {}, words or {}, tail)
    made.parts = [
        Part(part, os.path.relpath(live, paths.store), disk.inode_if_any(live), disk.inode(built))
        for part, live, built in parts
    ]
    if files:
        made.after = unreplaced(made, shape_now(disk, paths))
    disk.create_directory(made.directory(paths))
    write(disk, paths, made)
    _keep_files(disk, paths, made, files)
    write(disk, paths, made)
    for part, (_, _, built) in zip(made.parts, parts, strict=True):
        disk.rename(built, made.kept(paths, part))
    return made


def _keep_files(disk: Disk, paths: Paths, made: Replacement, files: Sequence[str]) -> None:
    """Copy small files of the store, and note which there were."""
    for file in files:
        live = os.path.join(paths.store, file)
        made.files[file] = disk.entry(live) is not None
        if made.files[file]:
            disk.write_file(os.path.join(made.directory(paths), file), disk.read(live))


def begin_take_over(disk: Disk, paths: Paths, *, name: str, command: str, reason: str) -> Replacement:
    """Prepare to move the derived directories of a store that is taken over out of it: ours are made from the log.

    Copies the small files, and writes the journal of the move. Nothing is moved before the store is ours (store.json);
    from then on `finish_swap` moves them, whichever process calls it. Raises StoreError as `check_exchangeable` does.
    """
    lives = [live for live in (paths.consumequeue, paths.index, paths.transaction) if disk.entry(live) is not None]
    check_exchangeable(paths, lives)
    made = Replacement(name, command, who(), TAKING_OVER, [reason], [], {})
    made.parts = [Part(os.path.basename(live), os.path.basename(live), disk.inode_if_any(live), 0) for live in lives]
    disk.create_directory(made.directory(paths))
    write(disk, paths, made)
    _keep_files(disk, paths, made, ("checkpoint", "abort"))
    write(disk, paths, made)
    begin_swap(disk, paths, exchanges(paths, made), is_take_over=True)
    return made


def finish_take_over(disk: Disk, paths: Paths) -> None:
    """Write down what take-overs kept whose process was killed before it could; call when no exchange is pending.

    A manifest that cannot be read is left to those who need what is kept: `replacements` reports it to them.
    """
    with contextlib.suppress(CorruptStore):
        for made in replacements(disk, paths):
            if made.state == TAKING_OVER and _is_moved(disk, paths, made):
                finish(disk, paths, made, state=TAKEN_OVER, is_ours=True)


def _is_moved(disk: Disk, paths: Paths, made: Replacement) -> bool:
    return all(disk.inode_if_any(made.kept(paths, part)) == part.old_inode for part in made.parts)


def check_exchangeable(paths: Paths, directories: Sequence[str]) -> None:
    """Raises StoreError for a directory that no rename swaps with one below STORE/checkback: a link, a disk of its own.

    Before the journal is written: an exchange that was begun must end before anybody appends.
    """
    for path in directories:
        above = path if os.path.isdir(path) else os.path.dirname(path)
        if os.path.islink(path):
            what = "is a symbolic link"
        elif os.path.isdir(above) and os.path.isdir(paths.own) and _mount_of(above) != _mount_of(paths.own):
            what = "lies on another disk than STORE/checkback"
        elif _is_in_lower_layer(path, paths.own):
            what = "lies in a lower layer of an overlay, such as the image of a container"
        else:
            continue
        text = f"{path} {what}, so no other directory can take its place in one step. Nothing was replaced"
        step = (
            "Put a copy of the directory into the store, in its place, while no process has it open, and run this again"
        )
        raise StoreError(f"{text}. {step}", path=path)


def _is_in_lower_layer(directory: str, own: str) -> bool:
    """Whether the directory can move nowhere, as overlayfs says before it sees that the place is taken.

    Nothing moves: `own` is not empty, and no directory takes the place of one that is not.
    """
    if os.path.isdir(directory) and os.path.isdir(own) and os.listdir(own):
        try:
            os.rename(directory, own)
        except OSError as error:
            return error.errno == errno.EXDEV
    return False


def _mount_of(directory: str) -> int:
    """A number of the mount that a directory lies in: renames do not cross mounts, even of one file system."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with open(f"/proc/self/fdinfo/{descriptor}", encoding="ascii") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith("mnt_id:"))
    except (OSError, StopIteration):  # not Linux
        return os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)


def exchanges(paths: Paths, made: Replacement) -> list[tuple[str, str]]:
    """The (live, kept) directories of a replacement, for `begin_swap`."""
    return [(os.path.join(paths.store, part.live), made.kept(paths, part)) for part in made.parts]


def finish(disk: Disk, paths: Paths, made: Replacement, *, state: str = REPLACED, is_ours: bool) -> None:
    """Write down what is kept and, of a store of RocketMQ's, how the store was left."""
    made.state = state
    directory = made.directory(paths)
    made.sums = {
        os.path.relpath(entry.path, directory): (entry.size, _sha256(disk, entry.path))
        for entry in _files_below(disk, directory)
        if entry.name != MANIFEST
    }
    if not is_ours:
        made.after = shape_now(disk, paths)
    write(disk, paths, made)


def shape_now(disk: Disk, paths: Paths) -> list[tuple[str, int, int]]:
    """Every file of the store by its relative path, with size and time of change.

    Our own directory is left out, and the small files that a rebuild itself writes: a broker that was at work has
    changed others, too.
    """
    named = [(os.path.relpath(path, paths.store), size, ns) for path, size, ns in shape(disk, paths.store)]
    return [one for one in named if one[0] not in _WRITTEN_BY_REBUILD]


def unreplaced(made: Replacement, files: Sequence[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Those of some files that lie in no directory that was exchanged."""
    lives = tuple(f"{part.live}/" for part in made.parts)
    return [one for one in files if not one[0].startswith(lives)]


def write(disk: Disk, paths: Paths, made: Replacement) -> None:
    """Put the manifest in place."""
    disk.write_file(os.path.join(made.directory(paths), MANIFEST), json.dumps(asdict(made), indent=1).encode())


def replacements(disk: Disk, paths: Paths) -> list[Replacement]:
    """All that is kept, oldest first. Raises CorruptStore for a manifest that cannot be read."""
    return list(_replacements(disk, paths)) if disk.entry(paths.replaced) is not None else []


def _replacements(disk: Disk, paths: Paths) -> Iterator[Replacement]:
    for entry in disk.entries(paths.replaced):
        file = os.path.join(entry.path, MANIFEST)
        try:
            values = json.loads(disk.read(file))
            values["parts"] = [Part(**part) for part in values["parts"]]
            values["after"] = [(name, size, ns) for name, size, ns in values["after"]]
            values["sums"] = {name: (size, digest) for name, (size, digest) in values["sums"].items()}
            yield Replacement(**values)
        except Missing:  # killed before the first manifest: nothing was put here yet
            continue
        except (ValueError, TypeError, KeyError) as error:
            text = f"{file} cannot be read ({error}): look at what lies beside it before you remove {entry.path}"
            raise CorruptStore(text, path=file) from None


def changed_files(disk: Disk, paths: Paths, made: Replacement) -> list[str]:
    """The kept files that are no longer what they were, by their paths."""
    directory = made.directory(paths)
    return [
        os.path.join(directory, name)
        for name, (size, digest) in made.sums.items()
        if (entry := disk.entry(os.path.join(directory, name))) is None
        or entry.size != size
        or _sha256(disk, entry.path) != digest
    ]


def remove_unused(disk: Disk, paths: Paths) -> None:
    """Remove built directories whose exchange never began: their process was killed before the journal, or before
    the store that it took over was ours.

    Call alone, or under the append lock, with no exchange pending.
    """
    for made in replacements(disk, paths):
        still_built = [disk.inode_if_any(made.kept(paths, part)) in (0, part.built_inode) for part in made.parts]
        is_begun = made.state == BEGUN or (made.state == TAKING_OVER and disk.entry(paths.store_json) is None)
        if is_begun and all(still_built) and not any(_is_built_live(disk, paths, made)):
            disk.remove_tree(made.directory(paths))


def _is_built_live(disk: Disk, paths: Paths, made: Replacement) -> Iterator[bool]:
    for part in made.parts:
        yield disk.inode_if_any(os.path.join(paths.store, part.live)) == part.built_inode


def forget(disk: Disk, paths: Paths, which: str | None = None) -> tuple[list[str], int]:
    """Remove one replacement, or all of them. Returns their names and how many bytes the files had.

    Raises StoreError for a name that is not there, and as long as an exchange is not finished.
    """
    chosen = [made for made in replacements(disk, paths) if which in (None, made.name)]
    if which is not None and not chosen:
        raise unknown(paths, which)
    if chosen and (pending := pending_swaps(disk, paths)):
        text = f"{paths.store}: an exchange of {', '.join(pending)} was begun and not finished, and needs what is kept"
        raise StoreError(f"{text}. End it first: checkback recover {quote(paths.store)} --apply", path=paths.store)
    freed = 0
    for made in chosen:
        freed += sum(entry.size for entry in _files_below(disk, made.directory(paths)))
        disk.remove_tree(made.directory(paths))
    if disk.entry(paths.replaced) is not None and not disk.entries(paths.replaced):
        disk.remove_tree(paths.replaced)
    return [made.name for made in chosen], freed


def unknown(paths: Paths, which: str) -> StoreError:
    """The error for a name under which nothing is kept."""
    return StoreError(f"{paths.replaced} holds nothing named {which}: ls it, and give one of the names", path=which)


def sizes_below(disk: Disk, directory: str) -> set[int]:
    """The sizes of all files below a directory."""
    return {entry.size for entry in _files_below(disk, directory)}


def _files_below(disk: Disk, directory: str) -> Iterator[Entry]:
    waiting = [directory]
    while waiting:
        for entry in disk.entries(waiting.pop()):
            if entry.is_directory:
                waiting.append(entry.path)
            elif entry.is_file:
                yield entry


def _sha256(disk: Disk, path: str) -> str:
    digest, file, at = hashlib.sha256(), disk.open_read(path), 0
    while piece := file.pread(_PIECE_BYTES, at):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()
