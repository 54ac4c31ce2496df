"""One consumer process of `test_many_processes`: `python -m tests.consumer.worker STORE DATABASE DELIVERIES`.

It writes every delivery to a file that is only appended to, and every effect in the transaction that processes it. It
runs until it is killed.
"""

from __future__ import annotations

import os
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import broker
from recovery.torture.notes import Notes


def main(store_path: str, database: str, deliveries: str) -> None:
    notes = Notes(deliveries)
    engine = create_engine(f"sqlite:///{database}", connect_args={"timeout": 60})
    with broker.open(store_path) as store, store.consumer("billing", "orders") as consumer:
        for message in consumer:
            notes.add(order=message.body.decode(), process=os.getpid())
            with Session(engine) as session, consumer.process(message, session):
                session.execute(text("INSERT INTO effects VALUES (:order)"), {"order": message.body.decode()})


if __name__ == "__main__":
    main(*sys.argv[1:])
