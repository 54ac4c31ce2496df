"""The psycopg shop with the routes that only the tests have: what fails, savepoints, two COMMITs in one request."""

from typing import Any

import psycopg

import broker
from tests.frameworks.shops.psycopg_shop import app, connect, place_order, producer
from tests.frameworks.wishes import OutOfStock, order_body

__all__ = ["app", "place_order"]


def announce(connection: psycopg.Connection[Any], item: str) -> None:
    row = connection.execute("INSERT INTO orders (item) VALUES (%s) RETURNING id", (item,)).fetchone()
    assert row is not None
    producer.send(broker.Message("orders", order_body(row[0], item)), connection)


@app.post("/fail/<item>")
def fail(item: str) -> tuple[dict[str, str], int]:
    with connect() as connection, producer.begin_transaction(connection):
        announce(connection, item)
        raise OutOfStock


@app.post("/savepoint/<item>")
def savepoint(item: str) -> tuple[dict[str, str], int]:
    with connect() as connection, producer.begin_transaction(connection):
        announce(connection, item)
        with connection.transaction():
            announce(connection, f"{item}-gift")
            raise psycopg.Rollback
    return {}, 201


@app.post("/kept/<item>")
def kept(item: str) -> tuple[dict[str, str], int]:
    with connect() as connection, producer.begin_transaction(connection):
        announce(connection, item)
        with connection.transaction():
            announce(connection, f"{item}-gift")
    return {}, 201


@app.post("/twice/<item>")
def twice(item: str) -> tuple[dict[str, str], int]:
    with connect() as connection:
        with producer.begin_transaction(connection):
            announce(connection, item)
            connection.commit()
        with producer.begin_transaction(connection):
            announce(connection, f"{item}-gift")
    return {}, 201


@app.errorhandler(OutOfStock)
def out_of_stock(_: OutOfStock) -> tuple[dict[str, str], int]:
    return {}, 409
