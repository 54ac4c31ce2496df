"""The purchase that every contender makes: a piece of stock is locked in one database, its order is made in another.

No constraint forbids an order without a lock, or two for one: the contender must see to it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STOCK_TABLES = (
    "CREATE TABLE products (sku text PRIMARY KEY, stock int NOT NULL, locked int NOT NULL DEFAULT 0)",
    "CREATE TABLE locks (id text PRIMARY KEY, sku text NOT NULL, made_at timestamptz DEFAULT clock_timestamp())",
    "INSERT INTO products SELECT 'sku' || n, 100000000 FROM generate_series(0, 3) n",
)
ORDERS_TABLES = (
    (
        "CREATE TABLE orders (id bigserial PRIMARY KEY, lock_id text NOT NULL, sku text NOT NULL,"
        " made_at timestamptz DEFAULT clock_timestamp())"
    ),
)
SEEN_TABLE = "CREATE TABLE seen (lock_id text PRIMARY KEY)"
SKUS = tuple(f"sku{number}" for number in range(4))

_LOCK = "UPDATE products SET locked = locked + 1 WHERE sku = %(sku)s AND stock > locked"
_KEEP = "INSERT INTO locks (id, sku) VALUES (%(lock_id)s, %(sku)s)"
_ORDER = "INSERT INTO orders (lock_id, sku) VALUES (%(lock_id)s, %(sku)s)"
_SEE = "INSERT INTO seen (lock_id) VALUES (%(lock_id)s) ON CONFLICT DO NOTHING"

Execute = Callable[..., Any]  # of a connection: `connection.execute` of psycopg, `exec_driver_sql` of SQLAlchemy


class NoPieceLeft(Exception):
    """Nothing is left to be locked."""


def lock_piece(execute: Execute, lock_id: str, sku: str) -> None:
    """In the database of the stock, in the caller's transaction. Raises NoPieceLeft."""
    if execute(_LOCK, {"sku": sku}).rowcount != 1:
        raise NoPieceLeft(sku)
    execute(_KEEP, {"lock_id": lock_id, "sku": sku})


def make_order(execute: Execute, lock_id: str, sku: str) -> None:
    """In the database of the orders, in the caller's transaction."""
    execute(_ORDER, {"lock_id": lock_id, "sku": sku})


def make_order_once(execute: Execute, lock_id: str, sku: str) -> None:
    """The same for a job that may run twice: a row of `seen` says that it ran, in the order's own transaction."""
    if execute(_SEE, {"lock_id": lock_id}).rowcount == 1:
        make_order(execute, lock_id, sku)
