"""PostgreSQL: whether a connection's search_path leads to the ledger's table that check-back reads.

Check-back connects again, so it has the search_path that a new connection gets from the role, the database and the
connection's options: what PostgreSQL calls the reset value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from broker.database.statements import Sql

_PATHS = Sql("SELECT current_setting('search_path'), reset_val FROM pg_settings WHERE name = 'search_path'")
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
