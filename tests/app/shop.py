"""The application that these tests run: orders are placed and charged."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Engine, String, create_engine, func, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import broker
from broker.errors import MessageRejected
from broker.message import ReceivedMessage
from broker.testing.fixtures import SMALL

WAIT_S = 30.0
ASYNC = {"sqlite": "sqlite+aiosqlite", "mariadb+pymysql": "mariadb+aiomysql"}  # psycopg is both


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(String(40))


class Charge(Base):
    __tablename__ = "charges"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


@dataclass(frozen=True)
class Placed:
    order_id: int
    item: str = ""


def async_engine_of(url: URL) -> AsyncEngine:
    """An engine on the same database for an event loop."""
    return create_async_engine(url.set(drivername=ASYNC.get(url.drivername, url.drivername)))


def shop_app(directory: Path, url: URL, **options: Any) -> broker.App:
    """An application on a database, with small files; its tables are there."""
    engine = create_engine(url)
    Base.metadata.create_all(engine)
    app = broker.App(directory / "shop.store", engine=engine, layout=SMALL, sync="os", **options)
    app.topic("orders", Placed)
    return app


def place(app: broker.App, item: str) -> int:
    with app.transaction() as session:
        order = Order(item=item)
        session.add(order)
        session.flush()
        app.send("orders", Placed(order.id, item), keys=[str(order.id)])
        return order.id


def place_and_fail(app: broker.App, **options: Any) -> None:
    """An order whose transaction is rolled back, message and all."""
    with app.transaction() as session:
        session.add(Order(item="ghost"))
        assert app.send("orders", Placed(0), **options) is not None
        raise ZeroDivisionError


def place_and_swallow(app: broker.App, **options: Any) -> None:
    """An order whose message is refused, by an application that looks away."""
    with app.transaction() as session:
        session.add(Order(item="silent"))
        with contextlib.suppress(MessageRejected):
            app.send("orders", Placed(0), **options)


def received(app: broker.App, topic: str = "orders", group: str = "audit") -> list[ReceivedMessage]:
    found = []
    with app.store.consumer(group, topic) as consumer:
        while (message := consumer.receive(0.3)) is not None:
            found.append(message)
            consumer.ack(message)
    return sorted(found, key=lambda message: message.commitlog_offset)


def charged(engine: Engine | None) -> list[int]:
    """The orders that were charged, one for each charge."""
    assert engine is not None
    with Session(engine) as session:
        return list(session.scalars(select(Charge.order_id).order_by(Charge.order_id)))


def count(engine: Engine | None, table: type[Base]) -> int:
    assert engine is not None
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def until(true: Callable[[], object], wait_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + wait_s
    while not true():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)
