"""The databases of this room, and the places that its transactions announce to."""

from tests.backends.shop import backend_shop
from tests.ledger.databases import (
    engine,
    ledger,
    mariadb_url,
    other_engine,
    postgres_url,
    sqlite_url,
    url,
)  # fmt: skip

__all__ = [
    "backend_shop", "engine", "ledger", "mariadb_url", "other_engine", "postgres_url",
    "sqlite_url", "url",
]  # fmt: skip
