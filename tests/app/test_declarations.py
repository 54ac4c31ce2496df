"""Handlers and applications that cannot work are refused when they are declared."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Optional

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

import broker
from broker.app.handlers import parameters_of
from broker.errors import BrokerError, TransactionError
from broker.message import ReceivedMessage
from broker.testing.fixtures import SMALL
from tests.app.shop import (
    Charge,
    Placed,
    charged,
    until,
)


def no_hint(placed, session) -> None:  # type: ignore[no-untyped-def]
    pass


def twice(a: Session, b: Session) -> None:
    pass


def unknown(placed: Placed, other: int) -> None:
    pass


def starred(*placed: Placed) -> None:
    pass


async def wrong_session(placed: Placed, session: Session) -> None:
    pass


async def async_session(placed: Placed, session: AsyncSession) -> None:
    pass


def strange(placed: complex) -> None:
    pass


def quoted(annotation: str) -> Any:
    def handle(placed) -> None:  # type: ignore[no-untyped-def]
        pass

    handle.__annotations__["placed"] = annotation
    return handle


class Shop:
    def handle(self, session: Session) -> None:
        pass

    async def note(self) -> None:
        pass

    def take(self, placed: Placed, message: ReceivedMessage | None = None) -> None:
        pass


def maybe(placed: Placed, session: Session | None = None) -> None:
    pass


async def maybe_async(placed: Placed, message: ReceivedMessage | None, db: Optional[AsyncSession] = None) -> None:  # noqa: UP045
    pass


class OwnSession(Session):
    """As SQLModel's, which has `exec`."""

    def charge(self, order_id: int) -> None:
        self.add(Charge(order_id=order_id))


class NeedsMore(Session):
    def __init__(self, engine: Engine, tenant: str) -> None:
        super().__init__(engine, info={"tenant": tenant})


def needs_more(placed: Placed, session: NeedsMore) -> None:
    pass


def either(placed: Placed, session: Session | AsyncSession) -> None:
    pass


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (twice, {}, "takes the session twice: a and b"),
    (unknown, {}, "nothing is known to give for the parameter 'other'"),
    (starred, {}, "plain parameters"),
    (wrong_session, {}, "is async: its session must be an AsyncSession"),
    (async_session, {}, r"App\(async_engine="),
    (strange, {}, "cannot be decoded as complex"),
    (quoted("asyncio.Nope"), {}, r"its annotations cannot be read \(module 'asyncio' has no attribute 'Nope'\)"),
    (quoted("two words"), {}, "its annotations cannot be read"),
    (quoted("1/0"), {}, r"its annotations cannot be read \(division by zero\)"),
    (quoted("Nope"), {}, "name 'Nope' is not defined.*import what they name outside TYPE_CHECKING"),
    (Shop.handle, {}, r"Shop.handle is a method, and nothing is known to give for self: .*app.on\(...\)\(Shop\(\)"),
    (Shop.note, {}, "Shop.note is a method"),
    (maybe_async, {}, r"App\(async_engine="),
    (needs_more, {}, "a NeedsMore is made of the engine alone, and its __init__ says: missing a required argument"),
    (no_hint, {"concurrency": 0}, "concurrency is a number of threads"),
    (no_hint, {"retry": 3}, "retry= takes a broker.Retry"),
    (no_hint, {"group": ""}, "consumer group has from 1"),
]


@pytest.mark.parametrize(("function", "arguments", "sentence"), WRONG)
def test_a_handler_that_cannot_work_is_refused(
    app: broker.App, function: Any, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(BrokerError, match=sentence):
        app.on("orders", **{"group": "billing", **arguments})(function)
    assert app.groups == []


def test_what_may_be_none_is_given(app: broker.App) -> None:
    """A handler never runs without the transaction that it asks for."""
    assert parameters_of(maybe, "maybe")[2:] == ("session", False, None, Session)
    assert parameters_of(maybe_async, "maybe_async")[2:] == ("db", True, "message", AsyncSession)
    assert parameters_of(either, "either")[2:] == ("session", False, None, Session)
    given: list[bool] = []

    @app.on("orders", group="billing")
    def charge(placed: Placed, session: Session | None = None) -> None:
        assert session is not None
        given.append(session.in_transaction())

    app.on("orders", group="notes")(Shop().take)
    with app:
        app.send_now("orders", Placed(1))
        with app.workers():
            until(lambda: given)
    assert given == [True]


def test_the_session_is_of_the_class_that_is_asked_for(app: broker.App) -> None:
    @app.on("orders", group="billing")
    def charge(placed: Placed, session: OwnSession) -> None:
        session.charge(placed.order_id)

    with app:
        app.send_now("orders", Placed(7))
        with app.workers():
            until(lambda: charged(app.engine))
    assert charged(app.engine) == [7]


def test_handlers_of_one_group_must_agree(app: broker.App) -> None:
    app.on("orders", group="billing", tags="a")(no_hint)
    for arguments, sentence in (
        ({"tags": "a || b"}, "a group handles a message once"),
        ({"tags": "*"}, "a group handles a message once"),
        ({"tags": "b", "concurrency": 2}, "the same concurrency"),
        ({"tags": "b", "start": "last"}, "the same start"),
    ):
        with pytest.raises(BrokerError, match=sentence):
            app.on("orders", group="billing", **arguments)(no_hint)  # type: ignore[arg-type]
    assert len(app.groups[0].handlers) == 1


def test_without_a_database_sends_are_plain_and_handlers_at_least_once(tmp_path: Path) -> None:
    app = broker.App(tmp_path / "plain.store", topics=["visits"], layout=SMALL, sync="os")
    seen: list[Any] = []

    @app.on("visits", group="statistics")
    def count_visit(visit, message) -> None:  # type: ignore[no-untyped-def]
        seen.append((visit, message.topic))

    with pytest.raises(BrokerError, match=r"App\(engine=create_engine"):
        app.on("visits", group="other")(no_hint)
    with app:
        app.send("visits", {"page": "/"})
        asyncio.run(app.send_async("visits", "text"))
        with pytest.raises(TransactionError, match="kept in the application's database"):
            app.send("visits", "text", dedup_key="a")
        with pytest.raises(TransactionError, match="no transactions of messages"), app.transaction():
            pass
        with app.workers():
            until(lambda: len(seen) == 2)
    assert sorted(map(str, seen)) == ["('text', 'visits')", "({'page': '/'}, 'visits')"]


def test_an_option_that_is_misspelled_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="has no option 'retension'; besides its own it takes create, in_doubt_max"):
        broker.App(tmp_path / "store", retension=None)


def test_without_sqlalchemy_an_application_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that has no database: it was a ModuleNotFoundError."""
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(BrokerError, match="needs sqlalchemy: install checkback with its extra 'sql'"):
        broker.App(tmp_path / "store")


def test_engines_of_two_databases_are_refused(tmp_path: Path) -> None:
    one, other = (
        create_engine(f"sqlite:///{tmp_path}/a.db"),
        create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/b.db"),
    )
    with pytest.raises(BrokerError, match="must lead to one database"):
        broker.App(tmp_path / "store", engine=one, async_engine=other)
    with pytest.raises(BrokerError, match="check-back works without an event loop"):
        broker.App(tmp_path / "store", async_engine=other)
