"""Loaded once by the process that all others of the demo are forked from: everything they will need, used once.

A process that is killed is back after milliseconds, not after the half second that imports and SQLAlchemy's mappers
take. The rehearsal leaves nothing behind: no thread, no open file.
"""

from __future__ import annotations

import contextlib
import os
import tempfile

from sqlalchemy import create_engine
from sqlalchemy.orm import Session, configure_mappers

from recovery.demo import shop
from recovery.demo.roles import Setting, connect, ledger, open_store, processed


def rehearse() -> None:
    """Sell one piece in a shop of its own."""
    configure_mappers()
    with tempfile.TemporaryDirectory(prefix="checkback-demo-") as directory:
        url = f"sqlite:///{os.path.join(directory, 'shop.db')}"
        engine = connect(url)
        for metadata in (shop.Base.metadata, ledger(engine).metadata, processed().metadata):
            metadata.create_all(engine)
        setting = Setting(os.path.join(directory, "store"), url, "", "", 0.0)
        with open_store(setting) as store:
            producer = store.producer("rehearsal", topics=[shop.STOCK_LOCKED], ledger=ledger(engine))
            with contextlib.suppress(shop.SoldOut), Session(engine) as session:
                shop.buy(session, producer, "nothing")
            store.consumer("rehearsal", shop.STOCK_LOCKED).close()
        engine.dispose()


with contextlib.suppress(ImportError):  # not every installation has PostgreSQL's driver
    create_engine("postgresql+psycopg:///").dispose()
rehearse()
