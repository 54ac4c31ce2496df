"""For tests, ours and yours: a disk whose power can fail at any step.

    disk = CrashDisk(tmp_path / "disk", crash_at=17)
    with contextlib.suppress(Crashed):
        work(disk)                                # on a store below disk.root
    for seed in range(20):
        image = disk.survivors(seed)              # a directory as the power cut may have left it
        check(CrashDisk(image))                   # the next boot

Run the work once without `crash_at`: `disk.steps` says how many steps it has. A loop over 1 … steps crashes at each;
`disk.crash()` is the power cut after the last. Step n is where call n would begin: what it does never happens, and
whatever the calls before it left un-synced is at the mercy of the seed.

What a power cut may take, and why that is fair:

- A file's bytes are safe once `Map.sync` covered them or the file was flushed. Until then each block of 512 bytes is on
  its own: the disk holds what was last forced, or any later state that a step saw. A block is never half written, since
  drives promise that much and no more. Flushing one range says nothing of the others, though today's Linux flushes all.
- Bytes stored through a map are seen at the next step, since the disk then compares every mapped file with what it saw
  before. What was stored and overwritten between two steps is never seen.
- A file's size is safe once the file was flushed; until then it is an old one, a later one, or one between them. What a
  cut took may be there still, or be zeros.
- A name is safe once its directory was synced: what was created, renamed, exchanged or removed in it. Until then each
  of these operations, alone and as a whole, is on disk or is not, whatever became of those before it. Forcing a file
  does not flush its name. A rename between two directories is never half done, since file systems keep a journal of
  names; it is safe when either directory was synced.
- An fsync that failed (`fail_next_sync`) leaves its blocks as they were, un-synced, and the system takes them for
  clean: a later sync that succeeds does not save them. Only writing them again does.
- Lock files hold nothing and never survive. What was there when the disk was made is safe.

A process that is killed loses nothing: to test that, open disk.root itself. The disk knows the calls of one process;
two stores in it stand for two processes. Files are read whole at every step: keep segments small.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import tempfile
import threading
import uuid
import weakref
from pathlib import Path

from broker.errors import SyncFailed
from broker.store.disk.files import Disk, Entry, Map, ReadFile
from broker.store.disk.maps import Flusher, OpenFile
from broker.store.disk.os_errors import full, sync_failed
from broker.testing.power_cut import Chance, DirectoryNode, File, Node, Operation, assign, loaded, write_image


class Crashed(BaseException):
    """The power went. No `except Exception` may live on after it."""


class CrashDisk(Disk):
    """Stands in for `Disk` on a directory of its own, and knows what of it a power cut would leave.

    Give it to `broker.live.open_live(path, disk=...)`, with a path below `root`. The power goes at step `crash_at`,
    from 1 on; None: when `crash` says so. From then on each call raises Crashed.
    """

    background = False
    """Stores on it have no background threads: its steps are to come in the same order each time."""

    def __init__(self, root: str | os.PathLike[str], *, crash_at: int | None = None) -> None:
        self.root: Path = Path(os.path.abspath(root))
        """The directory, which is made if it is not there."""
        self.root.mkdir(parents=True, exist_ok=True)
        self.steps: int = 0
        """How many calls so far changed or flushed something."""
        self.trace: list[str] = []
        """A line for each step: what it does, and to which paths below the root."""
        self.crash_at: int | None = crash_at
        """The step at which the power goes, from 1 on; None: none."""
        self.crashed: bool = False
        """Whether the power is gone."""
        self._tree = loaded(str(self.root))
        self._operations: list[Operation] = []
        self._mapped: weakref.WeakSet[File] = weakref.WeakSet()
        self._maps: weakref.WeakSet[_CrashMap] = weakref.WeakSet()
        self._failing: list[str] = []
        self._room: int | None = None
        self._boot_id = str(uuid.uuid4())
        self._lock = threading.RLock()

    # The power

    def crash(self) -> None:
        """Cut the power now: every later call raises Crashed."""
        with self._lock:
            if not self.crashed:
                self._observe()
                self.crashed = True

    def survivors(self, seed: int) -> Path:
        """A fresh directory beside the root as a power cut may leave it; cuts the power if it is still on.

        Seed 0: nothing survives that was not flushed; seed 1: everything does; others: chance, the same each time.
        """
        self.crash()
        chance = Chance(seed)
        entries = {id(directory): dict(directory.durable) for directory in self._tree.directories()}
        for operation in self._operations:
            if chance.survives():
                for directory, name, node in operation.changes:
                    assign(entries.setdefault(id(directory), dict(directory.durable)), name, node)
        image = Path(tempfile.mkdtemp(prefix=f"{self.root.name}.seed-{seed}.", dir=self.root.parent))
        write_image(self._tree, str(image), entries, chance)
        return image

    def close(self) -> None:
        """Cut the power, and close the files that those who lived on this disk left open; `survivors` came before."""
        self.crash()
        for opened in list(self._maps):
            opened.close()
        for file in list(self._mapped):
            file.close()

    # Other faults

    def fail_next_sync(self, pattern: str = "*") -> None:
        """Have the next fsync of a path like this (a pattern of fnmatch, below the root) raise SyncFailed."""
        self._failing.append(pattern)

    def full_after(self, size: int | None) -> None:
        """Have the disk take `size` more bytes, then raise StoreFull; None: as many as there is room for."""
        self._room = size

    def free_bytes(self, path: str) -> int:
        """How many bytes there is room for: what `full_after` left."""
        return super().free_bytes(path) if self._room is None else self._room

    # What is asked

    def entry(self, path: str) -> Entry | None:
        """What a path names; None when nothing is there. Raises Crashed without power."""
        self._check_power()
        return super().entry(path)

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Inode and time of change of what a path names; None when nothing is there. Raises Crashed without power."""
        self._check_power()
        return super().stamp(path)

    def entries(self, directory: str) -> list[Entry]:
        """The entries of a directory, sorted by name. Raises Crashed without power, StoreError without a directory."""
        self._check_power()
        return super().entries(directory)

    def open_read(self, path: str) -> ReadFile:
        """A file for reading. Raises Crashed without power, StoreError when it is not there."""
        self._check_power()
        return super().open_read(path)

    def boot_id(self) -> str:
        """The id of this boot of the machine: each CrashDisk is one."""
        return self._boot_id

    def _open(self, path: str, flags: int) -> int:
        self._check_power()
        return super()._open(path, flags)

    # What is changed: each of these is a step

    def _make_directory(self, path: str) -> None:
        with self._lock:
            self._step("make directory", path)
            super()._make_directory(path)
            self._rename_in_model((path, DirectoryNode()))

    def _create(self, path: str) -> int:
        with self._lock:
            self._step("create", path)
            descriptor = super()._create(path)
            if self._find(path) is None:
                self._rename_in_model((path, File()))
            return descriptor

    def _reserve(self, descriptor: int, path: str, size: int) -> None:
        with self._lock:
            self._step("reserve", path)
            self._take_room(path, size, max(0, size - os.fstat(descriptor).st_size))
            super()._reserve(descriptor, path, size)
            self._look_at(path, descriptor)

    def _write(self, descriptor: int, path: str, data: bytes) -> None:
        with self._lock:
            self._step("write", path)
            room = len(data) if self._room is None else min(self._room, len(data))
            super()._write(descriptor, path, data[:room])
            self._look_at(path, descriptor)
            self._take_room(path, len(data), len(data))

    def _cut(self, descriptor: int, path: str, size: int) -> None:
        with self._lock:
            self._step("cut", path)
            super()._cut(descriptor, path, size)
            self._look_at(path, descriptor)

    def _map(self, path: str, size: int, file: OpenFile) -> Map:
        with self._lock:
            found = self._find(path)
            if isinstance(found, File):
                if found.descriptor < 0:
                    found.descriptor = os.dup(file.descriptor)
                self._mapped.add(found)
            made = _CrashMap(path, size, file, self)
            self._maps.add(made)
            return made

    def flusher(self) -> Flusher:
        """What flushes nothing before somebody waits for it, and then no byte that was stored later: one step."""
        return _CrashFlusher()

    def _force(self, descriptor: int, path: str) -> None:
        self.force_range(path, 0, os.fstat(descriptor).st_size)

    def force_range(self, path: str, start: int, stop: int) -> None:
        """Flush bytes `start` to `stop` - 1 of a file, as `Map.sync` does: one step.

        Raises Crashed at the step of the power cut, SyncFailed when `fail_next_sync` wants it.
        """
        with self._lock:
            self._step("force", path, f"{start}-{stop}")
            file = self._find(path)
            failed = self._failure(path)
            if isinstance(file, File):
                file.force(start, stop, failed=failed is not None)
            if failed:
                raise failed

    def _force_directory(self, path: str) -> None:
        with self._lock:
            self._step("force directory", path)
            if failed := self._failure(path):
                raise failed
            directory = self._find(path)
            keys: set[tuple[int, str]] = set()
            forced = []
            for operation in reversed(self._operations):  # with those before it that touched the same names
                if any(at is directory for at, _, _ in operation.changes) or keys & operation.keys:
                    keys |= operation.keys
                    forced.append(operation)
            for operation in reversed(forced):
                self._operations.remove(operation)
                for at, name, node in operation.changes:
                    assign(at.durable, name, node)

    def _rename(self, old: str, new: str) -> None:
        with self._lock:
            self._step("rename", old, new)
            super()._rename(old, new)
            self._rename_in_model((new, self._find(old)), (old, None))

    def _exchange(self, path_a: str, path_b: str) -> None:
        with self._lock:
            self._step("exchange", path_a, path_b)
            super()._exchange(path_a, path_b)
            self._rename_in_model((path_a, self._find(path_b)), (path_b, self._find(path_a)))

    def _remove_file(self, path: str) -> None:
        with self._lock:
            self._step("remove", path)
            super()._remove_file(path)
            self._rename_in_model((path, None))

    def _remove_directory(self, path: str) -> None:
        with self._lock:
            self._step("remove directory", path)
            super()._remove_directory(path)
            self._rename_in_model((path, None))

    # The model

    def _check_power(self) -> None:
        if self.crashed:
            raise Crashed(f"the power went at step {self.steps}")

    def _step(self, name: str, *about: str) -> None:
        self._check_power()
        self._observe()
        self.steps += 1
        words = [os.path.relpath(word, self.root) if os.path.isabs(word) else word for word in about]
        self.trace.append(" ".join([name, *words]))
        if self.steps == self.crash_at:
            self.crashed = True
            self._check_power()

    def _observe(self) -> None:
        """See what was stored through maps since the last step, by whichever process."""
        for file in self._mapped:
            file.look(file.descriptor)

    def _look_at(self, path: str, descriptor: int) -> None:
        file = self._find(path)
        if isinstance(file, File):
            file.look(descriptor)

    def _find(self, path: str) -> Node | None:
        """What a path names now; None outside the root, and for lock files."""
        names = self._names_below(path)
        node: Node | None = None if names is None else self._tree
        for name in names or []:
            node = node.now.get(name) if isinstance(node, DirectoryNode) else None
        return node

    def _names_below(self, path: str) -> list[str] | None:
        path, root = os.path.abspath(path), str(self.root)
        if path == root:
            return []
        return path[len(root) + 1 :].split(os.sep) if path.startswith(root + os.sep) else None

    def _rename_in_model(self, *changes: tuple[str, Node | None]) -> None:
        """One operation on names: each path means another node from now on, on disk later."""
        found = []
        for path, node in changes:
            directory = self._find(os.path.dirname(os.path.abspath(path)))
            if isinstance(directory, DirectoryNode):
                found.append((directory, os.path.basename(path), node))
        for directory, name, node in found:
            assign(directory.now, name, node)
        if found:
            self._operations.append(Operation(found))

    def _failure(self, path: str) -> SyncFailed | None:
        name = os.path.relpath(path, self.root)
        for pattern in self._failing:
            if fnmatch.fnmatch(name, pattern):
                self._failing.remove(pattern)
                return sync_failed(OSError(errno.EIO, os.strerror(errno.EIO)), path)
        return None

    def _take_room(self, path: str, needed: int, new: int) -> None:
        if self._room is None:
            return
        if new > self._room:
            error = full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path, needed)
            error.free_bytes = self._room
            raise error
        self._room -= new


class _CrashMap(Map):
    """A map whose sync is a step."""

    def __init__(self, path: str, size: int, file: OpenFile, disk: CrashDisk) -> None:
        super().__init__(path, size, file)
        self._disk = disk

    def sync(self, start: int = 0, stop: int | None = None) -> None:
        if self._map is None:
            raise ValueError(f"{self.path}: the map is closed")
        self._disk.force_range(self.path, start, self.size if stop is None else stop)


class _CrashFlusher(Flusher):
    """What is stored behind the bytes that it was begun for is not flushed with them."""

    def __init__(self) -> None:
        super().__init__(None)
        self._begun: tuple[Map, int, int] | None = None
        self._failure: SyncFailed | None = None

    def begin(self, mapped: Map, start: int, stop: int) -> bool:
        self._begun, self._failure = (mapped, start, stop), None
        return True

    def wait(self) -> None:
        if self._failure is None and self._begun is not None:
            (mapped, start, stop), self._begun = self._begun, None
            try:
                mapped.sync(start, stop)
            except SyncFailed as error:
                self._failure = error
        if self._failure is not None:
            raise self._failure


from broker.testing.fixtures import SMALL as SMALL  # noqa: E402 - what else there is for tests: see that module
from broker.testing.fixtures import FakeClock as FakeClock  # noqa: E402
from broker.testing.fixtures import Killed as Killed  # noqa: E402
from broker.testing.fixtures import crash_between_commit_and_end as crash_between_commit_and_end  # noqa: E402
from broker.testing.fixtures import lose_the_commit as lose_the_commit  # noqa: E402
from broker.testing.fixtures import temporary_store as temporary_store  # noqa: E402
