"""Make the tables of a database while other processes do the same.

SQLAlchemy looks whether a table is there, and then makes it. Another process may make it in between: that is an error
for the second, who finds it when he looks again. So each table is made by itself, and looked for twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from broker.database.new_connection import go_to, home_if_elsewhere
from broker.database.statements import quoted

if TYPE_CHECKING:
    from sqlalchemy import Engine, MetaData, String
    from sqlalchemy.ext.asyncio import AsyncEngine

IN_TRANSACTIONS: Mapping[str, Any] = {"mysql_engine": "InnoDB", "mariadb_engine": "InnoDB"}
"""Options of a table whose rows go with a ROLLBACK, whichever engine the server takes for others: MyISAM and Aria keep
them, and the row of an order that was rolled back would deliver its message."""

_PLACES = {
    "postgresql": """SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
        WHERE pg_class.oid = to_regclass(:name)""",
    "mysql": "SELECT DATABASE()",
    "mariadb": "SELECT DATABASE()",
}


def key_text(size: int) -> String:
    """The type of a key of up to `size` characters, where another case or accent is another key.

    MySQL and MariaDB would compare by the collation of the database, which mostly takes `a`, `A` and `á` for one, and
    in latin1 many characters not at all.
    """
    from sqlalchemy import String
    from sqlalchemy.dialects.mysql import VARCHAR

    return String(size).with_variant(VARCHAR(size, charset="utf8mb4", collation="utf8mb4_bin"), "mysql", "mariadb")


def schema_of(engine: Engine, table: str) -> str | None:
    """The schema that a table is found in without naming one, by new connections; of MySQL and MariaDB the database.

    None where it is not found, of SQLite, and of an engine that moves schemas. Raises DatabaseError of SQLAlchemy.
    """
    from sqlalchemy import text

    statement = _PLACES.get(engine.dialect.name)
    if statement is None or engine.get_execution_options().get("schema_translate_map"):
        return None
    with engine.connect() as connection:
        values = dict[str, str]()
        if ":name" in statement:
            go_to(connection, home_if_elsewhere(connection))
            values = {"name": quoted(table)}
        found = connection.execute(text(statement), values).scalar()
    return None if found is None else str(found)


def make_tables(metadata: MetaData, engine: Engine) -> None:
    """Make the tables that are not there yet. Raises DatabaseError of SQLAlchemy."""
    from sqlalchemy.exc import DatabaseError

    for table in metadata.sorted_tables:
        try:
            table.create(engine, checkfirst=True)
        except DatabaseError:
            table.create(engine, checkfirst=True)


async def make_tables_async(metadata: MetaData, engine: AsyncEngine) -> None:
    """The same, for an async engine; each try is a transaction of its own."""
    from sqlalchemy.exc import DatabaseError

    for table in metadata.sorted_tables:
        for again in (False, True):
            try:
                async with engine.begin() as connection:
                    await connection.run_sync(table.create, checkfirst=True)
                break
            except DatabaseError:
                if again:
                    raise
