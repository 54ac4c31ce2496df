"""The ledger's table as a connection of Django's sees it in its transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import Error

from broker.database.driver_errors import NO_TABLE, is_named
from broker.database.statements import Sql, pyformat
from broker.enlisting.search_path import home_schema, table_of
from broker.errors import TransactionError
from broker.ledger import COMMITTED, Ledger

_BATCH = 500  # keys in one SELECT: any database takes so many parameters


class DjangoRows:
    """Implements `broker.enlisting.enlistment.LedgerRows` for a connection of Django's.

    The row goes in at the send, on SQLite too: there is no hook that could insert it just before any kind of COMMIT. So
    SQLite's write lock is held from the send on, and protects the transaction from check-back as a row lock does.
    """

    holds_a_lock = True

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, self._table = ledger, ledger.rows.name
        self._home: int | None = None  # PostgreSQL's id of the table that check-back reads
        self._schema = ""  # that it is in

    def insert(self, connection: Any, key: str, producer_group: str, store_id: str) -> None:
        """See LedgerRows. Raises TransactionError when the table is missing or another than check-back's."""
        columns = "ledger_key, state, producer_group, store_id"
        statement = f"INSERT INTO {self._quoted(connection)} ({columns}) VALUES (%s, %s, %s, %s)"  # noqa: S608 - ours
        has_ids = connection.vendor == "postgresql"
        try:
            with connection.cursor() as cursor:
                returning = " RETURNING tableoid::bigint" if has_ids else ""
                cursor.execute(statement + returning, [key, COMMITTED, producer_group, store_id])
                if has_ids and (table_id := table_of(cursor.fetchall())) != self._home:
                    self._check_home(cursor, table_id)
        except Error as error:
            if is_named(error.__cause__, NO_TABLE):
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
                if self._schema:
                    name = f"{connection.ops.quote_name(self._schema)}.{name}"
                cursor.execute(f"SELECT ledger_key FROM {name} WHERE ledger_key IN ({wanted})", chunk)  # noqa: S608
                found.update(key for (key,) in cursor.fetchall())
        return found

    def _check_home(self, cursor: Any, table_id: int) -> None:
        """Raises TransactionError when the search_path, of a tenant say, leads to another table than check-back's."""

        def execute(statement: Sql) -> list[tuple[Any, ...]]:
            cursor.execute(pyformat(statement.text), statement.values)
            return list(cursor.fetchall())

        self._schema = home_schema(
            execute, self._table, table_id, self._ledger.identities, whose="the",
            step="keep the ledger in a schema that all tenants share",
        )  # fmt: skip
        self._home = table_id

    def _quoted(self, connection: Any) -> str:
        return str(connection.ops.quote_name(self._table))
