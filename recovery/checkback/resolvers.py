"""Whom to ask how a local transaction ended: a Python callable, an HTTP endpoint; and who asks whom for which group.

    Router({"shop": LedgerResolver(...), "billing": HttpResolver("http://billing/check-back")}, default=None)
    CallableResolver.load("shop.orders:was_saved")      # or the name of an entry point in checkback.resolver

Any instance of a producer group may answer; for the ledger none needs to be alive (recovery.checkback.ledger_resolver).
RocketMQ asks a connected producer of the group: DefaultMQProducerImpl.checkTransactionState (5.3.3).
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any

from broker.errors import BrokerError
from broker.ledger import LEDGER_KEY
from broker.transaction.events import TransactionState
from broker.transaction.service import Half, LocalTransactionState
from recovery.checkback.protocol import Answer, Outcome, Question, Resolver

ENTRY_POINTS = "checkback.resolver"
HTTP_TIMEOUT_S = 3.0
_WHY_SIZE = 200
_BREAKER_FAILURES = 3
_BREAKER_PAUSE_MS = 30_000

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

Callback = Callable[[Any], object]


class CallableResolver:
    """Calls a function of the application with the message in doubt.

    It returns a LocalTransactionState, a TransactionState, one of the words commit, rollback, unknown, running, or None
    for unknown. What it raises means unknown, as in RocketMQ: TransactionListener.checkLocalTransaction (5.3.3).
    """

    def __init__(self, callback: Callback, name: str = "") -> None:
        self._callback = getattr(callback, "check_local_transaction", callback)
        self._name = name or getattr(callback, "__qualname__", type(callback).__name__)

    def __repr__(self) -> str:
        return f"callable {self._name}"

    @classmethod
    def load(cls, name: str) -> CallableResolver:
        """The callable at a dotted path `module:function`, or an entry point of `checkback.resolver`.

        Raises BrokerError when there is none.
        """
        if ":" not in name:
            found = entry_points(group=ENTRY_POINTS, name=name)
            if not found:
                raise BrokerError(f"no entry point {name!r} in the group {ENTRY_POINTS}; a path is module:function")
            return cls(next(iter(found)).load(), name)
        module, _, attribute = name.partition(":")
        try:
            value: Any = importlib.import_module(module)
            for part in attribute.split("."):
                value = getattr(value, part)
        except (ImportError, AttributeError) as error:
            raise BrokerError(f"{name} cannot be loaded: {error}") from error
        if not callable(getattr(value, "check_local_transaction", value)):
            raise BrokerError(f"{name} is no function and has no check_local_transaction")
        return cls(value, name)

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:  # noqa: ARG002 - it has its own clock
        return [self._one(question) for question in questions]

    def _one(self, question: Question) -> Answer:
        try:
            said = self._callback(question.message())
        except Exception as error:  # noqa: BLE001 - whatever the application raises, it did not say
            return Answer(Outcome.UNKNOWN, f"{self._name} raised {type(error).__name__}: {error}"[:_WHY_SIZE])
        outcome = _meaning(said)
        if outcome is None:
            return Answer(Outcome.UNKNOWN, f"{self._name} said {said!r:.80}, which means nothing")
        return Answer(outcome, f"{self._name} said {outcome.value}")


def _meaning(said: object) -> Outcome | None:
    if isinstance(said, str):
        return _WORDS.get(said.lower().strip())
    try:
        return _MEANINGS.get(said)
    except TypeError:  # not hashable
        return None


class HttpResolver:
    """Asks an endpoint of the application: POST with the transaction as JSON, answered by {"state": "commit"}.

    The states are commit, rollback, unknown and running. No connection, a time-out, or a status of 500 or above means
    that nobody could be asked; any other answer without a state counts as unknown. Needs the extra `http`.
    """

    def __init__(self, url: str, *, timeout_s: float = HTTP_TIMEOUT_S, client: Any = None) -> None:
        self._url, self._timeout_s, self._client = url, timeout_s, client

    def __repr__(self) -> str:
        return f"http {self._url}"

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:  # noqa: ARG002 - it has its own clock
        if self._client is not None:
            return self._all(self._client, questions)
        try:
            import httpx
        except ImportError:
            raise BrokerError("asking over HTTP needs httpx: pip install 'checkback[http]'") from None
        with httpx.Client(timeout=self._timeout_s) as client:
            return self._all(client, questions)

    def _all(self, client: Any, questions: Sequence[Question]) -> list[Answer]:
        """The answers; once nobody answers, the rest is not asked in this round."""
        found: list[Answer] = []
        for question in questions:
            if found and found[-1].outcome is Outcome.DOWN:
                found.append(found[-1])
            else:
                found.append(self._one(client, question))
        return found

    def _one(self, client: Any, question: Question) -> Answer:
        import httpx

        try:
            response = client.post(self._url, json=described(question.half))
        except httpx.HTTPError as error:
            return Answer(Outcome.DOWN, f"{self._url} does not answer: {type(error).__name__}: {error}"[:_WHY_SIZE])
        if response.status_code >= 500:
            return Answer(Outcome.DOWN, f"{self._url} answers {response.status_code}")
        try:
            outcome = _meaning(str(response.json()["state"]))
        except (ValueError, KeyError, TypeError):
            outcome = None
        if response.status_code >= 300 or outcome is None:
            return Answer(Outcome.UNKNOWN, f"{self._url} answers {response.status_code} without a state")
        return Answer(outcome, f"{self._url} said {outcome.value}")


def described(half: Half) -> dict[str, Any]:
    """What an endpoint is told about a transaction in doubt."""
    described = {
        "message_id": half.message_id,
        "unique_key": half.unique_key,
        "producer_group": half.producer_group,
        "topic": half.topic,
        "keys": list(half.keys),
        "born_timestamp_ms": half.born_timestamp_ms,
        "properties": dict(half.properties),
    }
    json.dumps(described)
    return described


class Router:
    """Asks the resolver of each producer group; a group that has none falls to the default.

    `by_ledger` comes first for the half messages of a group that name a ledger row.
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
        found: dict[int, Answer] = {}
        numbers: dict[int, list[int]] = {}
        resolvers: dict[int, Resolver] = {}
        for number, question in enumerate(questions):
            group, resolver = question.half.producer_group, self._resolver(question.half)
            if resolver is None:
                found[number] = Answer(Outcome.DOWN, f"nobody is named who could answer for producer group {group!r}")
            else:
                resolvers[id(resolver)] = resolver
                numbers.setdefault(id(resolver), []).append(number)
        for place, resolver in resolvers.items():
            answers = resolver.ask([questions[number] for number in numbers[place]], now_ms)
            found.update(zip(numbers[place], answers, strict=True))
        return [found[number] for number in range(len(questions))]


class Breaker:
    """Leaves a resolver in peace for a while when nobody answered several times in a row.

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
        """Whether it lets nothing through, as a breaker of a current."""
        return self._failed >= self._failures

    def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:
        if not questions:
            return []
        if self.is_open and now_ms < self._closed_until_ms:
            text = f"{self._resolver!r} did not answer {self._failed} times; it is asked again in a while"
            return [Answer(Outcome.DOWN, text)] * len(questions)
        first = self._asked(questions[:1], now_ms) if self.is_open else []
        if first and first[0].outcome is Outcome.DOWN:
            return first * len(questions)
        return first + self._asked(questions[len(first) :], now_ms)

    def _asked(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:
        answers = self._resolver.ask(questions, now_ms) if questions else []
        if any(answer.outcome is not Outcome.DOWN for answer in answers):
            self._failed = 0
        elif answers:
            self._failed += 1
            self._closed_until_ms = now_ms + self._pause_ms
        return answers
