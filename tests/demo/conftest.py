"""The databases of the demo."""

from tests.ledger.databases import postgres_url

__all__ = ["postgres_url"]
