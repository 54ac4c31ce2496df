"""SQLite: whether COMMIT saves the files of a connection (`ATTACH`) together.

A super-journal joins them, and a file in WAL mode has no part in it: it is committed by itself, whichever the mode of
the others. SQLite: vdbeCommit (vdbeaux.c), 3.40.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.database.statements import quoted
from broker.errors import TransactionError

_PLAIN = ("main", "temp")


def check_attached(execute: Callable[[str], Sequence[Any]]) -> str:
    """The path of the main file. Raises TransactionError where a crash could save it without an attached one.

    `execute` returns the rows of a statement. What is attached in memory outlives no crash, and does not matter.
    """
    files = {str(name): str(path or "") for _, name, path in execute("PRAGMA database_list")}
    others = sorted(name for name, path in files.items() if path and name not in _PLAIN)
    for name in ["main", *others] if others else ():
        ((mode, *_),) = execute(f"PRAGMA {quoted(name)}.journal_mode")
        if mode == "wal":
            text = f"the connection has another database attached ({', '.join(others)}), and in WAL mode SQLite"
            text = f"{text} commits each file by itself: a crash could save one without the other"
            raise TransactionError(f"{text}. Use a connection without ATTACH, or another journal_mode in each file")
    return files.get("main", "")
