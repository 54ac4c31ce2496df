"""A process that buys until it is killed: `python -m tests.checkback.buying STORE DATABASE FIRST`."""

from __future__ import annotations

import sys
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from broker.ledger import Ledger
from tests.backends.shop import announce, save
from tests.checkback.shop import open_store


def main(path: str, url: str, first: str) -> None:
    """Buy order after order, one transaction each with two messages; every fifth fails."""
    waits = (
        {"timeout": 60} if url.startswith("sqlite") else {}
    )  # SQLite's lock goes to whoever asks at the right moment
    engine = create_engine(url, connect_args=waits)
    with open_store(Path(path)) as store:
        producer = store.producer("shop", topics=["orders", "stock"], ledger=Ledger(engine))
        for number in range(int(first), sys.maxsize):
            try:
                with Session(engine) as session, producer.begin_transaction(session) as transaction:
                    announce(producer, transaction, number)
                    if number % 3 == 0:
                        save(session, number)
                    announce(producer, transaction, number, "stock")
                    if number % 3:
                        save(session, number)
                    if number % 5 == 0:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
