"""PostgreSQL: whether a connection's search_path leads to the ledger's table that check-back reads.

Check-back connects again, so it has the search_path that a new connection gets from the role, the database and the
connection's options: what PostgreSQL calls the reset value.

A search_path, and the role that "$user" in it stands for, may change behind the send. So the row is read by the name of
the schema that it went into: a table of that name in another one would say that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker.database.ledger_identity import DatabaseIdentity
from broker.database.statements import Sql
from broker.errors import TransactionError

_PATHS = Sql("SELECT current_setting('search_path'), reset_val FROM pg_settings WHERE name = 'search_path'")
_SCHEMA = """
    SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE pg_class.oid = CAST(:id AS oid)
"""
_SET = "SELECT set_config('search_path', :path, true)"


class Elsewhere(NamedTuple):
    """Two search_paths that lead to two tables of one name."""

    current: str
    default: str


def table_elsewhere(execute: Callable[[Sql], Sequence[Sequence[Any]]], table: str, table_id: int) -> Elsewhere | None:
    """The search_paths when the table with an id, which a row went into, is another than check-back's; else None."""
    ((current, default),) = execute(_PATHS)
    if current == default:
        return None
    execute(Sql(_SET, {"path": default}))
    ((home,),) = execute(Sql("SELECT CAST(CAST(to_regclass(:name) AS oid) AS bigint)", {"name": table}))
    execute(Sql(_SET, {"path": current}))
    return None if home == table_id else Elsewhere(current, default)


def check_schema(
    execute: Callable[[Sql], Sequence[Sequence[Any]]], table: str, table_id: int, bound: Sequence[DatabaseIdentity]
) -> str:
    """The schema of the table with an id, which a row went into, once it is the one that the ledger was bound in.

    `"$user"` in a search_path follows SET ROLE, and the path itself stays the same. Raises TransactionError.
    """
    ((schema,),) = execute(Sql(_SCHEMA, {"id": table_id}))
    for one in bound:
        if one.schema and one.schema != schema:
            raise TransactionError(
                f"the transaction's role or search_path leads to the table {table} of schema {schema}, and check-back "
                f"reads that of {one}: keep the ledger in one schema, or make a ledger and a producer for each tenant"
            )
    return str(schema)
