"""Whom to ask: callables, HTTP endpoints, who asks whom, and the breaker."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import httpx
import pytest

import broker
from broker.errors import BrokerError
from broker.transaction.events import TransactionState
from broker.transaction.service import LocalTransactionState
from recovery.checkback import resolvers
from recovery.checkback.http_resolver import HttpResolver
from recovery.checkback.protocol import Answer, Outcome, Question
from recovery.checkback.resolvers import Breaker, CallableResolver, Router
from tests.backends.shop import raiser
from tests.checkback.shop import open_store
from tests.jobs.shops import ANSWERS, shop


@pytest.fixture
def question(tmp_path: Path) -> Iterator[Question]:
    with open_store(tmp_path / "store") as store:
        half = store.transactions.prepare(broker.Message("orders", b"order 4711", keys=["4711"]), "shop")
        yield Question(half, lambda: store.transactions.message(half))


def one(resolver: object, question: Question) -> Answer:
    (answer,) = resolver.ask([question], 0)  # type: ignore[attr-defined]
    assert isinstance(answer, Answer)
    return answer


# Callables


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (LocalTransactionState.COMMIT_MESSAGE, Outcome.COMMITTED),
        (LocalTransactionState.ROLLBACK_MESSAGE, Outcome.ROLLED_BACK),
        (LocalTransactionState.UNKNOW, Outcome.UNKNOWN),
        (TransactionState.COMMITTED, Outcome.COMMITTED),
        ("rollback", Outcome.ROLLED_BACK),
        ("Commit", Outcome.COMMITTED),
        ("running", Outcome.RUNNING),
        (None, Outcome.UNKNOWN),
        ("perhaps", Outcome.UNKNOWN),
        (True, Outcome.UNKNOWN),
        (["commit"], Outcome.UNKNOWN),
    ],
)
def test_what_a_callable_says(question: Question, said: object, outcome: Outcome) -> None:
    assert one(CallableResolver(lambda _message: said), question).outcome is outcome


def test_a_callable_gets_the_message(question: Question) -> None:
    seen: list[tuple[bytes, tuple[str, ...]]] = []
    one(CallableResolver(lambda message: seen.append((message.body, message.keys))), question)
    assert seen == [(b"order 4711", ("4711",))]


class Mute(Exception):
    """An error that cannot say itself."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize("error", [ZeroDivisionError("no"), SystemExit(0), KeyboardInterrupt(), Mute()])
def test_a_callable_that_raises_does_not_know(question: Question, error: BaseException) -> None:
    """An exit, as of a command that it calls, ended the verb with the code of a success, and a service's thread."""
    answer = one(CallableResolver(raiser(error)), question)
    assert answer.outcome is Outcome.UNKNOWN
    assert type(error).__name__ in answer.why


class Odd:
    """A value that is neither compared nor shown."""

    def __hash__(self) -> int:
        raise RuntimeError

    __repr__ = __str__ = __hash__  # type: ignore[assignment]


def test_a_callable_whose_value_cannot_be_shown_does_not_know(question: Question) -> None:
    assert one(CallableResolver(lambda _message: Odd()), question).outcome is Outcome.UNKNOWN


def was_saved(_message: object) -> str:
    return "commit"


class Listener:
    """As RocketMQ's clients have it."""

    @staticmethod
    def check_local_transaction(_message: object) -> LocalTransactionState:
        return LocalTransactionState.ROLLBACK_MESSAGE


def test_a_dotted_path_is_loaded(question: Question) -> None:
    here = __name__ if __name__ != "__main__" else "tests.checkback.test_resolvers"
    assert one(CallableResolver.load(f"{here}:was_saved"), question).outcome is Outcome.COMMITTED
    assert one(CallableResolver.load(f"{here}:Listener"), question).outcome is Outcome.ROLLED_BACK


async def was_saved_async(_message: object) -> str:
    return "commit"


def test_an_async_function_is_refused() -> None:
    """Nobody awaits it: each answer would be "unknown", until all that was asked about is parked."""
    with pytest.raises(BrokerError, match="make it a plain def, not async"):
        CallableResolver.load(f"{__name__}:was_saved_async")


@pytest.mark.parametrize(
    "name", ["nowhere:f", "recovery.checkback.policy:nothing", "recovery.checkback.policy:PRESETS", "no-such-entry"]
)
def test_what_cannot_be_loaded_is_a_sentence(name: str) -> None:
    with pytest.raises(BrokerError, match=name.replace(".", r"\.")):
        CallableResolver.load(name)


@pytest.mark.parametrize(
    ("text", "why"),
    [("1 / 0", "ZeroDivisionError: division by zero"), ("raise SystemExit(3)", "SystemExit: 3"), ("(", "SyntaxError")],
)
def test_a_module_that_fails_at_its_import_is_a_sentence(
    text: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit in it ended the command, with the module's own code: 3 means here that the store is taken."""
    (tmp_path / "fails_at_import.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BrokerError, match=f"fails_at_import:f cannot be loaded: {why}"):
        CallableResolver.load("fails_at_import:f")
    with pytest.raises(BrokerError, match=":f cannot be loaded: ValueError"):
        CallableResolver.load(":f")


def test_an_entry_point_is_loaded(question: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    found = EntryPoint("orders", f"{__name__}:was_saved", resolvers.ENTRY_POINTS)
    monkeypatch.setattr(resolvers, "entry_points", lambda **named: EntryPoints([found]).select(**named))
    assert one(CallableResolver.load("orders"), question).outcome is Outcome.COMMITTED


# HTTP


def http(respond: object) -> HttpResolver:
    return HttpResolver("http://shop/check", client=httpx.Client(transport=httpx.MockTransport(respond)))  # type: ignore[arg-type]


def answered(status: int, body: bytes) -> httpx.Response:
    """As from a network: not read yet."""
    return httpx.Response(status, stream=httpx.ByteStream(body))


def test_an_endpoint_is_told_what_it_is_about(question: Question) -> None:
    seen: list[dict[str, object]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        return answered(200, b'{"state": "commit"}')

    assert one(http(respond), question).outcome is Outcome.COMMITTED
    (told,) = seen
    assert (told["topic"], told["producer_group"], told["keys"]) == ("orders", "shop", ["4711"])
    assert (told["message_id"], told["unique_key"]) == (question.half.message_id, question.half.unique_key)


@pytest.mark.parametrize(
    ("status", "body", "outcome"),
    [
        (200, b'{"state": "rollback"}', Outcome.ROLLED_BACK),
        (200, b'{"state": "unknown"}', Outcome.UNKNOWN),
        (200, b'{"state": "running"}', Outcome.RUNNING),
        (200, b"{}", Outcome.UNKNOWN),
        (200, b"[]", Outcome.UNKNOWN),
        (200, b"", Outcome.UNKNOWN),
        (200, b"<html>", Outcome.DOWN),  # a login page: at its limit a policy would have rolled back
        (400, b"<html>", Outcome.UNKNOWN),
        (409, b'{"state": "commit"}', Outcome.UNKNOWN),
        *((status, b'{"state": "commit"}', Outcome.DOWN) for status in (401, 403, 404, 407, 408, 429, 500, 503)),
        *((status, b'{"state": "commit"}', Outcome.DOWN) for status in (301, 302, 307, 308)),
    ],
)
def test_what_an_endpoint_answers(question: Question, status: int, body: bytes, outcome: Outcome) -> None:
    assert one(http(lambda _request: answered(status, body)), question).outcome is outcome


def test_an_endpoint_that_does_not_answer_is_down_and_asked_no_more_in_this_round(question: Question) -> None:
    asked: list[None] = []

    def respond(_request: httpx.Request) -> httpx.Response:
        asked.append(None)
        raise httpx.ConnectTimeout("no")

    answers = http(respond).ask([question] * 5, 0)
    assert [answer.outcome for answer in answers] == [Outcome.DOWN] * 5
    assert len(asked) == 3 * 3  # three questions, each tried three times


def test_the_log_of_httpx_shows_no_secret_of_ours(question: Question, caplog: pytest.LogCaptureFixture) -> None:
    """It logs the whole URL of each request: an application that logs information had our password and token there."""
    with httpx.Client(transport=httpx.MockTransport(lambda _request: answered(200, b'{"state": "commit"}'))) as client:
        caplog.set_level("INFO", logger="httpx")
        resolver = HttpResolver("http://shop:PASSWORD@shop/check?token=TOKEN", client=client)
        assert one(resolver, question).outcome is Outcome.COMMITTED
        client.get("http://other/page?of=the-application")
    ours, others = caplog.messages
    assert "POST http://shop/check " in ours
    assert "PASSWORD" not in ours
    assert "TOKEN" not in ours
    assert "GET http://other/page?of=the-application" in others


# Who asks whom


class Fixed:
    """Always the same."""

    def __init__(self, *outcomes: Outcome) -> None:
        self.outcomes = list(outcomes)
        self.sizes: list[int] = []

    def ask(self, questions: Sequence[Question], _now_ms: int) -> list[Answer]:
        self.sizes.append(len(questions))
        outcome = self.outcomes.pop(0) if len(self.outcomes) > 1 else self.outcomes[0]
        return [Answer(outcome, "fixed")] * len(questions)


def test_each_group_has_its_resolver(tmp_path: Path) -> None:
    with open_store(tmp_path / "store") as store:
        questions = [
            Question(store.transactions.prepare(broker.Message("orders", b"x"), group), lambda: None)  # type: ignore[arg-type, return-value]
            for group in ("shop", "other", "shop", "third")
        ]
    router = Router({"shop": Fixed(Outcome.COMMITTED), "third": Fixed(Outcome.RUNNING)}, Fixed(Outcome.ROLLED_BACK))
    assert [answer.outcome for answer in router.ask(questions, 0)] == [
        Outcome.COMMITTED, Outcome.ROLLED_BACK, Outcome.COMMITTED, Outcome.RUNNING,
    ]  # fmt: skip
    nobody = Router({"shop": Fixed(Outcome.COMMITTED)})
    assert [answer.outcome for answer in nobody.ask(questions, 0)].count(Outcome.DOWN) == 2


# The breaker


def test_a_breaker_leaves_in_peace_who_does_not_answer(question: Question) -> None:
    resolver = Fixed(Outcome.DOWN)
    breaker = Breaker(resolver, failures=3, pause_ms=30_000)
    for now_ms in (0, 1, 2):
        breaker.ask([question] * 4, now_ms)
    assert breaker.is_open
    for now_ms in range(3, 30_000, 5_000):
        assert [answer.outcome for answer in breaker.ask([question] * 4, now_ms)] == [Outcome.DOWN] * 4
    assert resolver.sizes == [4, 4, 4]


def test_after_the_pause_one_question_is_the_test(question: Question) -> None:
    resolver = Fixed(Outcome.DOWN, Outcome.DOWN, Outcome.COMMITTED)
    breaker = Breaker(resolver, failures=1, pause_ms=1_000)
    breaker.ask([question] * 4, 0)
    assert [answer.outcome for answer in breaker.ask([question] * 4, 1_000)] == [Outcome.DOWN] * 4
    assert [answer.outcome for answer in breaker.ask([question] * 4, 2_000)] == [Outcome.COMMITTED] * 4
    assert not breaker.is_open
    assert resolver.sizes == [4, 1, 1, 3]


def test_the_test_after_the_pause_is_one_that_somebody_could_answer(question: Question) -> None:
    class ForNobody(Fixed):
        def ask(self, questions: Sequence[Question], now_ms: int) -> list[Answer]:
            nobody = Answer(Outcome.DOWN, "nobody is named", nobody_named=True)
            answers = super().ask(questions, now_ms)
            return [nobody, *answers[1:]] if answers[0].outcome is Outcome.COMMITTED else answers

    breaker = Breaker(ForNobody(Outcome.DOWN, Outcome.COMMITTED), failures=1, pause_ms=1_000)
    breaker.ask([question] * 3, 0)
    outcomes = [answer.outcome for answer in breaker.ask([question] * 3, 1_000)]
    assert outcomes == [Outcome.DOWN, Outcome.DOWN, Outcome.COMMITTED]
    assert not breaker.is_open


def test_a_busy_database_does_not_open_the_breaker(question: Question) -> None:
    breaker = Breaker(Fixed(Outcome.RUNNING), failures=1)
    breaker.ask([question], 0)
    assert not breaker.is_open


def test_nothing_to_ask_is_no_failure(question: Question) -> None:
    breaker = Breaker(Fixed(Outcome.DOWN), failures=1)
    assert breaker.ask([], 0) == []
    assert not breaker.is_open


def test_with_the_sqlalchemy_of_airflow_3_0_a_resolver_is_asked(tmp_path: Path) -> None:
    """Its 1.4 has no `sqlalchemy.URL`: no check-back ran there, although a resolver needs no ledger."""
    path = shop(tmp_path / "shop")
    script = (
        "import sys, sqlalchemy; del sqlalchemy.URL\n"
        "from recovery.jobs.tasks import check_back\n"
        f"print(check_back(sys.argv[1], now_ms=1 << 42, resolver={ANSWERS!r})['committed'])"
    )
    ran = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True, timeout=60)
    assert ran.stdout == "5\n"
