"""Promises: what a proof raises when one was not kept, and what a report says of each."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class PromiseBroken(AssertionError):
    """Something that was acknowledged or seen is gone, doubled or different. The text is one sentence for a user."""


def require(kept: bool, sentence: str) -> None:
    """Raise PromiseBroken with the sentence unless the promise was kept; unlike `assert`, under `python -O`, too."""
    if not kept:
        raise PromiseBroken(sentence)


class PromiseState(StrEnum):
    """What is known of a promise."""

    HOLDS = "holds"
    WARNING = "warning"
    UNKNOWN = "unknown"
    BROKEN = "broken"


@dataclass(frozen=True)
class PromiseVerdict:
    """One promise: its name, what is known of it, and why, in one sentence; with the figures that were measured."""

    promise: str
    outcome: PromiseState
    sentence: str
    figures: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """For `--json`."""
        return asdict(self)
