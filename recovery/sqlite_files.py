"""Databases of SQLite in a store: read without a change, and what SQLite says in sentences. Needs no SQLAlchemy."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from broker.errors import CorruptStore, StoreError
from broker.store.disk.os_errors import not_continued

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_REFUSED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}


def connect_to_read(path: str) -> sqlite3.Connection:
    """A connection that changes nothing in the database at a path. Raises sqlite3.Error.

    SQLite reads a database in WAL mode with two files beside it, which it makes where they are not there. In a
    directory that it may not write to it reads the file alone: without a WAL all of the database is in it.
    """
    uri = f"file:{quote(os.fsencode(os.path.abspath(path)))}?mode=ro"
    connection = sqlite3.connect(uri, uri=True)
    try:
        connection.execute("SELECT count(*) FROM sqlite_schema")
    except sqlite3.OperationalError:
        connection.close()
        if _has_wal(path):
            raise
        return sqlite3.connect(f"{uri}&immutable=1", uri=True)
    except BaseException:
        connection.close()
        raise
    return connection


def _has_wal(path: str) -> bool:
    wal = f"{path}-wal"
    return os.path.exists(wal) and os.path.getsize(wal) > 0


@contextmanager
def explained_sqlite(path: str, when_damaged: str) -> Iterator[None]:
    """What SQLite raises about the database at a path becomes a sentence; `when_damaged` is the next step then.

    For the notes of a work that goes on where it was. Raises CorruptStore, StoreFull, StoreError.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # without what extends it
        if code == sqlite3.SQLITE_FULL:
            raise not_continued(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), path) from error
        if code in _DAMAGED:
            raise CorruptStore(f"{path} is damaged ({error}). {when_damaged}", path=path) from error
        if code in _REFUSED:
            text = f"{path} may not be written by this user ({error}). See who owns it and its directory"
            raise StoreError(text, path=path) from error
        raise StoreError(f"{path} cannot be used ({error}). Run the same command again", path=path) from error
