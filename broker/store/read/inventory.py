"""What a store directory holds, entry by entry, and what checkback may do with each: a table, and a walk that asks it.

As in:

    contents = inventory("rocketmq/store", Disk())
    contents.misfits()             what stands in the way of replacing anything: path, what it is, and why

Recovery replaces directories as a whole, so everything that lies in one must be of a kind that is known. The walk does
not go into what a verb leaves alone. Names: RocketMQ: StorePathConfigHelper, BrokerPathConfigHelper (3.1.4 to 5.5.0).
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import md5

from broker.errors import CorruptStore, NotUnderstood
from broker.format import config
from broker.format.topics import BATCH_QUEUE, LMQ_PREFIX, QUEUE_TYPE, SIMPLE_QUEUE
from broker.store.disk.files import Disk, Missing
from broker.store.disk.paths import Paths
from broker.store.read.kinds.rocksdb import is_rocksdb, missing_extra
from broker.store.read.kinds.rocksdb_config import READ, SHARED, read_config_database


class Handling(enum.Enum):
    """What may be done with an entry."""

    BUILT = "made from the CommitLog: it may be replaced"
    LOG = "the CommitLog itself"
    REBUILT = "only `checkback rebuild` makes it from the CommitLog: no other verb replaces anything beside it"
    KEPT = "left as it is"
    REFUSED = "only its own broker can make it: nothing is replaced beside it"


@dataclass(frozen=True, slots=True)
class EntryKind:
    """A row of KINDS: which names it is about, what such an entry is, and how it is handled.

    `pattern` is matched with the path below the store; the path of a directory ends in a slash.
    """

    name: str
    pattern: str
    handling: Handling
    why: str = ""  # of a refused kind: what a replacement would destroy
    unjudged: str = ""  # why a verification does not compare such an entry; empty when it does, or needs not
    is_of_directory: bool = False  # such a file shows what the directory is in which it lies
    is_if_filled: bool = False  # an empty file is of no kind that is refused


@dataclass(frozen=True, slots=True)
class Misfit:
    """An entry, a topic or a record that stands in the way: where, what it is, why nothing may be replaced."""

    path: str
    what: str
    why: str

    def as_json(self) -> dict[str, str]:
        """Its public form."""
        return {"path": self.path, "what": self.what, "why": self.why}

    def __str__(self) -> str:
        return f"{self.path} is {self.what}: {self.why}"


_SEGMENT = r"\d{20}"
_QUEUE = "(0|[1-9][0-9]*)"  # another name of the same number, as 01, is somebody's copy
# Its index, which RocketMQ puts into the store; where its file path is the store, a directory for each cluster, whose
# name begins with a part of a digest, see `_is_cluster`. RocketMQ: IndexStoreService, PosixFileSegment (5.1 to 5.5).
_TIERED = r"(tiered_index_file|tiered_?[sS]tore[^/]*|(?P<digest>[0-9a-f]{8})_(?P<cluster>[^/]+))/"
_NO_ROCKSDB = "checkback has no rule for what is in this RocksDB"
_OF_ITS_BROKER = "only its own broker knows what should be in it"
_OPENED_ALIKE = "the broker opens it together with the ConsumeQueues and the checkpoint, which would no longer fit it"
_QUEUES_ELSEWHERE = "the queues are in it, and files in its place would take its messages from the consumers"

KINDS: tuple[EntryKind, ...] = (
    # Left behind by the file system or a desktop; no broker wrote them.
    EntryKind(
        "a file of the file system", r"(.*/)?(lost\+found/|\.nfs[^/]*|\.fuse_hidden[^/]*|\.DS_Store)", Handling.KEPT
    ),
    # What a rebuild makes.
    EntryKind("the ConsumeQueues", r"consumequeue/", Handling.BUILT),
    EntryKind(
        "a RocksDB of queues",
        r"consumequeue/(CURRENT|LOCK|IDENTITY|LOG(\.old\.\d+)?|(MANIFEST|OPTIONS)-\d+(\.dbtmp)?|\d+\.(sst|log|blob))",
        Handling.REFUSED, _QUEUES_ELSEWHERE, is_of_directory=True,
    ),
    EntryKind(
        "a queue of light messages (LMQ)", rf"consumequeue/{LMQ_PREFIX}[^/]*/", Handling.REBUILT,
        "a recovery does not build the queues that INNER_MULTI_DISPATCH fills, but checkback rebuild does",
    ),
    EntryKind("a topic's queues", r"consumequeue/[^/]+/", Handling.BUILT),
    EntryKind("a queue", rf"consumequeue/[^/]+/{_QUEUE}/", Handling.BUILT),
    EntryKind("a file of a queue", rf"consumequeue/[^/]+/{_QUEUE}/{_SEGMENT}", Handling.BUILT),
    EntryKind(
        "a BatchConsumeQueue (topics with queue.type=BatchCQ)", r"batchconsumequeue/", Handling.REBUILT,
        "a recovery does not build it, but checkback rebuild does",
    ),
    EntryKind("a topic's BatchConsumeQueues", r"batchconsumequeue/[^/]+/", Handling.BUILT),
    EntryKind("one of these", rf"batchconsumequeue/[^/]+/{_QUEUE}/", Handling.BUILT),
    EntryKind("a file of it", rf"batchconsumequeue/[^/]+/{_QUEUE}/{_SEGMENT}", Handling.BUILT),
    EntryKind("the index", r"index/", Handling.BUILT),
    EntryKind("a file of the index", r"index/\d{17}", Handling.BUILT),
    EntryKind("the transactions of 3.x", r"transaction/", Handling.BUILT),
    EntryKind("the state table", r"transaction/statetable/", Handling.BUILT),
    EntryKind("the redo log", r"transaction/redolog/(TRANSACTION_REDOLOG_TOPIC_XXXX/(0/)?)?", Handling.BUILT),
    EntryKind(
        "a file of it", rf"transaction/(statetable|redolog/TRANSACTION_REDOLOG_TOPIC_XXXX/0)/{_SEGMENT}", Handling.BUILT
    ),
    EntryKind("how the last broker left", r"(checkpoint|abort)", Handling.BUILT),
    # The truth.
    EntryKind("the CommitLog", r"commitlog/", Handling.LOG),
    # What stays.
    EntryKind("checkback's own directory", r"checkback/", Handling.KEPT),
    EntryKind("the configuration", r"config/", Handling.KEPT),
    EntryKind("the timer wheel", r"timerwheel(\.\d+(\.tmp)?)?", Handling.KEPT),
    EntryKind("the timer log", r"timerlog/.*", Handling.KEPT),
    EntryKind(
        "a ConsumeQueueExt", r"consumequeue_ext/", Handling.REBUILT,
        "units of the ConsumeQueues name places in it, which a recovery does not know, but checkback rebuild does",
    ),
    EntryKind("how far topics were compacted", r"compaction/([^/]+/|position-checkpoint(\.bak)?)", Handling.KEPT),
    EntryKind("a compacted topic", r"compaction/.*", Handling.KEPT, unjudged=_OF_ITS_BROKER, is_if_filled=True),
    EntryKind(
        "the key-value service of POP", r"kvStore/.*", Handling.KEPT, unjudged=_NO_ROCKSDB,
        is_if_filled=True,
    ),
    EntryKind("what replication knows", r"(epochFileCheckpoint|brokerIdentity)(\.bak|\.tmp|-temp)?", Handling.KEPT),
    EntryKind("a small file", r"(lock|(abort|checkpoint)\.(bak|(\d+\.)?tmp))", Handling.KEPT),
    # What only its own broker can make.
    EntryKind("a RocksDB of queues", r"consumequeue_?[rR]\w*/", Handling.REFUSED, _QUEUES_ELSEWHERE),
    EntryKind(
        "a RocksDB of the broker", r"rocksdbstore/\d+\.(sst|log|blob)", Handling.REFUSED, _OPENED_ALIKE, _NO_ROCKSDB,
        is_of_directory=True, is_if_filled=True,
    ),
    EntryKind("an empty RocksDB, which 5.5 makes at its start", r"rocksdbstore/.*", Handling.KEPT),
    EntryKind(
        "a CommitLog of DLedger", r"dledger-[^/]*/", Handling.REFUSED, "a part of the log is in it",
        "checkback does not read the entries of DLedger",
    ),
    EntryKind("tiered storage", _TIERED, Handling.REFUSED, _OPENED_ALIKE, _OF_ITS_BROKER),
)  # fmt: skip

# RocksDBs of the configuration. What is in `topics` decides which queues there are; the others are about consumers.
CONFIG_IN_ROCKSDB = {
    "topics": "the topics", "rdb": "topics, groups and positions", "metadata": "topics, groups and positions",
    "subscriptionGroups": "the groups", "consumerOffsets": "the consumers' positions",
    "users": "the users", "acls": "their permissions",
}  # fmt: skip
_NAMES_TOPICS = ("topics", *SHARED)
_REPLACED = ("consumequeue/", "batchconsumequeue/", "index/", "transaction/")
_REFUSED = (Handling.REFUSED, Handling.REBUILT)
_WALKED = (*_REPLACED, "rocksdbstore/", "compaction/", "timerlog/", "kvStore/")
_PATTERNS = tuple((re.compile(kind.pattern), kind) for kind in KINDS)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The entries of a store that a verb must know about, each with its kind; None for one that no row knows."""

    store: str
    entries: tuple[tuple[str, int, EntryKind | None], ...]  # path below the store, size, kind
    rocksdb_config: tuple[str, ...] = ()  # names of directories under config/
    queue_types: tuple[tuple[str, str], ...] = ()  # topics whose queues are not plain ConsumeQueues
    batch_topics: frozenset[str] = frozenset()  # of these, the topics that are known to have BatchConsumeQueues

    def holds(self, prefix: str, *, beside: Sequence[str] = ()) -> bool:
        """Whether an entry below a directory holds anything, other than the files `beside`."""
        return any(
            path.startswith(prefix) and size and path not in beside and not path.endswith("/")
            for path, size, _ in self.entries
        )

    def misfits(self, *, of_rebuild: bool = False) -> list[Misfit]:
        """All that stands in the way of replacing derived files, or of a rebuild of them, most telling first."""
        refused = (Handling.REFUSED,) if of_rebuild else _REFUSED
        inside = (self._misfit(*entry, refused) for entry in self.entries if entry[0].startswith(_REPLACED))
        return [*dict.fromkeys(one for one in inside if one is not None), *self._elsewhere(refused)]

    def misfits_inside(self) -> list[Misfit]:
        """Those that lie in the directories that are replaced: they would be gone."""
        misfits = (self._misfit(*entry, _REFUSED) for entry in self.entries if entry[0].startswith(_REPLACED))
        return list(dict.fromkeys(one for one in misfits if one is not None))

    def unjudged(self) -> list[Misfit]:
        """What a verification does not compare: where, what it is, why; a newer broker's entries among them."""
        entries = (self._unjudged(*entry) for entry in self.entries)
        found = dict.fromkeys(one for one in entries if one is not None)
        for name in self.rocksdb_config:
            why = missing_extra() if name in READ else _NO_ROCKSDB
            if why:
                what = f"a RocksDB that holds {CONFIG_IN_ROCKSDB.get(name, 'configuration')}"
                found[Misfit(os.path.join(self.store, "config", name), what, why)] = None
        return list(found)

    def _unjudged(self, path: str, size: int, kind: EntryKind | None) -> Misfit | None:
        full = os.path.join(self.store, path.rstrip("/"))
        if kind is None:
            why = "checkback does not know it: the broker that wrote it may be newer than RocketMQ 5.5"
            return Misfit(full, "an unknown entry", why)
        if not kind.unjudged or (kind.is_if_filled and (not size or path.endswith("/"))):
            return None
        if kind.is_if_filled:  # one line for all files below a directory of the store
            full = os.path.join(self.store, path.partition("/")[0])
        elif kind.is_of_directory:
            full = os.path.dirname(full)
        return Misfit(full, kind.name, kind.unjudged)

    def _elsewhere(self, refused: tuple[Handling, ...]) -> Iterator[Misfit]:
        misfits = (self._misfit(*entry, refused) for entry in self.entries if not entry[0].startswith(_REPLACED))
        yield from dict.fromkeys(one for one in misfits if one is not None)
        for name in self.rocksdb_config:
            if name in _NAMES_TOPICS and missing_extra():
                what = f"a RocksDB that holds {CONFIG_IN_ROCKSDB[name]}"
                why = f"which queues there are, and of which type, is not known: {missing_extra()}"
                yield Misfit(os.path.join(self.store, "config", name), what, why)
        for topic, name in self.queue_types:
            if Handling.REBUILT not in refused and topic in self.batch_topics:
                continue
            what = f"the table that gives topic {topic} the queue type {name}"
            yield Misfit(
                Paths(self.store).config("topics.json"),
                what,
                f"a rebuild makes queues of type {SIMPLE_QUEUE} and {BATCH_QUEUE}, other verbs the first",
            )

    def _misfit(self, path: str, size: int, kind: EntryKind | None, refused: tuple[Handling, ...]) -> Misfit | None:
        full = os.path.join(self.store, path.rstrip("/"))
        if kind is None:
            why = "a newer broker may rely on it. If no broker wrote it, move it out of the store"
            return Misfit(full, "nothing that checkback knows", why)
        if kind.handling not in refused or (kind.is_if_filled and not size):
            return None
        return Misfit(os.path.dirname(full) if kind.is_of_directory else full, kind.name, kind.why)


def kind_of(path: str) -> EntryKind | None:
    """The kind of an entry by its path below the store, which ends in a slash for a directory; None for an unknown."""
    matched = ((pattern.fullmatch(path), kind) for pattern, kind in _PATTERNS)
    return next((kind for found, kind in matched if found and _is_cluster(**found.groupdict())), None)


def _is_cluster(digest: str | None = None, cluster: str = "") -> bool:
    """Whether a digest is that of a cluster's name: 20261127_backup is somebody's copy. True where there is none.

    RocketMQ: MessageStoreUtil.getHash (5.1 to 5.5).
    """
    if digest is None:
        return True
    return md5(os.fsencode(cluster), usedforsecurity=False).hexdigest().startswith(digest)


def inventory(store: str, disk: Disk) -> Inventory:
    """Walk a store. Raises StoreError where this user may not look."""
    entries = tuple((path, size, kind_of(path)) for path, size in _walk(store, disk))
    backup, *tables = _queue_types(store, disk)
    known = {topic: name for table in tables for topic, name in table.items()}
    others = tuple(sorted((topic, name) for topic, name in {**backup, **known}.items() if name != SIMPLE_QUEUE))
    batches = {topic for topic, name in known.items() if name == BATCH_QUEUE}
    return Inventory(store, entries, tuple(_rocksdb_config(store, disk)), others, frozenset(batches))


def _walk(store: str, disk: Disk) -> Iterator[tuple[str, int]]:
    """The paths below a store with their sizes, a directory before what lies in it."""
    waiting = [""]
    while waiting:
        above = waiting.pop()
        for entry in disk.entries_if_any(os.path.join(store, above)):
            path = f"{above}{entry.name}/" if entry.is_directory else f"{above}{entry.name}"
            yield path, entry.size
            kind = kind_of(path) if entry.is_directory else None
            if path.startswith(_WALKED) and kind is not None and kind.handling is not Handling.REFUSED:
                waiting.append(path)


def _rocksdb_config(store: str, disk: Disk) -> Iterator[str]:
    """The directories under config/ that are RocksDBs."""
    for entry in disk.entries_if_any(Paths(store).config("")):
        if entry.is_directory and is_rocksdb(entry.path, disk):
            yield entry.name


def _queue_types(store: str, disk: Disk) -> Iterator[dict[str, str]]:
    """The type of queue of each topic, by the backup of topics.json, by topics.json, and by a RocksDB in its place."""
    paths = Paths(store)
    readers: list[Callable[[], bytes | None]] = [
        *(partial(disk.read, paths.config(name)) for name in ("topics.json.bak", "topics.json")),
        partial(read_config_database, "topics.json", paths, disk),
    ]
    for read in readers:
        try:
            raw = read()
            topics = config.decode_topics(raw).topics if raw is not None else {}
        except (Missing, CorruptStore):
            topics = {}
        yield {topic: one.attributes.get(QUEUE_TYPE, SIMPLE_QUEUE) for topic, one in topics.items()}


def refusal(store: str, misfits: Sequence[Misfit]) -> NotUnderstood:
    """The error for a store that holds what checkback cannot make: one sentence, and what to do."""
    more = f", and {len(misfits) - 1} more" if len(misfits) > 1 else ""
    text = f"{misfits[0]}{more}. Nothing was replaced; the broker of {store} keeps these files in order itself"
    return NotUnderstood(text, path=misfits[0].path)
