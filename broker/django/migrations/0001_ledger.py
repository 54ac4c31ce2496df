"""The ledger, and the time below which its rows were removed."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from broker.django.ledger_tables import CreateLedgerTables


class Migration(migrations.Migration):
    """Makes the tables where they are not there yet."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[CreateLedgerTables]] = [
        CreateLedgerTables("checkback_ledger", "checkback_ledger_mark", "checkback_ledger_binding")
    ]
