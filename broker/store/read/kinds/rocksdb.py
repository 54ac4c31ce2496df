"""A RocksDB of a broker, read without writing a byte into its directory and without its lock.

    with open_rocksdb("store/consumequeue", Disk()) as database:
        for key, value in database.items("default"): ...

RocksDB and its package write beside the files that they open, even to read them. So a private directory gets links to
the tables, which never change, and copies of the small files, and that directory is opened. A broker may be at work:
a table that it removed meanwhile makes the opening fail, and another try begins. The package `rocksdict` is the extra
`rocksdb`.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator
from typing import Any, Self

from broker.errors import CorruptStore, StoreError
from broker.store.disk.files import Disk, Missing

MARK = "CURRENT"  # every RocksDB has it, and no other directory of a store
INSTALL = "Install checkback with its extra 'rocksdb'"
_LINKED = re.compile(r"\d+\.(sst|blob)")
_COPIED_FIRST = re.compile(r"CURRENT|IDENTITY|(MANIFEST|OPTIONS)-\d+")
_COPIED_LAST = re.compile(r"\d+\.log")
_TRIES = 5
_PAUSE_S = 0.02


class NoRocksDB(StoreError):
    """The extra `rocksdb` is not installed, or the store is not on a disk of this machine; `reason` says which."""

    def __init__(self, reason: str, *, path: str) -> None:
        super().__init__(f"{path} is a RocksDB: {reason}", path=path)
        self.reason = reason


class RocksDB:
    """An open RocksDB as it was when it was opened; `open_rocksdb` makes one. Threads may share it."""

    def __init__(self, path: str, view: str, families: dict[str, Any], close: Any) -> None:
        self.path, self._view, self._families = path, view, families
        self._closed = weakref.finalize(self, _release, families, close, view)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the files. Closing twice is not an error."""
        self._closed()

    @property
    def families(self) -> tuple[str, ...]:
        """The names of the column families."""
        return tuple(self._families)

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of one key; None where there is none."""
        column = self._families.get(family)
        value = None if column is None else self._checked(column.get, key)
        return None if value is None else bytes(value)

    def items(self, family: str, start: bytes = b"", prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in order, from `start` on, as long as the keys begin with `prefix`."""
        column = self._families.get(family)
        if column is None:
            return
        last = max(start, prefix)
        # One call for each key, where a cursor takes four; but a damaged table only ends it.
        for key, value in self._checked(column.items, from_key=last):
            if not key.startswith(prefix):
                return
            yield key, value
            last = key
        cursor = self._checked(column.iter)
        self._checked(cursor.seek, last)
        if cursor.valid():
            self._checked(cursor.next)
        self._checked(cursor.status)

    def last(self, family: str, prefix: bytes) -> tuple[bytes, bytes] | None:
        """The last key that begins with `prefix`, and its value; None where no key does."""
        column = self._families.get(family)
        if column is None:
            return None
        cursor = self._checked(column.iter)
        self._checked(cursor.seek_for_prev, prefix + b"\xff" * 16)
        self._checked(cursor.status)
        if not cursor.valid() or not bytes(cursor.key()).startswith(prefix):
            return None
        return bytes(cursor.key()), bytes(cursor.value())

    def _checked(self, call: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        except Exception as error:
            if type(error) is not Exception:  # rocksdict raises nothing more exact
                raise
            raise _damaged(self.path, self._view, error) from error


def is_rocksdb(path: str, disk: Disk) -> bool:
    """Whether a directory is a RocksDB."""
    return disk.entry(os.path.join(path, MARK)) is not None


def missing_extra() -> str:
    """Why no RocksDB can be read by this installation; empty where it can."""
    try:
        import rocksdict  # noqa: F401
    except ImportError:
        return f"reading it takes the package rocksdict. {INSTALL}"
    return ""


def open_rocksdb(path: str, disk: Disk) -> RocksDB:
    """Open a directory for reading. Raises NoRocksDB without the extra, CorruptStore for what cannot be read."""
    reason = missing_extra()
    if not reason and not os.path.isdir(path):
        reason = "it is read on a disk of this machine only"
    if reason:
        raise NoRocksDB(reason, path=path)
    for left in reversed(range(_TRIES)):
        try:
            return _open_view(path, disk)
        except (Missing, CorruptStore):
            if not left:
                raise
    raise AssertionError("unreachable")


def _open_view(path: str, disk: Disk) -> RocksDB:
    view = tempfile.mkdtemp(prefix="checkback-rocksdb-")
    try:
        _fill(view, path, disk)
        database, families = _opened(path, view)
    except BaseException:
        shutil.rmtree(view, ignore_errors=True)
        raise
    return RocksDB(path, view, families, database.close)


def _fill(view: str, path: str, disk: Disk) -> None:
    """Copies and links: the manifest first, then the tables that it names, then the newest writes."""
    for pattern in (_COPIED_FIRST, _LINKED, _COPIED_LAST):
        for entry in disk.entries(path):
            target = os.path.join(view, entry.name)
            if not entry.is_file or not pattern.fullmatch(entry.name):
                continue
            if pattern is _LINKED:
                os.symlink(os.path.abspath(entry.path), target)
            else:
                with open(target, "wb") as copy:
                    copy.write(disk.read(entry.path))


def _opened(path: str, view: str) -> tuple[Any, dict[str, Any]]:
    from rocksdict import AccessType, Options, Rdict

    def options() -> Any:
        return Options(raw_mode=True)

    try:
        names = Rdict.list_cf(view, options())
        database = Rdict(view, options(), {name: options() for name in names}, AccessType.read_only(False))
        return database, {name: database.get_column_family(name) for name in names}
    except Exception as error:
        raise _damaged(path, view, error) from error


def _damaged(path: str, view: str, error: Exception) -> CorruptStore:
    reason = " ".join(str(error).replace(view, path).split())  # RocksDB breaks its lines
    text = f"{path} cannot be read as a RocksDB: {reason}. Its own broker may repair or build it again"
    return CorruptStore(text, path=path)


def _release(families: dict[str, Any], close: Any, view: str) -> None:
    families.clear()  # before the database itself
    close()
    for _ in range(_TRIES):  # RocksDB's own threads may still remove files of theirs
        shutil.rmtree(view, ignore_errors=True)
        if not os.path.exists(view):
            return
        time.sleep(_PAUSE_S)
