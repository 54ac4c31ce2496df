"""One sale, step by step: who does what, in which transaction, and what is heard of it.

    python examples/flash_sale/one_sale.py sqlite:///shop.db shop.store

In a real shop each step is a process of its own, of which there may be many: `recovery/demo/roles.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from sqlalchemy import Engine, select
from sqlalchemy.orm import Session

import broker
from broker.live import LiveStore
from broker.message import ReceivedMessage
from recovery.demo import shop
from recovery.demo.roles import STEPS, connect, ledger, processed


def main(database: str, path: str) -> None:
    """Sell one thing, from the cart to the points."""
    engine = connect(database)
    for metadata in (shop.Base.metadata, ledger(engine).metadata, processed().metadata):
        metadata.create_all(engine)
    with Session(engine) as session:
        if session.get(shop.Product, "lamp") is None:
            session.add(shop.Product(sku="lamp", first_stock=3, stock=3))
        session.commit()
    with broker.open(path) as store:
        sellers = store.producer("orders", topics=[shop.STOCK_LOCKED], ledger=ledger(engine))
        cashiers = store.producer("payments", topics=[shop.ORDER_PAID], ledger=ledger(engine))
        with Session(engine) as session:
            print("a lamp is locked and announced:", shop.buy(session, sellers, "lamp"))
        hear(store, engine, "desk")
        with Session(engine) as session:
            order = session.scalars(select(shop.Order).where(shop.Order.state == "created")).first()
        if order is not None:
            with Session(engine) as session:
                shop.pay(session, cashiers, order)
            print("it is paid, which is announced")
            for group in ("stockroom", "shipping", "points"):
                hear(store, engine, group)
    with Session(engine) as session:
        for effect in session.scalars(select(shop.Effect).order_by(shop.Effect.id)):
            print(f"    {effect.lock_id}  {effect.kind}")
    engine.dispose()


def hear(store: LiveStore, engine: Engine, group: str) -> None:
    """Let a group process what there is for it."""
    topic, step = STEPS[group]
    with store.consumer(group, topic, processed=processed()) as consumer:
        while (message := consumer.receive(timeout_s=0.5)) is not None:
            with Session(engine) as session, consumer.process(message, session) as first:
                do(step, session, message, first=first)
            print(f"{group} has heard of it")


def do(
    step: Callable[[Session, ReceivedMessage], None], session: Session, message: ReceivedMessage, *, first: bool
) -> None:
    """A message that is delivered again has its effects already."""
    if first:
        step(session, message)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/flash_sale/one_sale.py DATABASE-URL STORE")
    main(*sys.argv[1:])
