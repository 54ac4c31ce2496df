"""What a round, and a person, read where a million transactions are in doubt: those that they are about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import broker
from broker.transaction.service import Half
from recovery.checkback.manual import chosen, find
from recovery.checkback.protocol import Answer, Outcome, Question
from recovery.checkback.round import CheckBack
from tests.checkback.shop import open_store

pytestmark = pytest.mark.usefixtures("each_engine")

MINUTE = 60_000


class NobodyAnswers:
    """An endpoint that is down."""

    def ask(self, questions: Sequence[Question], _now_ms: int) -> list[Answer]:
        return [Answer(Outcome.DOWN, "nobody is there")] * len(questions)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[broker.LiveStore]:
    with open_store(tmp_path / "store") as store:
        yield store


def prepared(store: broker.LiveStore, count: int) -> list[Half]:
    return [store.transactions.prepare(broker.Message("orders", b"%d" % number), "shop") for number in range(count)]


def test_of_many_that_are_due_again_a_round_reads_those_that_it_checks(
    store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody answers for an hour all are due at once: each round read a million, and kept them all."""
    halves = prepared(store, 6)
    now_ms = halves[-1].store_timestamp_ms
    check = CheckBack(store, NobodyAnswers(), limit=6)
    assert check.round(now_ms + MINUTE).down == 6
    check.catalog.close()
    read: list[int] = []
    half_at = type(store.transactions).half

    def half(service: Any, commitlog_offset: int) -> Half:
        read.append(commitlog_offset)
        return half_at(service, commitlog_offset)

    monkeypatch.setattr(type(store.transactions), "half", half)
    check = CheckBack(store, NobodyAnswers(), limit=2)
    report = check.round(now_ms + 10 * MINUTE)
    check.catalog.close()
    assert (report.due, report.asked, report.left) == (6, 2, 4)
    assert len(read) == 2


def test_who_is_named_is_found_without_a_look_at_the_others(
    store: broker.LiveStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To decide about one of a million all were read, and kept: a gigabyte."""
    first, second, third = prepared(store, 3)
    store.transactions.park(third, "nobody knows")
    with monkeypatch.context() as patched:
        patched.setattr(type(store.transactions), "in_doubt", lambda *_, **__: pytest.fail("all were read"))
        assert find(store, [second.message_id, str(first.commitlog_offset)]) == [second, first]
        assert chosen(store) == [third]
    assert first.unique_key is not None
    assert find(store, [first.unique_key, str(first.commitlog_offset)]) == [first]
