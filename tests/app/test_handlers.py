"""What an application handles takes effect once, is retried as its policy says, and stops without loss."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from sqlalchemy import URL, text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

import broker
from broker.app import delivery
from broker.app.worker import HandlerLoop
from broker.consuming.schedule import Schedule
from broker.message import ReceivedMessage
from broker.testing.fixtures import SMALL, lose_the_commit
from recovery.checkback.policy import parse_policy
from recovery.checkback.service import for_producers
from recovery.views.dead_letters import dead_letters, resend
from tests.app.shop import (
    Charge,
    Order,
    Placed,
    async_engine_of,
    charged,
    place,
    received,
    shop_app,
    until,
)


def test_handlers_run_once_in_one_transaction_with_what_they_send(tmp_path: Path, url: URL) -> None:
    """Also when the message is delivered again, and when COMMIT's answer is lost."""
    app = shop_app(tmp_path, url)
    app.topic("invoices", int)
    runs: list[int] = []

    @app.on("orders", group="billing", concurrency=3, retry=broker.Retry(delays_s=(0,)))
    def charge(placed: Placed, session: Session) -> None:
        runs.append(placed.order_id)
        session.add(Charge(order_id=placed.order_id))
        app.send("invoices", placed.order_id)

    assert app.engine is not None
    with app:
        orders = [place(app, "lamp") for _ in range(5)]
        with lose_the_commit(app.engine, committed=True), app.workers():
            until(lambda: len(charged(app.engine)) == 5 and len(runs) == 5)
        with app.store.consumer("billing", "orders") as consumer:
            for topic, queue in list(consumer.positions()):
                consumer._positions.reset("billing", topic, 0, queue)
        with app.workers() as workers:
            until(lambda: workers.handled >= 5)
        assert charged(app.engine) == orders
        service = for_producers(app.store, [app.producer], policy=parse_policy({"*": {"first_check_after": "0s"}}))
        assert service.run_once() is not None  # of the COMMIT whose answer was lost
        service.stop()
        assert sorted(int(message.body) for message in received(app, "invoices")) == orders
    app.engine.dispose()


def test_async_handlers(tmp_path: Path, url: URL) -> None:
    async_engine = async_engine_of(url)
    app = shop_app(tmp_path, url, async_engine=async_engine)
    app.topic("invoices", int)
    noted: list[str] = []

    @app.on("orders", group="billing", concurrency=2, retry=broker.Retry(delays_s=(0,)))
    async def charge(placed: Placed, session: AsyncSession) -> None:
        session.add(Charge(order_id=placed.order_id))
        await app.send_async("invoices", placed.order_id)
        if placed.order_id == 1 and "failed" not in noted:
            noted.append("failed")
            raise ValueError

    @app.on("invoices", group="notes")
    async def note(message: ReceivedMessage, order_id: int) -> None:
        noted.append(f"{message.topic} {order_id}")

    async def send() -> None:
        async with app.transaction_async() as session:
            session.add(Order(id=7, item="x"))
            await app.send_async("orders", Placed(7), dedup_key="seven")
            assert await app.send_async("orders", Placed(7), dedup_key="seven") is None
        await async_engine.dispose()

    with app:
        place(app, "lamp")
        asyncio.run(send())
        with app.workers():
            until(lambda: len(noted) == 3)
    assert charged(app.engine) == [1, 7]
    assert sorted(noted) == ["failed", "invoices 1", "invoices 7"]
    assert app.engine is not None
    app.engine.dispose()


def test_a_body_that_does_not_decode_goes_to_the_dead_letters_with_the_reason(app: broker.App) -> None:
    handled: list[Placed] = []

    @app.on("orders", group="billing")
    def handle(placed: Placed) -> None:
        handled.append(placed)

    with app:
        app.store.append(broker.Message("orders", b'{"order_id": "x"}'))
        place(app, "lamp")
        with app.workers():
            until(lambda: handled and list(dead_letters(app.store, "billing")))
        (letter,) = dead_letters(app.store, "billing")
        assert (letter.why, letter.reconsume_times) == ("body.order_id is text, and must be int", 1)
    assert handled == [Placed(1, "lamp")]


@pytest.mark.parametrize(
    ("kinds", "what"),
    [
        ([("orders", "*"), ("refunds", "*")], "refunds"),
        ([("refunds", "new"), ("refunds", "old")], "refunds with the tag 'old'"),
    ],
)
def test_what_another_version_sent_back_is_not_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kinds: list[tuple[str, str]], what: str
) -> None:
    """An update that handles another topic, or tag, in a group is taken back while a message of it is to be retried."""
    paid, broken = list[int](), threading.Event()
    broken.set()

    def pay_back(order_id: int) -> None:
        if broken.is_set():
            raise ValueError
        paid.append(order_id)

    def version(*handled: tuple[str, str]) -> broker.App:
        app = broker.App(tmp_path / "shop.store", layout=SMALL, sync="os", topics=["refunds"])
        for topic, tags in handled:
            app.on(topic, group="bank", tags=tags, retry=broker.Retry(10_000, delays_s=(0,)))(pay_back)
        return app

    with version(*kinds) as newer:
        newer.send("refunds", 7, tag="old")
        with newer.workers() as workers:
            until(lambda: workers.handled)
    with version(kinds[0]) as older, older.workers():
        until(lambda: list(dead_letters(older.store, "bank")))
        (letter,) = dead_letters(older.store, "bank")
        unhandled = f"the application handles no {what} in the group bank"
        assert letter.why == f"{unhandled}: another version of it sent this back"
        until(lambda: caplog.messages[-1].endswith(letter.why))  # it is said once it is stored
        assert len(resend(older.store, "bank")) == 1  # too early: it is kept again
        until(lambda: len([one for one in dead_letters(older.store, "bank") if not one.resent]) == 1)
    broken.clear()
    with version(*kinds) as again, again.workers():
        assert len(resend(again.store, "bank")) == 1
        until(lambda: paid == [7])


def test_the_policy_decides(app: broker.App, caplog: pytest.LogCaptureFixture) -> None:
    """Retried after its delays, then given up; at once for some exceptions; rolled back each time."""
    tries: list[tuple[str, int]] = []

    @app.on("orders", group="billing", retry=broker.Retry(2, delays_s=(0, 0.05), give_up_on=(LookupError,)))
    def charge(placed: Placed, session: Session, message: ReceivedMessage) -> None:
        tries.append((placed.item, message.reconsume_times))
        session.add(Charge(order_id=placed.order_id))
        if placed.item == "unknown":
            raise KeyError(placed.item)
        if placed.item == "never" or message.reconsume_times < 1:
            raise ValueError("not today")

    with app, caplog.at_level(logging.CRITICAL):
        for item in ("unknown", "never", "second"):
            place(app, item)
        with app.workers():
            until(lambda: len(list(dead_letters(app.store, "billing"))) == 2 and charged(app.engine))
        why = {letter.keys[0]: letter.why for letter in dead_letters(app.store, "billing")}
    assert why == {"1": "KeyError: 'unknown'", "2": "ValueError: not today (after 2 retries)"}
    assert sorted(tries) == [("never", 0), ("never", 1), ("never", 2), ("second", 0), ("second", 1), ("unknown", 0)]
    assert charged(app.engine) == [3]


def test_an_outage_of_the_database_uses_up_no_retries(
    app: broker.App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("broker.app.execution._WAITS_S", [0.01] * 1000)
    seen: list[int] = []

    @app.on("orders", group="billing", retry=broker.Retry(0))
    def charge(placed: Placed, session: Session, message: ReceivedMessage) -> None:
        seen.append(message.reconsume_times)
        session.add(Charge(order_id=placed.order_id))

    with app:
        place(app, "lamp")
        assert app.engine is not None
        with app.engine.begin() as connection:
            connection.execute(text("ALTER TABLE checkback_processed RENAME TO away"))
        with app.workers():
            until(lambda: len(caplog.records) > 5)
            assert "waits, since its database did not answer" in caplog.text
            with app.engine.begin() as connection:
                connection.execute(text("ALTER TABLE away RENAME TO checkback_processed"))
            until(lambda: charged(app.engine))
    assert seen == [0]


def test_a_handler_that_ends_its_transaction_itself_is_stopped(app: broker.App) -> None:
    """Else its effects and the note that the message was processed would be saved apart."""

    @app.on("orders", group="billing", retry=broker.Retry(0))
    def charge(placed: Placed, session: Session) -> None:
        with session.begin_nested():  # savepoints are its own affair
            session.add(Charge(order_id=placed.order_id))
        if placed.item == "commit":
            session.commit()
        if placed.item == "rollback":
            session.rollback()
            session.add(Charge(order_id=placed.order_id))

    with app:
        for item in ("commit", "rollback", "neither"):
            place(app, item)
        with app.workers():
            until(lambda: len(list(dead_letters(app.store, "billing"))) == 2 and charged(app.engine))
        reasons = sorted(letter.why for letter in dead_letters(app.store, "billing"))
    assert charged(app.engine) == [3]
    assert "charge commits the session" in reasons[0]
    assert "charge rolled back the session" in reasons[1]


def test_an_ordered_group_keeps_the_order_over_retries(app: broker.App) -> None:
    seen: list[int] = []
    failed: list[int] = []

    @app.on("orders", group="billing", ordered=True, concurrency=4, retry=broker.Retry(3, delays_s=(0.01,)))
    def charge(placed: Placed) -> None:
        if placed.order_id == 2 and len(failed) < 2:
            failed.append(2)
            raise ValueError
        seen.append(placed.order_id)

    with app:
        for number in range(1, 6):
            app.send_now("orders", Placed(number), sharding_key="same")
        with app.workers():
            until(lambda: len(seen) == 5)
    assert seen == [1, 2, 3, 4, 5]


def test_tags_and_topics_of_one_group_are_dispatched(app: broker.App) -> None:
    app.topic("returns", Placed)
    seen: list[str] = []

    @app.on("orders", group="billing", tags="created || paid")
    def created(placed: Placed) -> None:
        seen.append(f"created {placed.order_id}")

    @app.on("orders", group="billing", tags="cancelled")
    def cancelled(placed: Placed) -> None:
        seen.append(f"cancelled {placed.order_id}")

    @app.on("returns", group="billing")
    def returned(placed: Placed) -> None:
        seen.append(f"returned {placed.order_id}")

    with app:
        for number, tag in enumerate(["created", "cancelled", "other", "paid"]):
            app.send_now("orders", Placed(number), tag=tag)
        app.send_now("returns", Placed(9))
        with app.workers() as workers:
            until(lambda: workers.handled == 5)
    assert sorted(seen) == ["cancelled 1", "created 0", "created 3", "returned 9"]


def test_stopping_finishes_what_runs_and_gives_the_rest_back(app: broker.App) -> None:
    begun, go = threading.Event(), threading.Event()
    done: list[int] = []

    @app.on("orders", group="billing")
    def slow(placed: Placed, session: Session) -> None:
        begun.set()
        assert go.wait(20)
        session.add(Charge(order_id=placed.order_id))
        done.append(placed.order_id)

    with app:
        for _ in range(3):
            place(app, "lamp")
        workers = app.workers().start()
        assert begun.wait(20)
        threading.Timer(0.2, go.set).start()
        assert workers.stop(grace_s=20)
        assert len(done) == 1
        assert charged(app.engine) == done
        with app.workers():
            until(lambda: len(done) == 3)


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], AbstractContextManager[None]]:
    """While it is entered, the system has no thread of this name to give."""
    start = threading.Thread.start

    @contextlib.contextmanager
    def refusing(name: str) -> Iterator[None]:
        def limited(thread: threading.Thread) -> None:
            if thread.name == name:
                raise RuntimeError("can't start new thread")
            start(thread)

        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", limited)
            yield

    return refusing


def test_an_async_handler_runs_once_there_is_a_thread_for_its_loop(
    no_thread: Callable[[str], AbstractContextManager[None]],
) -> None:
    """The first one failed for want of one: the next must not wait for a loop that nobody runs."""
    loop, ran = HandlerLoop(), list[str]()

    async def note(name: str) -> None:
        ran.append(name)

    with no_thread("checkback-loop"), pytest.raises(RuntimeError, match="can't start new thread"):
        loop.wait(note("first"))
    loop.wait(note("second"))
    loop.close()
    assert ran == ["second"]


def test_workers_that_get_too_few_threads_leave_none_behind(
    app: broker.App, no_thread: Callable[[str], AbstractContextManager[None]]
) -> None:
    """Nor a consumer: its queues would be read by nobody."""
    app.on("orders", group="billing", concurrency=2)(lambda placed: None)
    with app:
        with no_thread("checkback-billing-1"), pytest.raises(RuntimeError, match="can't start new thread"):
            app.workers().start()
        left = [one.name for one in threading.enumerate()]
        assert not [name for name in left if name.startswith(("checkback-billing", "checkback-consumer"))]


def test_an_interrupt_while_the_delivery_of_delayed_messages_starts(
    app: broker.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread had begun, and warned each second of the positions that were closed under it."""
    start, begun = threading.Thread.start, list[threading.Thread]()

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        begun.append(thread)
        raise KeyboardInterrupt

    with app, monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            delivery.DelayedDelivery(app.store)
    begun[0].join(5)
    assert not begun[0].is_alive()


def test_delayed_messages_are_delivered_after_an_error_that_nobody_expected(
    app: broker.App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where the system has no thread for the first append of a process: the next attempt may succeed."""
    times: list[int] = []

    def fails_once(_: Schedule, now_ms: int) -> int:
        times.append(now_ms)
        if len(times) == 1:
            raise RuntimeError("can't start new thread")
        return 0

    monkeypatch.setattr(Schedule, "deliver", fails_once)
    monkeypatch.setattr(delivery, "_AGAIN_S", 0.01)
    with app, app.workers(groups=[]):
        until(lambda: len(times) > 1)
    assert "tried again: RuntimeError" in caplog.text
