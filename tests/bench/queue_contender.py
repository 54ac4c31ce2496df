"""One contender of `tests.bench.queues`, in a process of its own: puts, or takes, so many messages of 1 KiB.

    python queue_contender.py put|take NAME PATH COUNT THREADS

It prints "ready", waits for a line, and prints seconds and seconds of CPU. It knows no checkback: an environment of its
own has the libraries. Each is used as its documentation shows.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

BODY = b"x" * 1024


def sqlite(path: str, level: str) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """A table with the body and an indexed key: what a message with a key costs a database."""
    rows = sqlite3.connect(path, isolation_level=None, timeout=60, check_same_thread=False)
    rows.execute("PRAGMA journal_mode=WAL")
    rows.execute(f"PRAGMA synchronous={level}")
    rows.execute("CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, key TEXT, body BLOB)")
    rows.execute("CREATE INDEX IF NOT EXISTS by_key ON messages (key)")

    def put(number: int) -> None:
        rows.execute("INSERT INTO messages (key, body) VALUES (?, ?)", (f"k{number}", BODY))

    def take() -> None:
        found = rows.execute("SELECT id, body FROM messages ORDER BY id LIMIT 1").fetchone()
        rows.execute("DELETE FROM messages WHERE id = ?", (found[0],))

    return put, take


def huey(path: str, *, fsync: bool) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """SqliteHuey's queue, without the tasks around it."""
    from huey import SqliteHuey  # type: ignore[import-not-found, unused-ignore]

    storage = SqliteHuey("bench", filename=path, fsync=fsync, timeout=60).storage
    return lambda _number: storage.enqueue(BODY), storage.dequeue


def litequeue(path: str) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """LiteQueue; it takes text."""
    from litequeue import LiteQueue  # type: ignore[import-not-found, unused-ignore]

    queue, text = LiteQueue(path), BODY.decode()
    return lambda _number: queue.put(text), lambda: queue.done(queue.pop().message_id)


def persistqueue(path: str) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """SQLiteAckQueue of persist-queue."""
    import persistqueue as library  # type: ignore[import-not-found, unused-ignore]

    queue = library.SQLiteAckQueue(path, auto_commit=True, multithreading=True)
    return lambda _number: queue.put(BODY), lambda: queue.ack(queue.get())


def lmdb(path: str, *, sync: bool) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """A key for each message in order; a take deletes the first one."""
    import lmdb as library  # type: ignore[import-not-found, unused-ignore]

    environment = library.open(path, map_size=1 << 30, sync=sync)

    def put(number: int) -> None:
        with environment.begin(write=True) as changes:
            changes.put(b"%012d" % number, BODY)

    def take() -> None:
        with environment.begin(write=True) as changes:
            cursor = changes.cursor()
            cursor.first()
            cursor.value()
            cursor.delete()

    return put, take


def python(_path: str) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """No queue: what a loop of Python keeps of its rate in several threads, and gains by a second process."""

    def put(number: int) -> None:
        key = f"k{number}"
        for size in range(0, 256, 8):
            zlib.crc32(BODY[size:], len(key))

    return put, lambda: None


CONTENDERS: dict[str, Callable[[str], tuple[Callable[[int], Any], Callable[[], Any]]]] = {
    "python": python,
    "sqlite-normal": lambda path: sqlite(path, "NORMAL"),
    "sqlite-full": lambda path: sqlite(path, "FULL"),
    "huey": lambda path: huey(path, fsync=False),
    "huey-fsync": lambda path: huey(path, fsync=True),
    "litequeue": litequeue,
    "persist-queue": persistqueue,
    "lmdb": lambda path: lmdb(path, sync=True),
    "lmdb-nosync": lambda path: lmdb(path, sync=False),
}


def run(work: Callable[[int], Any], count: int, threads: int) -> None:
    """Do the work `count` times by so many threads, once a line comes; print how long it took."""

    def some(first: int) -> None:
        for number in range(first, count, threads):
            work(number)

    workers = [threading.Thread(target=some, args=(first,)) for first in range(threads)]
    print("ready", flush=True)
    sys.stdin.readline()
    cpu, began = time.process_time(), time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(json.dumps([time.perf_counter() - began, time.process_time() - cpu]), flush=True)


def main(verb: str, name: str, path: str, count: str, threads: str) -> None:
    """Put or take."""
    put, take = CONTENDERS[name](path)
    run(put if verb == "put" else lambda _number: take(), int(count), int(threads))


if __name__ == "__main__":
    main(*sys.argv[1:])
