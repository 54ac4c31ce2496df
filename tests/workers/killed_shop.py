"""The application that is killed: three handlers, one of them async, which send to each other in their transactions.

    order ──► charge (billing) ──► invoice ──► post (mail, async), pack (depot)

It is imported by `checkback work tests.workers.killed_shop:app`; DATABASE and STORE say where its data are.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import dataclass

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import broker
from broker.testing.crash_disk import SMALL
from tests.workers.databases import engine_of, waiting

ASYNC_DRIVERS = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
url = make_url(os.environ["DATABASE"])
engine = engine_of(url)
async_url = url.set(drivername=ASYNC_DRIVERS[url.get_backend_name()])
app = broker.App(
    os.environ["STORE"],
    engine=engine,
    async_engine=create_async_engine(async_url, connect_args=waiting(url)),
    layout=SMALL,
    transactions=os.environ.get("TRANSACTIONS"),
)
retry = broker.Retry(1000, delays_s=(0.01,))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)


class Charge(Base):
    __tablename__ = "charges"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


class Posted(Base):
    __tablename__ = "posted"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


class Packed(Base):
    __tablename__ = "packed"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


@dataclass(frozen=True)
class Invoice:
    order_id: int


app.topic("orders", int)
app.topic("invoices", Invoice)


def place() -> int:
    with app.transaction() as session:
        session.add(order := Order())
        session.flush()
        app.send("orders", order.id, delay=random.choice([None, 0.2]))
        return order.id


@app.on("orders", group="billing", concurrency=2, retry=retry)
def charge(order_id: int, session: Session) -> None:
    session.add(Charge(order_id=order_id))
    app.send("invoices", Invoice(order_id))
    time.sleep(random.random() * 0.02)
    if random.random() < 0.1:
        raise RuntimeError("the card reader hangs")


@app.on("invoices", group="mail", concurrency=2, retry=retry)
async def post(invoice: Invoice, session: AsyncSession) -> None:
    session.add(Posted(order_id=invoice.order_id))


@app.on("invoices", group="depot", ordered=True, retry=retry)
def pack(invoice: Invoice, session: Session) -> None:
    session.add(Packed(order_id=invoice.order_id))
