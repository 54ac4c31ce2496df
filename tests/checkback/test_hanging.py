"""Whoever does not come back is given up: callables, endpoints, databases; the others are served meanwhile."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import URL, create_engine, event

import broker
from broker.enlisting.ledger_key import new_key
from broker.errors import BrokerError
from broker.ledger import Ledger
from recovery.checkback import ledger_resolver, time_limit
from recovery.checkback.catalog import Catalog
from recovery.checkback.http_resolver import ANSWER_BYTES, HttpResolver, read_headers, shown
from recovery.checkback.leader import LeaderLock
from recovery.checkback.policy import Policy, Rule
from recovery.checkback.protocol import Answer, Outcome, Question
from recovery.checkback.resolvers import Breaker, CallableResolver, Router
from recovery.checkback.round import CheckBack
from recovery.checkback.service import CheckService
from recovery.checkback.time_limit import Bounded
from recovery.views.overview import overview
from tests.checkback.room import refuse_threads
from tests.checkback.shop import open_store
from tests.ledger.proven import resolver_of

LIMIT_S = 1.0  # far more than a call takes that does not hang, on a busy machine, too
PATIENCE_S = 30.0  # of a test, on a machine that does other things, too


@pytest.fixture
def questions(tmp_path: Path) -> Iterator[list[Question]]:
    with open_store(tmp_path / "store") as store:
        halves = [store.transactions.prepare(broker.Message("orders", b"%d" % n), "shop") for n in range(6)]
        yield [Question(half, lambda half=half: store.transactions.message(half)) for half in halves]  # type: ignore[misc]


def test_an_answer_begins_the_count_of_failures_again(questions: list[Question]) -> None:
    """Orders that fail each time, among others, are no resolver that is away."""
    outcomes = iter([Outcome.DOWN, Outcome.DOWN, Outcome.COMMITTED, Outcome.DOWN, Outcome.DOWN, Outcome.COMMITTED])
    found = time_limit.ask_each(questions, lambda _: Answer(next(outcomes), ""), lambda: 0.0, "x")
    assert [answer.outcome for answer in found].count(Outcome.COMMITTED) == 2


# Callables


def test_a_callable_without_a_thread_was_not_asked(questions: list[Question], monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer "unknown" would count as a check, and after enough of them the policy decides."""
    asked: list[object] = []
    resolver = CallableResolver(asked.append)
    refuse_threads(monkeypatch)
    assert {answer.outcome for answer in resolver.ask(questions, 0)} == {Outcome.DOWN}
    assert not asked


def test_a_callable_that_hangs_on_one_order_is_given_up_and_the_others_are_answered(
    questions: list[Question], gate: threading.Event
) -> None:
    def says(message: broker.ReceivedMessage) -> str:
        return "commit" if message.body != b"2" else str(gate.wait(PATIENCE_S))

    answers = CallableResolver(says, answer_within_s=LIMIT_S).ask(questions, 0)
    assert [answer.outcome for answer in answers] == [Outcome.COMMITTED] * 2 + [Outcome.DOWN] + [Outcome.COMMITTED] * 3
    assert f"did not answer within {LIMIT_S:g} s" in answers[2].why


def test_a_callable_that_hangs_on_all_is_asked_three_times(questions: list[Question], gate: threading.Event) -> None:
    started = time.monotonic()
    answers = CallableResolver(lambda _: gate.wait(PATIENCE_S), answer_within_s=LIMIT_S).ask(questions * 100, 0)
    assert {answer.outcome for answer in answers} == {Outcome.DOWN}
    assert time.monotonic() - started < PATIENCE_S / 2


def test_a_slow_callable_leaves_time_for_others(questions: list[Question], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limit, "ASKING_MOST_S", 0.05)

    def slow(_message: object) -> str:
        time.sleep(0.02)
        return "commit"

    answers = CallableResolver(slow).ask(questions, 0)
    assert answers[0].outcome is Outcome.COMMITTED
    assert answers[-1].outcome is Outcome.DOWN
    assert "not asked this time" in answers[-1].why


# Endpoints


@contextmanager
def server(talk: Callable[[socket.socket], object], requests: list[bytes] | None = None) -> Iterator[str]:
    """An endpoint that reads a request and then does as it likes; gives its address."""
    heard = [] if requests is None else requests
    listening = socket.create_server(("127.0.0.1", 0))
    stopped = threading.Event()

    def serve() -> None:
        while not stopped.is_set():
            with suppress(OSError):
                connection, _ = listening.accept()
                with connection:
                    heard.append(connection.recv(65536))
                    talk(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}/check-back"
    stopped.set()
    with suppress(OSError):
        listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(PATIENCE_S)


def drip(*heads: bytes) -> Callable[[socket.socket], object]:
    """Sends a byte now and then, so that no single read takes long."""

    def talk(connection: socket.socket) -> None:
        for head in heads:
            connection.sendall(head)
        for _ in range(100):
            connection.sendall(b"x")
            time.sleep(LIMIT_S / 4)

    return talk


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "talk",
    [
        pytest.param(drip(HEAD, b"X-Slow: "), id="headers-trickle"),
        pytest.param(drip(HEAD, b"Content-Length: 1000\r\n\r\n"), id="body-trickles"),
        pytest.param(lambda _: time.sleep(LIMIT_S * 4), id="silent"),
    ],
)
def test_an_endpoint_that_trickles_is_given_up_as_a_whole(
    questions: list[Question], talk: Callable[[socket.socket], object]
) -> None:
    with server(talk) as url:
        started = time.monotonic()
        (answer,) = HttpResolver(url, answer_within_s=LIMIT_S).ask(questions[:1], 0)
        assert time.monotonic() - started < PATIENCE_S / 4
    assert answer.outcome is Outcome.DOWN


def test_an_endless_answer_is_given_up(questions: list[Question]) -> None:
    def endless(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"\r\n")
        with suppress(OSError):
            for _ in range(1000):
                connection.sendall(b"x" * ANSWER_BYTES)

    with server(endless) as url:
        (answer,) = HttpResolver(url, answer_within_s=PATIENCE_S).ask(questions[:1], 0)
    assert answer.outcome is Outcome.DOWN
    assert "more than 64 KiB" in answer.why


def test_who_is_briefly_away_is_asked_again(questions: list[Question]) -> None:
    """A proxy says 503 while the application starts."""
    statuses = [b"503 Away", b"200 OK"]

    def talk(connection: socket.socket) -> None:
        body = b'{"state": "commit"}'
        connection.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n" % (statuses.pop(0), len(body)) + body)

    with server(talk) as url:
        (answer,) = HttpResolver(url, answer_within_s=PATIENCE_S).ask(questions[:1], 0)
    assert answer.outcome is Outcome.COMMITTED
    assert statuses == []


def test_a_redirect_takes_no_token_elsewhere(questions: list[Question], tmp_path: Path) -> None:
    """Nor is it an answer."""
    seen: list[bytes] = []
    token = tmp_path / "token"
    token.write_text("secret word\n")
    with server(lambda connection: seen.append(b"elsewhere")) as other:

        def talk(connection: socket.socket) -> None:
            connection.sendall(b"HTTP/1.1 307 T\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % other.encode())

        with server(talk) as url:
            headers = read_headers(None, str(token))
            (answer,) = HttpResolver(url, answer_within_s=PATIENCE_S, headers=headers).ask(questions[:1], 0)
    assert (answer.outcome, "a redirect" in answer.why, seen) == (Outcome.DOWN, True, [])
    assert "secret" not in answer.why


def test_headers_come_from_files(tmp_path: Path, questions: list[Question]) -> None:
    headers, token = tmp_path / "headers", tmp_path / "token"
    headers.write_text("# of the gateway\nX-Tenant: a\n\n")
    token.write_text("t0ken\n")

    def talk(connection: socket.socket) -> None:
        connection.sendall(HEAD + b"Content-Length: 21\r\n\r\n" + b'{"state": "rollback"}')

    found, requests = read_headers(str(headers), str(token)), list[bytes]()
    with server(talk, requests) as url:
        assert HttpResolver(url, headers=found).ask(questions[:1], 0)[0].outcome is Outcome.ROLLED_BACK
    assert b"x-tenant: a\r\n" in requests[0].lower()
    assert b"authorization: Bearer t0ken\r\n".lower() in requests[0].lower()


@pytest.mark.parametrize("text", ["s3cret", ": s3cret", "X: a\ns3cret"])
def test_a_file_that_holds_no_headers_is_a_sentence_without_its_content(tmp_path: Path, text: str) -> None:
    path = tmp_path / "headers"
    path.write_text(text)
    with pytest.raises(BrokerError, match="is not a header") as caught:
        read_headers(str(path), None)
    assert "s3cret" not in str(caught.value)


def test_an_address_is_shown_without_its_secrets() -> None:
    assert shown("https://ada:word@shop.example:8443/check?token=word") == "https://shop.example:8443/check"


# A database, and the others' turn


class Stuck:
    """A ledger whose database took the connection and never answers."""

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def __repr__(self) -> str:
        return "ledger postgresql://shop/orders"

    def ask(self, questions: list[Question], _now_ms: int) -> list[Answer]:
        self._gate.wait(PATIENCE_S)
        return [Answer(Outcome.COMMITTED, "late")] * len(questions)


def test_a_database_far_away_decides_a_part_of_a_batch_each_time(
    postgres_url: URL, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it would take longer than a batch may: nothing would be answered, this time and every other."""
    clock = SimpleNamespace(seconds=0.0)

    def far(_: object) -> None:
        clock.seconds += 4

    engine = create_engine(postgres_url)
    ledger = Ledger(engine)
    ledger.create_all()
    resolver, keys = resolver_of(ledger, "5" * 32), {new_key(1000 + number): "shop" for number in range(9)}
    monkeypatch.setattr(ledger_resolver, "time", SimpleNamespace(monotonic=lambda: clock.seconds))
    event.listen(engine, "commit", far)
    outcomes = [answer.outcome for answer in resolver.answers(keys).values()]
    assert outcomes == [Outcome.ROLLED_BACK] * 8 + [Outcome.RUNNING]
    assert clock.seconds < time_limit.LEDGER_WITHIN_S
    engine.dispose()


def test_rounds_go_on_beside_a_group_that_hangs(tmp_path: Path, gate: threading.Event) -> None:
    """Two rounds of a service: the other group is served in the first, the lead is given back, and the reason shows."""
    path = tmp_path / "store"
    rule = Rule(first_check_after_ms=0, interval_ms=1, jitter=0.0)
    with open_store(path) as store:
        for group in ("hangs", "served", "stuck"):
            store.transactions.prepare(broker.Message("orders", group.encode()), group)
        hangs = CallableResolver(lambda _: gate.wait(PATIENCE_S), "shop:hangs", answer_within_s=LIMIT_S)
        served = CallableResolver(lambda _: "commit")
        router = Router({"hangs": Breaker(hangs), "served": served, "stuck": Bounded(Stuck(gate), LIMIT_S)})
        catalog = Catalog.open(str(path), "5" * 32)
        now_ms = iter(range(time.time_ns() // 1_000_000, 1 << 62, 60_000))
        check = CheckBack(store, router, policy=Policy(rule), catalog=catalog)
        service = CheckService(check, LeaderLock(store.path), clock_ms=lambda: next(now_ms))
        first, second = service.run_once(), service.run_once()
        assert first is not None
        assert second is not None
        assert (first.committed, first.down, second.down) == (1, 2, 2)
        assert sorted(first.not_asked) == [
            f"ledger postgresql://shop/orders did not answer within {LIMIT_S:g} s",
            f"shop:hangs did not answer within {LIMIT_S:g} s",
        ]  # fmt: skip
        assert json.loads(json.dumps(second.as_json()))["not_asked"]
        service.stop()
        other = LeaderLock(store.path)
        assert other.try_take()
        other.release()


def test_the_page_is_told_why_nobody_could_be_asked(tmp_path: Path, gate: threading.Event) -> None:
    path = tmp_path / "store"
    with open_store(path) as store:
        store.transactions.prepare(broker.Message("orders", b"x"), "shop")
        resolver = CallableResolver(lambda _: gate.wait(PATIENCE_S), "shop:hangs", answer_within_s=LIMIT_S)
        check = CheckBack(store, resolver)
        check.round(time.time_ns() // 1_000_000 + 60_000)
        check.catalog.close()
    (waiting,) = overview(str(path), time.time_ns() // 1_000_000).in_doubt
    assert (waiting.checks, waiting.outcome) == (0, "down")
    assert waiting.last == f"shop:hangs did not answer within {LIMIT_S:g} s"
    assert waiting.as_json()["outcome"] == "down"
