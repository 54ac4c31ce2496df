"""The databases of the demo."""

from tests.ledger.databases import postgres_socket, postgres_url

__all__ = ["postgres_socket", "postgres_url"]
