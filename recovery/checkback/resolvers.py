"""Whom to ask how a local transaction ended: a Python callable; and who asks whom for which group.

    Router({"shop": Ledgers([...]), "billing": HttpResolver("http://billing/check-back")}, default=None)
    CallableResolver.load("shop.orders:was_saved")      # or the name of an entry point in checkback.resolver

Any instance of a producer group may answer; for the ledger none needs to be alive (recovery.checkback.ledger_resolver).
RocketMQ asks a connected producer of the group: DefaultMQProducerImpl.checkTransactionState (5.3.3).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from types import BuiltinFunctionType
from typing import Any

from broker.enlisting.ledger_key import LEDGER_KEY
from broker.errors import BrokerError
from broker.message import ReceivedMessage
from broker.producing.send_arguments import check_sync
from broker.transaction.service import Half
from recovery.checkback.protocol import Answer, Outcome, Question, Resolver, meaning
from recovery.checkback.time_limit import ANSWER_WITHIN_S, TimedOut, TimeLimit, ask_each

ENTRY_POINTS = "checkback.resolver"
"""The group of entry points in which `CallableResolver.load` looks for a name."""
_WHY_SIZE = 200
_BREAKER_FAILURES = 3
_BREAKER_PAUSE_MS = 30_000

Callback = Callable[[Any], object]
"""A function of the application: it takes the ReceivedMessage, and returns what `protocol.meaning` knows."""


class CallableResolver:
    """Calls a function of the application with the message in doubt.

    It returns a LocalTransactionState, a TransactionState, one of the words commit, rollback, unknown, running, or None
    for unknown. What it raises means unknown, as in RocketMQ: TransactionListener.checkLocalTransaction (5.3.3). It is
    called in a thread of its own; a call that takes longer than `answer_within_s` seconds is given up, and nobody was
    asked. An object with `check_local_transaction(message)` serves as well. `name` is for answers and logs.
    """

    def __init__(self, callback: Callback, name: str = "", *, answer_within_s: float = ANSWER_WITHIN_S) -> None:
        self._callback = getattr(callback, "check_local_transaction", callback)
        self._name = name or getattr(callback, "__qualname__", type(callback).__name__)
        self._limit = TimeLimit(self._name, answer_within_s)

    def __repr__(self) -> str:
        return f"callable {self._name}"

    @classmethod
    def load(cls, name: str, *, answer_within_s: float = ANSWER_WITHIN_S) -> CallableResolver:
        """The callable at a dotted path `module:function`, or an entry point of `checkback.resolver`.

        `answer_within_s` is in seconds. Raises BrokerError when there is none, and for what is not a function of an
        application.
        """
        try:
            value = _imported(name)
        except (BrokerError, KeyboardInterrupt):
            raise
        except (ImportError, AttributeError) as error:
            raise BrokerError(f"{name} cannot be loaded: {error}") from error
        except BaseException as error:  # a module runs at its import: one that exits would end this process
            raise BrokerError(f"{name} cannot be loaded: {type(error).__name__}: {error}") from error
        asked = getattr(value, "check_local_transaction", value)
        if not callable(asked) or isinstance(asked, BuiltinFunctionType):  # as os:system, which knows no transaction
            raise BrokerError(f"{name} is not a function of an application and has no check_local_transaction")
        check_sync(asked, name)
        return cls(value, name, answer_within_s=answer_within_s)

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:  # noqa: ARG002 - it has its own clock
        """Call the function for each question; see Resolver. `now_ms` does not matter: it has a clock of its own."""
        return ask_each(questions, self._one, time.monotonic, self._name)

    def _one(self, question: Question) -> Answer:
        try:
            message = question.message()
            return self._limit.run(lambda: self._answer(message), question.half.commitlog_offset)
        except TimedOut as error:
            return Answer(Outcome.DOWN, str(error)[:_WHY_SIZE])
        except Exception as error:  # noqa: BLE001 - a message that cannot be read: nobody says how it ended
            return self._raised(error)

    def _answer(self, message: ReceivedMessage) -> Answer:
        """What the function says of a message, in the thread in which it is called."""
        try:
            value = self._callback(message)
            outcome = meaning(value)
            if outcome is None:
                return Answer(Outcome.UNKNOWN, f"{self._name} answered {value!r:.80}, which means nothing")
        except BaseException as error:  # noqa: BLE001 - whatever the application raises, an exit as well, it did not say
            return self._raised(error)
        return Answer(outcome, f"{self._name} answered {outcome.value}")

    def _raised(self, error: BaseException) -> Answer:
        why = f"{self._name} raised {type(error).__name__}"
        with contextlib.suppress(Exception):  # of an error that cannot say itself
            why = f"{why}: {error}"
        return Answer(Outcome.UNKNOWN, why[:_WHY_SIZE])


def _imported(name: str) -> Any:
    if ":" not in name:
        found = entry_points(group=ENTRY_POINTS, name=name)
        if not found:
            raise BrokerError(f"no entry point {name!r} in the group {ENTRY_POINTS}; a path is module:function")
        return next(iter(found)).load()
    module, _, attribute = name.partition(":")
    return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))


class Router:
    """Asks the resolver of each producer group; a group that has none falls to the default.

    `by_ledger` comes first for the half messages of a group that name a ledger row. Without a default (None) the answer
    for other groups is DOWN.
    """

    def __init__(
        self,
        by_group: Mapping[str, Resolver],
        default: Resolver | None = None,
        *,
        by_ledger: Mapping[str, Resolver] | None = None,
    ) -> None:
        self._by_group, self._default, self._by_ledger = dict(by_group), default, dict(by_ledger or {})

    def _resolver(self, half: Half) -> Resolver | None:
        if LEDGER_KEY in half.properties and half.producer_group in self._by_ledger:
            return self._by_ledger[half.producer_group]
        return self._by_group.get(half.producer_group, self._default)

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:
        """Ask each resolver once, for all questions of its groups; see Resolver."""
        found: dict[int, Answer] = {}
        numbers: dict[int, list[int]] = {}
        resolvers: dict[int, Resolver] = {}
        for number, question in enumerate(questions):
            group, resolver = question.half.producer_group, self._resolver(question.half)
            if resolver is None:
                text = f"nobody is named who could answer for producer group {group!r}"
                found[number] = Answer(Outcome.DOWN, text, nobody_named=True)
            else:
                resolvers[id(resolver)] = resolver
                numbers.setdefault(id(resolver), []).append(number)
        for place, resolver in resolvers.items():
            answers = resolver.ask([questions[number] for number in numbers[place]], now_ms)
            found.update(zip(numbers[place], answers, strict=True))
        return [found[number] for number in range(len(questions))]


class Breaker:
    """Leaves a resolver in peace for `pause_ms` when nobody answered (DOWN) `failures` times in a row.

    The first question after the pause is a test with one transaction: if that one is answered, the rest is asked.
    """

    def __init__(
        self, resolver: Resolver, *, failures: int = _BREAKER_FAILURES, pause_ms: int = _BREAKER_PAUSE_MS
    ) -> None:
        self._resolver, self._failures, self._pause_ms = resolver, failures, pause_ms
        self._failed = 0
        self._closed_until_ms = 0

    def __repr__(self) -> str:
        return repr(self._resolver)

    @property
    def is_open(self) -> bool:
        """Whether it lets nothing through, but for the test after the pause."""
        return self._failed >= self._failures

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:
        """Ask the resolver, or answer DOWN in its place while it is left in peace; see Resolver."""
        if not questions:
            return []
        if self.is_open and now_ms < self._closed_until_ms:
            text = f"{self._resolver!r} did not answer {self._failed} times; it is asked again in a while"
            return [Answer(Outcome.DOWN, text)] * len(questions)
        first = self._asked(questions[:1], now_ms) if self.is_open else []
        if first and first[0].outcome is Outcome.DOWN and not first[0].nobody_named:
            return first * len(questions)
        return first + self._asked(questions[len(first) :], now_ms)

    def _asked(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:
        answers = self._resolver.ask(questions, now_ms) if questions else []
        if any(answer.outcome is not Outcome.DOWN for answer in answers):
            self._failed = 0
        elif any(not answer.nobody_named for answer in answers):  # one for whom nobody is named was not asked
            self._failed += 1
            self._closed_until_ms = now_ms + self._pause_ms
        return answers
