"""Two-phase commit (XA): both databases prepare, a decision is written down, both commit.

As psycopg's documentation has it (`Connection.tpc_begin`), with the coordinator's log that a crash between prepare and
commit needs: a transaction that is in it was decided, any other one is rolled back when its coordinator starts again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import psycopg

from examples.comparison.dying import die_at
from examples.comparison.settings import settings
from examples.comparison.shop import lock_piece, make_order

HERE = settings()


class Coordinator:
    """Buys; at its start it ends what an earlier process of its name left prepared."""

    def __init__(self) -> None:
        path = Path(HERE.directory, f"{HERE.name}.decisions")
        self.log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.databases = [psycopg.connect(url) for url in (HERE.stock, HERE.orders)]
        decided = set(path.read_text().split())
        for database in self.databases:
            for xid in database.tpc_recover():
                mine = str(xid.gtrid).startswith(f"{HERE.name}/")
                if mine and xid.database == database.info.dbname:  # the list is that of the whole server
                    ended = database.tpc_commit if xid.gtrid in decided else database.tpc_rollback
                    ended(xid)

    def buy(self, lock_id: str, sku: str) -> None:
        stock, orders = self.databases
        gtrid = f"{HERE.name}/{lock_id}"
        stock.tpc_begin(stock.xid(1, gtrid, "stock"))
        orders.tpc_begin(orders.xid(1, gtrid, "orders"))
        try:
            lock_piece(stock.execute, lock_id, sku)
            make_order(orders.execute, lock_id, sku)
            stock.tpc_prepare()
            orders.tpc_prepare()
        except BaseException:
            for database in self.databases:
                database.tpc_rollback()
            raise
        die_at("between")
        os.write(self.log, f"{gtrid}\n".encode())
        os.fsync(self.log)
        stock.tpc_commit()
        orders.tpc_commit()


def buyer() -> Coordinator:
    return Coordinator()


def work() -> None:
    """Nothing runs beside the buyers."""
    while True:
        time.sleep(60)
