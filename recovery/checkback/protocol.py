"""What is asked about a transaction in doubt, and what can be answered."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from broker.message import ReceivedMessage
from broker.transaction.events import TransactionState
from broker.transaction.service import Half


class Outcome(enum.Enum):
    """What is known of a local transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"  # somebody answered, and does not know: that was a check
    RUNNING = "running"  # it still runs, or the database was busy: no check
    DOWN = "down"  # nobody could be asked: no check

    @property
    def is_decision(self) -> bool:
        return self in STATES


STATES = {Outcome.COMMITTED: TransactionState.COMMITTED, Outcome.ROLLED_BACK: TransactionState.ROLLED_BACK}


class Answer(NamedTuple):
    """An outcome, and the sentence that is kept with it."""

    outcome: Outcome
    why: str


class Question(NamedTuple):
    """A half message in doubt; `message()` reads it with its body, for those who need it."""

    half: Half
    message: Callable[[], ReceivedMessage]


class Resolver(Protocol):
    """Whoever can say how local transactions ended."""

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:
        """One answer for each question, in their order. Raises nothing: what goes wrong is an answer, too."""
