"""Where each file of a store lies.

RocketMQ: StorePathConfigHelper, BrokerPathConfigHelper (5.3.3; 3.1.4 for `transaction`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from broker.errors import BrokerError, NotAStore
from broker.format import redolog

STATE_TABLE, HALF_OP = "state-table", "half-op"  # engines of transactions, see broker.store.engines

# Names by which a store is recognised when its CommitLog is missing.
PARTS = ("commitlog", "consumequeue", "index", "checkpoint", "abort", "config", "transaction")


_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NAME_SIZE_MAX = 255  # bytes of a name of a file or directory, on Linux


@dataclass(frozen=True, slots=True)
class Paths:
    """The names under one store directory."""

    store: str

    @property
    def commitlog(self) -> str:
        return self._join("commitlog")

    @property
    def consumequeue(self) -> str:
        return self._join("consumequeue")

    def topic(self, topic: str) -> str:
        return self._join("consumequeue", topic)

    def queue(self, topic: str, queue_id: int) -> str:
        return self._join("consumequeue", topic, str(queue_id))

    @property
    def consumequeue_ext(self) -> str:
        return self._join("consumequeue_ext")

    @property
    def batchconsumequeue(self) -> str:
        return self._join("batchconsumequeue")

    def batch_queue(self, topic: str, queue_id: int) -> str:
        return self._join("batchconsumequeue", topic, str(queue_id))

    @property
    def index(self) -> str:
        return self._join("index")

    @property
    def transaction(self) -> str:
        return self._join("transaction")

    @property
    def state_table(self) -> str:
        return self._join("transaction", "statetable")

    @property
    def redo_log(self) -> str:
        return self._join("transaction", "redolog", redolog.TOPIC, str(redolog.QUEUE_ID))

    @property
    def checkpoint(self) -> str:
        return self._join("checkpoint")

    @property
    def abort(self) -> str:
        return self._join("abort")

    @property
    def lock(self) -> str:
        return self._join("lock")

    # Ours: RocketMQ ignores this directory

    @property
    def own(self) -> str:
        return self._join("checkback")

    @property
    def store_json(self) -> str:
        return self._join("checkback", "store.json")

    @property
    def control(self) -> str:
        return self._join("checkback", "control")

    @property
    def queues(self) -> str:
        return self._join("checkback", "queues")

    @property
    def own_checkpoint(self) -> str:
        return self._join("checkback", "checkpoint")

    @property
    def poisoned(self) -> str:
        return self._join("checkback", "poisoned")

    @property
    def append_lock(self) -> str:
        return self._join("checkback", "append.lock")

    @property
    def sync_lock(self) -> str:
        return self._join("checkback", "sync.lock")

    @property
    def upkeep_lock(self) -> str:
        return self._join("checkback", "upkeep.lock")

    @property
    def torn(self) -> str:
        return self._join("checkback", "torn")

    @property
    def durable(self) -> str:
        return self._join("checkback", "durable")

    @property
    def beginnings(self) -> str:
        """Queue files with a first unit that have no name in their queue yet: broker.store.write.mapped.UnitQueue."""
        return self._join("checkback", "begun")

    def begun(self, name: str) -> str:
        """The path of one of them, without its position."""
        return self._join("checkback", "begun", name)

    @property
    def half_states(self) -> str:
        return self._join("checkback", "halfstates")

    def table_of(self, transactions: str) -> str:
        """The table of slots of a store, by the name of its engine."""
        return self.half_states if transactions == HALF_OP else self.state_table

    @property
    def adopted(self) -> str:
        return self._join("checkback", "adopted")

    @property
    def catalog(self) -> str:
        """What check-back remembers, unless it was given another database; `recovery` makes it."""
        return self._join("checkback", "catalog.db")

    @property
    def consumers(self) -> str:
        return self._join("checkback", "consumers")

    @property
    def servers(self) -> str:
        """What the servers of a store tell each other."""
        return self._join("checkback", "servers")

    @property
    def queue_locks(self) -> str:
        """Which client of a server holds which queue."""
        return self._join("checkback", "servers", "locks")

    @property
    def followed(self) -> str:
        """There in a copy that follows a master: nobody else may write to it; `recovery` makes it."""
        return self._join("checkback", "followed.json")

    @property
    def followed_book(self) -> str:
        """What the follower of a copy knows of its transactions; `recovery` makes it."""
        return self._join("checkback", "followed.db")

    @property
    def lost(self) -> str:
        """What a followed master lost; `recovery` makes it."""
        return self._join("checkback", "lost")

    @property
    def moved(self) -> str:
        """There once a move to a cluster began: nobody writes to the store any more; `recovery` makes it."""
        return self._join("checkback", "moved.json")

    @property
    def move_catalog(self) -> str:
        """How far a move to a cluster came; `recovery` makes it."""
        return self._join("checkback", "move.db")

    @property
    def reserve(self) -> str:
        return self._join("checkback", "reserve")

    @property
    def retention(self) -> str:
        return self._join("checkback", "retention")

    @property
    def retention_json(self) -> str:
        return self._join("checkback", "retention.json")

    @property
    def swap(self) -> str:
        return self._join("checkback", "swap")

    @property
    def rebuild(self) -> str:
        return self._join("checkback", "rebuild")

    @property
    def replaced(self) -> str:
        return self._join("checkback", "replaced")

    def config(self, name: str) -> str:
        return self._join("config", name)

    def _join(self, *names: str) -> str:
        return os.path.join(self.store, *names)


def given_path(path: object) -> str:
    """The path that a caller gave, as text without a slash at its end.

    Raises BrokerError for what cannot be one: None, bytes, an empty text, the address of a cluster, text that the
    system cannot write in a name.
    """
    text = path if isinstance(path, str) else path.__fspath__() if isinstance(path, os.PathLike) else None
    if not isinstance(text, str) or not text:
        kind = "an empty text" if path == "" else f"{path!r:.60}"
        raise BrokerError(f"the path of a store is a str or a pathlib.Path, not {kind}")
    if text.startswith("rocketmq://"):
        raise BrokerError(f"{text} names a cluster, and broker.open opens a directory: use broker.connect")
    _check_encodes(text)
    return text.rstrip(os.sep) or os.sep


def path_of_store(path: object) -> str:
    """`given_path`, absolute; symbolic links stay in it.

    A store is opened once and used for long: a relative path would mean another directory when the process changes its
    own. Raises BrokerError also for a relative path in a directory that was deleted, NotAStore for a URI.
    """
    text = given_path(path)
    if reason := why_not_a_path(text):
        raise NotAStore(reason, path=text)
    return _absolute(text).rstrip(os.sep) or os.sep


def why_not_a_path(text: str) -> str:
    """The sentence for a URI: `s3://a` would be the directory `s3:` in the current one. Empty for a path."""
    if _URI.match(text) is None:
        return ""
    reason = f"{text} is a URI, which is read by `transactions` and by `verify --spark` alone"
    return f"{reason}. Give the path where that file system is mounted"


def _check_encodes(text: str) -> None:
    """Raises BrokerError for what no file can be named: a zero, or half a surrogate pair."""
    try:
        has_zero = b"\0" in os.fsencode(text)
    except UnicodeEncodeError:
        reason = "has a character that the system cannot write in a name"
    else:
        reason = "has a zero character in it" if has_zero else ""
    if reason:
        raise BrokerError(f"the path of a store {reason}: {text!r:.60}. Correct the path")


def _absolute(text: str) -> str:
    """The same place, whatever directory the process changes to.

    Only where `..` follows a symbolic link is the link resolved: the system goes above where it leads, which
    os.path.abspath does not look at.
    """
    try:
        whole = os.path.abspath(text)
        if ".." in text.split(os.sep) and os.path.realpath(whole) != (resolved := os.path.realpath(text)):
            return resolved
    except OSError as error:
        reason = f"the path {text} is relative, and the directory of this process is gone ({error.strerror})"
        raise BrokerError(f"{reason}. Change to another one, or give an absolute path") from error
    return whole


def is_topic_directory(topic: str) -> bool:
    """Whether a topic can name a directory: it comes from a caller or a record, and `..` would leave the store."""
    is_name = topic not in ("", ".", "..") and "/" not in topic and "\0" not in topic
    return is_name and len(topic.encode(errors="surrogatepass")) <= _NAME_SIZE_MAX
