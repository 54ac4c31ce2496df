"""Which records are wanted: options, asked of NumPy columns before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from broker.errors import BrokerError
from broker.format.properties import decimal
from broker.transaction.events import EventKind
from recovery.scan.kinds import Kinds
from recovery.scan.records import Bools, Records

_ENDLESS = 1 << 63


class BadOption(BrokerError, ValueError):
    """An option of the data source that cannot be: the sentence says which ones can."""


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Records of these kinds and topics (all when None), whose numbers lie in the half-open ranges."""

    kinds: frozenset[str] | None = None
    topics: frozenset[str] | None = None
    ranges: tuple[tuple[str, int, int], ...] = ()  # column, from, up to but not including

    @property
    def start(self) -> int:
        """The least CommitLog offset that can be wanted."""
        return max((low for name, low, _ in self.ranges if name == "commitlog_offset"), default=0)

    @property
    def end(self) -> int | None:
        """The CommitLog offset from which nothing is wanted; None when there is none."""
        ends = [high for name, _, high in self.ranges if name == "commitlog_offset" and high < _ENDLESS]
        return min(ends, default=None)

    def choose(self, records: Records) -> Records:
        """The wanted ones among the records."""
        wanted = self._mask(records)
        return records if wanted.all() else records.take(np.flatnonzero(wanted))

    def _mask(self, records: Records) -> Bools:
        wanted = np.ones(len(records), np.bool_)
        for name, low, high in self.ranges:
            values = records.offsets if name == "commitlog_offset" else records.field(name)
            wanted &= values >= low
            if high < _ENDLESS:
                wanted &= values < high
        if self.kinds is not None or self.topics is not None:
            kinds = Kinds(records)
            if self.kinds is not None:
                wanted &= np.isin(kinds.events, [EventKind[kind.upper()] for kind in self.kinds])
            if self.topics is not None:
                names = [topic.decode("utf-8", "replace") in self.topics for topic in kinds.topics]
                wanted &= np.array(names, np.bool_)[kinds.codes]
        return wanted


KINDS = tuple(kind.name.lower() for kind in EventKind)


def filter_of(options: Mapping[str, str]) -> RecordFilter:
    """What the options kind, topic, startOffset, endOffset, startTime and endTime (ms) say. Raises BadOption."""
    kinds = _words(options.get("kind", ""))
    unknown = sorted(kinds - {*KINDS, "all"})
    if unknown:
        raise BadOption(f"the option kind knows {', '.join(KINDS)} and all, not {', '.join(unknown)}")
    if "all" in kinds and len(kinds) > 1:
        raise BadOption(f"the option kind is all, or some of {', '.join(KINDS)}: leave out one or the other")
    topics = _words(options.get("topic", ""))
    ranges = []
    for column, low, high in (
        ("commitlog_offset", "startOffset", "endOffset"),
        ("store_timestamp_ms", "startTime", "endTime"),
    ):
        first, last = whole_number(options, low, 0), whole_number(options, high, _ENDLESS)
        if first or last < _ENDLESS:
            ranges.append((column, first, last))
    every = not kinds or "all" in kinds
    return RecordFilter(None if every else kinds, topics or None, tuple(ranges))


def _words(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def whole_number(options: Mapping[str, str], name: str, default: int) -> int:
    """An option that is a number of zero or more. Raises BadOption."""
    text = str(options.get(name, "")).strip()
    if not text:
        return default
    if (number := decimal(text, 19)) is None:
        raise BadOption(f"the option {name} is a whole number of zero or more, not {text!r:.60}")
    return number


def truth(options: Mapping[str, str], name: str) -> bool:
    """An option that is true or false (the default). Raises BadOption."""
    text = str(options.get(name, "false")).strip().lower()
    if text not in ("true", "false"):
        raise BadOption(f"the option {name} is true or false, not {text!r}")
    return text == "true"
