"""The databases of this room."""

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
    "engine", "ledger", "mariadb_url", "other_engine", "postgres_url",
    "sqlite_url", "url",
]  # fmt: skip
