"""DBOS: the purchase is a workflow with a transaction in the database of the stock; a queue runs the order's workflow.

Datasources note each transaction in the application's database, so that a workflow that is run again does not repeat
it. A process finishes the workflows of its executor's name when it starts again.
"""

from __future__ import annotations

import threading

from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource

from examples.comparison.dying import die_at
from examples.comparison.settings import settings
from examples.comparison.shop import lock_piece, make_order

HERE = settings()
QUEUE = "orders"
DBOS(
    config={
        "name": "shop",
        "system_database_url": HERE.alchemy(HERE.stock),
        "executor_id": HERE.name,
        "application_version": "1",
        "log_level": "ERROR",
    }
)
stock = SQLAlchemyDatasource.create(HERE.alchemy(HERE.stock), run_migrations=HERE.name == "setup")
orders = SQLAlchemyDatasource.create(HERE.alchemy(HERE.orders), run_migrations=HERE.name == "setup")


@stock.transaction(isolation_level="READ COMMITTED")
def lock(lock_id: str, sku: str) -> None:
    lock_piece(stock.sql_session().connection().exec_driver_sql, lock_id, sku)


@orders.transaction(isolation_level="READ COMMITTED")
def make(lock_id: str, sku: str) -> None:
    make_order(orders.sql_session().connection().exec_driver_sql, lock_id, sku)


@DBOS.workflow()
def order(lock_id: str, sku: str) -> None:
    make(lock_id, sku)


@DBOS.workflow()
def purchase(lock_id: str, sku: str) -> None:
    lock(lock_id, sku)
    die_at("between")
    DBOS.retrieve_queue(QUEUE).enqueue(order, lock_id, sku)


def setup() -> None:
    DBOS.launch()
    DBOS.register_queue(QUEUE, polling_interval_sec=0.1)
    DBOS.destroy()


class DbosBuyer:
    def __init__(self) -> None:
        DBOS.listen_queues([])
        DBOS.launch()

    def buy(self, lock_id: str, sku: str) -> None:
        with SetWorkflowID(lock_id):
            purchase(lock_id, sku)


def buyer() -> DbosBuyer:
    return DbosBuyer()


def work() -> None:
    DBOS.listen_queues([QUEUE])
    DBOS.launch()
    threading.Event().wait()
