"""One round of check-back: what is in doubt and due is checked, fairly between topics, and ended as answered.

    check = CheckBack(store, LedgerResolver(ledger, store.store_id))
    report = check.round(now_ms)

    slots in doubt ─► due by the policy ─► the share of each topic ─► asked ─► ended │ put off │ parked

An attempt changes a few bytes in the catalog and none in the CommitLog. Every end is a compare-and-set on its slot: who
is slower finds the transaction ended and changes nothing. RocketMQ: TransactionalMessageServiceImpl.check (5.3.3).
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from broker import observing
from broker.enlisting.ledger_key import LEDGER_KEY
from broker.errors import AlreadyEnded, BrokerError, CorruptStore
from broker.format import properties as names
from broker.live import LiveStore
from broker.transaction.events import BY, WHY
from broker.transaction.service import Half
from recovery.checkback.catalog import Attempt, Catalog, Known
from recovery.checkback.leader import myself
from recovery.checkback.policy import AtLimit, Policy, Standing, Turn, Verdict, decide, fairly, next_check, spread
from recovery.checkback.protocol import Answer, Outcome, Question, Resolver, answers_to, count_reason
from recovery.humanize import count, moment

LIMIT = 10_000
"""How many transactions one round checks."""
_CHUNK = 1_000  # of them at a time
_READ_FACTOR = 4  # how many more may be read than are checked, to be fair between topics
_WHY_SIZE = 500
_ERRORS_KEPT = 20

_AT_LIMIT = {AtLimit.COMMIT: Outcome.COMMITTED, AtLimit.ROLLBACK: Outcome.ROLLED_BACK}


@dataclass(slots=True)
class RoundReport:
    """What one round found and did; numbers of transactions unless the name says otherwise."""

    in_doubt: int = 0
    """In doubt before the round, parked ones included."""
    parked: int = 0
    """Of them, before the round."""
    of_others: int = 0
    """Of producer groups that this check-back does not ask for: it leaves them alone."""
    waiting: int = 0
    """Not due yet, or not yet durable."""
    due: int = 0
    """Due, or at their limit."""
    asked: int = 0
    """For how many a resolver was asked; at most the limit of the round."""
    committed: int = 0
    """Ended by the round."""
    rolled_back: int = 0
    """Ended by the round."""
    unknown: int = 0
    """Somebody answered, and did not know."""
    running: int = 0
    """The local transaction still runs, or its database was busy."""
    down: int = 0
    """Nobody could be asked: `not_asked` says why."""
    refused: int = 0
    """The database is not certainly their ledger: `refusals` says why."""
    newly_parked: int = 0
    """Parked by the round."""
    decided_elsewhere: int = 0
    """Somebody else was faster."""
    left: int = 0
    """Due, and beyond the limit of the round."""
    oldest_ms: int | None = None
    """Age of the oldest that is in doubt and not parked, in milliseconds; None when there is none."""
    duration_s: float = 0.0
    """How long the round took."""
    is_dry_run: bool = False
    """Whether nothing was asked and changed."""
    topics: dict[str, int] = field(default_factory=dict)
    """How many were checked, by topic; of a dry run how many would be."""
    planned: list[dict[str, Any]] = field(default_factory=list)
    """Of a dry run: what it would check. JSON objects with message_id, commitlog_offset, topic, producer_group, checks
    and at_limit."""
    errors: list[str] = field(default_factory=list)
    """The first 20 half messages that cannot be read, and ends that the store did not take."""
    not_asked: dict[str, int] = field(default_factory=dict)
    """How many, by the reason; the first 20 reasons."""
    refusals: dict[str, int] = field(default_factory=dict)
    """How many, by the reason; the first 20 reasons."""

    def as_json(self) -> dict[str, Any]:
        """All fields by name, ready for JSON."""
        return asdict(self)


class _Due(NamedTuple):
    """A transaction whose turn it is."""

    half: Half
    checks: int
    at_limit: bool


class CheckBack:
    """Queries the transactions in doubt of one store, round by round.

    `resolver` says how local transactions ended, `policy` when it is asked (None: `Policy()`), `catalog` remembers in
    between (None: one in the store). `limit` bounds the transactions that a round checks, `per_topic` those of each
    topic (None: no limit). `groups` are the producer groups that it asks for, and it leaves the transactions of others
    alone (None: it asks for all). `by` names this program in ends and park records; by default host and process.
    `chance`, from 0 to 1, places the jitter. Raises BrokerError for a catalog that cannot be used.
    """

    def __init__(
        self,
        store: LiveStore,
        resolver: Resolver,
        *,
        policy: Policy | None = None,
        catalog: Catalog | None = None,
        limit: int = LIMIT,
        per_topic: int | None = None,
        groups: Collection[str] | None = None,
        by: str = "",
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._store, self._resolver = store, resolver
        self._service = observing.ending(store.transactions)
        self._policy = policy or Policy()
        self.catalog: Catalog = catalog or Catalog.open(store.path, store.store_id)
        """What it remembers between rounds: each attempt, and the last runs."""
        self._limit, self._per_topic, self._groups, self._chance = limit, per_topic, groups, chance
        self._of_others: dict[int, int] = {}  # those that were read, by CommitLog offset: when they were stored
        self._by = by or f"check-back at {myself()}"

    def round(self, now_ms: int, *, dry_run: bool = False) -> RoundReport:
        """Look at everything in doubt, check what is due, end what is known. A dry run changes and asks nothing.

        `now_ms`: milliseconds since 1970, see `now_ms()`. A half message that cannot be read, and an end that the store
        does not take, are in `errors`, and are tried again. Raises BrokerError when the catalog cannot be used,
        StoreError (SyncFailed) when the store cannot be read or flushed.
        """
        started = time.monotonic()
        report = RoundReport(is_dry_run=dry_run)
        known = self.catalog.known()
        due, in_doubt = self._due(known, now_ms, report)
        chosen = list(islice(self._read(fairly(due, self._per_topic), report), self._limit))
        report.left = report.due - len(chosen)
        report.topics = dict(Counter(one.half.topic for one in chosen))
        if dry_run:
            report.planned = [_plan(one) for one in chosen]
        else:
            self._work(chosen, [at for at in known if at not in in_doubt], now_ms, report)
        report.duration_s = round(time.monotonic() - started, 6)
        if report.asked or report.newly_parked:
            with contextlib.suppress(BrokerError):  # it only lets a RocketMQ broker begin further on
                self._store.note_check_progress()
        if not dry_run and (report.asked or report.newly_parked or report.errors):
            self.catalog.note_run(now_ms, self._by, report.as_json())
        return report

    def now_ms(self) -> int:
        """The time by the store's clock, in milliseconds since 1970.

        It does not go back with the wall clock: no later round waits for that.
        """
        return self._store.writer.clock.now_ms(self.catalog.last_looked_ms())

    # What is due

    def _due(self, known: dict[int, Known], now_ms: int, report: RoundReport) -> tuple[list[Turn], set[int]]:
        """The transactions whose turn it is, and the CommitLog offsets of all that are in doubt.

        For those that were checked before the catalog counts, for the others their half message.
        """
        parked, slots = self._service.parked(), list(self._slots())
        visible = self._visible(max((end for _, end in slots), default=0), report)
        in_doubt: set[int] = set()
        due: list[Turn] = []
        new: list[int] = []
        for commitlog_offset, end in slots:
            in_doubt.add(commitlog_offset)
            if end > visible:  # a power cut could still take it back
                report.waiting += 1
            elif commitlog_offset in parked:
                report.parked += 1
            elif commitlog_offset in self._of_others:
                self._leave(self._of_others[commitlog_offset], now_ms, report)
            elif (attempt := known.get(commitlog_offset)) is None:
                new.append(commitlog_offset)
            elif self._is_of_others(attempt.producer_group):
                self._leave(attempt.stored_ms, now_ms, report)
            else:
                standing = Standing(attempt.stored_ms, None, attempt.checks, attempt.next_ms)
                self._judge(standing, attempt.topic, commitlog_offset, now_ms, due, report)
        for commitlog_offset in spread(new, max(self._limit * _READ_FACTOR, _CHUNK)):
            half = self._half(commitlog_offset, report)
            if half is None:
                continue
            if self._is_of_others(half.producer_group):
                self._of_others[commitlog_offset] = half.store_timestamp_ms
                self._leave(half.store_timestamp_ms, now_ms, report)
            else:
                immunity = half.properties.get(names.CHECK_IMMUNITY_TIME_IN_SECONDS)
                standing = Standing(half.store_timestamp_ms, immunity)
                self._judge(standing, half.topic, half, now_ms, due, report)
        self._of_others = {at: stored_ms for at, stored_ms in self._of_others.items() if at in in_doubt}
        report.in_doubt, report.due = len(in_doubt), len(due)
        return due, in_doubt

    def _visible(self, end: int, report: RoundReport) -> int:
        """Up to where the log is durable; flushed first, for the process that stored a half message may have died."""
        if end > self._store.visible_end and not report.is_dry_run:
            self._store.sync_now()
        return self._store.visible_end

    def _slots(self) -> Iterator[tuple[int, int]]:
        """CommitLog offset and end of each half message in doubt."""
        slot_of = self._store.writer.dispatcher.slot
        for slot in self._service.in_doubt_slots():
            found = slot_of(slot)
            yield found.commitlog_offset, found.commitlog_offset + found.size

    def _judge(
        self, standing: Standing, topic: str, half: Half | int, now_ms: int, due: list[Turn], report: RoundReport
    ) -> None:
        """Add it to what is due, or count it as waiting."""
        decision = decide(standing, self._policy.rule(topic), now_ms)
        _note_age(report, now_ms - standing.stored_ms)
        if decision.verdict is Verdict.WAIT:
            report.waiting += 1
            return
        place, read = (half, None) if isinstance(half, int) else (half.commitlog_offset, half)
        due.append(Turn(place, topic, standing.checks, decision.due_ms, decision.verdict is Verdict.LIMIT, read))

    def _read(self, turns: Iterable[Turn], report: RoundReport) -> Iterator[_Due]:
        """Those whose turn it is, with their half messages; one that cannot be read gives its place to the next."""
        for one in turns:
            half = one.half or self._half(one.commitlog_offset, report)
            if half is None:
                report.due -= 1
            else:
                yield _Due(half, one.checks, one.at_limit)

    def _is_of_others(self, producer_group: str) -> bool:
        return self._groups is not None and producer_group not in self._groups

    def _leave(self, stored_ms: int, now_ms: int, report: RoundReport) -> None:
        """Leave it to those that ask for its group: it is neither put off nor given up here."""
        report.of_others += 1
        _note_age(report, now_ms - stored_ms)

    def _half(self, commitlog_offset: int, report: RoundReport) -> Half | None:
        """A half message; None when it was just now ended and its segment is gone, or it cannot be read."""
        try:
            return self._service.half(commitlog_offset)
        except CorruptStore as error:
            _note(report, str(error))
        except BrokerError:
            pass
        return None

    # Ask, and do as the answer says

    def _work(self, chosen: list[_Due], gone: list[int], now_ms: int, report: RoundReport) -> None:
        attempts: list[Attempt] = []
        for start in range(0, len(chosen), _CHUNK):
            chunk = chosen[start : start + _CHUNK]
            ask = [one for one in chunk if _is_asked(one)]
            questions = [Question(one.half, _reader(self._service.message, one.half)) for one in ask]
            answers = answers_to(self._resolver, questions, now_ms)
            report.asked += len(ask)
            by_offset = {one.half.commitlog_offset: answer for one, answer in zip(ask, answers, strict=True)}
            for one in chunk:
                answer = by_offset.get(one.half.commitlog_offset)
                attempt = self._settle(one, answer, now_ms, report)
                if attempt is None:
                    gone.append(one.half.commitlog_offset)
                else:
                    attempts.append(attempt)
        self.catalog.remember(attempts, gone)

    def _settle(self, one: _Due, answer: Answer | None, now_ms: int, report: RoundReport) -> Attempt | None:
        """Do as an answer says; what is to be remembered, or None when nothing is."""
        try:
            if answer is not None and answer.outcome.is_decision:
                self._end(one.half, answer, report)
                return None
            if one.at_limit and (answer is None or answer.outcome is not Outcome.REFUSED):
                self._give_up(one, answer, report)
                return None
        except AlreadyEnded:
            report.decided_elsewhere += 1
            return None
        except BrokerError as error:
            answer = Answer(Outcome.DOWN, f"the store did not take the end: {error}")
            _note(report, f"{one.half.message_id}: {error}")
        assert answer is not None  # without one it is at its limit
        return self._put_off(one, answer, now_ms, report)

    def _end(self, half: Half, answer: Answer, report: RoundReport, why: str = "") -> None:
        extra = {WHY: why[:_WHY_SIZE], BY: self._by} if why else None
        if answer.outcome is Outcome.COMMITTED:
            ended = self._service.commit(half, extra_properties=extra)
            report.committed += not ended.again
        else:
            ended = self._service.rollback(half, extra_properties=extra)
            report.rolled_back += not ended.again
        report.decided_elsewhere += ended.again

    def _give_up(self, one: _Due, answer: Answer | None, report: RoundReport) -> None:
        """What the policy says; where a ledger will answer one day, which is not to be contradicted, it is parked."""
        reason = answer.why if answer else "nobody knew"
        asked, since = count(one.checks, "time"), moment(one.half.store_timestamp_ms)
        why = f"asked {asked}, in doubt since {since} UTC: {reason}"
        outcome = _AT_LIMIT.get(self._policy.rule(one.half.topic).at_limit)
        if outcome is None or (answer is not None and answer.outcome is not Outcome.UNKNOWN):
            report.newly_parked += self._service.park(one.half, why[:_WHY_SIZE])
        else:
            self._end(one.half, Answer(outcome, why), report, f"the policy at its limit: {why}")

    def _put_off(self, one: _Due, answer: Answer, now_ms: int, report: RoundReport) -> Attempt:
        """Nobody knows yet. Only an answer counts as a check: who could not be asked has not been asked."""
        half, rule = one.half, self._policy.rule(one.half.topic)
        counts = answer.outcome is Outcome.UNKNOWN
        report.unknown += counts
        report.running += answer.outcome is Outcome.RUNNING
        report.down += answer.outcome is Outcome.DOWN
        report.refused += answer.outcome is Outcome.REFUSED
        count_reason(answer, report.not_asked, report.refusals)
        checks = one.checks + counts
        next_ms = next_check(rule, checks if counts else 1, now_ms, self._chance())
        if answer.outcome is Outcome.REFUSED or answer.nobody_named:
            next_ms = now_ms  # it does not become right by itself; who names another one is answered at once
        place = (half.commitlog_offset, half.message_id, half.topic, half.producer_group, half.store_timestamp_ms)
        return Attempt(*place, checks, now_ms, next_ms, answer.outcome.value, answer.why[:_WHY_SIZE])


def _note_age(report: RoundReport, age_ms: int) -> None:
    report.oldest_ms = age_ms if report.oldest_ms is None else max(report.oldest_ms, age_ms)


def _note(report: RoundReport, error: str) -> None:
    if len(report.errors) < _ERRORS_KEPT:
        report.errors.append(error)


def _is_asked(one: _Due) -> bool:
    """At its limit a transaction is not checked any more, except with a ledger: its answer is right at any time."""
    return not one.at_limit or LEDGER_KEY in one.half.properties


def _reader(read: Callable[[Half], Any], half: Half) -> Callable[[], Any]:
    return lambda: read(half)


def _plan(one: _Due) -> dict[str, Any]:
    half = one.half
    return {
        "message_id": half.message_id,
        "commitlog_offset": half.commitlog_offset,
        "topic": half.topic,
        "producer_group": half.producer_group,
        "checks": one.checks,
        "at_limit": one.at_limit,
    }
