"""An outbox table: the lock and a row about it are one transaction, and a poller makes the orders.

The poller may be killed between its two commits: then it reads the rows again, and `seen` keeps the order single.
"""

from __future__ import annotations

import time

import psycopg

from examples.comparison.dying import die_at
from examples.comparison.settings import settings
from examples.comparison.shop import SEEN_TABLE, lock_piece, make_order_once

HERE = settings()
BATCH, PAUSE_S = 100, 0.05


def setup() -> None:
    with psycopg.connect(HERE.stock) as stock, psycopg.connect(HERE.orders) as orders:
        stock.execute("CREATE TABLE outbox (id bigserial PRIMARY KEY, lock_id text NOT NULL, sku text NOT NULL)")
        orders.execute(SEEN_TABLE)


class OutboxBuyer:
    def __init__(self) -> None:
        self.stock = psycopg.connect(HERE.stock)

    def buy(self, lock_id: str, sku: str) -> None:
        with self.stock.transaction():
            lock_piece(self.stock.execute, lock_id, sku)
            self.stock.execute("INSERT INTO outbox (lock_id, sku) VALUES (%s, %s)", (lock_id, sku))
        die_at("between")


def buyer() -> OutboxBuyer:
    return OutboxBuyer()


def work() -> None:
    with psycopg.connect(HERE.stock) as stock, psycopg.connect(HERE.orders) as orders:
        while True:
            if not _round(stock, orders):
                time.sleep(PAUSE_S)


def _round(stock: psycopg.Connection, orders: psycopg.Connection) -> int:
    with stock.transaction():
        found = stock.execute(
            "SELECT id, lock_id, sku FROM outbox ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED", (BATCH,)
        ).fetchall()
        with orders.transaction():
            for _, lock_id, sku in found:
                make_order_once(orders.execute, lock_id, sku)
        stock.execute("DELETE FROM outbox WHERE id = ANY(%s)", ([row[0] for row in found],))
    return len(found)
