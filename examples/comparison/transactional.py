"""Transactional messages: the lock and its message are both there, or neither; a handler makes the order, once.

Two commands run beside the buyers:

    checkback work examples.comparison.transactional:desk --check-every never
    checkback work examples.comparison.transactional:stock      # check-back, for buyers that were killed
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import broker
from examples.comparison.dying import die_before_the_end
from examples.comparison.settings import settings
from examples.comparison.shop import lock_piece, make_order

HERE = settings()
STORE = f"{HERE.directory}/shop.store"
stock = broker.App(STORE, engine=create_engine(HERE.alchemy(HERE.stock)))
desk = broker.App(STORE, engine=create_engine(HERE.alchemy(HERE.orders)))


@dataclass(frozen=True)
class StockLocked:
    lock_id: str
    sku: str


for app in (stock, desk):
    app.topic("stock-locked", StockLocked)


@desk.on("stock-locked", group="desk", concurrency=4)
def order(locked: StockLocked, session: Session) -> None:
    make_order(session.connection().exec_driver_sql, locked.lock_id, locked.sku)


class TransactionalBuyer:
    def buy(self, lock_id: str, sku: str) -> None:
        with stock.transaction() as session:
            lock_piece(session.connection().exec_driver_sql, lock_id, sku)
            stock.send("stock-locked", StockLocked(lock_id, sku))


def buyer() -> TransactionalBuyer:
    die_before_the_end(stock)
    return TransactionalBuyer()
