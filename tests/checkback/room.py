"""A store, who answers for its transactions as a test says, and rounds of check-back at any time."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import broker
from broker.transaction.service import Half
from recovery.checkback.catalog import Catalog
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.protocol import Answer, Outcome, Question
from recovery.checkback.round import CheckBack, RoundReport
from tests.checkback.shop import open_store

RULE = Rule(jitter=0.0, interval_ms=30_000, backoff=2.0, most_checks=3)


def refuse_threads(patch: pytest.MonkeyPatch) -> None:
    """No thread begins from here on."""

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    patch.setattr(threading.Thread, "start", refused)


class Told:
    """Answers what it is told, and remembers what it was asked."""

    def __init__(self) -> None:
        self.outcomes: dict[int, Outcome] = {}
        self.default = Outcome.UNKNOWN
        self.why = "told so"
        self.nobody_named = False
        self.asked: list[Half] = []

    def ask(self, questions: Sequence[Question], _now_ms: int) -> list[Answer]:
        self.asked += [question.half for question in questions]
        outcomes = [self.outcomes.get(question.half.commitlog_offset, self.default) for question in questions]
        return [Answer(outcome, self.why, nobody_named=self.nobody_named) for outcome in outcomes]


class Room:
    """A store, who answers, and a clock."""

    def __init__(self, path: Path) -> None:
        self.store = open_store(path)
        self.told = Told()
        self.stored_ms = 0
        self.catalogs: list[Catalog] = []

    def prepare(self, topic: str = "orders", count: int = 1, **properties: str) -> list[Half]:
        halves = [
            self.store.transactions.prepare(
                broker.Message(topic, b"%d" % number), "shop", extra_properties=properties or None
            )
            for number in range(count)
        ]
        self.stored_ms = halves[-1].store_timestamp_ms
        return halves

    def round(self, after_ms: int, *, rule: Rule = RULE, dry_run: bool = False, **options: int | None) -> RoundReport:
        """One round of a process that was just started, `after_ms` after the last half message was stored."""
        catalog = Catalog.open(self.store.path, self.store.store_id)
        self.catalogs.append(catalog)
        check = CheckBack(self.store, self.told, policy=Policy(rule), catalog=catalog, by="test", **options)  # type: ignore[arg-type]
        return check.round(self.stored_ms + after_ms, dry_run=dry_run)

    def close(self) -> None:
        for catalog in self.catalogs:
            catalog.close()
        self.store.close()


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    room = Room(tmp_path / "store")
    yield room
    room.close()
