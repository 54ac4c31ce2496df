"""Which statements of SQL end a transaction, or a part of it, by their first words."""

from __future__ import annotations

import re

from broker.database.statements import MYSQL_DIALECTS

_FLAGS = re.IGNORECASE | re.DOTALL
_COMMENTS = r"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_ENDS = (  # with a savepoint that SQLAlchemy did not set: its own have names of one kind
    r"COMMIT|END|ABORT|PREPARE\s+TRANSACTION|SAVEPOINT(?!\s+\W?sa_savepoint_)"
    r"|RELEASE(?!\s+(?:SAVEPOINT\s+)?\W?sa_savepoint_)"
    r"|ROLLBACK(?!\s+(?:WORK\s+|TRANSACTION\s+)?TO\s+(?:SAVEPOINT\s+)?\W?sa_savepoint_)"
)
# MySQL and MariaDB execute what stands in a comment with "!".
_MYSQL_COMMENTS = r"(?:\s|(?:--|\#)[^\n]*\n|/\*M?!\d*|/\*(?!M?!).*?\*/)*"
_MYSQL_WITHIN = r"(?:EXECUTE\s+IMMEDIATE\s*['\"]|SET\s+STATEMENT\s.+?\sFOR\s)"  # MariaDB's: another statement follows
_MYSQL_COMMITS = (  # before these; a BEGIN NOT ATOMIC is a block of statements, seen behind it as a procedure is
    r"BEGIN(?!\s+NOT\s+ATOMIC\b)|START\s+TRANSACTION|ALTER|TRUNCATE|RENAME"
    r"|(?:CREATE|DROP)(?!\s+(?:(?:OR\s+REPLACE\s+)?TEMPORARY\s+TABLES?|PREPARE)\b)"
    r"|LOCK\s+TABLES?|GRANT|REVOKE|FLUSH|RESET|(?:UN)?INSTALL|BACKUP\s+(?:STAGE|LOCK)"
    r"|(?:ANALYZE|CHECK|OPTIMIZE|REPAIR)\s+(?:(?:LOCAL|NO_WRITE_TO_BINLOG)\s+)?(?:TABLES?|VIEW)"
    r"|SET\s+(?:PASSWORD|DEFAULT\s+ROLE|(?:[^'\"`]*,\s*)?"
    r"(?:@@)?(?:(?:LOCAL|SESSION)[\s.]\s*)?AUTOCOMMIT(?!\s*:?=\s*(?:0|OFF|FALSE)\b))"
)
_ENDING = re.compile(rf"{_COMMENTS}(?:{_ENDS})\b", _FLAGS)
_ENDING_ON_MYSQL = re.compile(
    rf"{_MYSQL_COMMENTS}(?:{_MYSQL_WITHIN}{_MYSQL_COMMENTS})*(?:{_ENDS}|{_MYSQL_COMMITS})\b", _FLAGS
)
IN_PARTS = re.compile(_COMMENTS + r"(?:SAVEPOINT|ROLLBACK\s+(?:WORK\s+|TRANSACTION\s+)?TO)\b", _FLAGS)
SETS_SAVEPOINT = re.compile(rf"{_COMMENTS}SAVEPOINT\b", _FLAGS)
RELEASES = re.compile(rf"{_COMMENTS}RELEASE\b", _FLAGS)


def ending(dialect: str, statement: str) -> str:
    """The first words of a statement that ends a transaction, or a part of it; empty for any other."""
    found = (_ENDING_ON_MYSQL if dialect in MYSQL_DIALECTS else _ENDING).match(statement)
    return "" if found is None else " ".join(found.group().split())
