"""The databases of this room."""

from tests.ledger.databases import postgres_url, sqlite_url

__all__ = ["postgres_url", "sqlite_url"]
