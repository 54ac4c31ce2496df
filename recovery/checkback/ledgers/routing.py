"""Several ledgers of one producer group: one for each tenant, in a schema or a database of its own.

    Ledgers([LedgerResolver(tenant_a, evidence), LedgerResolver(tenant_b, evidence)]).ask(questions, now_ms)

A half message names the binding of its ledger, and each ledger says which binding it has; so each question finds the
database that it belongs to, and no other is asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.exc import SQLAlchemyError

from broker.database.ledger_binding import LEDGER_BINDING
from broker.transaction.service import Half
from recovery.checkback.ledger_resolver import LedgerResolver
from recovery.checkback.ledgers.proof import WrongLedger
from recovery.checkback.protocol import NOTHING_DECIDED, Answer, Outcome, Question


class Ledgers:
    """The ledgers of one producer group; asked as one."""

    def __init__(self, ledgers: Sequence[LedgerResolver]) -> None:
        self._ledgers = list(ledgers)
        self._of: dict[str, LedgerResolver] = {}  # by binding, as read from the databases

    def __repr__(self) -> str:
        return ", ".join(map(repr, self._ledgers))

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:
        """One answer for each question, from the ledger that its half message names."""
        found: dict[int, Answer] = {}
        numbers: dict[str | None, list[int]] = {}
        for number, question in enumerate(questions):
            numbers.setdefault(question.half.properties.get(LEDGER_BINDING), []).append(number)
        for binding_id, those in numbers.items():
            asked = [questions[number] for number in those]
            chosen = self._chosen(binding_id)
            answers = [chosen] * len(those) if isinstance(chosen, Answer) else self._asked(chosen, asked, now_ms)
            found.update(zip(those, answers, strict=True))
        return [found[number] for number in range(len(questions))]

    def peek(self, half: Half) -> Answer:
        """See LedgerResolver."""
        chosen = self._chosen(half.properties.get(LEDGER_BINDING))
        return chosen if isinstance(chosen, Answer) else chosen[0].peek(half)

    def settle(self, half: Half, state: int, by: str) -> Answer:
        """See LedgerResolver."""
        chosen = self._chosen(half.properties.get(LEDGER_BINDING))
        return chosen if isinstance(chosen, Answer) else chosen[0].settle(half, state, by)

    def _asked(self, ledgers: list[LedgerResolver], questions: Sequence[Question], now_ms: int) -> list[Answer]:
        """What the first of them answers that knows; only of a half message without a binding are there several."""
        answers = ledgers[0].ask(questions, now_ms)
        for ledger in ledgers[1:]:
            again = ledger.ask(questions, now_ms)
            pairs = zip(answers, again, strict=True)
            answers = [new if new.outcome is Outcome.COMMITTED else old for old, new in pairs]
        return answers

    def _chosen(self, binding_id: str | None) -> list[LedgerResolver] | Answer:
        """The ledger that has a binding, or the answer when none has it."""
        if binding_id is None or len(self._ledgers) == 1:
            return self._ledgers
        if binding_id in self._of:
            return [self._of[binding_id]]
        refused, silent = [], []
        for ledger in self._ledgers:
            try:
                self._of[ledger.binding_id()] = ledger
            except WrongLedger as error:
                refused.append(str(error))
            except SQLAlchemyError as error:
                silent.append(ledger.trouble(error))
        if binding_id in self._of:
            return [self._of[binding_id]]
        if silent:
            return silent[0]
        others = "; ".join(refused) or f"none of {self!r} has it"
        return Answer(Outcome.REFUSED, f"{NOTHING_DECIDED}the half message names the ledger {binding_id}: {others}")
