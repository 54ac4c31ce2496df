"""huey with its PostgreSQL storage: the task is queued after the commit, since its queue has its own connection.

Its documentation: a task is removed from the queue when a worker takes it; what a killed worker had is not run again.
"""

from __future__ import annotations

import psycopg
from huey import PostgresHuey

from examples.comparison.dying import die_at
from examples.comparison.settings import settings
from examples.comparison.shop import SEEN_TABLE, lock_piece, make_order_once

HERE = settings()
huey = PostgresHuey("shop", dsn=HERE.stock, results=False)


def setup() -> None:
    with psycopg.connect(HERE.orders) as orders:
        orders.execute(SEEN_TABLE)


@huey.task(retries=20, retry_delay=1)
def order(lock_id: str, sku: str) -> None:
    with psycopg.connect(HERE.orders) as orders:
        make_order_once(orders.execute, lock_id, sku)


class HueyBuyer:
    def __init__(self) -> None:
        self.stock = psycopg.connect(HERE.stock)

    def buy(self, lock_id: str, sku: str) -> None:
        with self.stock.transaction():
            lock_piece(self.stock.execute, lock_id, sku)
        die_at("between")
        order(lock_id, sku)


def buyer() -> HueyBuyer:
    return HueyBuyer()


def work() -> None:
    huey.create_consumer(workers=4, worker_type="thread").run()
