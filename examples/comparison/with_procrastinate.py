"""procrastinate: the job is a row in the transaction of the lock (`configure(connection=...)`).

Jobs of killed workers are found by their heartbeats and run again, by a periodic task as its documentation has it
("Retry stalled jobs"); so that a job may run twice, `seen` keeps the order single.
"""

from __future__ import annotations

import psycopg
from procrastinate import App, PsycopgConnector, RetryStrategy, SyncPsycopgConnector

from examples.comparison.dying import die_at
from examples.comparison.settings import settings
from examples.comparison.shop import SEEN_TABLE, lock_piece, make_order_once

HERE = settings()
IS_BUYER = HERE.name.startswith("buyer")
app = App(connector=(SyncPsycopgConnector if IS_BUYER else PsycopgConnector)(conninfo=HERE.stock))
QUIET_S = 5  # of a worker that is taken for dead


def setup() -> None:
    with psycopg.connect(HERE.orders) as orders:
        orders.execute(SEEN_TABLE)
    with app.open():
        app.schema_manager.apply_schema()


@app.task(name="order", retry=RetryStrategy(max_attempts=20, wait=1))
def order(lock_id: str, sku: str) -> None:
    with psycopg.connect(HERE.orders) as orders:
        make_order_once(orders.execute, lock_id, sku)


@app.periodic(cron="*/5 * * * * *")
@app.task(name="retry_stalled", queueing_lock="retry_stalled", pass_context=True)
async def retry_stalled(context, timestamp) -> None:  # noqa: ARG001
    for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=QUIET_S):
        await app.job_manager.retry_job(job)


class ProcrastinateBuyer:
    def __init__(self) -> None:
        app.open()
        self.stock = psycopg.connect(HERE.stock)

    def buy(self, lock_id: str, sku: str) -> None:
        with self.stock.transaction():
            lock_piece(self.stock.execute, lock_id, sku)
            order.configure(connection=self.stock).defer(lock_id=lock_id, sku=sku)
        die_at("between")


def buyer() -> ProcrastinateBuyer:
    return ProcrastinateBuyer()


def work() -> None:
    app.run_worker(concurrency=4, update_heartbeat_interval=1, stalled_worker_timeout=QUIET_S, delete_jobs="successful")
