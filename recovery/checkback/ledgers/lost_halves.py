"""Committed rows of a ledger whose half messages the store does not have: what was saved, and has no message.

    lost = lacking(keys_of_rows, *halves(store))     # the keys of such rows, the oldest first

A half message is stored before its row commits, so in a store that lost nothing each row has one. A store that was put
back beside a newer database lacks those of the time between, and one with mode `os` the last ones after a power cut.
"""

from __future__ import annotations

from collections.abc import Sequence

from broker.enlisting.ledger_key import LEDGER_KEY, key_time_ms
from broker.errors import BrokerError
from broker.live import LiveStore
from broker.store.disk.files import Missing
from broker.store.shared.control import Word

_SLOTS = 10_000


def lacking(rows: Sequence[str], keys: set[str], since_ms: int) -> list[str]:
    """The keys of rows that are not among `keys`, which are those of all half messages stored since a time. Pure.

    A row whose key is not one of ours, and so has no time, says nothing.
    """
    return sorted(key for key in rows if key not in keys and (made := key_time_ms(key)) is not None and made > since_ms)


def halves(store: LiveStore) -> tuple[set[str], int]:
    """The keys of the newest half messages, and since when they are all of them, in milliseconds; -1: from the first.

    Read them behind the rows: then those of all rows are there. What retention removed, or is damaged, ends the search.
    """
    dispatcher, count = store.writer.dispatcher, int(store.writer.control[Word.SLOTS])
    keys, since_ms, first = set[str](), 1 << 62, max(0, count - _SLOTS)
    for slot in range(count - 1, first - 1, -1):
        try:
            half = store.transactions.half(dispatcher.slot(slot).commitlog_offset)
        except (Missing, BrokerError):
            return keys, since_ms
        keys.add(half.properties.get(LEDGER_KEY, ""))
        since_ms = half.store_timestamp_ms
    return keys, -1 if first == 0 else since_ms
