"""The question about a transaction in doubt, and the answers to it."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from broker.message import ReceivedMessage
from broker.transaction.events import TransactionState
from broker.transaction.service import Half, LocalTransactionState


class Outcome(enum.Enum):
    """What is known of a local transaction."""

    COMMITTED = "committed"
    """It committed: the message is delivered."""
    ROLLED_BACK = "rolled back"
    """It did not: the message is never delivered."""
    UNKNOWN = "unknown"
    """Somebody answered, and does not know: that was a check."""
    RUNNING = "running"
    """It still runs, or the database was busy: no check."""
    DOWN = "down"
    """Nobody could be asked: no check."""
    REFUSED = "refused"
    """Who was named is not the one to ask: no check, and nothing is decided by it."""

    @property
    def is_decision(self) -> bool:
        """Whether it ends the transaction: COMMITTED or ROLLED_BACK."""
        return self in STATES


REASONS_KEPT = 20
"""How many different reasons a report counts."""

NOTHING_DECIDED = "nothing was decided: "
"""What the sentence of a refusal begins with."""

STATES = {Outcome.COMMITTED: TransactionState.COMMITTED, Outcome.ROLLED_BACK: TransactionState.ROLLED_BACK}
"""The state of a transaction that each decision leads to."""


_MEANINGS: dict[object, Outcome] = {
    LocalTransactionState.COMMIT_MESSAGE: Outcome.COMMITTED,
    LocalTransactionState.ROLLBACK_MESSAGE: Outcome.ROLLED_BACK,
    LocalTransactionState.UNKNOW: Outcome.UNKNOWN,
    TransactionState.COMMITTED: Outcome.COMMITTED,
    TransactionState.ROLLED_BACK: Outcome.ROLLED_BACK,
    None: Outcome.UNKNOWN,
    **{outcome: outcome for outcome in (Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.UNKNOWN, Outcome.RUNNING)},
}
_WORDS = {
    "commit": Outcome.COMMITTED,
    "committed": Outcome.COMMITTED,
    "commit_message": Outcome.COMMITTED,
    "rollback": Outcome.ROLLED_BACK,
    "rolled back": Outcome.ROLLED_BACK,
    "rollback_message": Outcome.ROLLED_BACK,
    "unknown": Outcome.UNKNOWN,
    "unknow": Outcome.UNKNOWN,
    "running": Outcome.RUNNING,
}


def meaning(answer: object) -> Outcome | None:
    """The outcome that an answer of an application stands for; None for what means nothing.

    Answers are LocalTransactionState, TransactionState, Outcome, None (unknown), and in any case commit, committed,
    commit_message, rollback, rolled back, rollback_message, unknown, unknow, running.
    """
    if isinstance(answer, str):
        return _WORDS.get(answer.lower().strip())
    try:
        return _MEANINGS.get(answer)
    except TypeError:  # not hashable
        return None


class Answer(NamedTuple):
    """An outcome, and the sentence that is kept with it."""

    outcome: Outcome
    """What is known."""
    why: str
    """One sentence, for the catalog and the report."""
    nobody_named: bool = False
    """With DOWN: whether nobody is named here who could answer. Another check-back may name somebody."""


def reason_alone(why: str) -> str:
    """The reason of a refusal, for a sentence about something else than a decision."""
    return why.removeprefix(NOTHING_DECIDED)


def count_reason(answer: Answer, not_asked: dict[str, int], refusals: dict[str, int]) -> None:
    """Count why nobody was asked, or why the one who was named is not the one; of many reasons the first ones."""
    reasons = {Outcome.DOWN: not_asked, Outcome.REFUSED: refusals}.get(answer.outcome)
    if reasons is not None and (answer.why in reasons or len(reasons) < REASONS_KEPT):
        reasons[answer.why] = reasons.get(answer.why, 0) + 1


class Question(NamedTuple):
    """A half message in doubt."""

    half: Half
    """The half message, without its body."""
    message: Callable[[], ReceivedMessage]
    """Reads it with its body, for those who need it. Raises what `TransactionalMessageService.message` raises."""


class Resolver(Protocol):
    """What can say how local transactions ended."""

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:
        """One answer for each question, in their order, at `now_ms`, milliseconds since 1970 by the store's clock.

        Raises nothing: what goes wrong is an answer, too.
        """


# A resolver quotes what it met, such as bytes that are not UTF-8: no record and no database takes half a surrogate
# pair, no database a zero, and the two others separate properties in a record.
_NOT_KEPT = re.compile("[\x00-\x02\ud800-\udfff]")


def answers_to(resolver: Resolver, questions: Sequence[Question], now_ms: int) -> list[Answer]:
    """Ask, if there is a question; what cannot be kept of a reason is escaped, so that no reason stops a round."""
    answers = resolver.ask(questions, now_ms) if questions else []
    return [answer._replace(why=_kept(answer.why)) for answer in answers]


def _kept(why: str) -> str:
    return _NOT_KEPT.sub(lambda sign: sign[0].encode("unicode_escape").decode("ascii"), why)
