"""The databases of the applications that are killed."""

from __future__ import annotations

from tests.ledger.databases import postgres_url, sqlite_url

__all__ = ["postgres_url", "sqlite_url"]
