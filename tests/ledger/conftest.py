"""The databases of this room."""

from tests.ledger.databases import engine, ledger, other_engine, postgres_socket, postgres_url, sqlite_url, url

__all__ = ["engine", "ledger", "other_engine", "postgres_socket", "postgres_url", "sqlite_url", "url"]
