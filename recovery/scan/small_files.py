"""What the small files of a store must be: tables that can be decoded, a checkpoint that fits, an identity of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from broker.errors import CorruptRecord, CorruptStore, StoreError
from broker.format import checkpoint, config
from broker.format.index import IndexHeader
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from broker.store.read.layout import read_store_file
from recovery.findings import Finding


def _check_topics(raw: bytes) -> None:
    _check_names("topic", config.decode_topics(raw).topics)


def _check_groups(raw: bytes) -> None:
    _check_names("group", config.decode_subscription_groups(raw).groups)


def _check_names(what: str, table: Mapping[str, config.TopicConfig | config.SubscriptionGroup]) -> None:
    """Raises CorruptRecord when a table has a value under another name than its own: RocketMQ writes the name twice."""
    for name, value in table.items():
        if value.name != name:
            raise CorruptRecord(f"the {what} {name!r} says that its name is {value.name!r}")


CONFIGS = {
    "topics.json": _check_topics,
    "consumerOffset.json": config.decode_consumer_offsets,
    "delayOffset.json": config.decode_delay_offsets,
    "subscriptionGroup.json": _check_groups,
}


def check_checkpoint(
    raw: bytes, last_store_ms: int, index: list[IndexHeader], is_queues_end: Callable[[int, int], bool]
) -> None:
    """Raises CorruptRecord when the checkpoint is none, or lies ahead of the log: recovery would begin too late."""
    stated = checkpoint.decode(raw)
    if any(raw[checkpoint.Checkpoint.SIZE :]):
        raise CorruptRecord("bytes behind the checkpoint's numbers are not zero")
    for name in ("commitlog_timestamp_ms", "queue_timestamp_ms", "index_timestamp_ms"):
        value = getattr(stated, name)
        if not 0 <= value <= last_store_ms:
            raise CorruptRecord(f"its {name} {value} lies outside the log, whose last record is of {last_store_ms}")
    queues = stated.queue_commitlog_offset
    if queues and not is_queues_end(queues, stated.queue_timestamp_ms):
        raise CorruptRecord(
            f"its queue_commitlog_offset {queues} is not the place of a record of its queue_timestamp_ms or before"
        )
    ends = {header.end_timestamp_ms for header in index}
    index_ms = stated.index_timestamp_ms
    expired = bool(index) and index[0].begin_commitlog_offset > 0 and index_ms <= index[0].begin_timestamp_ms
    if index_ms and index and index_ms not in ends and not expired:
        raise CorruptRecord(
            f"its index_timestamp_ms {index_ms} is the end of no index file: one of the two was changed"
        )


def check_store_file(disk: Disk, paths: Paths) -> Iterator[Finding]:
    """A finding where checkback/store.json is there, and cannot be read as what it should be.

    Of one of a later version, or that this user may not read, the verb that opens the store says so.
    """
    try:
        read_store_file(disk, paths)
    except CorruptStore as error:
        yield Finding("file-damaged", 0, str(error), paths.store_json)
    except StoreError:
        pass
