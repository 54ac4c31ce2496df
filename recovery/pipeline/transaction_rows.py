"""A row for each transaction, as people and Parquet files want it: ids, places, state, strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from broker.transaction.events import EventKind, Generation, TransactionState
from recovery.pipeline.store_location import filesystem_of
from recovery.scan.spill import pick
from recovery.scan.strings import utf8
from recovery.scan.units import Ints
from recovery.transactions.events import OF_ROCKSDB, Names, Rows
from recovery.transactions.outcomes import STATE_NAMES, Outcomes

_OWN = (EventKind.PREPARED, EventKind.HALF)

TRANSACTIONS = pa.schema(
    [
        ("generation", pa.string()),
        ("unique_key", pa.string()),
        ("producer_group", pa.string()),
        ("topic", pa.string()),
        ("keys", pa.string()),
        ("state", pa.string()),
        ("first_half_offset", pa.int64()),
        ("half_offset", pa.int64()),
        ("end_offset", pa.int64()),
        ("delivered_offset", pa.int64()),
        ("deliveries", pa.int32()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("checks", pa.int32()),
        ("decided_by", pa.string()),
        ("born_timestamp_ms", pa.int64()),
        ("store_timestamp_ms", pa.int64()),
        ("age_ms", pa.int64()),
    ]
)
_ENDED_BY = {
    TransactionState.COMMITTED: ("producer", "check-back"),
    TransactionState.ROLLED_BACK: ("producer", "check-back"),
    TransactionState.PREPARED: (None, None),
    TransactionState.PARKED: ("limit", "limit"),
}


def write_rows(path: str, rows: pa.Table) -> None:
    """One Parquet file, at a path or a URI."""
    filesystem, inside = filesystem_of(path)
    pq.write_table(rows, inside, filesystem=filesystem, compression="zstd", compression_level=1)


def transaction_rows(parts: Sequence[Outcomes], events: Rows, names: Names, strings: pa.Table, now_ms: int) -> pa.Table:
    """The transactions of a partition with the schema TRANSACTIONS; `events` and `strings` are those they came from."""
    tables = [_rows_of(outcomes, events, names, strings, now_ms) for outcomes in parts if len(outcomes.rows)]
    return pa.concat_tables(tables) if tables else TRANSACTIONS.empty_table()


def _rows_of(outcomes: Outcomes, events: Rows, names: Names, strings: pa.Table, now_ms: int) -> pa.Table:
    rows, counts = outcomes.rows, np.diff(outcomes.starts)
    firsts = np.append(outcomes.delivered, 0)[outcomes.starts[:-1]]
    delivered = np.where(counts > 0, firsts, -1)
    ended = np.where(rows["state"] == TransactionState.COMMITTED, delivered, -1)
    is_rolled_back = rows["state"] == TransactionState.ROLLED_BACK
    rolled = np.flatnonzero(is_rolled_back & (rows["generation"] != Generation.HALF_OP))
    ended[rolled] = _first_rollbacks(events, rows[rolled])
    halves = pick(events, np.isin(events["kind"], _OWN))
    halves = pick(halves, np.argsort(halves["offset"], kind="stable"))
    first = halves["store_ms"][np.searchsorted(halves["offset"], rows["lowest"])]
    columns = {
        "generation": _words({int(one): one.label for one in Generation}, rows["generation"]),
        "unique_key": _strings(strings, rows["half"], "unique_key"),
        "producer_group": _words({int(one): names[one] for one in np.unique(rows["group"])}, rows["group"]),
        "topic": _words({int(one): names[one] for one in np.unique(rows["topic"])}, rows["topic"]),
        "keys": _strings(strings, rows["half"], "keys"),
        "state": _words({int(one): name for one, name in STATE_NAMES.items()}, rows["state"]),
        "first_half_offset": pa.array(rows["lowest"]),
        "half_offset": pa.array(rows["half"]),
        "end_offset": pa.array(ended, mask=ended < 0),
        "delivered_offset": pa.array(delivered, mask=delivered < 0),
        "deliveries": pa.array(counts.astype(np.int32)),
        "queue_id": pa.array(np.where(rows["queue_id"] == OF_ROCKSDB, 0, rows["queue_id"])),  # theirs is queue 0
        "queue_offset": pa.array(rows["queue_offset"]),
        "checks": pa.array(rows["checks"]),
        "decided_by": _deciders(rows, ended, strings),
        "born_timestamp_ms": pa.array(rows["born_ms"]),
        "store_timestamp_ms": pa.array(first),
        "age_ms": pa.array(np.maximum(now_ms - first, 0)),
    }
    return pa.table([columns[field.name] for field in TRANSACTIONS], schema=TRANSACTIONS)


def _first_rollbacks(events: Rows, outcomes: Rows) -> Ints:
    """The CommitLog offset of the first rollback that names each half message and its group."""
    ends = pick(events, events["kind"] == EventKind.ROLLED_BACK)
    ends = pick(ends, np.lexsort((ends["offset"], ends["group"], ends["half"])))
    if not len(ends) or not len(outcomes):
        return np.full(len(outcomes), -1, np.int64)
    keys = np.stack((ends["half"], ends["group"].astype(np.int64)), axis=1)
    change = np.concatenate(([True], (keys[1:] != keys[:-1]).any(axis=1)))
    named = zip(map(tuple, keys[change].tolist()), ends["offset"][change].tolist(), strict=True)
    first = dict(named)
    wanted = zip(outcomes["half"].tolist(), outcomes["group"].tolist(), strict=True)
    return np.array([first.get(one, -1) for one in wanted], np.int64)


def _deciders(rows: Rows, ended: Ints, strings: pa.Table) -> pa.Array:
    """Who decided: as the end says (checkback writes it), else producer, or check-back where RocketMQ had asked."""
    ended_by = _strings(strings, ended, "by")
    asked = (rows["checks"] > 0).astype(int)
    usual = {int(state): names for state, names in _ENDED_BY.items()}
    derived = [usual[state][was] for state, was in zip(rows["state"].tolist(), asked.tolist(), strict=True)]
    return pc.coalesce(ended_by, pa.array(derived, pa.string()))


def _words(words: dict[int, str], numbers: Any) -> pa.Array:
    keys = sorted(words)
    indices = np.searchsorted(keys, numbers)
    return pa.array([words[key] for key in keys], pa.string()).take(pa.array(indices))


def _strings(strings: pa.Table, commitlog_offsets: Ints, name: str) -> pa.Array:
    """A string of each of the records at some offsets; null where there is none."""
    strings = strings.combine_chunks().sort_by("offset")
    held = strings.column("offset").to_numpy()
    at = np.searchsorted(held, commitlog_offsets)
    inside = np.minimum(at, max(len(held) - 1, 0))
    there = held[inside] == commitlog_offsets if len(held) else np.zeros(len(commitlog_offsets), np.bool_)
    column = strings.column(name).combine_chunks()
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], pa.binary())
    if not len(held):
        return pa.nulls(len(commitlog_offsets), pa.string())
    taken = column.take(pa.array(inside, mask=~there))
    return utf8(taken)
