"""What a verification found: findings with their place, counted by kind, and the report that goes out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

FINDINGS_LISTED = 100_000  # more are counted, not listed: memory stays bounded on a store that is all damage

# Each kind with the sentence that explains it; docs/operations.md prints this table.
KINDS: dict[str, str] = {
    "segment-missing": "a segment in the middle of the CommitLog is not there",
    "segment-overlap": "two segments claim the same offsets",
    "segment-size": "a file does not have the size that its neighbours have: it was cut or belongs to another store",
    "corrupt-region": "bytes in the middle of the log that are not a record",
    "torn-tail": "the log ends in half a record",
    "crc-mismatch": "a record whose body (or whole record) does not have the CRC it states",
    "record-implausible": "a record with a field that no broker writes",
    "files-missing": "a derived directory that such a store has is not there",
    "file-damaged": "a small file that cannot be read as what it should be",
    "slot-missing": "a transaction that the state table does not hold",
    "slot-wrong-state": "the state table holds another state than the CommitLog says",
    "slot-wrong-field": "the slot's size, time or group is not the prepared record's",
    "slot-orphan": "a slot that belongs to no prepared record",
    "slot-moved": "a transaction stands in another slot than its record says: nobody can settle it",
    "table-compacted": "the table was rebuilt without its settled slots, so slots no longer match their records",
    "redo-missing": "a prepared record or an end that the redo log lacks",
    "redo-orphan": "a redo unit that belongs to no prepared record or end",
    "queue-missing": "a message that its ConsumeQueue lacks: nobody will consume it",
    "queue-orphan": "a ConsumeQueue unit that belongs to no record",
    "rocksdb-end-wrong": "a queue in a RocksDB that ends elsewhere than the broker's table of ends says",
    "index-missing": "a key that the index lacks",
    "index-orphan": "an index item that belongs to no record",
    "index-damaged": "an index file whose chains or header do not agree with its items",
    "timer-missing": "a message that waits, and that the timer wheel lacks: nobody will deliver it when it is due",
    "timer-orphan": "a place in the timer wheel that leads to no message that waits",
    "end-without-half": "an end (or op message) that names no half message",
    "end-differs": "an end is not the copy of its half message that it should be: one of the two was changed",
    "double-end": "a transaction was ended again, the same way",
    "decision-conflict": "a transaction was ended again, the other way",
    "delivered-twice": "one transaction, two deliverable records",
    "committed-without-op": "delivered, but no op message says so: a 5.x broker will check it again",
    "half-diverted": "a half message with a delay: RocketMQ stored it where nobody will ever settle it",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, with its place."""

    kind: str
    """One of `KINDS`, such as `queue-missing`."""
    commitlog_offset: int
    """The byte position that it is about: of a record, or where one should be."""
    text: str
    """One sentence."""
    file: str = ""
    """The path of the file that is wrong. Empty: it is about no single file."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Further facts of the kind, JSON values by name, such as topic, queue_offset or slot."""

    def as_json(self) -> dict[str, Any]:
        """Its fields by name, ready for JSON, with the facts beside them."""
        place = {"kind": self.kind, "commitlog_offset": self.commitlog_offset, "file": self.file}
        return {**place, **self.facts, "text": self.text}

    def __str__(self) -> str:
        return f"{self.kind}: {self.file} at {self.commitlog_offset}: {self.text}"


# What every finding of the kind crc-mismatch says.
CRC_MISMATCH = "the body does not have the CRC that the record states"


# Causes that are not findings themselves; docs/operations.md prints this table, too.
CAUSES: dict[str, str] = {
    "log-short": "the log ends before what its queues and its index name",
    "derived-late": "the queues or the index end before the log does",
}


@dataclass(frozen=True, slots=True)
class Cause:
    """What explains other findings: they are counted here, by kind, and need nothing done of their own."""

    kind: str
    commitlog_offset: int
    file: str
    text: str
    consequences: Counter[str] = field(default_factory=Counter)

    def as_json(self) -> dict[str, Any]:
        """Its public form."""
        place = {"kind": self.kind, "commitlog_offset": self.commitlog_offset, "file": self.file, "text": self.text}
        return {**place, "consequences": dict(sorted(self.consequences.items()))}

    def __str__(self) -> str:
        return f"{self.kind}: {self.file} at {self.commitlog_offset}: {self.text}"


class Findings:
    """Findings by CommitLog offset, all counted, the first `listed` of them kept.

    Iterating over them gives those that are listed, `len` the count of all. Once it is known what explains findings
    (`explain`), those are listed apart, so that they displace no other.
    """

    def __init__(self, listed: int = FINDINGS_LISTED) -> None:
        self._listed = listed
        self._findings: list[Finding] = []
        self._consequences: list[tuple[Finding, Cause]] = []
        self._cause_of: Callable[[Finding], Cause | None] = _unknown
        self.counts: Counter[str] = Counter()
        """How many of each kind, those that are not listed included."""

    def add(self, finding: Finding) -> None:
        """Count a finding, and list it if there is room. Raises ValueError for a kind that is not in `KINDS`."""
        if finding.kind not in KINDS:
            raise ValueError(f"{finding.kind} is not a kind of finding")
        self.counts[finding.kind] += 1
        self._list(finding)

    def explain(self, cause_of: Callable[[Finding], Cause | None]) -> None:
        """From now on, and among those that are listed, count what has a cause with its cause.

        `cause_of(finding)` returns the cause, None for a finding that nothing explains.
        """
        self._cause_of, before = cause_of, self._findings
        self._findings = []
        for finding in before:
            self._list(finding)

    def _list(self, finding: Finding) -> None:
        cause = self._cause_of(finding)
        if cause is None and len(self._findings) < self._listed:
            self._findings.append(finding)
        elif cause is not None:
            cause.consequences[finding.kind] += 1
            if len(self._consequences) < self._listed:
                self._consequences.append((finding, cause))

    def drop(self, is_false: Callable[[Finding], bool]) -> None:
        """Take back the listed findings for which `is_false(finding)` is true: they proved false."""
        for finding in (*self._findings, *(one for one, _ in self._consequences)):
            if is_false(finding):
                self.counts[finding.kind] -= 1
        self.counts = +self.counts
        self._findings = [finding for finding in self._findings if not is_false(finding)]
        for finding, cause in self._consequences:
            if is_false(finding):
                cause.consequences[finding.kind] -= 1
        self._consequences = [pair for pair in self._consequences if not is_false(pair[0])]

    @property
    def unexplained(self) -> list[Finding]:
        """The listed findings that no other explains, in the order in which they are reported."""
        return sorted(self._findings, key=_place)

    def include(self, others: Findings) -> None:
        """Take over the findings of another part of the work: the listed ones as they are, the rest as counts."""
        listed: Counter[str] = Counter()
        for finding in others:
            self.add(finding)
            listed[finding.kind] += 1
        self.counts.update(others.counts - listed)

    def __iter__(self) -> Iterator[Finding]:
        return iter(sorted([*self._findings, *(one for one, _ in self._consequences)], key=_place))

    def __len__(self) -> int:
        return self.counts.total()

    @property
    def omitted(self) -> int:
        """How many are counted but not listed."""
        return len(self) - len(self._findings) - len(self._consequences)


def _unknown(_finding: Finding) -> Cause | None:
    return None


def _place(finding: Finding) -> tuple[int, str]:
    return finding.commitlog_offset, finding.kind


@dataclass(frozen=True, slots=True)
class NotJudged:
    """What a verification did not compare: where, what it is, why. It is not a finding."""

    path: str
    what: str
    why: str

    def as_json(self) -> dict[str, str]:
        """Its public form."""
        return {"path": self.path, "what": self.what, "why": self.why}

    def __str__(self) -> str:
        return f"{self.path} ({self.what}): {self.why}"


@dataclass(frozen=True, slots=True)
class Report:
    """The answer of a verification; `as_json` is its public form."""

    path: str
    """The store that was verified."""
    generation: str
    """How it records transactions: none, state-table, gap, half-op or mixed."""
    records: int
    """How many records the CommitLog holds."""
    bytes: int
    """How many bytes of the CommitLog were read."""
    transactions: dict[str, int]
    """How many there are (`total`), and how many in each state."""
    digest: str
    """One number for the states of all transactions, 32 hexadecimal digits: docs/format.md, "Digest"."""
    findings: Findings
    """What is wrong."""
    begin_offset: int = 0
    """CommitLog offset where the log begins."""
    end_offset: int = 0
    """CommitLog offset where the log ended, or up to which it was verified."""
    seconds: float = 0.0
    """How long it took."""
    live: bool = False
    """Whether a broker was writing meanwhile: what it had not finished is not verified."""
    not_judged: tuple[NotJudged, ...] = ()
    """What was not compared: `path`, `what` it is, and `why`."""
    causes: tuple[Cause, ...] = ()
    """What explains findings, each once: `kind`, `commitlog_offset`, `file`, `text`, and its `consequences` by kind."""

    @property
    def ok(self) -> bool:
        """Whether there are no findings."""
        return not len(self.findings)

    def first(self, count: int) -> list[dict[str, Any]]:
        """At most `count` findings as JSON, those that nothing explains before the others."""
        unexplained = self.findings.unexplained
        known = {id(finding) for finding in unexplained}
        rest = (finding for finding in self.findings if id(finding) not in known)
        return [finding.as_json() for finding in islice(chain(unexplained, rest), count)]

    def as_json(self) -> dict[str, Any]:
        """All fields by name, ready for JSON, with `ok` and `counts` (by kind); `findings` are a list.

        `findings_omitted` is there when some are counted but not listed.
        """
        answer: dict[str, Any] = {
            "ok": self.ok,
            "path": self.path,
            "live": self.live,
            "generation": self.generation,
            "records": self.records,
            "bytes": self.bytes,
            "begin_offset": self.begin_offset,
            "end_offset": self.end_offset,
            "seconds": round(self.seconds, 3),
            "transactions": self.transactions,
            "digest": self.digest,
            "findings": [finding.as_json() for finding in self.findings],
            "counts": dict(sorted(self.findings.counts.items())),
            "causes": [one.as_json() for one in self.causes],
            "not_judged": [one.as_json() for one in self.not_judged],
        }
        if self.findings.omitted:
            answer["findings_omitted"] = self.findings.omitted
        return answer
