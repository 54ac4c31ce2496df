"""What an operator watches of a store, as samples for Prometheus: in doubt, lag by group, dead letters, disk.

Names are those of `checkback serve --metrics` where it has them; no label holds a body or a key.
"""

from __future__ import annotations

import contextlib
import os
from collections import defaultdict
from collections.abc import Iterator

from broker.errors import BrokerError
from broker.format.topics import RETRY_PREFIX
from broker.live import LiveStore
from broker.server.metrics import Sample
from broker.store.disk.paths import Paths
from broker.store.shared.control import Word
from recovery.metrics.latency import BOUNDS_S, Latencies
from recovery.views import consumer_lag, dead_letters


def samples(store: LiveStore, now_ms: int) -> Iterator[Sample]:
    """Everything that is measured of an open store. Positions are those of the last export, at most 5 s old.

    Raises CorruptRecord, StoreError.
    """
    yield from _of_transactions(store, now_ms)
    for topic in store.topics():
        ends = [store.queue_range(topic, queue_id)[1] for queue_id in store.queues(topic)]
        yield "rocketmq_producer_offset", "gauge", {"topic": topic}, sum(ends)
    yield from _of_groups(store)
    yield from _of_disk(store)


def _of_transactions(store: LiveStore, now_ms: int) -> Iterator[Sample]:
    service = store.transactions
    slots, parked = service.in_doubt_slots(), service.parked()
    yield "checkback_transactions_total", "counter", {}, store.writer.control[Word.SLOTS]
    yield "checkback_transactions_in_doubt", "gauge", {}, len(slots)
    yield "checkback_transactions_parked", "gauge", {}, len(parked)
    oldest_ms = 0
    for slot in slots:  # lowest first: the first that is not parked is the oldest that check-back has to settle
        commitlog_offset = store.writer.dispatcher.slot(slot).commitlog_offset
        if commitlog_offset not in parked:
            try:
                oldest_ms = max(0, now_ms - service.half(commitlog_offset).store_timestamp_ms)
            except BrokerError:  # it was ended just now, and its segment removed
                continue
            break
    yield "checkback_in_doubt_oldest_seconds", "gauge", {}, oldest_ms / 1000
    for (by, decision), count in _decision_counts(store.path).items():
        yield "checkback_decisions_total", "counter", {"decided_by": by, "decision": decision}, count


def _decision_counts(path: str) -> dict[tuple[str, str], int]:
    """Those of the catalog; none where it cannot be read now, since nothing is decided by it."""
    if not os.path.exists(Paths(path).catalog):  # then SQLAlchemy need not be there
        return {}
    with contextlib.suppress(BrokerError, ImportError):
        from recovery.checkback.catalog import decision_counts

        return decision_counts(path)
    return {}


def _of_groups(store: LiveStore) -> Iterator[Sample]:
    behind: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    groups: set[str] = set()
    for one in consumer_lag.positions(store):
        groups.add(one.group)
        if not one.topic.startswith(RETRY_PREFIX):
            sums = behind[one.group, one.topic]
            sums[0] += one.position
            sums[1] += one.lag
    for (group, topic), (position, lag) in sorted(behind.items()):
        labels = {"group": group, "topic": topic}
        yield "rocketmq_consumer_offset", "gauge", labels, position
        yield "rocketmq_group_diff", "gauge", labels, lag
    paused = consumer_lag.paused_groups(store)
    for group in sorted(groups | paused):
        yield "checkback_group_paused", "gauge", {"group": group}, int(group in paused)
    for group, count in sorted(dead_letters.groups(store).items()):
        yield "checkback_dead_letters", "gauge", {"group": group}, count


def _of_disk(store: LiveStore) -> Iterator[Sample]:
    writer = store.writer
    tail, durable = writer.control[Word.TAIL], writer.control[Word.DURABLE]
    yield "checkback_commitlog_offset", "counter", {}, tail
    yield "checkback_not_durable_bytes", "gauge", {}, max(0, tail - durable)
    yield "checkback_store_bytes", "gauge", {}, writer.disk.used_bytes(store.path)
    yield "checkback_disk_free_bytes", "gauge", {}, writer.disk.free_bytes(store.path)


def latency_samples(latencies: Latencies) -> Iterator[Sample]:
    """How long the appends and fsyncs of one process took, as histograms in seconds."""
    for name, one in (("checkback_append", latencies.append), ("checkback_sync", latencies.sync)):
        reached, total_s = one.read()
        for bound_s, count in zip([*(f"{bound:g}" for bound in BOUNDS_S), "+Inf"], reached, strict=True):
            yield f"{name}_seconds_bucket", "histogram", {"le": bound_s}, count
        yield f"{name}_seconds_sum", "histogram", {}, total_s
        yield f"{name}_seconds_count", "histogram", {}, reached[-1]
