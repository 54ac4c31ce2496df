"""Buys without end: `python -m tests.compat.buyer URL DATABASE GROUP TOPIC TURN`; prints each order it tries."""

from __future__ import annotations

import itertools
import sys

from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

import broker


def main(url: str, database: str, group: str, topic: str, turn: str) -> None:
    engine = create_engine(f"sqlite:///{database}", connect_args={"timeout": 30})
    with broker.connect(url) as cluster:
        producer = cluster.producer(group, topics=[topic], ledger=broker.Ledger(engine))
        for number in itertools.count(int(turn) * 1_000_000):
            with Session(engine) as session:
                session.execute(text("INSERT INTO orders VALUES (:id)"), {"id": number})
                producer.send(broker.Message(topic, b"%d" % number), session)
                if number % 5 == 4:
                    session.rollback()
                else:
                    session.commit()
            sys.stdout.write(f"{number}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
