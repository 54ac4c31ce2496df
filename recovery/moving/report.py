"""What a move is going to do, and what it did, as people and programs read it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from recovery.humanize import count

FINDINGS_KEPT = 100


@dataclass(frozen=True)
class TopicPlan:
    """One topic. `is_there`: the cluster has it already."""

    name: str
    queues: int
    messages: int
    is_there: bool


@dataclass(frozen=True)
class MovePlan:
    """What would be carried. `refusals` say what stands in the way, `notes` what is different in the cluster."""

    store: str
    url: str
    cluster: str
    topics: list[TopicPlan]
    delayed: int
    in_doubt: Mapping[str, int]  # by producer group
    parked: int
    groups: int
    positions: int
    notes: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.topics)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "messages": self.messages}

    def lines(self) -> list[str]:
        found = []
        for one in self.topics:
            how = "is there" if one.is_there else "is made"
            messages, queues = count(one.messages, "message"), count(one.queues, "queue")
            found.append(f"{one.name}: {messages} in {queues}; the topic {how}")
        found.append(f"{count(self.delayed, 'delayed message')}, not due yet")
        for group, number in sorted(self.in_doubt.items()):
            doubtful = count(number, "transaction in doubt", "transactions in doubt")
            found.append(f"{doubtful} of the producer group {group}, as half messages")
        found.append(f"{count(self.positions, 'position')} of {count(self.groups, 'consumer group')}")
        return found + [f"Note: {note}" for note in self.notes]


@dataclass
class TopicReport:
    """One topic, read back. The digests are over places, ids, keys, tags and bodies, in order."""

    messages: int = 0
    read_back: int = 0
    digest: str = ""
    read_back_digest: str = ""


@dataclass
class MoveReport:
    """What was carried: counts of messages."""

    store: str
    url: str
    cluster: str
    topics: dict[str, TopicReport] = field(default_factory=dict)
    sent: int = 0  # by this run
    sent_before: int = 0  # by an earlier one
    recognised: int = 0  # of those: sent and not noted, and found in the cluster
    delayed: int = 0
    in_doubt: int = 0
    positions: int = 0
    among_others: int = 0  # messages of others that lie between the carried ones
    less_safe: int = 0  # stored, and the broker could not keep its promise of a flush or a slave
    missing: int = 0
    twice: int = 0
    different: int = 0
    findings: list[str] = field(default_factory=list)
    was_done: bool = False  # before this run

    @property
    def ok(self) -> bool:
        """Whether each message is there once, as it was."""
        return not (self.missing or self.twice or self.different)

    def note(self, kind: str, text: str) -> None:
        """Count a finding: missing, twice or different."""
        setattr(self, kind, getattr(self, kind) + 1)
        if len(self.findings) < FINDINGS_KEPT:
            self.findings.append(f"{kind}: {text}")

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> MoveReport:
        """From `as_json`."""
        kept = {name: one for name, one in value.items() if name != "ok"}
        return cls(**{**kept, "topics": {name: TopicReport(**one) for name, one in kept["topics"].items()}})

    def lines(self) -> list[str]:
        found = []
        for name, one in self.topics.items():
            same = "the same" if one.digest == one.read_back_digest else "ANOTHER"
            counts = f"{one.messages:,} messages, {one.read_back:,} read back"
            found.append(f"{name}: {counts}, {same} digest {one.read_back_digest[:16]}")
        found.append(
            f"{self.sent:,} sent by this run, {self.sent_before:,} before, {self.recognised:,} of them unnoted"
        )
        found.append(f"{self.delayed:,} delayed, {self.in_doubt:,} in doubt, {self.positions:,} positions of groups")
        if self.among_others:
            text = f"{self.among_others:,} messages of others lie between them"
            found.append(f"{text}: groups go on before these, so messages that they had may come again")
        if self.less_safe:
            found.append(f"{self.less_safe:,} were stored without the flush or the slave that the broker promises")
        return found
