"""A mistake of an application, of another type than what is asked for, is told in a sentence with the next step."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session, sessionmaker

import broker
from broker.errors import BrokerError, MessageRejected, TransactionError
from tests.app.shop import Placed, async_engine_of, received

Call = Callable[[Any], object]  # with an application; mistakes have no types


def charge(placed: Placed) -> None:
    raise AssertionError(placed)  # never called


def generator(placed: Placed) -> Iterator[None]:
    yield charge(placed)


async def async_generator(placed: Placed) -> AsyncIterator[None]:
    yield charge(placed)


class Charging:
    def __call__(self, placed: Placed) -> None:
        charge(placed)

    def method(self, placed: Placed) -> None:
        charge(placed)


def on(function: Any, topic: Any = "orders", **options: Any) -> Call:
    return lambda app: app.on(topic, **{"group": "billing", **options})(function)


MISTAKES: dict[str, tuple[Call, str]] = {
    "partial": (on(functools.partial(charge)), r"not functools\.partial: write a `def` that calls it"),
    "callable": (on(Charging()), r"test_wrong_types\.Charging: write a `def` that calls it"),
    "number": (on(5), "@app.on decorates a function, not 5"),
    "class": (on(int), "not the class int"),
    "class-of-ours": (on(Charging), "not the class Charging"),
    "generator": (on(generator), r"test_wrong_types\.generator has a yield, so a call of it runs nothing"),
    "async-generator": (on(async_generator), "async_generator has a yield"),
    "property": (on(property(charge)), "@app.on decorates a function"),
    "c-function": (on(max), "parameters"),
    "topics": (
        on(charge, ["orders"]),
        r"a handler is of one topic, as text, not \['orders'\]: declare it once for each",
    ),
    "group": (on(charge, group=["billing"]), "a consumer group is text"),
    "start": (on(charge, start="yesterday"), "start is 'first', 'last' or a time"),
    "start in seconds": (on(charge, start=1_798_000_000), "start is in milliseconds since 1970, and 1798000000 is a"),
    "ordered": (on(charge, ordered="no"), "ordered is True or False"),
    "retry-class": (on(charge, retry=broker.Retry), "not the class Retry"),
    "retry-zero": (on(charge, retry=0), "retry= takes a broker.Retry"),
    "topic": (lambda app: app.topic(["orders"]), "the name of a topic is text"),
    "body-type": (lambda app: app.topic("bodies", {"id": int}), "a body is made of a type"),
    "event-type": (lambda app: app.topic("bodies", event_type=Placed), "event_type of a topic is text"),
    "codec": (lambda app: app.topic("bodies", codec=broker.BodyCodec), "not the class BodyCodec"),
    "upgrade": (lambda app: app.topic("bodies", version=2, upgrade="up"), "takes a function"),
    "store-name": (lambda _: broker.App("shop.v2.store"), r"'shop\.v2' takes .*, so .* cannot be it: App\(path, name="),
    "workers": (lambda app: app.workers("billing"), r"not 'billing': app.workers\(\[one for one in app.groups"),
    "workers-names": (lambda app: app.workers(["billing"]), "workers takes groups of handlers"),
    "runs": (lambda app: app.workers(runs=True), "runs= takes"),
    "grace": (lambda app: app.workers().stop("5"), "grace_s is a number of seconds"),
    "no-grace": (lambda app: app.workers().stop(None), "leave it out for 30"),
    "send-topics": (lambda app: app.send(["orders"], Placed(1)), r"the topic \['orders'\]: it declares orders"),
    "send-option": (lambda app: app.send_now("orders", Placed(1), key="7"), "no option 'key'; it takes tag, keys, "),
    "properties": (lambda app: app.send_now("orders", Placed(1), properties="a=b"), "a dict of text to text"),
    "window": (
        lambda app: app.send("orders", Placed(1), dedup_key="a", dedup_window=float("inf")),
        "dedup_window is a timedelta or a number",
    ),
    "huge-window": (
        lambda app: app.send("orders", Placed(1), dedup_key="a", dedup_window=10**400),
        "dedup_window is a timedelta or a number",
    ),
    "huge-delay": (lambda app: app.send_now("orders", Placed(1), delay=10**400), "delay is a timedelta or a number"),
    "huge-grace": (lambda app: app.workers().stop(10**400), "grace_s is a number of seconds"),
    "huge-factor": (lambda _: broker.Retry.exponential(factor=10**400), "factor is a number from 1 on"),
    "huge-retention": (lambda _: broker.Retention(keep_s=10**400), "keep_s is a number of seconds"),
    "sharding-key": (
        lambda app: app.send_now("orders", Placed(1), sharding_key="\ud800"),
        "the sharding_key .* cannot be written in UTF-8",
    ),
    "transaction-engine": (lambda app: app.transaction(app.engine).__enter__(), "takes an open SQLAlchemy Session"),
    "transaction-async": (
        lambda app: app.transaction(AsyncSession(async_engine_of(app.engine.url))).__enter__(),
        r"write `async with app\.transaction_async",
    ),
    "transaction-not-async": (
        lambda app: asyncio.run(app.transaction_async(Session(app.engine)).__aenter__()),
        r"write `with app\.transaction\(session\)`",
    ),
    "send-engine": (lambda app: app.send("orders", Placed(1), app.engine), "takes an open SQLAlchemy Session"),
    "once-engine": (
        lambda app: app.send("orders", Placed(1), app.engine, dedup_key="a"),
        "Session or scoped_session of SQLAlchemy, not sqlalchemy.engine.base.Engine: with Session",
    ),
    "once-maker": (
        lambda app: app.send("orders", Placed(1), sessionmaker(app.engine), dedup_key="a"),
        r"not sqlalchemy\.orm\.session\.sessionmaker",
    ),
    "once-connection": (
        lambda app: app.send("orders", Placed(1), app.engine.connect(), dedup_key="a"),
        r"not sqlalchemy\.engine\.base\.Connection",
    ),
    "once-async": (
        lambda app: asyncio.run(app.send_async("orders", Placed(1), "session", dedup_key="a")),
        "not 'session'",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_in_a_sentence(app: broker.App, name: str) -> None:
    call, sentence = MISTAKES[name]
    with pytest.raises(BrokerError, match=sentence):
        call(app)
    assert app.groups == []
    assert len(received(app)) == 0


@pytest.mark.parametrize("handler", [Charging().method, staticmethod(charge), functools.lru_cache(charge)])
def test_what_has_a_name_is_a_handler(app: broker.App, handler: Any) -> None:
    app.on("orders", group="billing")(handler)
    assert len(app.groups) == 1


def test_a_send_once_in_a_session_that_is_not_async(app: broker.App) -> None:
    """send_async takes a Session, as without a dedup_key."""

    async def run() -> None:
        with Session(app.start().engine) as session:
            assert await app.send_async("orders", Placed(1), session, dedup_key="a") is not None
            assert await app.send_async("orders", Placed(1), session, dedup_key="a") is None
            session.commit()

    asyncio.run(run())
    assert len(received(app)) == 1


def test_engines_that_are_mixed_up(tmp_path: Path, sqlite_url: URL) -> None:
    engine, async_engine = create_engine(sqlite_url), async_engine_of(sqlite_url)
    maker: Any = sessionmaker(engine)
    for engines, sentence in (
        ({"engine": async_engine}, r"takes an Engine: pass the AsyncEngine as async_engine=\.\.\."),
        ({"engine": engine, "async_engine": engine}, r"takes an AsyncEngine, .* pass it as engine=\.\.\."),
        ({"async_engine": maker}, r"takes an AsyncEngine, .*, not sqlalchemy\.orm\.session\.sessionmaker"),
        ({"engine": maker}, r"a ledger takes an engine, Ledger\(create_engine\(\.\.\.\)\)"),
        ({"engine": sqlite_url}, "a ledger takes an engine"),
        ({"engine": engine.connect()}, "a ledger takes an engine"),
    ):
        with pytest.raises(BrokerError, match=sentence):
            broker.App(tmp_path / "shop.store", topics=["orders"], **engines)
    assert not (tmp_path / "shop.store").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"path": None}, "the path of a store"),
        ({"path": b"shop.store"}, "the path of a store"),
        ({"path": "rocketmq://127.0.0.1:9876"}, "names a cluster"),
        ({"layout": "small"}, "broker.StoreLayout"),
        ({"retention": "3d"}, "broker.Retention"),
        ({"create_tables": "no"}, "create_tables is True or False"),
    ],
)
def test_options_are_looked_at_when_the_application_is_made(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BrokerError, match=sentence):
        broker.App(**{"path": tmp_path / "shop.store", **options})


def test_the_kinds_of_errors(app: broker.App) -> None:
    """A message that cannot be is a ValueError, too, as elsewhere."""
    with pytest.raises(MessageRejected):
        app.send_now("orders", Placed(1), key="7")  # type: ignore[call-arg]
    with pytest.raises(TransactionError), app.transaction(5):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize("older_than_ms", ["5", None, True, -1, timedelta(days=1), 1_798_000_000.5])
def test_keys_are_forgotten_by_a_time(app: broker.App, older_than_ms: Any) -> None:
    with Session(app.engine) as session, pytest.raises(BrokerError, match="milliseconds since 1970"):
        app.sent_keys.forget(session, older_than_ms)
    with pytest.raises(TransactionError, match=r"await session\.run_sync"):
        app.sent_keys.forget(AsyncSession(), 1)  # type: ignore[arg-type]
