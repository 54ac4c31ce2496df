"""The operation that makes tables of the ledger in a migration: the very tables that `Ledger.create_all` makes.

They are declared once, in `broker.ledger`; here they are compiled for the database of the migration. A Django model
would be a second declaration, and adds an index on PostgreSQL that nothing uses.
"""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from broker.django.ledger import DjangoLedger


class CreateLedgerTables(Operation):
    """Makes tables of the ledger, by name, where they are missing. It cannot be reversed: the rows are decisions."""

    reduces_to_sql = True
    reversible = False

    def __init__(self, *names: str) -> None:
        self.names = names

    def state_forwards(self, app_label: str, state: Any) -> None:
        """No model of Django's describes the tables."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:  # noqa: ARG002
        """Makes the tables in the database of the schema editor, if its router allows it."""
        connection = schema_editor.connection
        if router.allow_migrate(connection.alias, app_label):
            for statement in create_statements(connection.alias, self.names):
                schema_editor.execute(statement)

    def describe(self) -> str:
        """The line that `manage.py migrate --plan` shows."""
        return f"Create the ledger tables {', '.join(self.names)}"


def create_statements(using: str, names: tuple[str, ...]) -> list[str]:
    """The CREATE TABLE statements for tables of the ledger. Raises TransactionError for a database not supported."""
    from sqlalchemy.schema import CreateTable

    ledger = DjangoLedger(using)
    tables, dialect = {table.name: table for table in ledger.metadata.sorted_tables}, ledger.engine.dialect
    return [str(CreateTable(tables[name], if_not_exists=True).compile(dialect=dialect)).strip() for name in names]
