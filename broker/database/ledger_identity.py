"""Which database is this? What a database says of itself, and whether two answers mean the same one.

    observed = observe(execute, "postgresql", "checkback_ledger", schema=None)
    difference(bound, observed.identity)         # "" when both are one database, else what differs

A copy of a database holds the same rows, so no row can prove which one it is. What is asked for here does not go into
a dump, and a copy of the files changes it where the database lets us see that:

    PostgreSQL      the system identifier of the cluster, the database's name and oid, the schema of the ledger's table
    MySQL           server_uuid, the database's name
    MariaDB         host name, port and data directory (it has no server_uuid), the database's name
    SQLite          the file: its inode, and its path or its device

A physical copy of a whole PostgreSQL cluster, or a snapshot of a disk, says what the original says. It is distinguished
by what it lacks: see `recovery.checkback.ledgers.proof`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple, Self

from broker.database.statements import MYSQL_DIALECTS, Sql
from broker.errors import TransactionError

Execute = Callable[[Any], Sequence[Sequence[Any]]]
"""Executes one statement on some connection and returns its rows: `Sql`, and with SQLAlchemy also one of its Core."""

_POSTGRESQL, _SQLITE = "postgresql", "sqlite"
_TITLES = {_POSTGRESQL: "PostgreSQL", _SQLITE: "SQLite", "mysql": "MySQL", "mariadb": "MariaDB"}

_PG = """
    SELECT current_database(),
        (SELECT CAST(oid AS text) FROM pg_database WHERE datname = current_database()),
        (SELECT nspname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
            WHERE pg_class.oid = to_regclass(CAST(:name AS text))),
        current_setting('port'), pg_is_in_recovery(), current_setting('transaction_read_only'),
        has_function_privilege('pg_control_system()', 'execute'),
        (SELECT relpersistence = 'u' FROM pg_class WHERE oid = to_regclass(CAST(:name AS text)))
"""
_PG_SYSTEM = """
    SELECT CAST((pg_control_system()).system_identifier AS text),
        CASE WHEN pg_is_in_recovery() THEN '' ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END
"""
_MY_ENGINE = """
    SELECT ENGINE FROM information_schema.TABLES JOIN information_schema.ENGINES USING (ENGINE)
    WHERE TABLE_SCHEMA = :database AND TABLE_NAME = :name AND TRANSACTIONS <> 'YES'
"""
_MY = "SHOW VARIABLES WHERE Variable_name IN ('server_uuid', 'hostname', 'port', 'datadir', 'read_only')"


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """What a database says of itself. An empty field is one that it does not know, or may not tell us."""

    dialect: str
    server: str = ""  # PostgreSQL: the system identifier; MySQL: server_uuid, or host name, port and data directory
    port: str = ""  # PostgreSQL: where it listens; counts only where the system identifier may not be read
    database: str = ""  # its name; SQLite: the path of its file
    number: str = ""  # PostgreSQL: the oid of the database; SQLite: the inode of the file
    device: str = ""  # SQLite: of the file
    schema: str = ""
    timeline: str = ""  # PostgreSQL: rises when a standby is promoted; no part of the comparison

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{one.name: str(value.get(one.name, "")) for one in fields(cls)})

    def as_json(self) -> dict[str, str]:
        return {name: value for name, value in asdict(self).items() if value}

    def __str__(self) -> str:
        title = _TITLES.get(self.dialect, self.dialect)
        if self.dialect == _SQLITE:
            return f"{title} {self.database} (inode {self.number})"
        number = f" (oid {self.number})" if self.number else ""
        schema = f", schema {self.schema}" if self.schema and self.schema != self.database else ""
        return f"{title} {self.server or 'port ' + self.port}, database {self.database}{number}{schema}"


class Observed(NamedTuple):
    """What was seen on one connection."""

    identity: DatabaseIdentity
    has_table: bool  # the ledger's table is there
    read_only: str  # why nothing can be written there: a standby, a read-only replica; empty when it can
    unfit: str = ""  # why the table's rows say nothing of their transactions, with the next step; empty when they do


def observe(execute: Execute, dialect: str, table: str, schema: str | None) -> Observed:
    """Ask a database who it is. `table` is the ledger's table as SQL names it, quoted where it must be.

    Changes nothing. Raises what the database raises, and TransactionError for a SQLite file that is gone.
    """
    if dialect == _POSTGRESQL:
        return _postgresql(execute, table)
    if dialect in MYSQL_DIALECTS:
        return _mysql(execute, dialect, table, schema)
    if dialect == _SQLITE:
        return _sqlite(execute, schema)
    return Observed(DatabaseIdentity(dialect, schema=schema or ""), True, "")


def _postgresql(execute: Execute, table: str) -> Observed:
    ((database, oid, schema, port, standby, read_only, permitted, unlogged),) = execute(Sql(_PG, {"name": table}))
    ((server, timeline),) = execute(Sql(_PG_SYSTEM)) if permitted else (("", ""),)
    identity = DatabaseIdentity(
        _POSTGRESQL, server, port, database=database, number=oid, schema=schema or "", timeline=timeline
    )
    why = "it is a standby, which follows a primary" if standby else "it is read-only" if read_only == "on" else ""
    unfit = f"{table} is UNLOGGED: PostgreSQL empties it after a crash, and what committed would seem rolled back. Do"
    return Observed(identity, schema is not None, why, f"{unfit} ALTER TABLE {table} SET LOGGED" if unlogged else "")


def _mysql(execute: Execute, dialect: str, table: str, schema: str | None) -> Observed:
    variables = {str(name).lower(): str(value) for name, value, *_ in execute(Sql(_MY))}
    ((database,),) = execute(Sql("SELECT DATABASE()"))
    place = f"{variables.get('hostname', '')}:{variables.get('port', '')}{variables.get('datadir', '')}"
    named = schema or str(database or "")
    identity = DatabaseIdentity(dialect, variables.get("server_uuid") or place, database=named, schema=schema or "")
    read_only = variables.get("read_only", "OFF").upper() not in ("OFF", "0")
    engines = execute(Sql(_MY_ENGINE, {"database": named, "name": _last_name(table)}))
    text = f"{table} is a table of {{}}: its rows stay where their transaction is rolled back. Do ALTER TABLE {table}"
    unfit = f"{text.format(engines[0][0])} ENGINE=InnoDB" if engines else ""
    return Observed(identity, True, "it is a read-only replica" if read_only else "", unfit)


def _last_name(table: str) -> str:
    """The name of a table of MySQL as it is kept, of one that is quoted for a statement."""
    found = re.search(r"`((?:[^`]|``)+)`$", table)
    return table.rpartition(".")[2] if found is None else found[1].replace("``", "`")


def _sqlite(execute: Execute, schema: str | None) -> Observed:
    files = {str(name): str(path or "") for _, name, path in execute(Sql("PRAGMA database_list"))}
    path = files.get(schema or "main", "")
    if not path:  # in memory, which only the runner of Django's tests may have: it is this process's own
        in_memory = DatabaseIdentity(_SQLITE, database=":memory:", number=str(os.getpid()), schema=schema or "")
        return Observed(in_memory, True, "")
    name = path.encode()  # as SQLite names it, whatever the locale makes of a text
    try:
        found = os.stat(name)
    except OSError as error:
        raise TransactionError(f"the file {path!r} of the ledger cannot be looked at: {error.strerror}") from error
    identity = DatabaseIdentity(
        _SQLITE, database=path, number=str(found.st_ino), device=str(found.st_dev), schema=schema or ""
    )
    return Observed(identity, True, "" if os.access(name, os.W_OK) else "its file may not be written")


def difference(bound: DatabaseIdentity, actual: DatabaseIdentity) -> str:
    """In what two databases differ; empty when they are one.

    Pure. SQLite: the inode must be the same, and the path or the device: a container sees the same file by another
    path, and a device may get another number when the machine starts. The schema counts on PostgreSQL alone: MySQL's is
    the database, and SQLite's the name by which one connection attached the file. The timeline of PostgreSQL is not
    compared: a promoted standby has another one, and is the same database as long as it lacks nothing.
    """
    same_kind = bound.dialect == actual.dialect or {bound.dialect, actual.dialect} <= {*MYSQL_DIALECTS}
    if not same_kind:
        return f"{_TITLES.get(actual.dialect, actual.dialect)} in place of {_TITLES.get(bound.dialect, bound.dialect)}"
    if bound.dialect == _SQLITE:
        same_file = bound.number == actual.number
        same_place = bound.database == actual.database or bound.device == actual.device
        return "" if same_file and same_place else "another file"
    server = "server" if bound.server and actual.server else "port"
    compared = [(server, "server"), ("database", "database"), ("number", "oid")]
    if bound.dialect not in MYSQL_DIALECTS:
        compared.append(("schema", "schema"))
    for name, title in compared:
        if getattr(bound, name) != getattr(actual, name):
            return f"another {title}" if title != "oid" else "a database that was made again"
    return ""
