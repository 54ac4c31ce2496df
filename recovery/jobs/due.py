"""Whether check-back has something to do: what a watcher looks at every few seconds, cheaply.

    DueWatch("shop.store").look(now_ms, {"*": {"interval": "30s"}})       how many are due, and the gauges of the store

A store to which nothing was appended since the last look is not read again for a minute: no transaction began or ended
there. What changes without an append is seen then: a state table that was made again, and what a killed process left
of its last append, which the next one finishes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import broker
from broker.format import properties as names
from broker.store.disk.files import Disk
from broker.store.disk.paths import Paths
from recovery.checkback.leader import leaders
from recovery.checkback.policy import Policy, Standing, Verdict, decide, parse_policy
from recovery.checkback.protocol import Outcome
from recovery.jobs.recovering import crashed
from recovery.views.overview import Overview, attempts_at, overview

_NOT_ASKED = (Outcome.REFUSED.value, Outcome.DOWN.value)
READ_AT_ONCE = 1_000  # transactions in doubt that one look reads; what is beyond counts as due
READ_AGAIN_MS = 60_000  # a store of ours; of others the whole log would be read, and nothing is due there


@dataclass(frozen=True, slots=True)
class DueNow:
    """What one look found. `event` is None when a round of check-back would find nothing to do."""

    event: dict[str, Any] | None
    gauges: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class DueWatch:
    """The looks at one store: what the last one read is kept while nothing is appended."""

    path: str
    _end: int = -1
    _read_ms: int = 0
    _seen: Overview | None = None

    def look(self, now_ms: int, policy: Mapping[str, Any] | None) -> DueNow:
        """What is due at a time. `policy` are the rules by topic; None: each transaction in doubt counts as due.

        Raises StoreError where there is no store.
        """
        seen = self._overview(now_ms)
        late_s = (now_ms - self._read_ms) / 1000  # ages grow while nothing is read
        is_crashed = crashed(self.path) is not None
        counts = {name: float(seen.counts.get(name, 0)) for name in ("in_doubt", "parked")}
        oldest_s = seen.oldest_s + late_s if seen.in_doubt else 0.0
        gauges = {**counts, "oldest_in_doubt_s": oldest_s, "crashed": float(is_crashed)}
        led = leaders(self.path)
        if is_crashed or not seen.in_doubt or not _is_ours(self.path) or any(one.groups is None for one in led):
            return DueNow(None, gauges)
        served = {group for one in led for group in one.groups or ()}
        due = self._due(seen, now_ms, None if policy is None else parse_policy(policy), served)
        event = {"due": len(due) + seen.omitted, "commitlog_offset": min(due, default=-1)}
        return DueNow(event if event["due"] else None, gauges)

    def _overview(self, now_ms: int) -> Overview:
        with broker.open(self.path, read_only=True) as store:
            end = store.end_offset
        is_fresh = 0 <= now_ms - self._read_ms < READ_AGAIN_MS or not _is_ours(self.path)
        if self._seen is None or end != self._end or not is_fresh:
            self._seen, self._end, self._read_ms = overview(self.path, now_ms, READ_AT_ONCE, 0), end, now_ms
        return self._seen

    def _due(self, seen: Overview, now_ms: int, policy: Policy | None, served: Collection[str]) -> list[int]:
        """The CommitLog offsets of what is due, without what a leader does: the transactions of the groups `served`.

        It may not know the ledger of all of them, where a group has several: then its last attempt says so.
        """
        known, due = attempts_at(self.path, [one.commitlog_offset for one in seen.in_doubt]), []
        failed = {at for at, attempt in known.items() if attempt.outcome in _NOT_ASKED}
        offsets = {
            one.commitlog_offset: one for one in seen.in_doubt
            if one.producer_group not in served or one.commitlog_offset in failed
        }  # fmt: skip
        if policy is None:
            return list(offsets)
        with broker.open(self.path, read_only=True) as store:
            for commitlog_offset, one in offsets.items():
                if (attempt := known.get(commitlog_offset)) is not None:
                    standing = Standing(attempt.stored_ms, None, attempt.checks, attempt.next_ms)
                else:
                    stored_ms = self._read_ms - int(one.age_s * 1000)
                    standing = Standing(stored_ms, _immunity(store, commitlog_offset))
                if decide(standing, policy.rule(one.topic), now_ms).verdict is not Verdict.WAIT:
                    due.append(commitlog_offset)
        return due


def _immunity(store: broker.Store, commitlog_offset: int) -> str | None:
    """The time that a producer gave its transaction, in seconds, as it is in the half message."""
    record = store.record(commitlog_offset)
    return record.property_map.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS) if record is not None else None


def _is_ours(path: str) -> bool:
    return Disk().entry(Paths(path).store_json) is not None
