"""A shop on Flask and sqlite3: POST /orders saves an order and announces it; both happen, or neither."""

import json
import os
import sqlite3
from contextlib import closing

from flask import Flask, request

import broker


def connect() -> sqlite3.Connection:
    return sqlite3.connect(os.environ["SHOP_DATABASE"], timeout=30)


app = Flask(__name__)
ledger = broker.ConnectionLedger(connect)
ledger.create_all()
store = broker.open(os.environ["SHOP_STORE"])
producer = store.producer("shop", topics=["orders"], ledger=ledger)


@app.post("/orders")
def place_order() -> tuple[dict[str, int | None], int]:
    item = request.get_json()["item"]
    with closing(connect()) as connection, producer.begin_transaction(connection) as transaction:
        order = connection.execute("INSERT INTO orders (item) VALUES (?)", (item,)).lastrowid
        body = json.dumps({"id": order, "item": item}).encode()
        producer.send(broker.Message("orders", body), transaction)
    return {"id": order}, 201


if __name__ == "__main__":  # once, before the first start
    with closing(connect()) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT NOT NULL)")
