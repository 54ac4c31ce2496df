"""Answerer: a member of a producer group that never sends, and answers its brokers' checks.

    broker ─► CHECK_TRANSACTION_STATE ─► collected for a moment ─► the resolver ─► END_TRANSACTION

Several may run for one group, on several machines: a broker checks with one of them at a time, and the ledger's primary
key makes all answers agree. What is not known is answered with "unknown": the broker checks again, up to its own
limit (`transactionCheckMax`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

from broker.cluster.live_cluster import LiveCluster
from broker.cluster.publishing.transactions import Check
from broker.message import ReceivedMessage
from broker.transaction.service import Half, LocalTransactionState
from recovery.checkback.protocol import Answer, Outcome, Question, Resolver, count_reason

_BATCH = 500
_COLLECT_S = 0.02
_DECISIONS = {
    Outcome.COMMITTED: LocalTransactionState.COMMIT_MESSAGE,
    Outcome.ROLLED_BACK: LocalTransactionState.ROLLBACK_MESSAGE,
}


@dataclass(slots=True)
class AnswerReport:
    """What was answered; numbers of checks."""

    group: str
    """The producer group."""
    checks: int = 0
    """How many came; the next six counts add up to it."""
    committed: int = 0
    """Answered: it committed."""
    rolled_back: int = 0
    """Answered: it rolled back."""
    unknown: int = 0
    """Somebody answered, and did not know."""
    running: int = 0
    """The local transaction still runs, or its database was busy."""
    down: int = 0
    """Nobody could be asked: `not_asked` says why."""
    refused: int = 0
    """The database is not certainly their ledger: `refusals` says why."""
    not_asked: dict[str, int] = field(default_factory=dict)
    """How many, by the reason; the first 20 reasons."""
    refusals: dict[str, int] = field(default_factory=dict)
    """How many, by the reason; the first 20 reasons."""
    topics: dict[str, int] = field(default_factory=dict)
    """How many, by topic."""

    def as_json(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return asdict(self)


class _PendingCheck(NamedTuple):
    question: Question
    decision: Future[LocalTransactionState]


class Answerer:
    """Answers for one producer group while it is started. Use it in a `with` statement.

    RocketMQ: DefaultMQProducerImpl.checkTransactionState (5.3.3).
    """

    def __init__(
        self,
        cluster: LiveCluster,
        group: str,
        resolver: Resolver,
        *,
        on_topic: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`on_topic(topic)` hears of each topic before its first question is asked."""
        self._cluster, self._group, self._resolver, self._on_topic = cluster, group, resolver, on_topic
        self.report: AnswerReport = AnswerReport(group)
        """What was answered so far."""
        self.last_check_s: float = time.monotonic()
        """When the last checks were answered, by the monotonic clock; before them when this was made."""
        self._before: Check | None = None  # what answered for the group before
        self._questions: queue.SimpleQueue[_PendingCheck | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="checkback-answer", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Join the group: from now on its brokers' checks come here, too.

        Raises ClusterError when no name server answers, or the cluster was closed.
        """
        self._thread.start()
        self._before = self._cluster.half_messages.answer_for(self._group, self._submit)
        self._cluster.join(self._group)

    def stop(self) -> None:
        """Answer what was asked, and no more. The group is left when the cluster is closed."""
        self._cluster.half_messages.answer_for(self._group, self._before)
        self._questions.put(None)
        self._thread.join()

    def _submit(self, half: Half, read: Callable[[], ReceivedMessage]) -> Future[LocalTransactionState]:
        """Put a check into the next batch."""
        decision: Future[LocalTransactionState] = Future()
        self._questions.put(_PendingCheck(Question(half, read), decision))
        return decision

    def _work(self) -> None:
        while (first := self._questions.get()) is not None:
            batch, is_last = self._batch(first)
            self._answer(batch)
            if is_last:
                return

    def _batch(self, first: _PendingCheck) -> tuple[list[_PendingCheck], bool]:
        """What came within a moment: one proof and one SELECT serve all of it."""
        batch, deadline_s = [first], time.monotonic() + _COLLECT_S
        while len(batch) < _BATCH and (left_s := deadline_s - time.monotonic()) > 0:
            try:
                one = self._questions.get(timeout=left_s)
            except queue.Empty:
                break
            if one is None:
                return batch, True
            batch.append(one)
        return batch, False

    def _answer(self, batch: list[_PendingCheck]) -> None:
        for one in batch:
            self._on_topic(one.question.half.topic)
        questions = [one.question for one in batch]
        try:
            answers = self._resolver.ask(questions, time.time_ns() // 1_000_000)
        except Exception as error:  # noqa: BLE001 - a thread that dies would answer nothing any more
            answers = [Answer(Outcome.DOWN, f"{type(error).__name__}: {error}")] * len(batch)
        self.last_check_s = time.monotonic()
        for one, answer in zip(batch, answers, strict=True):
            self._count(one.question.half, answer)
            if one.decision.set_running_or_notify_cancel():  # else the cluster is being closed
                one.decision.set_result(_DECISIONS.get(answer.outcome, LocalTransactionState.UNKNOW))

    def _count(self, half: Half, answer: Answer) -> None:
        report, name = self.report, answer.outcome.name.lower()
        report.checks += 1
        report.topics[half.topic] = report.topics.get(half.topic, 0) + 1
        setattr(report, name, getattr(report, name) + 1)
        count_reason(answer, report.not_asked, report.refusals)
