"""A shop in a flash sale: stock is locked first, the order follows from the message, payment starts three more steps.

    customer buys ──► lock stock ═══ stock-locked ═══► create the order, empty the cart │ or release the lock
    customer pays ──► order paid ═══ order-paid ═════► deduct stock, ship, grant points (three groups)

    ═══ a transactional message: delivered if and only if the database transaction before it commits

Every step writes a row into a table that is only appended to, in the step's own transaction: what `reconcile` reads.
No constraint forbids to do a thing twice: the transactions and the deduplication must see to it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from typing import Any

from sqlalchemy import Integer, String, delete, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import broker
from broker.message import ReceivedMessage
from broker.producer import Producer

STOCK_LOCKED, ORDER_PAID = "stock-locked", "order-paid"
POINTS = 10  # for an order


class Base(DeclarativeBase):
    """The shop's tables."""


class Product(Base):
    """What is sold. `stock - locked` may still be promised to somebody."""

    __tablename__ = "flash_sale_products"
    sku: Mapped[str] = mapped_column(String(20), primary_key=True)
    first_stock: Mapped[int]
    stock: Mapped[int]
    locked: Mapped[int] = mapped_column(default=0)


class CartEntry(Base):
    """What a customer is about to buy; some change their mind, and the entry goes."""

    __tablename__ = "flash_sale_cart"
    customer: Mapped[str] = mapped_column(String(32), primary_key=True)
    sku: Mapped[str] = mapped_column(String(20))


class Lock(Base):
    """One piece that is kept for a customer: locked, then ordered or released."""

    __tablename__ = "flash_sale_locks"
    id: Mapped[str] = mapped_column(String(32), primary_key=True)
    customer: Mapped[str] = mapped_column(String(32))
    sku: Mapped[str] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(10), default="locked")


class Order(Base):
    """An order: created, then paid. Not unique by lock: that there is one for each is to be proven."""

    __tablename__ = "flash_sale_orders"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    lock_id: Mapped[str] = mapped_column(String(32), index=True)
    sku: Mapped[str] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(10), default="created", index=True)


class Effect(Base):
    """What was done, one row each time. Rows are only added."""

    __tablename__ = "flash_sale_effects"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    lock_id: Mapped[str] = mapped_column(String(32), index=True)
    kind: Mapped[str] = mapped_column(String(20))


class Shipment(Base):
    """A parcel."""

    __tablename__ = "flash_sale_shipments"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    lock_id: Mapped[str] = mapped_column(String(32))


class Points(Base):
    """Points for a customer."""

    __tablename__ = "flash_sale_points"
    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    lock_id: Mapped[str] = mapped_column(String(32))
    points: Mapped[int]


class SoldOut(Exception):
    """Nothing is left to be promised."""


class NothingToPay(Exception):
    """Somebody paid this order already."""


def buy(session: Session, producer: Producer, sku: str, *, hesitate: Callable[[], object] = lambda: None) -> str:
    """Put a product into a new cart and lock a piece of it; the lock is announced. Raises SoldOut.

    The message goes first: until its transaction commits nobody gets it, and the database is not held up meanwhile
    (SQLite lets one transaction write at a time).
    """
    lock_id, customer = secrets.token_hex(16), secrets.token_hex(16)
    with producer.begin_transaction(session) as transaction:
        body = {"lock": lock_id, "customer": customer, "sku": sku}
        producer.send(broker.Message(STOCK_LOCKED, _body(body), tag=sku, keys=[lock_id]), transaction)
        hesitate()
        free = update(Product).where(Product.sku == sku, Product.stock > Product.locked)
        if not _changed(session, free.values(locked=Product.locked + 1)):
            raise SoldOut(sku)
        session.add(CartEntry(customer=customer, sku=sku))
        session.add(Lock(id=lock_id, customer=customer, sku=sku))
        session.add(Effect(lock_id=lock_id, kind="locked"))
    return lock_id


def change_mind(session: Session, lock_id: str) -> None:
    """The customer empties the cart before the order is there: it cannot be created any more."""
    customer = select(Lock.customer).where(Lock.id == lock_id, Lock.state == "locked").scalar_subquery()
    session.execute(delete(CartEntry).where(CartEntry.customer == customer))
    session.commit()


def create_order(session: Session, message: ReceivedMessage) -> None:
    """Turn a lock into an order and take the entry out of the cart; without an entry, release the lock."""
    fields = content(message)
    if _changed(session, delete(CartEntry).where(CartEntry.customer == fields["customer"])):
        session.add(Order(lock_id=fields["lock"], sku=fields["sku"]))
        session.execute(update(Lock).where(Lock.id == fields["lock"]).values(state="ordered"))
        session.add(Effect(lock_id=fields["lock"], kind="created"))
        session.add(Effect(lock_id=fields["lock"], kind="cart emptied"))
    else:
        session.execute(update(Lock).where(Lock.id == fields["lock"]).values(state="released"))
        session.execute(update(Product).where(Product.sku == fields["sku"]).values(locked=Product.locked - 1))
        session.add(Effect(lock_id=fields["lock"], kind="released"))


def next_unpaid(session: Session, turn: int) -> Order | None:
    """An order that waits for its payment."""
    waiting = session.scalars(select(Order).where(Order.state == "created").order_by(Order.id).limit(8)).all()
    return waiting[turn % len(waiting)] if waiting else None


def pay(session: Session, producer: Producer, order: Order, *, hesitate: Callable[[], object] = lambda: None) -> None:
    """Take the money for an order, and announce it. Raises NothingToPay when somebody did."""
    with producer.begin_transaction(session) as transaction:
        body = {"lock": order.lock_id, "sku": order.sku}
        producer.send(broker.Message(ORDER_PAID, _body(body), tag=order.sku, keys=[order.lock_id]), transaction)
        hesitate()
        waits = update(Order).where(Order.id == order.id, Order.state == "created")
        if not _changed(session, waits.values(state="paid")):
            raise NothingToPay(order.id)
        session.add(Effect(lock_id=order.lock_id, kind="paid"))


def deduct_stock(session: Session, message: ReceivedMessage) -> None:
    """The piece leaves the stock, and with it its lock."""
    fields = content(message)
    taken = {"stock": Product.stock - 1, "locked": Product.locked - 1}
    session.execute(update(Product).where(Product.sku == fields["sku"]).values(taken))
    session.add(Effect(lock_id=fields["lock"], kind="deducted"))


def ship(session: Session, message: ReceivedMessage) -> None:
    fields = content(message)
    session.add(Shipment(lock_id=fields["lock"]))
    session.add(Effect(lock_id=fields["lock"], kind="shipped"))


def grant_points(session: Session, message: ReceivedMessage) -> None:
    fields = content(message)
    session.add(Points(lock_id=fields["lock"], points=POINTS))
    session.add(Effect(lock_id=fields["lock"], kind="points"))


def content(message: ReceivedMessage) -> dict[str, Any]:
    """What a message of the shop says."""
    fields: dict[str, Any] = json.loads(message.body)
    return fields


def _body(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


def _changed(session: Session, statement: Any) -> bool:
    result: Any = session.execute(statement)
    return bool(result.rowcount)
