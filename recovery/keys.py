"""What the index should hold: the items that RocketMQ makes of records.

The two generations index differently: 3.0 keeps the sign of the hash, knows KEYS only, and leaves ends out; 4.x and 5.x
add the unique key and leave only rollbacks out.
"""

from __future__ import annotations

import enum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broker.format import properties as names
from broker.format.java import string_hash
from broker.format.sysflag import TransactionType
from recovery.columns import Strings, java_hashes_joined
from recovery.extract import Kinds
from recovery.records import Records
from recovery.units import Ints, Rows

EXPECTED = np.dtype([("commitlog_offset", "i8"), ("key_hash", "i8"), ("store_ms", "i8")])


class Rule(enum.Enum):
    """How a generation indexes."""

    V5 = "unique key and keys, absolute hash; all but rollbacks"
    V3 = "keys, signed hash; no ends"


def expected_items(records: Records, kinds: Kinds, rule: Rule) -> Rows:
    """The items that RocketMQ makes of these records. RocketMQ: IndexService.buildIndex (5.3.3; 3.1.4)."""
    types = kinds.types << 2
    left_out = [TransactionType.ROLLBACK] if rule is Rule.V5 else [TransactionType.ROLLBACK, TransactionType.COMMIT]
    which = np.flatnonzero(~np.isin(types, left_out))
    part = records.take(which)
    parts = [_items(part, *_split_keys(part.property(names.KEYS)))]
    if rule is Rule.V5:
        unique = part.property(names.UNIQ_KEY)
        there = np.flatnonzero(np.asarray(unique.is_valid()))
        parts.append(_items(part, there, unique.drop_null()))
    items = np.concatenate(parts)
    hashes = items["key_hash"]
    smallest = hashes == -(1 << 31)
    items["key_hash"] = np.where(smallest, 0, np.abs(hashes) if rule is Rule.V5 else hashes)
    return items


def _split_keys(keys: pa.Array) -> tuple[Ints, pa.Array]:
    """Each non-empty key with the row that it stands in."""
    if keys.null_count != len(keys) and not pc.any(pc.match_substring(keys, " ")).as_py():
        there = np.flatnonzero(np.asarray(keys.is_valid()))
        return there, keys.drop_null()
    parts = pc.split_pattern(keys.cast(pa.string()), " ") if _is_text(keys) else _split_bytes(keys)
    rows = pc.list_parent_indices(parts)
    flat = parts.flatten()
    filled = pc.greater(pc.binary_length(flat), 0)
    return np.asarray(rows.filter(filled)), flat.filter(filled).cast(pa.binary())


def _is_text(keys: pa.Array) -> bool:
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _split_bytes(keys: pa.Array) -> pa.Array:
    return pa.array([None if key is None else key.split(b" ") for key in keys.to_pylist()], pa.list_(pa.binary()))


def _items(records: Records, rows: Ints, keys: pa.Array) -> Rows:
    items = np.zeros(len(rows), EXPECTED)
    if len(rows):
        codes, topics = records.topics.codes()
        prefixes = np.array([string_hash(topic.decode("utf-8", "replace") + "#") for topic in topics], np.int32)
        items["key_hash"] = java_hashes_joined(prefixes[codes[rows]], Strings(keys))
        items["commitlog_offset"] = records.offsets[rows]
        items["store_ms"] = records.field("store_timestamp_ms")[rows]
    return items
