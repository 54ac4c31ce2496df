"""A shop on Flask and psycopg: POST /orders saves an order and announces it; both happen, or neither."""

import json
import os

import psycopg
from flask import Flask, request

import broker


def connect() -> psycopg.Connection:
    return psycopg.connect(os.environ["SHOP_DATABASE"])


app = Flask(__name__)
ledger = broker.ConnectionLedger(connect)
ledger.create_all()
store = broker.open(os.environ["SHOP_STORE"])
producer = store.producer("shop", topics=["orders"], ledger=ledger)


@app.post("/orders")
def place_order() -> tuple[dict[str, int], int]:
    item = request.get_json()["item"]
    with connect() as connection, producer.begin_transaction(connection) as transaction:
        row = connection.execute("INSERT INTO orders (item) VALUES (%s) RETURNING id", (item,)).fetchone()
        assert row is not None
        body = json.dumps({"id": row[0], "item": item}).encode()
        producer.send(broker.Message("orders", body), transaction)
    return {"id": row[0]}, 201


if __name__ == "__main__":  # once, before the first start
    with connect() as connection:
        connection.execute("CREATE TABLE orders (id SERIAL PRIMARY KEY, item TEXT NOT NULL)")
