"""How far a move came, on disk: what a run that was killed needs to send nothing twice.

    facts    the store, the cluster, the topics that were made there, the report of a move that is done
    queues   for each queue the broker that has its messages, where they begin there, and up to where they were sent
    singles  delayed messages and transactions in doubt: a row before each is sent, marked when it was

A commit is on disk when it returns (synchronous = FULL). A queue's row may be behind: what is missing in it stands at
the end of the queue in the cluster.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self

from broker.errors import StoreError
from broker.remoting.bodies import MessageQueue
from broker.store.disk.paths import Paths
from recovery.sqlite_files import explained_sqlite

SENDING, SENT = 0, 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS queues (
    topic TEXT, queue_id INTEGER, broker TEXT NOT NULL, target_base INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    target_next INTEGER NOT NULL, PRIMARY KEY (topic, queue_id));
CREATE TABLE IF NOT EXISTS singles (commitlog_offset INTEGER PRIMARY KEY, broker TEXT NOT NULL, state INTEGER NOT NULL);
"""


@dataclass(frozen=True)
class QueueProgress:
    """One queue. `next_offset` is of the store, `target_base` and `target_next` are of the cluster: queue offsets."""

    topic: str
    queue_id: int
    broker_name: str
    target_base: int
    next_offset: int
    target_next: int

    @property
    def target(self) -> MessageQueue:
        return MessageQueue(self.topic, self.queue_id, self.broker_name)


class MoveCatalog:
    """One move. A single thread uses it at a time."""

    def __init__(self, paths: Paths) -> None:
        """Raises CorruptStore when the file is not a database, StoreFull, StoreError."""
        self._path = paths.move_catalog
        with self.sentences():
            self._db = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.executescript(_SCHEMA)

    def sentences(self) -> AbstractContextManager[None]:
        """What SQLite raises within becomes a sentence. Raises CorruptStore, StoreFull, StoreError."""
        return explained_sqlite(self._path, "What was sent is not known. Put it back, or move to new topics")

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Facts

    def begin(self, store_id: str, cluster: str, bindings: Mapping[str, str]) -> dict[str, str]:
        """Note whose move this is; the cluster's ledger bindings by those of the store, as the first run knew them.

        Raises StoreError for another cluster.
        """
        known = self.fact("move")
        if known is None:
            known = {"store_id": store_id, "cluster": cluster, "bindings": dict(bindings)}
            self.put_fact("move", known)
        if (known["store_id"], known["cluster"]) != (store_id, cluster):
            text = f"{self._path} is of a move to the cluster {known['cluster']}, and this one is {cluster}"
            raise StoreError(f"{text}. Finish that one first", path=self._path)
        return dict(known["bindings"])

    def fact(self, name: str) -> Any:
        """A fact; None where there is none."""
        found = self._db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
        return None if found is None else json.loads(found[0])

    def put_fact(self, name: str, value: Any) -> None:
        """Keep a fact: "move", the topics that were "made", and the "report" of a move that is done."""
        self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, json.dumps(value)))

    # Queues

    def queue(self, topic: str, queue_id: int) -> QueueProgress | None:
        row = self._db.execute("SELECT * FROM queues WHERE topic = ? AND queue_id = ?", (topic, queue_id)).fetchone()
        return None if row is None else QueueProgress(*row)

    def queues(self) -> list[QueueProgress]:
        return [QueueProgress(*row) for row in self._db.execute("SELECT * FROM queues ORDER BY topic, queue_id")]

    def put_queue(self, one: QueueProgress) -> None:
        row = (one.topic, one.queue_id, one.broker_name, one.target_base, one.next_offset, one.target_next)
        self._db.execute("INSERT OR REPLACE INTO queues VALUES (?, ?, ?, ?, ?, ?)", row)

    # Singles

    def single(self, commitlog_offset: int) -> tuple[str, int] | None:
        """(broker name, SENDING or SENT) of a message that was noted."""
        query = "SELECT broker, state FROM singles WHERE commitlog_offset = ?"
        row = self._db.execute(query, (commitlog_offset,)).fetchone()
        return None if row is None else (str(row[0]), int(row[1]))

    def put_single(self, commitlog_offset: int, broker_name: str, state: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO singles VALUES (?, ?, ?)", (commitlog_offset, broker_name, state))

    def singles(self) -> Iterator[tuple[int, str, int]]:
        yield from self._db.execute("SELECT commitlog_offset, broker, state FROM singles ORDER BY 1")
