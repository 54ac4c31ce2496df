"""The public fixtures, also where the entry point of the plugin is not installed; places, and the databases."""

from __future__ import annotations

from broker.testing.pytest_plugin import checkback_clock, checkback_store, crash_between_commit_and_end, lose_the_commit
from tests.backends.kinds import backend
from tests.ledger.databases import mariadb_url, postgres_url, sqlite_url, url

__all__ = [
    "backend", "checkback_clock", "checkback_store", "crash_between_commit_and_end", "lose_the_commit",
    "mariadb_url", "postgres_url", "sqlite_url", "url",
]  # fmt: skip
