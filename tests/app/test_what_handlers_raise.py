"""What a handler raises besides errors: the worker ends with its name, or the message is retried; nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, event
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import broker
from broker.app import worker
from broker.consumer import Consumer
from broker.errors import MessageRejected, StoreError, StoreFull
from recovery.views.dead_letters import dead_letters
from tests.app.shop import Charge, Placed, async_engine_of, charged, place, shop_app, until


@pytest.fixture
def app(tmp_path: Path, sqlite_url: URL) -> Iterator[broker.App]:
    """With an engine for async handlers, too."""
    both = shop_app(tmp_path, sqlite_url, async_engine=async_engine_of(sqlite_url))
    yield both
    both.close()
    assert both.engine is not None
    both.engine.dispose()


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def raising(error: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def deep() -> None:
    deep()


KINDS = ("sync", "sync-session", "async", "async-session")
ENDS: dict[str, tuple[Callable[[], Any], str]] = {
    "exit": (lambda: sys.exit(3), r"SystemExit\(3\)"),
    "interrupt": (raising(KeyboardInterrupt()), r"KeyboardInterrupt\(\)"),
    "generator-exit": (raising(GeneratorExit()), r"GeneratorExit\(\)"),
    "group": (raising(BaseExceptionGroup("two", [KeyboardInterrupt()])), "BaseExceptionGroup"),
}
RETRIED: dict[str, Callable[[], Any]] = {
    "cancelled": raising(asyncio.CancelledError()),
    "group": raising(ExceptionGroup("two", [ValueError(1)])),
    "recursion": deep,
    "memory": raising(MemoryError()),
    "stop": raising(StopIteration()),
    "unprintable": raising(Unprintable()),
}


def declare(app: broker.App, kind: str, act: Callable[[], Any], seen: list[int], retries: int = 3) -> None:
    """A handler that charges an order, and does something at the first one that it sees."""
    on = app.on("orders", group="billing", retry=broker.Retry(retries, delays_s=(0,)))

    def first(placed: Placed) -> None:
        seen.append(placed.order_id)
        if len(seen) == 1:
            act()

    if kind == "sync":
        on(first)
    elif kind == "sync-session":

        @on
        def charge(placed: Placed, session: Session) -> None:
            session.add(Charge(order_id=placed.order_id))
            first(placed)
    elif kind == "async":

        @on
        async def note(placed: Placed) -> None:
            first(placed)
    else:

        @on
        async def charge_async(placed: Placed, session: AsyncSession) -> None:
            session.add(Charge(order_id=placed.order_id))
            first(placed)


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_ends_a_program_ends_the_worker(app: broker.App, kind: str, name: str) -> None:
    act, sentence = ENDS[name]
    seen: list[int] = []
    declare(app, kind, act, seen)
    with app:
        place(app, "lamp")
        begun_s = time.monotonic()
        with pytest.raises(StoreError, match=f"a worker ended: {sentence}"), app.workers() as workers:
            until(lambda: workers.failure)
        assert time.monotonic() - begun_s < 20, "it waits for no grace"
        assert charged(app.engine) == []
        with app.workers():
            until(lambda: len(seen) == 2)
        assert charged(app.engine) == ([1] if "session" in kind else [])


@pytest.mark.parametrize("error", [StoreFull("no room"), StoreError("an fsync failed")])
@pytest.mark.parametrize("kind", KINDS)
def test_what_the_store_does_not_take_is_said(
    app: broker.App, kind: str, error: StoreError, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk is waited for, any other failure ends the worker: else the message is in hand, and nobody knows."""

    def refused(*_: object, **__: object) -> bool:
        raise error

    monkeypatch.setattr(Consumer, "retry", refused)
    monkeypatch.setattr(worker, "_FULL_S", 0.01)
    declare(app, kind, raising(ValueError(1)), [])
    with app, contextlib.suppress(StoreError):
        place(app, "lamp")
        with app.workers() as workers:
            until(lambda: workers.failure is error or "no room: what is in hand is settled when" in caplog.text)
            assert isinstance(error, StoreFull) is (workers.failure is None)


@pytest.mark.parametrize("name", RETRIED)
@pytest.mark.parametrize("kind", KINDS)
def test_what_fails_is_retried(app: broker.App, kind: str, name: str) -> None:
    logging.getLogger("broker").addFilter(quiet := lambda record: record.exc_info is None)
    seen: list[int] = []
    declare(app, kind, RETRIED[name], seen)
    try:
        with app:
            place(app, "lamp")
            with app.workers() as workers:
                until(lambda: len(seen) == 2)
            assert workers.failure is None
            assert charged(app.engine) == ([1] if "session" in kind else [])
    finally:
        logging.getLogger("broker").removeFilter(quiet)


def reason_of_letter(app: broker.App) -> str:
    """Why the one message of billing became a dead letter."""
    logging.getLogger("broker").addFilter(quiet := lambda record: record.exc_info is None)
    try:
        with app:
            place(app, "lamp")
            with app.workers():
                until(lambda: list(dead_letters(app.store, "billing")))
            (letter,) = dead_letters(app.store, "billing")
    finally:
        logging.getLogger("broker").removeFilter(quiet)
    return letter.why


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_what_the_database_refuses_after_the_handler_is_the_handlers_error(app: broker.App, is_async: bool) -> None:
    """An object of the session is written after the handler returned, and may break a constraint then."""
    seen: list[int] = []
    on = app.on("orders", group="billing", retry=broker.Retry(3, delays_s=(0,), give_up_on=(IntegrityError,)))

    def charge(placed: Placed, session: Session) -> None:
        seen.append(placed.order_id)
        session.add(Charge())

    async def charge_async(placed: Placed, session: AsyncSession) -> None:
        seen.append(placed.order_id)
        session.add(Charge())

    on(charge_async) if is_async else on(charge)
    assert reason_of_letter(app).startswith("IntegrityError: (sqlite3.IntegrityError) NOT NULL constraint failed")
    assert seen == [1]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_the_reason_why_a_commit_failed_is_kept(app: broker.App, is_async: bool) -> None:
    """COMMIT is retried, whatever the policy says of the handler; then the dead letter says what failed in it."""
    seen: list[int] = []
    on = app.on("orders", group="billing", retry=broker.Retry(1, delays_s=(0,), retry_on=(KeyError,)))

    def charge(placed: Placed, session: Session) -> None:
        seen.append(placed.order_id)
        with contextlib.suppress(MessageRejected):
            app.send("nowhere", placed)

    async def charge_async(placed: Placed, session: AsyncSession) -> None:
        seen.append(placed.order_id)
        with contextlib.suppress(MessageRejected):
            await app.send_async("nowhere", placed)

    on(charge_async) if is_async else on(charge)
    reason = reason_of_letter(app)
    assert reason.startswith("its transaction could not be committed: TransactionError: the transaction cannot commit")
    assert reason.endswith("(after 1 retries)")
    assert seen == [1, 1]


def test_a_reason_that_cannot_be_printed(app: broker.App) -> None:
    declare(app, "sync", raising(Unprintable()), [], retries=0)
    assert reason_of_letter(app).startswith("Unprintable: its text cannot be made (RuntimeError)")


def test_a_retry_whose_error_cannot_be_printed_is_logged(app: broker.App) -> None:
    written: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        written.append(record.getMessage())
        return False

    seen: list[int] = []
    declare(app, "sync", RETRIED["unprintable"], seen)
    logging.getLogger("broker").addFilter(keep)
    try:
        with app:
            place(app, "lamp")
            with app.workers():
                until(lambda: len(seen) == 2)
    finally:
        logging.getLogger("broker").removeFilter(keep)
    assert any(text.endswith("in 0 s: Unprintable: its text cannot be made (RuntimeError)") for text in written)


@pytest.mark.parametrize("retries", [3, 0])
def test_a_log_that_raises_holds_no_message_up(app: broker.App, retries: int) -> None:
    """A filter that needs the context of a request, for example."""

    def broken(record: logging.LogRecord) -> bool:
        if record.exc_info is not None:
            raise RuntimeError("outside a request")
        return True

    seen: list[int] = []
    declare(app, "sync-session", RETRIED["stop"], seen, retries)
    logging.getLogger("broker").addFilter(broken)
    try:
        with app:
            place(app, "lamp")
            with app.workers():
                until(lambda: len(seen) == 2 or list(dead_letters(app.store, "billing")))
    finally:
        logging.getLogger("broker").removeFilter(broken)


@pytest.mark.parametrize("name", ["task", "loop"])
def test_a_handler_that_stops_the_loop_stops_no_other(app: broker.App, name: str) -> None:
    """By a task of its own, or directly."""
    done: list[int] = []

    @app.on("orders", group="billing", concurrency=2)
    async def handle(placed: Placed) -> None:
        if placed.order_id == 1 and name == "task":
            asyncio.get_running_loop().create_task(leave())
        elif placed.order_id == 1:
            asyncio.get_running_loop().stop()
        await asyncio.sleep(0.05)
        done.append(placed.order_id)

    async def leave() -> None:
        sys.exit(3)

    with app:
        place(app, "lamp")
        place(app, "chair")
        with app.workers():
            until(lambda: sorted(done) == [1, 2])


@pytest.mark.parametrize("blocks", [True, False], ids=["blocks", "swallows"])
def test_stopping_does_not_wait_for_what_cannot_be_cancelled(
    app: broker.App, blocks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "_CANCEL_S", 0.3)
    go: list[bool] = []
    begun: list[int] = []

    @app.on("orders", group="billing")
    async def handle(placed: Placed) -> None:
        begun.append(placed.order_id)
        while not go:
            try:
                await asyncio.sleep(0 if blocks else 0.05)
                time.sleep(0.05 if blocks else 0)  # noqa: ASYNC251 - it blocks the loop
            except asyncio.CancelledError:
                continue

    with app:
        place(app, "lamp")
        workers = app.workers().start()
        until(lambda: begun)
        begun_s = time.monotonic()
        assert not workers.stop(0.1)
        assert time.monotonic() - begun_s < 10
        go.append(True)


def test_a_pool_that_serves_another_event_loop_is_named(
    tmp_path: Path, sqlite_url: URL, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As of a web server with the workers in its lifespan: the log said that the database did not answer."""
    monkeypatch.setattr("broker.app.execution._WAITS_S", [0.01] * 1000)
    async_engine, met = async_engine_of(sqlite_url), list[object]()

    def fail_once(connection: object) -> None:
        met.append(connection)
        if len(met) == 1:
            raise RuntimeError(
                f"Task <{'Task pending ' * 40}> got Future <Future pending> attached to a different loop"
            )

    event.listen(async_engine.sync_engine, "begin", fail_once)
    with shop_app(tmp_path, sqlite_url, async_engine=async_engine) as app:

        @app.on("orders", group="billing")
        async def charge(placed: Placed, session: AsyncSession) -> None:
            session.add(Charge(order_id=placed.order_id))

        place(app, "lamp")
        with app.workers():
            until(lambda: charged(app.engine))
        assert "waits, since the pool of its async_engine gave it a connection of another event loop" in caplog.text
        assert app.engine is not None
        app.engine.dispose()
