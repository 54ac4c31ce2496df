"""Whose turn it is in a round of check-back: what is due, fairly between topics. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from broker.transaction.service import Half


class Turn(NamedTuple):
    """A transaction that is due. Of one that was checked before the half is read when it is chosen: a million may be
    due at once, where nobody answered for an hour."""

    commitlog_offset: int
    topic: str
    checks: int
    due_ms: int
    at_limit: bool
    half: Half | None


def fairly(due: Iterable[Turn], per_topic: int | None) -> Iterator[Turn]:
    """The topics by turns, each with its longest due first, and no more than `per_topic` of each."""
    topics: dict[str, list[Turn]] = {}
    for one in due:
        topics.setdefault(one.topic, []).append(one)
    turns = [iter(sorted(ones, key=_by_due)[:per_topic]) for _, ones in sorted(topics.items())]
    while turns:
        left = []
        for turn in turns:
            for one in islice(turn, 1):
                yield one
                left.append(turn)
        turns = left


def _by_due(one: Turn) -> tuple[int, int]:
    return one.due_ms, one.commitlog_offset


def spread(offsets: Sequence[int], most: int) -> Sequence[int]:
    """At most so many, from all over the log: a flood in one place does not hide what follows it."""
    return offsets if len(offsets) <= most else offsets[:: -(-len(offsets) // most)]
