"""The sqlite3 shop with the routes that only the tests have: what fails, savepoints, two COMMITs in one request."""

import sqlite3
from contextlib import closing

import broker
from tests.frameworks.shops.sqlite3_shop import app, connect, place_order, producer
from tests.frameworks.wishes import OutOfStock, order_body

__all__ = ["app", "place_order"]


def announce(connection: sqlite3.Connection, item: str) -> None:
    order = connection.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
    assert order is not None
    producer.send(broker.Message("orders", order_body(order, item)), connection)


@app.post("/fail/<item>")
def fail(item: str) -> tuple[dict[str, str], int]:
    with closing(connect()) as connection, producer.begin_transaction(connection):
        announce(connection, item)
        raise OutOfStock


@app.post("/savepoint/<item>")
def savepoint(item: str) -> tuple[dict[str, str], int]:
    with closing(connect()) as connection, producer.begin_transaction(connection):
        announce(connection, item)
        connection.execute("SAVEPOINT gift")
        announce(connection, f"{item}-gift")
        connection.execute("ROLLBACK TO gift")
    return {}, 201


@app.post("/twice/<item>")
def twice(item: str) -> tuple[dict[str, str], int]:
    """`with connection` commits by itself, inside the block."""
    with closing(connect()) as connection:
        with producer.begin_transaction(connection), connection:
            announce(connection, item)
        with connection, producer.begin_transaction(connection):
            announce(connection, f"{item}-gift")
    return {}, 201


@app.errorhandler(OutOfStock)
def out_of_stock(_: OutOfStock) -> tuple[dict[str, str], int]:
    return {}, 409
