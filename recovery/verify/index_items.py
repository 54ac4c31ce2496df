"""What the index should hold: the items that RocketMQ makes of records.

Generations index differently: 3.0 to 3.1.4 keep the sign of the hash, know KEYS only, and leave ends out; 3.2 takes the
absolute hash; 4.x and 5.x add the unique key and leave only rollbacks out; since 5.4 a record with tags has one more
item, for them.
"""

from __future__ import annotations

import enum

import numpy as np
import numpy.typing as npt

from broker.compiled import fast
from broker.format import properties as names
from broker.format.java import string_hash
from broker.format.sysflag import TransactionType
from recovery.scan.kinds import Kinds
from recovery.scan.records import Records
from recovery.scan.spill import joined, pick
from recovery.scan.strings import StringViews, java_hashes_joined
from recovery.scan.units import Ints, Rows

_SPACE = ord(" ")
_OF_KEY, _OF_TAGS = "#", "#T#"  # between the topic and what is indexed

EXPECTED = np.dtype([("commitlog_offset", "i8"), ("key_hash", "i8"), ("store_ms", "i8")])


class IndexingRule(enum.Enum):
    """How a generation indexes."""

    V5 = "unique key and keys, absolute hash; all but rollbacks"
    V54 = "unique key, keys and tags, absolute hash; all but rollbacks"
    V3 = "keys, signed hash; no ends"
    V32 = "keys, absolute hash; no ends"


BY_VERSION = (IndexingRule.V3, IndexingRule.V32, IndexingRule.V5, IndexingRule.V54)
"""The rules in the order in which RocketMQ's versions came."""

_RULE_NUMBERS = {IndexingRule.V3: 3, IndexingRule.V5: 5, IndexingRule.V54: 54}


def expected_items(records: Records, kinds: Kinds, rule: IndexingRule) -> Rows:
    """The items that RocketMQ makes of these records, in order.

    RocketMQ: IndexService.buildIndex (5.5.0; 5.3.3; 3.2.6; 3.1.4).
    """
    if rule is IndexingRule.V32:
        items = expected_items(records, kinds, IndexingRule.V3)
        items["key_hash"] = np.abs(items["key_hash"])
        return items
    types = kinds.types << 2
    indexed = types != TransactionType.ROLLBACK
    if rule is IndexingRule.V3:
        indexed &= types != TransactionType.COMMIT
    if fast is not None:
        return _expected_compiled(records, indexed, rule)
    which = np.flatnonzero(indexed)
    rows, keys = split_keys(records.values(names.KEYS).take(which))
    items = _items(records, which[rows], keys)
    if rule is not IndexingRule.V3:
        unique, tags = (records.values(name).take(which) for name in (names.UNIQ_KEY, names.TAGS))
        there, tagged = np.flatnonzero(unique.lengths), np.flatnonzero(tags.lengths)
        parts = [_items(records, which[there], unique.take(there)), items]
        if rule is IndexingRule.V54:
            parts.append(_items(records, which[tagged], tags.take(tagged), _OF_TAGS))
        if any(len(part) for part in (parts[0], *parts[2:])):
            items = joined(parts, EXPECTED)
            items = pick(items, np.argsort(items["commitlog_offset"], kind="stable"))
    items["key_hash"] = _as_stored(items["key_hash"], rule)
    return items


def _as_stored(hashes: Ints, rule: IndexingRule) -> Ints:
    """RocketMQ: IndexFile.indexKeyHashMethod (5.3.3; 3.2.6; 3.1.4)."""
    return np.where(hashes == -(1 << 31), 0, hashes if rule is IndexingRule.V3 else np.abs(hashes))


def _expected_compiled(records: Records, indexed: npt.NDArray[np.bool_], rule: IndexingRule) -> Rows:
    """The same by the C module; it leaves keys that are not ASCII to this."""
    assert fast is not None
    codes, topics = records.topic_codes
    texts = [topic.decode("utf-8", "replace") for topic in topics]
    plain, tagged = (
        np.array([string_hash(text + end) for text in texts], np.int32)[codes] for end in (_OF_KEY, _OF_TAGS)
    )
    views = [records.values(name) for name in (names.UNIQ_KEY, names.KEYS, names.TAGS)]
    places = [np.ascontiguousarray(part) for view in views for part in (view.starts, view.lengths)]
    facts = [np.ascontiguousarray(one) for one in (records.offsets, records.field("store_timestamp_ms"), indexed)]
    items, wide = np.empty(2 * len(records), EXPECTED), np.empty((0, 5), np.int64)
    while True:
        count, of_wide = fast.index_items(
            views[0].data, _RULE_NUMBERS[rule], *facts, plain, tagged, *places, items.view(np.int64), wide
        )
        if count <= len(items) and of_wide <= len(wide):
            break
        items, wide = np.empty(max(count, len(items)), EXPECTED), np.empty((of_wide, 5), np.int64)
    for number, row, start, length, of_tags in wide[:of_wide].tolist():
        key = views[0].data[start : start + length].tobytes().decode("utf-8", "replace")
        prefix = texts[codes[row]] + (_OF_TAGS if of_tags else _OF_KEY)
        items["key_hash"][number] = _as_stored(np.array(string_hash(prefix + key), np.int64), rule)
    return items[:count]


def split_keys(keys: StringViews) -> tuple[Ints, StringViews]:
    """Each non-empty key with the row that it stands in: KEYS holds several, with spaces between them.

    An example: the bytes `a bcx  y` hold the KEYS of three rows, `a bc`, `x` and `  y`.
      spaces        1 5 6              where the spaces are
      first, after  0 1 1 and 1 1 3    the spaces of row i are spaces[first[i] : after[i]]: one, none, two
      begins        0 2 | 4 | 5 6 7    the begin of each row, and behind each of its spaces
      stops         1 4 | 5 | 5 6 8    each of its spaces, and the end of each row
      kept          a bc | x | y       begins with their stops, without the empty ones
    tests/scan/test_columns_against_scalars.py compares this with str.split.
    """
    rows, starts, lengths = np.arange(len(keys)), keys.starts, keys.lengths
    spaces = np.flatnonzero(keys.data == _SPACE) if bool((keys.data == _SPACE).any()) else np.zeros(0, np.int64)
    first, after = np.searchsorted(spaces, starts), np.searchsorted(spaces, starts + lengths)
    counts = after - first
    if counts.any():
        more = np.repeat(rows, counts)
        inside = spaces[np.arange(len(more)) + np.repeat(first - np.cumsum(counts) + counts, counts)]
        rows, begins = np.concatenate((rows, more)), np.concatenate((starts, inside + 1))
        stops = np.concatenate((starts + lengths, inside))
        order = np.lexsort((begins, rows))
        rows, begins = rows[order], begins[order]
        # The stops of a row, in order, belong to its begins in order.
        starts, lengths = begins, stops[np.lexsort((stops, np.concatenate((np.arange(len(keys)), more))))] - begins
    filled = np.flatnonzero(lengths)
    return rows[filled], StringViews(keys.data, starts[filled], lengths[filled])


def _items(records: Records, rows: Ints, keys: StringViews, between: str = _OF_KEY) -> Rows:
    items = np.zeros(len(rows), EXPECTED)
    if len(rows):
        codes, topics = records.topic_codes
        prefixes = np.array([string_hash(topic.decode("utf-8", "replace") + between) for topic in topics], np.int32)
        items["key_hash"] = java_hashes_joined(prefixes[codes[rows]], keys)
        items["commitlog_offset"] = records.offsets[rows]
        items["store_ms"] = records.field("store_timestamp_ms")[rows]
    return items
