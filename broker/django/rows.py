"""The ledger's table as a connection of Django's sees it in its transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import Error

from broker.errors import TransactionError
from broker.ledger import COMMITTED

_BATCH = 500  # keys in one SELECT: any database takes so many parameters
_UNDEFINED_TABLE = "42P01"  # SQLSTATE


class DjangoRows:
    """Implements `broker.enlisting.enlistment.LedgerRows` for a connection of Django's.

    The row goes in at the send, on SQLite too: there is no hook that could insert it just before any kind of COMMIT. So
    SQLite's write lock is held from the send on, and protects the transaction from check-back as a row lock does.
    """

    holds_a_lock = True

    def __init__(self, table: str) -> None:
        self._table = table

    def insert(self, connection: Any, key: str, producer_group: str, store_id: str) -> None:
        """See LedgerRows. Raises TransactionError when the table is missing, Django's errors for all else."""
        columns = "ledger_key, state, producer_group, store_id"
        statement = f"INSERT INTO {self._quoted(connection)} ({columns}) VALUES (%s, %s, %s, %s)"  # noqa: S608 - ours
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement, [key, COMMITTED, producer_group, store_id])
        except Error as error:
            if "no such table" in str(error) or getattr(error.__cause__, "sqlstate", "") == _UNDEFINED_TABLE:
                where = f"the database {connection.alias!r} has no table {self._table}"
                raise TransactionError(f"{where}: run manage.py migrate checkback") from error
            raise

    def present(self, connection: Any, keys: Sequence[str]) -> set[str]:
        """See LedgerRows."""
        found: set[str] = set()
        with connection.cursor() as cursor:
            for start in range(0, len(keys), _BATCH):
                chunk = list(keys[start : start + _BATCH])
                wanted = ", ".join(["%s"] * len(chunk))
                name = self._quoted(connection)
                cursor.execute(f"SELECT ledger_key FROM {name} WHERE ledger_key IN ({wanted})", chunk)  # noqa: S608
                found.update(key for (key,) in cursor.fetchall())
        return found

    def _quoted(self, connection: Any) -> str:
        return str(connection.ops.quote_name(self._table))
