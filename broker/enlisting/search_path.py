"""PostgreSQL: whether a connection's search_path leads to the ledger's table that check-back reads.

Check-back connects again, so it has the search_path that a new connection gets from the role, the database and the
connection's options: what PostgreSQL calls the reset value.

A search_path, and the role that "$user" in it stands for, may change behind the send. So the row is read by the name of
the schema that it went into: a table of that name in another one would say that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from broker.database.ledger_identity import DatabaseIdentity
from broker.database.statements import Sql
from broker.errors import TransactionError

_PATHS = Sql("SELECT current_setting('search_path'), reset_val FROM pg_settings WHERE name = 'search_path'")
_SCHEMA = """
    SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE pg_class.oid = CAST(:id AS oid)
"""
_SET = "SELECT set_config('search_path', :path, true)"


def table_of(returned: Sequence[Sequence[Any]]) -> int:
    """The id of the table that a row went into, which its INSERT returned. Raises TransactionError without a row."""
    if not returned:
        text = "the ledger's table took no row: a trigger or a rule of the table keeps it out"
        raise TransactionError(f"{text}. Remove that, and send again")
    return int(returned[0][0])


def home_schema(
    execute: Callable[[Sql], Sequence[Sequence[Any]]],
    table: str,
    table_id: int,
    bound: Sequence[DatabaseIdentity],
    *,
    whose: str,
    step: str,
) -> str:
    """The schema of the table with an id, which a row went into, once it is the one that check-back reads.

    `table` is its name as SQL writes it; `bound` is where the ledger was bound. `"$user"` in a search_path follows SET
    ROLE, and the path itself stays the same. Raises TransactionError, with `whose` path it is and the next `step`.
    """
    ((current, default),) = execute(_PATHS)
    if current != default:
        execute(Sql(_SET, {"path": default}))
        ((home,),) = execute(Sql("SELECT CAST(CAST(to_regclass(:name) AS oid) AS bigint)", {"name": table}))
        execute(Sql(_SET, {"path": current}))
        if home != table_id:
            text = f"{whose} search_path {current!r} leads to another table {table} than the one that check-back reads"
            raise TransactionError(f"{text}, with search_path {default!r}: {step}")
    ((schema,),) = execute(Sql(_SCHEMA, {"id": table_id}))
    for one in bound:
        if one.schema and one.schema != schema:
            raise TransactionError(
                f"the transaction's role or search_path leads to the table {table} of schema {schema}, and check-back "
                f"reads that of {one}: keep the ledger in one schema, or make a ledger and a producer for each tenant"
            )
    return str(schema)
