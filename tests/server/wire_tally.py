"""What killed clients wrote down, and what it adds up to beside the log: see tests/server/killed_wire.py."""

from __future__ import annotations

import os
import uuid
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from recovery.torture import second_reader
from recovery.verify.verifier import verify
from tests.compat import witness


@dataclass
class WireTally:
    """What came of it."""

    kills: Counter[str]
    lost: set[str]  # acknowledged or committed, and never delivered
    invented: set[str]  # rolled back, and delivered
    contrary: set[str]  # decided otherwise afterwards, and answered with SUCCESS
    unsettled: int
    findings: dict[str, int]
    acknowledged: int
    transactions: int
    by_check: int  # transactions that a check settled
    twice: set[tuple[str, int]]  # requests, by unique key and born time, of which the log has two commits
    sent_again: int  # transactions whose half message a client sent twice, and of which both were committed

    @property
    def adds_up(self) -> bool:
        return not (self.lost or self.invented or self.contrary or self.unsettled or self.findings or self.twice)


class Records:
    """Lines of one process in a file of its own; a kill may leave the beginning of the last one."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._descriptor = os.open(directory / f"{kind}-{uuid.uuid4().hex}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def add(self, key: str) -> None:
        os.write(self._descriptor, f"{key}\n".encode())


def read_records(directory: Path, kind: str) -> set[str]:
    lines = [line for file in directory.glob(f"{kind}-*") for line in file.read_text().splitlines(keepends=True)]
    return {line.rstrip("\n") for line in lines if line.endswith("\n")}


def _decisions(directory: Path) -> dict[str, str]:
    return {place.name: place.read_text() for place in (directory / "ledger").iterdir()}


def expected(directory: Path) -> set[str]:
    """What must be delivered: acknowledged plain sends, and halves that were stored and decided to be committed."""
    return read_records(directory, "acked") | {key for key, decided in _decisions(directory).items() if decided == "c"}


def tally(directory: Path, kills: Counter[str]) -> WireTally:
    delivered, decisions, report = (
        read_records(directory, "delivered"),
        _decisions(directory),
        verify(directory / "store"),
    )
    findings, commits = Counter(report.findings.counts), _commits(directory / "store")
    sent_again = findings.pop("delivered-twice", 0)  # of one unique key: Go's client sends one whose answer is late
    return WireTally(
        kills=kills, lost=expected(directory) - delivered,
        invented=delivered & {key for key, decided in decisions.items() if decided == "r"},
        contrary=read_records(directory, "contrary"), unsettled=report.transactions["in_doubt"],
        findings=dict(findings), acknowledged=len(read_records(directory, "acked")),
        transactions=report.transactions["total"], by_check=len(read_records(directory, "checked")),
        twice={request for request, count in commits.items() if count > 1}, sent_again=sent_again,
    )  # fmt: skip


def _commits(store: Path) -> Counter[tuple[str, int]]:
    """How many commits the log has of each request that sent a half message."""
    found = (record for record in witness.records(store) if record.kind == second_reader.COMMIT)
    return Counter((record.properties["UNIQ_KEY"], record.born) for record in found)
