"""A database of SQLite that is only read: the catalog of check-back in a store. Needs no SQLAlchemy."""

from __future__ import annotations

import os
import sqlite3
from urllib.parse import quote


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
