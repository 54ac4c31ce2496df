"""May checkback write to what stands at a path? A new store and its own: yes; what RocketMQ wrote: not yet.

A store of the generation `gap` or `mixed` is never written: decision 0003.
"""

from __future__ import annotations

import json
from itertools import islice
from shlex import quote

from broker.errors import CorruptStore, StoreError
from broker.format.topics import HALF_TOPIC, HALF_TOPIC_OF_ROCKSDB
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.engines.half_op import HALF_OP
from broker.store.read.detect import LOST_AND_FOUND, check_is_store
from broker.store.read.layout import read_store_file
from broker.store.read.store import Store
from broker.transaction.events import EventKind, Generation, GenerationEvidence, gap_evidence, generation, kind_of

_RECORDS = 10_000  # of a foreign log that are looked at: enough for a reason, not for a verdict

_REASONS = {
    Generation.GAP: "RocketMQ 3.1.5–4.2 wrote half messages there that nobody can ever settle (generation gap)",
    Generation.MIXED: "it has half messages of several generations (mixed), and each says otherwise how they ended",
}


def check_not_followed(path: str, disk: Disk) -> None:
    """Raises StoreError for a copy that follows a master: another byte in it, and it is a copy no more."""
    if disk.entry(Paths(path).followed) is not None:
        text = f"{path} is a copy that follows a master (checkback follow): it can only be read (read_only=True)"
        raise StoreError(f"{text}. For a store of its own: checkback salvage {quote(path)} NEW", path=path)


def check_not_moved(path: str, disk: Disk) -> None:
    """Raises StoreError for a store that was moved to a cluster, or is being moved: a message would be left behind."""
    file = Paths(path).moved
    if disk.entry(file) is None:
        return
    try:
        content = json.loads(disk.read(file))
        url, is_done = str(content["url"]), bool(content["is_done"])
    except (ValueError, KeyError, TypeError):
        url, is_done = "", False
    if is_done:
        text = f"{path} was moved to {url}: use broker.connect there, or read here (read_only=True)"
    else:
        finish = f"checkback move {quote(path)} {quote(url) if url else 'URL'} --apply"
        text = f"{path} is being moved to {url or 'a cluster'}. To finish that: {finish}"
    raise StoreError(f"{text}. To write here all the same, unknown to the cluster: remove {file}", path=path)


def check_may_write(path: str, disk: Disk) -> None:
    """Raises StoreError for a store that another program wrote, NotAStore for a directory that is something else."""
    entry, paths = disk.entry(path), Paths(path)
    check_not_followed(path, disk)
    check_not_moved(path, disk)
    if entry is None or (entry.is_directory and all(one.name == LOST_AND_FOUND for one in disk.entries(path))):
        return
    if disk.entry(paths.store_json) is not None:
        file = read_store_file(disk, paths)
        if file is not None and file.transactions == HALF_OP.name:
            return
        with Store(path, disk) as store:
            if _has_halves_of_4(store):
                raise _refused(path, _REASONS[Generation.MIXED])
        return
    if disk.entry(paths.own) is not None and disk.entry(paths.commitlog) is None:
        return  # the process that made the store was killed meanwhile
    check_is_store(path, disk)
    if not any(found.is_file for found in disk.entries(paths.commitlog)):
        return
    check_generation(path, disk)
    text = f"{path} was written by another program, which may still write to it"
    take_over = f"checkback recover {quote(path)} --apply --broker-is-stopped"
    raise StoreError(
        f"{text}. Stop that, then run: {take_over}. Until then open it with read_only=True", path=path
    )  # fmt: skip


def check_generation(path: str, disk: Disk) -> None:
    """Raises StoreError for a store that is never written, as far as its first records and its half queue show it."""
    with Store(path, disk) as store:
        reason = _REASONS.get(_generation(store))
    if reason is not None:
        raise _refused(path, reason)


def _refused(path: str, reason: str) -> StoreError:
    return StoreError(f"{path} can only be read (read_only=True): {reason}", path=path)


def _has_halves_of_4(store: Store) -> bool:
    """Whether a broker of 4.3 or later wrote half messages to a store of ours."""
    topics = (HALF_TOPIC, HALF_TOPIC_OF_ROCKSDB)
    return any(store.queue_range(topic, queue_id)[1] for topic in topics for queue_id in store.queues(topic))


def _generation(store: Store) -> Generation:
    """What the first records say, and the half queue."""
    slots, halves = [], int(_has_halves_of_4(store))
    try:
        for record in islice(store.records(), _RECORDS):
            kind = kind_of(record.topic, record.transaction_type)
            if kind is EventKind.PREPARED:
                slots.append(record.queue_offset)
            halves += kind in (EventKind.HALF, EventKind.OP)
    except CorruptStore:
        pass  # the recovery reports it
    evidence = gap_evidence(slots, None)
    return generation(GenerationEvidence(evidence.state_table, evidence.gap, evidence.lone, halves))
