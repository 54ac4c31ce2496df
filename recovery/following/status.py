"""How a follower stands, as people and programs read it: a line, JSON, samples for Prometheus. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recovery.following.book_reading import UnendedTransaction
from recovery.humanize import moment, size, span

_SHOWN = 100  # transactions in doubt in a status
_Sample = tuple[str, str, dict[str, str], float]


@dataclass(frozen=True, slots=True)
class FollowerStatus:
    """A moment of a follower. Offsets are CommitLog offsets, -1 while there is no byte."""

    master: str
    path: str
    is_connected: bool
    is_caught_up: bool  # within the last second it had all that the master had; see `decisions.has_all`
    trouble: str  # why it is not connected
    begin_offset: int
    end_offset: int  # received
    verified_offset: int
    now_ms: int
    last_store_ms: int  # of the newest record that was verified
    records: int
    bytes: int
    generation: str
    transactions: Mapping[str, int]
    in_doubt: Sequence[UnendedTransaction]  # the oldest ones
    counts: Mapping[str, int]  # findings by kind
    unfinished: Mapping[str, int] = field(default_factory=dict)  # findings that a moment may settle
    lost: Sequence[Mapping[str, Any]] = ()
    digest: str = ""  # only of the last status: it takes a pass over all transactions
    findings: Sequence[Mapping[str, Any]] = ()  # likewise

    @property
    def ok(self) -> bool:
        """Whether nothing contradicts itself, and the master lost nothing."""
        return not self.counts and not self.lost

    @property
    def oldest_in_doubt_s(self) -> float:
        """How long the oldest transaction in doubt has been that, in seconds; 0 without any."""
        return max(0.0, (self.now_ms - self.in_doubt[0].since_ms) / 1000) if self.in_doubt else 0.0

    def line(self) -> str:
        """One line."""
        if self.is_connected:
            state = "up to date" if self.is_caught_up else "copying"
        else:
            state = self.trouble or "connecting"
        if self.end_offset < 0:
            return f"{state}: there is no record yet"
        parts = [
            f"{state}: {size(max(0, self.end_offset - self.begin_offset))} up to {self.end_offset}",
            f"{self.records:,} records verified",
        ]
        if (behind := self.end_offset - self.verified_offset) > 0 and self.verified_offset >= 0:
            parts.append(f"{size(behind)} not verified yet")
        count = self.transactions.get("in_doubt", 0)
        since = f", the oldest for {span(self.oldest_in_doubt_s)}" if self.in_doubt else ""
        parts.append(f"{count:,} in doubt{since}")
        parts += [f"{number:,} {kind}" for kind, number in self.counts.items()]
        if self.lost:
            parts.append(f"the master lost {size(sum(int(one['bytes']) for one in self.lost))} (see --json)")
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        answer: dict[str, Any] = {
            "ok": self.ok, "master": self.master, "path": self.path, "connected": self.is_connected,
            "caught_up": self.is_caught_up, "trouble": self.trouble, "begin_offset": self.begin_offset,
            "end_offset": self.end_offset, "verified_offset": self.verified_offset,
            "last_stored": moment(self.last_store_ms) if self.last_store_ms else None, "records": self.records,
            "bytes": self.bytes, "generation": self.generation, "transactions": dict(self.transactions),
            "in_doubt": [one.as_json() for one in self.in_doubt[:_SHOWN]], "counts": dict(self.counts),
            "unfinished": dict(self.unfinished), "lost": [dict(one) for one in self.lost],
        }  # fmt: skip
        if self.digest:
            answer |= {"digest": self.digest, "findings": [dict(one) for one in self.findings]}
        return answer

    def samples(self) -> Iterator[_Sample]:
        """For Prometheus: name, type, labels, value."""
        of = {"master": self.master}
        yield "checkback_follow_connected", "gauge", of, int(self.is_connected)
        yield "checkback_follow_caught_up", "gauge", of, int(self.is_caught_up)
        yield "checkback_follow_end_offset", "gauge", of, self.end_offset
        yield "checkback_follow_not_verified_bytes", "gauge", of, max(0, self.end_offset - self.verified_offset)
        yield "checkback_follow_records_total", "counter", of, self.records
        yield "checkback_follow_last_store_seconds", "gauge", of, self.last_store_ms / 1000
        yield "checkback_follow_oldest_in_doubt_seconds", "gauge", of, self.oldest_in_doubt_s
        yield "checkback_follow_lost_bytes", "gauge", of, sum(int(one["bytes"]) for one in self.lost)
        for state, count in self.transactions.items():
            if state != "total":
                yield "checkback_follow_transactions", "gauge", {**of, "state": state}, count
        for kind, count in self.counts.items():
            yield "checkback_follow_findings", "gauge", {**of, "kind": kind}, count
